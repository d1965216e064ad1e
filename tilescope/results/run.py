"""Outcomes: a Failure, a compiled kernel, or a checked and timed run with a picture of its error and torch's times."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

import numpy as np
from numpy import ndarray

from tilescope.evaluate.instructions import CompiledFacts
from tilescope.results.codec import Cells, Elements, MeasuredExperiment

# Largest number of cells per side of a recorded picture.
MOST_RECORDED_CELLS = 64

# A clock is steady if its lowest rate is at most this fraction below its highest.
STEADY_CLOCK = 0.03


@dataclass(frozen=True)
class Failure:
    """The reason why there is no result. A wrong result is not a Failure, but a result whose check failed.

    Attributes:
        stage: "config", "compile", "launch", "check", "time" or "worker". For a missed deadline, `kind` is "timeout".
        kind: a machine-readable word.
        message: a human-readable sentence.
        field: the argument at fault, or "".
    """

    stage: str
    kind: str
    message: str
    field: str = ""


class Stopped(Exception):
    """A stage failed, a job was cancelled, or no worker can be started. `failure` gives the reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


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
        tensor_columns: columns of tensor memory per program.
    """

    gpu: str
    ttgir: str
    ptx: str
    sass: str
    triton: str
    seconds: float
    tensor_columns: int = 0


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

    def compact(self) -> Self:
        """Return the part of the result to record."""
        return self


@dataclass(frozen=True)
class Check:
    """The kernel's output compared with the reference.

    Attributes:
        relative_rms: RMS of the error over RMS of the reference.
        tolerance: the largest relative_rms that rounding explains, in the sum and in its conversion to the dtype.
        max_abs_error: largest finite |error|.
        max_scaled_error: largest |error| / (|A| @ |B|), element by element; for a transpose, |error| / |A|.
        mismatched: elements whose error is larger than rounding explains, including elements that are not finite.
        nonfinite: elements that are NaN or infinite but should be finite. The output starts as NaN, so this includes
            elements that were never written.
        worst_index: [row, column] of the element with the largest error relative to its limit.
        worst_got, worst_expected: the worst element's actual and expected values.
        worst_over_allowed: the worst element's error beyond rounding the result, divided by its limit; at most 1
            passes. For an output that must equal the reference, it is |error|.
    """

    passed: bool
    relative_rms: float
    tolerance: float
    max_abs_error: float
    max_scaled_error: float
    mismatched: int
    nonfinite: int
    elements: int
    worst_index: tuple[int, int]
    worst_got: float
    worst_expected: float
    worst_over_allowed: float


@dataclass(frozen=True)
class Closeup:
    """A picture of the worst element's tile and the adjacent tiles, and the values around the worst element.

    Attributes:
        cells, cell: as in Diff.
        first, shape: the pictured part of the output: its first element, and its numbers of rows and columns.
        near: [row, column] of the first element in `got`.
        got, expected, units: (rows, columns) elements around the worst one; `units` is the error in Diff.cells' unit.
    """

    cells: Cells
    cell: tuple[int, int]
    first: tuple[int, int]
    shape: tuple[int, int]
    near: tuple[int, int]
    got: Elements
    expected: Elements
    units: Elements

    def __post_init__(self) -> None:
        _check_cells(self.cells, self.cell, self.shape)
        if not self.got.shape == self.expected.shape == self.units.shape:
            raise ValueError("got, expected and units must have the same shape")


@dataclass(frozen=True)
class Diff:
    """A picture of the error: (rows, columns) cells, each the largest error among `cell` elements.

    The error excludes the rounding of the exact result, and is in units of each element's limit. If `exact`, any
    difference is an error, and cells hold |error|. A cell is inf if one of its elements is not finite. `tile` is the
    number of rows and columns in an output tile; None for an output without tiles.
    """

    cells: Cells
    cell: tuple[int, int]
    shape: tuple[int, int]
    exact: bool
    tile: tuple[int, int] | None = None
    closeup: Closeup | None = None

    def __post_init__(self) -> None:
        _check_cells(self.cells, self.cell, self.shape)

    def shrink(self) -> Diff:
        """Return the picture and its closeup with at most MOST_RECORDED_CELLS cells per side."""
        return _shrink(replace(self, closeup=self.closeup and _shrink(self.closeup)))


Picture = TypeVar("Picture", Diff, Closeup)


def pool_max(cells: ndarray, factor: tuple[int, int]) -> ndarray:
    """Return the maximum of each block of `factor` cells. The last blocks of a row or column may be smaller."""
    rows, columns = cells.shape
    pooled_rows = np.maximum.reduceat(cells, np.arange(0, rows, factor[0]), axis=0)
    return np.maximum.reduceat(pooled_rows, np.arange(0, columns, factor[1]), axis=1)


def _shrink(picture: Picture) -> Picture:
    rows, columns = (-(-count // MOST_RECORDED_CELLS) for count in picture.cells.shape)
    cell = picture.cell[0] * rows, picture.cell[1] * columns
    return replace(picture, cells=pool_max(picture.cells, (rows, columns)), cell=cell)


def _check_cells(cells: ndarray, cell: tuple[int, int], shape: tuple[int, int]) -> None:
    """Raise ValueError unless the cells cover the elements exactly."""
    if min(*cell, *shape) < 1 or cells.shape != tuple(
        -(-size // per) for size, per in zip(shape, cell, strict=True)
    ):
        raise ValueError(
            f"{cells.shape} cells of {cell} elements don't make a picture of {shape} elements"
        )


@dataclass(frozen=True)
class Timing:
    """Times of one launch. Rates are computed from the median: `tflops` for a reduction, `gbps` for a copy."""

    median_ms: float
    p20_ms: float
    p80_ms: float
    samples: int
    tflops: float | None
    gbps: float | None


@dataclass(frozen=True)
class Baseline:
    """A library call, timed in alternating launches with the kernel.

    Attributes:
        ratio: the library's time divided by the kernel's, the median over pairs; above 1, the kernel is faster.
        ratio_low, ratio_high: the ratio's 95 % interval; None with too few pairs, or if it was not recorded.
    """

    name: str
    timing: Timing
    ratio: float
    ratio_low: float | None = None
    ratio_high: float | None = None

    @property
    def is_tie(self) -> bool:
        """Return whether the interval contains 1, so that neither is known to be faster."""
        return (
            self.ratio_low is not None
            and self.ratio_high is not None
            and self.ratio_low <= 1 <= self.ratio_high
        )


@dataclass(frozen=True)
class Peak:
    """The device's best measured rate in TFLOP/s or GB/s, measured with `what`; the kernel reached `share` of it."""

    rate: float
    unit: str
    what: str
    share: float


@dataclass(frozen=True)
class Clocks:
    """The SM clock during timing, in MHz: median, lowest and highest over the batches.

    Attributes:
        how: the tool that read the clock.
        limited_by: the driver's reasons for limiting the clock.
    """

    median_mhz: float
    lowest_mhz: float
    highest_mhz: float
    how: str
    limited_by: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """Describe how far the clock moved and what limited it; "" for a steady, unlimited clock.

        >>> Clocks(1755, 1740, 1980, "NVML", ("power limit",)).note
        'The SM clock moved between 1,740 and 1,980 MHz (12 %); the driver limited it: power limit.'
        """
        limited = f"the driver limited it: {', '.join(self.limited_by)}" if self.limited_by else ""
        spread = 1 - self.lowest_mhz / self.highest_mhz
        if spread <= STEADY_CLOCK:
            return (
                f"The SM clock stayed at {self.median_mhz:,.0f} MHz; {limited}." if limited else ""
            )
        span = f"{self.lowest_mhz:,.0f} and {self.highest_mhz:,.0f} MHz ({100 * spread:.0f} %)"
        return f"The SM clock moved between {span}{f'; {limited}' if limited else ''}."


@dataclass(frozen=True)
class LaunchOverhead:
    """The cost of one call from Python, independent of the kernel's time: medians on the host's clock.

    Attributes:
        enqueue_ms: from the call to its return, in a series of calls without synchronization.
        synchronized_ms: from the call to the end of its launch on an idle GPU.
        calls: number of enqueued calls.
    """

    enqueue_ms: float
    synchronized_ms: float
    calls: int


@dataclass(frozen=True)
class RunResult(Measured):
    """One run. Times are None under the interpreter and after a failed check.

    Attributes:
        baseline: the family's preferred library call; None if it has none.
        clock_mhz: the median SM clock during timing.
        stages: seconds per stage.
        recorded: an earlier run on the named GPU, shown next to a run without times.
        baselines: all timed library calls, the preferred one first.
        launches_per_sample: launches per timed sample; more than 1 if the timing replays a graph of launches.
        copy_gbps: the device's best rate for a large copy, bytes read plus bytes written.
    """

    check: Check
    diff: Diff | None = None
    timing: Timing | None = None
    baseline: Baseline | None = None
    peak: Peak | None = None
    clock_mhz: int | None = None
    stages: dict[str, float] = field(default_factory=dict)
    recorded: RunResult | None = None
    baselines: tuple[Baseline, ...] = ()
    clocks: Clocks | None = None
    launch_overhead: LaunchOverhead | None = None
    launches_per_sample: int = 1
    copy_gbps: float | None = None

    def compact(self) -> Self:
        """Keep a small picture of its error, and no earlier run."""
        return replace(self, diff=self.diff and self.diff.shrink(), recorded=None)
