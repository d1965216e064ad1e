"""What a compile or a measurement returns: a Failure, or a value that names its device."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernels.lanes import CompiledFacts
from kernels.results.codec import MeasuredExperiment

STAGES = ("config", "compile", "launch", "check", "time", "worker")


@dataclass(frozen=True)
class Failure:
    """Why there is no result. A wrong result is not a Failure: its check did not pass.

    Attributes:
        stage: one of STAGES, where it happened. A missed deadline has the kind "timeout" and the stage that missed it.
        kind: a word for programs.
        message: a sentence for people.
        field: the argument at fault; "" for none.
    """

    stage: str
    kind: str
    message: str
    field: str = ""


@dataclass(frozen=True)
class Device:
    """The device that ran a kernel: "cuda" or "interpreter", its own name, and the versions."""

    backend: str
    name: str
    torch: str
    triton: str


@dataclass(frozen=True)
class Compiled(CompiledFacts):
    """A kernel compiled for one GPU.

    Attributes:
        ttgir, ptx, sass: the kernel's text at three stages, with the source lines that it came from.
        triton: the compiler's version.
        seconds: compile time; short if the compiler's cache had the kernel.
    """

    gpu: str
    ttgir: str
    ptx: str
    sass: str
    triton: str
    seconds: float


@dataclass(frozen=True)
class Measured:
    """The result of a measurement.

    Attributes:
        backend: "cuda" or "interpreter" for a live result, "recorded" for an earlier one.
        note: what a reader must know, in sentences.
    """

    experiment: MeasuredExperiment
    backend: str
    device: Device
    note: str = field(default="", kw_only=True)
