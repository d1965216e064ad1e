"""Experiment: the one value that walks through the house. Validation, JSON, address. Standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.gpus import DEFAULT_GPU, GPUS, Gpu
from kernels.knobs import ConfigError, checked_fields, knob, knobs, quoted
from kernels.spec import DTYPE_CAPABILITY, Kernel

GPU_CHOICES = ("", "this", *GPUS)


@dataclass(frozen=True)
class Run:
    """How inputs are generated and how time is taken."""

    distribution: str = knob(
        "normal", "Run", "Values of the inputs.", choices=("normal", "uniform", "integers", "zeros")
    )
    seed: int = knob(0, "Run", "Seed of the inputs.", low=0, high=2**31 - 1)
    l2: str = knob(
        "warm", "Run", "warm: launches follow each other. cold: L2 is filled with other data before each.",
        choices=("warm", "cold"),
    )  # fmt: skip
    timer: str = knob(
        "events", "Run", "events: each launch between two CUDA events. graph: launches replayed from a CUDA graph.",
        choices=("events", "graph"),
    )  # fmt: skip


@dataclass(frozen=True)
class Experiment:
    """A kernel, its problem and config, the GPU that predictions are for, and how to run it.

    `gpu` is "" (left out: this device, or where there is none the default of the table), "this", or a name from
    the GPU table. `problem` and `config` are the kernel's own frozen dataclasses.
    """

    kernel: str
    problem: Any
    config: Any
    gpu: str = ""
    run: Run = Run()

    def to_json(self) -> dict[str, Any]:
        """The API's payload: every field, nested."""
        payload = {
            "kernel": self.kernel,
            "problem": dataclasses.asdict(self.problem),
            "config": dataclasses.asdict(self.config),
            "gpu": self.gpu,
            "run": dataclasses.asdict(self.run),
        }
        return payload if self.gpu else {k: v for k, v in payload.items() if k != "gpu"}

    def to_address(self) -> dict[str, int | str]:
        """The page's address: every field, flat."""
        nested = self.to_json()
        return {
            "kernel": self.kernel,
            **nested["problem"],
            **nested["config"],
            **({"gpu": self.gpu} if self.gpu else {}),
            **nested["run"],
        }


def from_json(payload: object, kernels: Mapping[str, Kernel], *, together: bool = True) -> Experiment:
    """Build an Experiment from the API's payload; what is left out takes the kernel's default.

    Args:
        together: whether the family is asked if problem and config go together. A row of a sweep can be of a config
            that it refuses.

    Raises:
        ConfigError: with what was wrong, the value, and what is allowed.
    """
    if not isinstance(payload, Mapping):
        raise ConfigError(
            "not_an_object", f"The experiment is a {type(payload).__name__}; it must be a JSON object with a kernel."
        )
    known = {field.name for field in dataclasses.fields(Experiment)}
    for name in payload:
        if name not in known:
            raise ConfigError(
                "unknown_field",
                f"An experiment has no field {quoted(name)}; it has {', '.join(sorted(known))}.",
                str(name),
            )
    kernel = kernel_named(payload.get("kernel"), kernels)
    parts = {}
    for name, declared, allowed in (
        ("problem", kernel.family.problem, kernel.problem_knobs()),
        ("config", kernel.config, None),
        ("run", Run, None),
    ):
        values = payload.get(name, {})
        if not isinstance(values, Mapping):
            raise ConfigError("not_an_object", f"{name} is {quoted(values)}; it must be a JSON object.", name)
        parts[name] = checked_fields(declared, values, f"{kernel.id}'s {name}" if name != "run" else "run", allowed)
    if together:
        kernel.family.refuse(parts["problem"], parts["config"])
    gpu = payload.get("gpu")
    gpu = "" if gpu is None else gpu
    if not isinstance(gpu, str) or gpu not in GPU_CHOICES:
        raise ConfigError("unknown_gpu", f"gpu is {quoted(gpu)}; allowed are this, {', '.join(GPUS)}.", "gpu")
    return Experiment(kernel.id, gpu=gpu, **parts)


def kernel_named(name: object, kernels: Mapping[str, Kernel]) -> Kernel:
    """The kernel of that id, or a ConfigError that lists those there are."""
    if not isinstance(name, str) or name not in kernels:
        raise ConfigError("unknown_kernel", f"kernel is {quoted(name)}; there are {', '.join(kernels)}.", "kernel")
    return kernels[name]


def nested(flat: Mapping[str, object], kernels: Mapping[str, Kernel]) -> dict[str, Any]:
    """The API's payload from an address or a form. Fields of other things (a View's, say) are left aside.

    Raises:
        ConfigError: where `flat` names no known kernel.
    """
    kernel = kernel_named(flat.get("kernel"), kernels)
    payload: dict[str, Any] = {"kernel": kernel.id}
    for name, declared in (("problem", kernel.family.problem), ("config", kernel.config), ("run", Run)):
        payload[name] = {field: flat[field] for field in knobs(declared) if field in flat}
    if flat.get("gpu"):
        payload["gpu"] = flat["gpu"]
    return payload


def resolved_gpu(experiment: Experiment, this: Gpu | None) -> Gpu:
    """The GPU that predictions are for.

    Args:
        this: this machine's GPU, or None.

    Raises:
        ConfigError: kind no_gpu, where the experiment says "this" and there is none; kind unsupported_dtype, where the
            GPU does not know the problem's type.
    """
    gpu = _named_gpu(experiment, this)
    needed = DTYPE_CAPABILITY.get(experiment.problem.dtype, (0, 0))
    if gpu.compute_capability < needed:
        raise ConfigError(
            "unsupported_dtype",
            f"dtype is {experiment.problem.dtype}, which needs compute capability {needed[0]}.{needed[1]}; "
            f"{gpu.name} has {gpu.compute_capability[0]}.{gpu.compute_capability[1]}.",
            "dtype",
        )
    return gpu


def _named_gpu(experiment: Experiment, this: Gpu | None) -> Gpu:
    if experiment.gpu in ("", "this"):
        if this is not None:
            return this
        if experiment.gpu == "this":
            raise ConfigError(
                "no_gpu", f'gpu is "this", and this machine has none; leave it out or choose {", ".join(GPUS)}.', "gpu"
            )
        return GPUS[DEFAULT_GPU]
    if this is not None and this.name == experiment.gpu:
        return this
    return GPUS[experiment.gpu]
