"""One JSON Schema for the experiments of all kernels, small enough to stand at every endpoint.

`schema.experiment_schema` is exact, and one for each kernel: a union of them is 6 times as long as this. Here a field
allows what any kernel allows; which kernels have it, and with which default, is said in words. `from_json` checks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernels.experiment import GPU_CHOICES
from kernels.gpus import DEFAULT_GPU
from kernels.knobs import Knob
from kernels.schema import declared_parts
from kernels.spec import Kernel

JsonSchema = dict[str, Any]


def merged_fields(kernels: Mapping[str, Kernel]) -> dict[str, dict[str, JsonSchema]]:
    """Part of an experiment (problem, config, run) → field → its schema.

    >>> from kernels import discover
    >>> group_size = merged_fields(discover())["config"]["GROUP_SIZE"]
    >>> group_size["minimum"], group_size["maximum"]
    (1, 1024)
    """
    found: dict[str, dict[str, dict[str, Knob]]] = {}
    for kernel in kernels.values():
        for part, declared in declared_parts(kernel).items():
            for name, knob in declared.items():
                found.setdefault(part, {}).setdefault(name, {})[kernel.id] = knob
    return {
        part: {name: _merged(by_kernel, tuple(kernels)) for name, by_kernel in fields.items()}
        for part, fields in found.items()
    }


def kernel_field(kernels: Mapping[str, Kernel]) -> JsonSchema:
    """The choice of a kernel."""
    return {"type": "string", "enum": list(kernels), "description": "The kernel. kernels says what each shows."}


def gpu_field() -> JsonSchema:
    """The choice of a GPU."""
    words = f"""GPU that predictions are for. Default: this machine's; {DEFAULT_GPU} where it has none."""
    return {"type": "string", "enum": [name for name in GPU_CHOICES if name], "description": words}


def merged_schema(kernels: Mapping[str, Kernel]) -> JsonSchema:
    """An experiment of any kernel."""
    parts = {part: {"type": "object", "properties": fields} for part, fields in merged_fields(kernels).items()}
    return {
        "type": "object",
        "description": "What is looked at. What is left out takes the kernel's default.",
        "properties": {
            "kernel": kernel_field(kernels),
            **parts,
            "gpu": gpu_field(),
        },
        "required": ["kernel"],
    }


def object_schema(declared: Mapping[str, Knob], description: str) -> JsonSchema:
    """A JSON object of knobs, each of which can be left out."""
    return {
        "type": "object",
        "description": description,
        "properties": {name: _merged({"": knob}, ("",)) for name, knob in declared.items()},
    }


def _merged(by_kernel: Mapping[str, Knob], kernels: tuple[str, ...]) -> JsonSchema:
    several = list(by_kernel.values())
    schema = _allowed(several)
    words = _grouped(by_kernel, kernels, lambda knob: knob.help.rstrip(".")) + "."
    if "minimum" in schema:  # Gradio's Python type of it is a bare int
        words += f" {schema['minimum']} to {schema['maximum']}."
    words += " Default: " + _grouped(by_kernel, kernels, lambda knob: str(knob.default)) + "."
    if len({knob.default for knob in several}) == 1:
        if len(by_kernel) == len(kernels):
            schema["default"] = several[0].default
        else:
            words += f" Only for {_names(list(by_kernel), kernels)}."
    if len({(knob.choices, knob.low, knob.high) for knob in several}) > 1:
        words += " Some kernels allow fewer values."
    return {**schema, "description": words}


def _allowed(several: list[Knob]) -> JsonSchema:
    """What any of these knobs allows."""
    longest = [knob.longest for knob in several if knob.longest is not None]
    if longest:
        return {"type": "string", "maxLength": max(longest)}
    choices = list(dict.fromkeys(choice for knob in several for choice in knob.choices or ()))
    if all(isinstance(choice, str) for choice in choices) and choices:
        return {"type": "string", "enum": choices}
    if all(knob.choices is not None for knob in several):
        return {"type": "integer", "enum": sorted(choices, key=int)}
    numbers = [number for knob in several for number in (knob.choices or (knob.low, knob.high))]
    return {"type": "integer", "minimum": min(map(int, numbers)), "maximum": max(map(int, numbers))}


def _grouped(by_kernel: Mapping[str, Knob], kernels: tuple[str, ...], word: Callable[[Knob], str]) -> str:
    """The word of each group of kernels, or the word alone where all agree."""
    groups: dict[str, list[str]] = {}
    for kernel, knob in by_kernel.items():
        groups.setdefault(word(knob), []).append(kernel)
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{said} ({_names(ids, kernels)})" for said, ids in groups.items())


def _names(ids: list[str], kernels: tuple[str, ...]) -> str:
    """Kernels' ids, a family's as "matmul.*" where all of them are named.

    >>> _names(["matmul.grouped", "transpose.flat"], ("matmul.grouped", "matmul.grid_2d", "transpose.flat"))
    'matmul.grouped, transpose.*'
    """
    words: list[str] = []
    for kernel in ids:
        family = kernel.split(".")[0]
        alike = [one for one in kernels if one.split(".")[0] == family]
        words.append(f"{family}.*" if set(alike) <= set(ids) else kernel)
    return ", ".join(dict.fromkeys(words))
