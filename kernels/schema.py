"""JSON Schemas of experiments and arguments, built from the knobs that validate them. Standard library only.

`experiment_schema` is exact for one kernel. `merged_schema` covers all kernels in a sixth of the size of a union: a
field allows any value that some kernel allows, and its description names the kernels that have it and their defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernels.experiment import GPU, declared_parts, kernel_knob
from kernels.knobs import Knob, knobs
from kernels.spec import Kernel

JsonSchema = dict[str, Any]


def experiment_schema(kernel: Kernel) -> JsonSchema:
    """Return the JSON Schema (2020-12) of this kernel's experiments.

    The schema does not express incompatible combinations of fields. Only `from_json` rejects them.

    >>> from kernels import discover
    >>> schema = experiment_schema(discover()["matmul.grouped"])
    >>> schema["$defs"]["Config"]["properties"]["BLOCK_M"]["enum"]
    [16, 32, 64, 128, 256]
    """
    parts = declared_parts(kernel)
    fields = {
        "kernel": {"const": kernel.id, "description": kernel.headline, "title": "Kernel", "type": "string"},
        **{name: {"$ref": f"#/$defs/{name.title()}"} for name in parts},
        "gpu": _exact("gpu", GPU),
    }
    definitions = {
        name.title(): _closed(name.title(), {field: _exact(field, knob) for field, knob in allowed.items()})
        for name, (_, allowed) in parts.items()
    }
    return {"$defs": definitions, **_closed("Experiment", fields), "required": ["kernel"]}


def _closed(title: str, properties: JsonSchema) -> JsonSchema:
    return {"title": title, "type": "object", "additionalProperties": False, "properties": properties}


def _exact(name: str, knob: Knob) -> JsonSchema:
    title = name.title().replace("_", " ")
    return {**_allow([knob]), "default": knob.default, "description": knob.help, "title": title}


def merged_schema(kernels: Mapping[str, Kernel]) -> JsonSchema:
    """Return the JSON Schema of an experiment of any kernel."""
    parts = {part: {"type": "object", "properties": fields} for part, fields in merged_fields(kernels).items()}
    return {
        "type": "object",
        "description": "A kernel, its problem and its config. Omitted fields take the kernel's default.",
        "properties": {"kernel": kernel_schema(kernels), **parts, "gpu": gpu_schema()},
        "required": ["kernel"],
    }


def merged_fields(kernels: Mapping[str, Kernel]) -> dict[str, dict[str, JsonSchema]]:
    """Return the schema of each field of each part of an experiment (problem, config, run).

    >>> from kernels import discover
    >>> group_size = merged_fields(discover())["config"]["GROUP_SIZE"]
    >>> group_size["minimum"], group_size["maximum"]
    (1, 1024)
    """
    parts: dict[str, dict[str, dict[str, Knob]]] = {}
    for kernel in kernels.values():
        for part, (_, allowed) in declared_parts(kernel).items():
            for name, knob in allowed.items():
                parts.setdefault(part, {}).setdefault(name, {})[kernel.id] = knob
    return {
        part: {name: _merge(by_kernel, tuple(kernels)) for name, by_kernel in fields.items()}
        for part, fields in parts.items()
    }


def kernel_schema(kernels: Mapping[str, Kernel]) -> JsonSchema:
    """Return the schema of the kernel field."""
    return {**_allow([kernel_knob(kernels)]), "description": "The kernel. The kernels endpoint describes each one."}


def gpu_schema() -> JsonSchema:
    """Return the schema of the GPU field, without the empty choice."""
    return {"type": "string", "enum": [name for name in GPU.choices or () if name], "description": GPU.help}


def argument_schemas(declared: type, prefix: str = "") -> dict[str, JsonSchema]:
    """Return the schemas of an endpoint's arguments, a dataclass of knobs, by field name without `prefix`."""
    return {name: _merge({"": knob}, ("",)) for name, knob in knobs(declared, prefix).items()}


def _merge(by_kernel: Mapping[str, Knob], kernels: tuple[str, ...]) -> JsonSchema:
    merged = list(by_kernel.values())
    schema = _allow(merged)
    words = _group(by_kernel, kernels, lambda knob: knob.help.rstrip(".")) + "."
    if "minimum" in schema:  # Gradio shows the argument as a bare int, without its range
        words += f" {schema['minimum']} to {schema['maximum']}."
    words += " Default: " + _group(by_kernel, kernels, lambda knob: str(knob.default)) + "."
    if len({knob.default for knob in merged}) == 1:
        if len(by_kernel) == len(kernels):
            schema["default"] = merged[0].default
        else:
            words += f" Only for {_name(list(by_kernel), kernels)}."
    if len({(knob.choices, knob.low, knob.high) for knob in merged}) > 1:
        words += " Some kernels allow fewer values."
    return {**schema, "description": words}


def _allow(knobs: list[Knob]) -> JsonSchema:
    """Return a schema that allows every value that any of the knobs allows."""
    if knobs[0].longest is not None:
        return {"type": "string", "maxLength": max(knob.longest or 0 for knob in knobs)}
    choices = list(dict.fromkeys(choice for knob in knobs for choice in knob.choices or ()))
    if isinstance(knobs[0].default, str):
        return {"type": "string", "enum": choices}
    if all(knob.choices is not None for knob in knobs):
        return {"type": "integer", "enum": sorted(choices, key=int)}
    numbers = [int(number) for knob in knobs for number in knob.choices or (knob.low, knob.high)]
    return {"type": "integer", "minimum": min(numbers), "maximum": max(numbers)}


def _group(by_kernel: Mapping[str, Knob], kernels: tuple[str, ...], word: Callable[[Knob], str]) -> str:
    """Return each distinct word with the kernels that use it, or the word alone if all kernels agree."""
    groups: dict[str, list[str]] = {}
    for kernel, knob in by_kernel.items():
        groups.setdefault(word(knob), []).append(kernel)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{text} ({_name(ids, kernels)})" for text, ids in groups.items())


def _name(ids: list[str], kernels: tuple[str, ...]) -> str:
    """Join kernel ids, with "matmul.*" for all kernels of a family.

    >>> _name(["matmul.grouped", "transpose.flat"], ("matmul.grouped", "matmul.grid_2d", "transpose.flat"))
    'matmul.grouped, transpose.*'
    """
    words: list[str] = []
    for kernel in ids:
        family = kernel.split(".")[0]
        siblings = {other for other in kernels if other.split(".")[0] == family}
        words.append(f"{family}.*" if siblings <= set(ids) else kernel)
    return ", ".join(dict.fromkeys(words))
