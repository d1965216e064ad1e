"""Experiment: a kernel, its settings and a GPU, read from JSON or a URL, and its JSON Schemas. Standard library only.

`experiment_schema` is exact for one kernel. `merged_schema` covers all kernels and is a sixth of the size of a union.
Each of its fields allows any value that some kernel allows, and its description has the defaults of all kernels.
"""

import inspect
import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

from tilescope.caching import once
from tilescope.declare.discovery import discover
from tilescope.declare.gpus import DEFAULT_GPU, GPUS, Gpu
from tilescope.declare.knobs import (
    ConfigError,
    Knob,
    knob,
    knobs,
    quote,
    read_fields,
    refuse_unknown,
)
from tilescope.declare.spec import DTYPE_CAPABILITY, Kernel, Launch

# A JSON object.
Json = dict[str, Any]
JsonSchema = Json

GPU_CHOICES = ("", "this", *GPUS)
GPU = Knob(
    "", "Kernel", f"The GPU to predict for. Default: this machine's GPU, or {DEFAULT_GPU} if it has none.",
    choices=GPU_CHOICES, kind="unknown_gpu", label="GPU",
)  # fmt: skip


# The arguments of `triton.Config` that are not parameters of the kernel.
OPTIONS = "num_warps", "num_stages", "num_ctas", "maxnreg"


@dataclass(frozen=True)
class Run:
    """How inputs are generated and how time is measured."""

    distribution: str = knob(
        "normal",
        "Run",
        "Values of the inputs.",
        choices=("normal", "uniform", "integers", "zeros"),
        label="Inputs",
    )
    seed: int = knob(0, "Run", "Seed of the random inputs.", low=0, high=2**31 - 1, label="Seed")
    l2: str = knob(
        "warm", "Run", "warm: back-to-back launches. cold: other data fills the L2 before each launch.",
        choices=("warm", "cold"), label="L2",
    )  # fmt: skip
    timer: str = knob(
        "events", "Run", "events: two CUDA events per launch. graph: launches replayed from a CUDA graph.",
        choices=("events", "graph"), label="Timer",
    )  # fmt: skip


class Settings(SimpleNamespace):
    """The parameters of a script's case that make up its problem or its config."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(vars(self).items()))


@dataclass(frozen=True)
class Experiment:
    """A kernel, its problem and config, the GPU that predictions are for, and how to run it.

    `problem` and `config` are the kernel's own frozen dataclasses. `gpu` is a name from the GPU table, "this", or ""
    for the default: this device, or DEFAULT_GPU without one.

    In `tilescope tune`, an experiment may be of a script's case: `kernel` is "/path/script.py:case", and `problem` and
    `config` are `Settings`. No request to the page can name a script.
    """

    kernel: str
    problem: Any
    config: Any
    gpu: str = ""
    run: Run = Run()

    @property
    def is_case(self) -> bool:
        return isinstance(self.problem, Settings)

    def to_json(self) -> Json:
        """Return the API's payload: every field, nested."""
        parts = {name: dict(vars(getattr(self, name))) for name in ("problem", "config")}
        gpu = {"gpu": self.gpu} if self.gpu else {}
        return {"kernel": self.kernel, **parts, **gpu, "run": dict(vars(self.run))}

    def to_address(self) -> dict[str, int | str]:
        """Return the page's URL parameters: every field, flat."""
        flat: dict[str, int | str] = {}
        for name, part in self.to_json().items():
            flat |= part if isinstance(part, dict) else {name: part}
        return flat

    def short_address(self) -> dict[str, int | str]:
        """Return the kernel and the URL parameters that differ from its defaults."""
        defaults = default_experiment(self.kernel).to_address()
        return {
            name: value
            for name, value in self.to_address().items()
            if name == "kernel" or defaults.get(name) != value
        }

    def short_json(self) -> Json:
        """Return the API's payload without the kernel's defaults."""
        return {name: value for name, value in nest(self.short_address()).items() if value}

    def config_line(self, parameters: Container[str] = ()) -> str:
        """Return the config as a line of the list in `@triton.autotune(configs=[...])`.

        A knob that affects only the launch is not a parameter of the kernel. It becomes a comment, unless it is off.

        Args:
            parameters: the kernel's parameters, for a script's case.

        >>> print(from_json({"kernel": "transpose.tiled"}).config_line())
        triton.Config({"BLOCK_M": 64, "BLOCK_N": 128}, num_warps=4, num_stages=3),
        """
        fields = {name: value for name, value in vars(self.config).items() if value is not None}
        launch = "".join(f", {name}={fields.pop(name)!r}" for name in OPTIONS if name in fields)
        if not self.is_case:
            parameters = inspect.signature(discover()[self.kernel].jitted.fn).parameters
        constants = ", ".join(
            f'"{name}": {value!r}' for name, value in fields.items() if name in parameters
        )
        others = {name: value for name, value in fields.items() if name not in parameters}
        of_launch = ", ".join(f"{n}={value!r}" for n, value in others.items() if value != "never")
        comment = f"  # launch: {of_launch}" if of_launch else ""
        return f"triton.Config({{{constants}}}{launch}),{comment}"


@once
def default_experiment(kernel: str) -> Experiment:
    """Return the kernel's experiment with the default of every field."""
    return from_json({"kernel": kernel})


def kernel_knob() -> Knob:
    """Return the knob that selects a kernel."""
    return Knob(
        "",
        "Kernel",
        "The kernel to show.",
        choices=tuple(discover()),
        kind="unknown_kernel",
        label="Kernel",
    )


def find_kernel(name: object) -> Kernel:
    """Return the kernel with the id `name`.

    Raises:
        ConfigError: no kernel has this id.
    """
    return discover()[str(kernel_knob().validate("kernel", name))]


def declared_parts(kernel: Kernel) -> dict[str, tuple[type, Mapping[str, Knob]]]:
    """Return the parts of this kernel's experiments: name → (dataclass, its knobs by field name)."""
    return {
        "problem": (kernel.family.problem, kernel.problem_knobs()),
        "config": (kernel.config, knobs(kernel.config)),
        "run": (Run, knobs(Run)),
    }


def from_json(payload: object, *, together: bool = True) -> Experiment:
    """Build an Experiment from the API's payload. Omitted fields take the kernel's defaults.

    Args:
        together: whether to reject a config that does not fit the problem. Sweeps keep rows for such configs.

    Raises:
        ConfigError: the message names the field, its value and the allowed values.
    """
    if not isinstance(payload, Mapping):
        given = type(payload).__name__
        raise ConfigError(
            "not_an_object", f"The experiment must be a JSON object with a kernel (got a {given})."
        )
    refuse_unknown(payload, "An experiment", sorted(field.name for field in fields(Experiment)))
    kernel = find_kernel(payload.get("kernel"))
    parts = {}
    for name, (declared, allowed) in declared_parts(kernel).items():
        values = payload.get(name, {})
        if not isinstance(values, Mapping):
            raise ConfigError(
                "not_an_object", f"{name} must be a JSON object (got {quote(values)}).", name
            )
        parts[name] = read_fields(
            declared, values, f"{kernel.id}'s {name}" if name != "run" else "run", allowed
        )
    if together:
        kernel.family.refuse(parts["problem"], parts["config"])
    gpu = payload.get("gpu")
    return Experiment(kernel.id, gpu="" if gpu is None else str(GPU.validate("gpu", gpu)), **parts)


def nest(flat: Mapping[str, object]) -> Json:
    """Convert flat URL parameters or form values to the API's payload. Ignore unknown fields.

    Raises:
        ConfigError: `flat` does not name a known kernel.
    """
    kernel = find_kernel(flat.get("kernel"))
    parts = {
        name: {field: flat[field] for field in allowed if field in flat}
        for name, (_, allowed) in declared_parts(kernel).items()
    }
    return {"kernel": kernel.id, **parts, **({"gpu": flat["gpu"]} if flat.get("gpu") else {})}


def distance(first: Mapping[str, Any], second: Mapping[str, Any], unequal: float) -> float:
    """Return how different two settings are: the sum of |log2(ratio)| of numbers, plus `unequal` per other change."""
    total = 0.0
    for name, value in first.items():
        other = second.get(name)
        if value != other:
            are_numbers = all(isinstance(each, int | float) and each > 0 for each in (value, other))
            total += abs(math.log2(value / other)) if are_numbers else unequal
    return total


def resolve_gpu(experiment: Experiment, this: Gpu | None) -> Gpu:
    """Return the GPU that predictions are for.

    Args:
        this: this machine's GPU, or None.

    Raises:
        ConfigError: kind no_gpu if the experiment's GPU is "this" and the machine has none; kind unsupported_dtype if
            the GPU does not support the problem's dtype.
    """
    name = experiment.gpu
    if name == "this" and this is None:
        message = (
            f'gpu is "this", but this machine has no GPU. Omit gpu or choose {", ".join(GPUS)}.'
        )
        raise ConfigError("no_gpu", message, "gpu")
    gpu = this if this and name in ("", "this", this.name) else GPUS[name or DEFAULT_GPU]
    dtype = getattr(experiment.problem, "dtype", "")
    major, minor = DTYPE_CAPABILITY.get(dtype, (0, 0))
    if gpu.compute_capability < (major, minor):
        has = f"{gpu.name} has {gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
        needs = f"dtype is {dtype}, which needs compute capability {major}.{minor}"
        raise ConfigError("unsupported_dtype", f"{needs}; {has}.", "dtype")
    return gpu


def launch_of(experiment: Experiment, gpu: Gpu) -> tuple[Kernel, Launch]:
    """Return the experiment's kernel and its launch on a GPU."""
    return discover()[experiment.kernel], Launch(experiment.problem, experiment.config, gpu)


def without_gpu(experiment: Experiment) -> Experiment:
    """Return the key shared by all experiments that differ only in `gpu`."""
    return replace(experiment, gpu="")


def launch_key(experiment: Experiment, gpu: str = "") -> Experiment:
    """Return the key shared by all experiments with the same launch, regardless of inputs and timing.

    Args:
        gpu: the GPU's name if the result depends on the GPU, else "".
    """
    problem = discover()[experiment.kernel].family.essential(experiment.problem)
    return replace(experiment, gpu=gpu, problem=problem, run=Run())


def experiment_schema(kernel: Kernel) -> JsonSchema:
    """Return the JSON Schema (2020-12) of this kernel's experiments.

    The schema does not express incompatible combinations of fields. Only `from_json` rejects them.

    >>> from tilescope.declare.discovery import discover
    >>> schema = experiment_schema(discover()["matmul.grouped"])
    >>> schema["properties"]["config"]["properties"]["BLOCK_M"]["enum"]
    [16, 32, 64, 128, 256]
    """
    parts = {
        name: _closed({field: _exact(knob) for field, knob in allowed.items()})
        for name, (_, allowed) in declared_parts(kernel).items()
    }
    named = {"type": "string", "const": kernel.id, "description": kernel.headline}
    return {**_closed({"kernel": named, **parts, "gpu": _exact(GPU)}), "required": ["kernel"]}


def _closed(properties: JsonSchema) -> JsonSchema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _exact(knob: Knob) -> JsonSchema:
    return {**_allow([knob]), "default": knob.default, "description": knob.help}


def merged_schema() -> JsonSchema:
    """Return the JSON Schema of an experiment of any kernel."""
    parts = {
        part: {"type": "object", "properties": fields} for part, fields in merged_fields().items()
    }
    return {
        "type": "object",
        "description": "A kernel, its problem and its config. Omitted fields take the kernel's default. "
        "The kernels endpoint lists each kernel's fields, choices and defaults.",
        "properties": {"kernel": kernel_schema(), **parts, "gpu": gpu_schema()},
        "required": ["kernel"],
    }


def merged_fields() -> dict[str, dict[str, JsonSchema]]:
    """Return the schema of each field of each part of an experiment (problem, config, run).

    >>> group_size = merged_fields()["config"]["GROUP_SIZE"]
    >>> group_size["minimum"], group_size["maximum"]
    (1, 1024)
    """
    kernels = discover().values()
    parts: dict[str, dict[str, list[Knob]]] = {}
    for kernel in kernels:
        for part, (_, allowed) in declared_parts(kernel).items():
            for name, declared in allowed.items():
                parts.setdefault(part, {}).setdefault(name, []).append(declared)
    return {
        part: {name: _merge(declared, len(kernels)) for name, declared in fields.items()}
        for part, fields in parts.items()
    }


def kernel_schema() -> JsonSchema:
    """Return the schema of the kernel field."""
    return {
        **_allow([kernel_knob()]),
        "description": "The kernel. The kernels endpoint describes each one.",
    }


def gpu_schema() -> JsonSchema:
    """Return the schema of the GPU field, without the empty choice."""
    return {
        "type": "string",
        "enum": [name for name in GPU.choices or () if name],
        "description": GPU.help,
    }


def argument_schemas(declared: type) -> dict[str, JsonSchema]:
    """Return the schemas of an endpoint's arguments, a dataclass of knobs, by field name."""
    return {name: _merge([knob], 1) for name, knob in knobs(declared).items()}


def _merge(declared: list[Knob], kernels: int) -> JsonSchema:
    schema = _allow(declared)
    words = "; ".join(dict.fromkeys(knob.help.rstrip(".") for knob in declared)) + "."
    if "minimum" in schema:  # Gradio shows the argument as a bare int, without its range
        words += f" {schema['minimum']} to {schema['maximum']}."
    defaults = list(dict.fromkeys(knob.default for knob in declared))
    words += f" Default: {' or '.join(map(str, defaults))}."
    if len(defaults) == 1 and len(declared) == kernels:
        schema["default"] = defaults[0]
    return {**schema, "description": words}


def _allow(knobs: list[Knob]) -> JsonSchema:
    """Return a schema that allows a value if any of the knobs allows it."""
    if knobs[0].longest is not None:
        return {"type": "string", "maxLength": max(knob.longest or 0 for knob in knobs)}
    choices = list(dict.fromkeys(choice for knob in knobs for choice in knob.choices or ()))
    if isinstance(knobs[0].default, str):
        return {"type": "string", "enum": choices}
    if all(knob.choices is not None for knob in knobs):
        return {"type": "integer", "enum": sorted(choices, key=int)}
    numbers = [int(number) for knob in knobs for number in knob.choices or (knob.low, knob.high)]
    return {"type": "integer", "minimum": min(numbers), "maximum": max(numbers)}
