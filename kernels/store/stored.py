"""A result as the store lists it: what a row says without its recording."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any

from kernels.experiment import Experiment
from kernels.results import Measured, RunResult, Timeline, Timing
from kernels.store.experiment_key import experiment_of


@dataclass(frozen=True)
class Marks:
    """What a result is known by in a listing; None for what a kind has not, or what was not timed.

    Attributes:
        median_ms, p20_ms, p80_ms, samples: of the kernel's own time.
        ratio, ratio_low, ratio_high: the library's time over it, with the 95 % interval.
        passed: whether what it wrote was right.
    """

    median_ms: float | None = None
    p20_ms: float | None = None
    p80_ms: float | None = None
    samples: int | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    passed: bool | None = None


@dataclass(frozen=True)
class Stored:
    """A result that is stored.

    Attributes:
        number: later results have higher ones.
        kind: the name of the measurement.
        text: its experiment, as of `experiment_key`.
        gpu: the GPU that it was measured on or, under the interpreter, stood for; as predictions name it.
        device, backend, torch, triton: as of results.Device.
        ended: when it ended, UTC.
    """

    number: int
    kind: str
    kernel: str
    text: str
    gpu: str
    device: str
    backend: str
    torch: str
    triton: str
    ended: datetime.datetime
    marks: Marks

    @property
    def experiment(self) -> Experiment | None:
        """What was measured; None where this version has no such kernel, or allows no such value."""
        return experiment_of(self.text)


MARKS = ", ".join(field.name for field in fields(Marks))
COLUMNS = f"number, kind, kernel, experiment, gpu, device, backend, torch, triton, ended, {MARKS}"


def stored(row: Sequence[Any]) -> Stored:
    """What a row of COLUMNS says."""
    number, kind, kernel, text, gpu, device, backend, torch, triton, ended, *marks, passed = row
    known: list[Any] = [*marks, None if passed is None else bool(passed)]
    date = datetime.datetime.fromisoformat(ended)
    return Stored(number, kind, kernel, text, gpu, device, backend, torch, triton, date, Marks(*known))


def values(marks: Marks) -> tuple[Any, ...]:
    """The marks in the order of their columns."""
    return astuple(marks)


@functools.singledispatch
def marks_of(measured: Measured) -> Marks:
    """What a result is known by; nothing for a kind that has no time of its own."""
    return Marks()


@marks_of.register
def _of_run(run: RunResult) -> Marks:
    marks = _timed(run.timing, run.check.passed)
    if run.baseline is None:
        return marks
    ratios = (run.baseline.ratio, run.baseline.ratio_low, run.baseline.ratio_high)
    return Marks(marks.median_ms, marks.p20_ms, marks.p80_ms, marks.samples, *ratios, marks.passed)


@marks_of.register
def _of_timeline(timeline: Timeline) -> Marks:
    return _timed(timeline.plain, timeline.passed)


def _timed(timing: Timing | None, passed: bool) -> Marks:
    if timing is None:
        return Marks(passed=passed)
    return Marks(timing.median_ms, timing.p20_ms, timing.p80_ms, timing.samples, passed=passed)
