"""The outcome of a compile or a measurement: a Failure, or a value that names its device."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernels.accesses import CompiledFacts
from kernels.results.codec import MeasuredExperiment

STAGES = ("config", "compile", "launch", "check", "time", "worker")


@dataclass(frozen=True)
class Failure:
    """The reason why there is no result. A wrong result is not a Failure, but a result whose check failed.

    Attributes:
        stage: the stage that failed, one of STAGES. For a missed deadline, `kind` is "timeout".
        kind: a machine-readable word.
        message: a human-readable sentence.
        field: the argument at fault, or "".
    """

    stage: str
    kind: str
    message: str
    field: str = ""


@dataclass(frozen=True)
class Device:
    """The device that ran a kernel: its backend ("cuda" or "interpreter"), its name, and library versions."""

    backend: str
    name: str
    torch: str
    triton: str


@dataclass(frozen=True)
class Compiled(CompiledFacts):
    """A kernel compiled for one GPU.

    Attributes:
        ttgir, ptx, sass: the kernel at three stages of compilation, annotated with source lines.
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
        note: caveats for the reader, in sentences.
    """

    experiment: MeasuredExperiment
    backend: str
    device: Device
    note: str = field(default="", kw_only=True)
