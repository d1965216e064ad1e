"""One launch, program by program: on which SM each ran, and from when to when."""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import Any

from kernels.experiment import Experiment
from kernels.results.run_times import Device, Timing

WHAT_IS_TIMED = (
    "Each program reads the GPU's timer first thing, and again once all its warps have issued their last store. "
    "The launch itself, and writes that are still on their way to memory when a program ends, are in no program's time."
)


@dataclass(frozen=True)
class Timeline:
    """When and where each program of one launch ran, as a build of the kernel made for it wrote down.

    Attributes:
        backend: "cuda", or "recorded" on another day.
        sm: %smid of each program, in the order of pid = x + y·grid_x + z·grid_x·grid_y.
        start_ns, end_ns: %globaltimer of each program, counted from the first start.
        kernel_ms: time of this very launch by CUDA events.
        plain, instrumented: times of the kernel and of the build that writes its times down, taken in turns.
        registers: registers per thread of those two.
        passed: whether the build's output passed the kernel's check.
        clock_mhz: the SM clock while they were timed; None where it can't be read.
    """

    experiment: Experiment
    backend: str
    device: Device
    sm: tuple[int, ...]
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]
    kernel_ms: float
    plain: Timing
    instrumented: Timing
    registers: tuple[int, int]
    passed: bool
    clock_mhz: int | None = None
    note: str = ""

    @property
    def span_ns(self) -> int:
        """From the first start to the last end."""
        return max(self.end_ns) - min(self.start_ns)

    @property
    def tick_ns(self) -> int:
        """The timer's tick: the greatest common divisor of all differences. With few programs it may be a multiple."""
        return math.gcd(*self._steps())

    @property
    def step_ns(self) -> int:
        """The smallest difference between two times that differ; 0 where none do."""
        return min(self._steps(), default=0)

    def _steps(self) -> list[int]:
        times = sorted({*self.start_ns, *self.end_ns})
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    def to_json(self) -> dict[str, Any]:
        """The reply of `/timeline`."""
        columns = {"sm": self.sm, "start_ns": self.start_ns, "end_ns": self.end_ns}
        rows = zip(*columns.values(), strict=True)
        return {
            **{name: value for name, value in self.to_record().items() if name not in columns},
            "backend": self.backend,
            "programs": [dict(zip(columns, row, strict=True)) for row in rows],
            "span_ns": self.span_ns,
            "tick_ns": self.tick_ns,
            "step_ns": self.step_ns,
            "plain_ms": self.plain.median_ms,
            "instrumented_ms": self.instrumented.median_ms,
            "note": " ".join(filter(None, (self.note, WHAT_IS_TIMED))),
        }

    def to_record(self) -> dict[str, Any]:
        """What a recording keeps: one list per column, and nothing that follows from the rest."""
        return {
            "experiment": self.experiment.to_json(),
            "device": dataclasses.asdict(self.device),
            "sm": list(self.sm),
            "start_ns": list(self.start_ns),
            "end_ns": list(self.end_ns),
            "kernel_ms": self.kernel_ms,
            "plain": dataclasses.asdict(self.plain),
            "instrumented": dataclasses.asdict(self.instrumented),
            "registers": list(self.registers),
            "passed": self.passed,
            "clock_mhz": self.clock_mhz,
        }
