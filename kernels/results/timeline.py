"""One launch, program by program: which SM ran each program, and when."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from kernels.results.fields import MeasuredExperiment
from kernels.results.outcome import Device
from kernels.results.run import Timing


@dataclass(frozen=True)
class Timeline:
    """Where and when each program of one launch ran, recorded by an instrumented build of the kernel.

    Attributes:
        sm: %smid of each program, in the order of pid = x + y·grid_x + z·grid_x·grid_y.
        start_ns, end_ns: %globaltimer of each program, counted from the first start.
        kernel_ms: time of this launch by CUDA events.
        plain, instrumented: times of the kernel and of the instrumented build, in alternating launches.
        registers: registers per thread of these two.
        passed: whether the instrumented build's output passed the kernel's check.
        clock_mhz: the SM clock during timing; None if it can't be read.
    """

    experiment: MeasuredExperiment
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
        """Return the time from the first start to the last end."""
        return max(self.end_ns) - min(self.start_ns)

    @property
    def tick_ns(self) -> int:
        """Return the timer's tick: the greatest common divisor of all differences. Few programs may give a multiple."""
        return math.gcd(*self._steps())

    @property
    def step_ns(self) -> int:
        """Return the smallest nonzero difference between two times; 0 if all are equal."""
        return min(self._steps(), default=0)

    def _steps(self) -> list[int]:
        times = sorted({*self.start_ns, *self.end_ns})
        return [later - earlier for earlier, later in itertools.pairwise(times)]
