"""Experiment: a kernel, its settings and a GPU, read from JSON or from a URL. Standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels import discover
from kernels.gpus import DEFAULT_GPU, GPUS, Gpu
from kernels.knobs import ConfigError, Knob, knob, knobs, quote, read_fields, refuse_unknown
from kernels.spec import DTYPE_CAPABILITY, Kernel

GPU_CHOICES = ("", "this", *GPUS)
GPU = Knob(
    "", "Kernel", f"GPU that predictions are for. Default: this machine's GPU, or {DEFAULT_GPU} if it has none.",
    choices=GPU_CHOICES, kind="unknown_gpu",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """How inputs are generated and how time is measured."""

    distribution: str = knob(
        "normal", "Run", "Values of the inputs.", choices=("normal", "uniform", "integers", "zeros")
    )
    seed: int = knob(0, "Run", "Seed of the inputs.", low=0, high=2**31 - 1)
    l2: str = knob(
        "warm", "Run", "warm: launches run back to back. cold: L2 is filled with other data before each launch.",
        choices=("warm", "cold"),
    )  # fmt: skip
    timer: str = knob(
        "events", "Run", "events: each launch between two CUDA events. graph: launches replayed from a CUDA graph.",
        choices=("events", "graph"),
    )  # fmt: skip


@dataclass(frozen=True)
class Experiment:
    """A kernel, its problem and config, the GPU that predictions are for, and how to run it.

    `problem` and `config` are the kernel's own frozen dataclasses. `gpu` is a name from the GPU table, "this", or ""
    for the default: this device, or DEFAULT_GPU without one.
    """

    kernel: str
    problem: Any
    config: Any
    gpu: str = ""
    run: Run = Run()

    def to_json(self) -> dict[str, Any]:
        """Return the API's payload: every field, nested."""
        parts = {name: dict(vars(getattr(self, name))) for name in ("problem", "config")}
        gpu = {"gpu": self.gpu} if self.gpu else {}
        return {"kernel": self.kernel, **parts, **gpu, "run": dict(vars(self.run))}

    def to_address(self) -> dict[str, int | str]:
        """Return the page's URL parameters: every field, flat."""
        gpu = {"gpu": self.gpu} if self.gpu else {}
        return {"kernel": self.kernel, **vars(self.problem), **vars(self.config), **gpu, **vars(self.run)}


def kernel_knob(kernels: Mapping[str, Kernel]) -> Knob:
    """Return the knob that selects a kernel."""
    return Knob("", "Kernel", "The kernel that is shown.", choices=tuple(kernels), kind="unknown_kernel")


def find_kernel(name: object, kernels: Mapping[str, Kernel]) -> Kernel:
    """Return the kernel with the id `name`.

    Raises:
        ConfigError: no kernel has this id.
    """
    return kernels[str(kernel_knob(kernels).validate("kernel", name))]


def declared_parts(kernel: Kernel) -> dict[str, tuple[type, dict[str, Knob]]]:
    """Return the parts of this kernel's experiments: name → (dataclass, its knobs by field name)."""
    return {
        "problem": (kernel.family.problem, kernel.problem_knobs()),
        "config": (kernel.config, knobs(kernel.config)),
        "run": (Run, knobs(Run)),
    }


def from_json(payload: object, kernels: Mapping[str, Kernel], *, together: bool = True) -> Experiment:
    """Build an Experiment from the API's payload. Omitted fields take the kernel's defaults.

    Args:
        together: whether to reject a config that is incompatible with the problem. A sweep keeps rows for such configs.

    Raises:
        ConfigError: the message names the field, its value and the allowed values.
    """
    if not isinstance(payload, Mapping):
        given = type(payload).__name__
        raise ConfigError("not_an_object", f"The experiment is a {given}; it must be a JSON object with a kernel.")
    refuse_unknown(payload, "An experiment", sorted(field.name for field in dataclasses.fields(Experiment)))
    kernel = find_kernel(payload.get("kernel"), kernels)
    parts = {}
    for name, (declared, allowed) in declared_parts(kernel).items():
        values = payload.get(name, {})
        if not isinstance(values, Mapping):
            raise ConfigError("not_an_object", f"{name} is {quote(values)}; it must be a JSON object.", name)
        parts[name] = read_fields(declared, values, f"{kernel.id}'s {name}" if name != "run" else "run", allowed)
    if together:
        kernel.family.refuse(parts["problem"], parts["config"])
    gpu = payload.get("gpu")
    return Experiment(kernel.id, gpu="" if gpu is None else str(GPU.validate("gpu", gpu)), **parts)


def nest(flat: Mapping[str, object], kernels: Mapping[str, Kernel]) -> dict[str, Any]:
    """Convert flat URL parameters or form values to the API's payload. Ignore unknown fields.

    Raises:
        ConfigError: `flat` does not name a known kernel.
    """
    kernel = find_kernel(flat.get("kernel"), kernels)
    parts = {
        name: {field: flat[field] for field in allowed if field in flat}
        for name, (_, allowed) in declared_parts(kernel).items()
    }
    return {"kernel": kernel.id, **parts, **({"gpu": flat["gpu"]} if flat.get("gpu") else {})}


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
        allowed = ", ".join(GPUS)
        raise ConfigError("no_gpu", f'gpu is "this", but this machine has none; omit it or choose {allowed}.', "gpu")
    if this is not None and name in ("", "this", this.name):
        gpu = this
    else:
        gpu = GPUS[name or DEFAULT_GPU]
    major, minor = DTYPE_CAPABILITY.get(experiment.problem.dtype, (0, 0))
    if gpu.compute_capability < (major, minor):
        has = f"{gpu.name} has {gpu.compute_capability[0]}.{gpu.compute_capability[1]}"
        needs = f"dtype is {experiment.problem.dtype}, which needs compute capability {major}.{minor}"
        raise ConfigError("unsupported_dtype", f"{needs}; {has}.", "dtype")
    return gpu


def on_any_gpu(experiment: Experiment) -> Experiment:
    """Return the key shared by all experiments that differ only in `gpu`."""
    return dataclasses.replace(experiment, gpu="")


def same_launch(experiment: Experiment, gpu: str = "") -> Experiment:
    """Return the key shared by all experiments with the same launch, regardless of inputs and timing.

    Args:
        gpu: name of the GPU if the result depends on it, else "".
    """
    problem = discover()[experiment.kernel].family.essential(experiment.problem)
    return dataclasses.replace(experiment, gpu=gpu, problem=problem, run=Run())
