"""What a checked and timed run gives."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from kernels.experiment import Experiment
from kernels.results.picture_forms import CELLS, ELEMENTS, pooled
from kernels.results.run_times import Baseline, Clocks, Device, LaunchOverhead, Peak, Timing

# Cells per side of a picture that is recorded.
MOST_RECORDED_CELLS = 64


@dataclass(frozen=True)
class Check:
    """The kernel's output against the reference.

    Attributes:
        relative_rms: RMS of the error over RMS of the reference.
        tolerance: the largest relative_rms that rounding explains: that of the right result, and of the sum before it.
        max_abs_error: largest |error|, of the finite ones.
        max_scaled_error: largest |error| / (|A| @ |B|) (for a transpose: / |A|), element by element.
        mismatched: elements whose error is more than rounding explains, those that are not finite included.
        nonfinite: elements that are NaN or infinite and should not be, as one is that was never written: the output
            started as NaN.
        worst_index: [row, column] of the element with the largest error in units of what is allowed there.
        worst_got, worst_expected: its two values.
        worst_over_allowed: its error beyond its rounding, over what is allowed there; 1 is the most that passes. Where
            the output must equal the reference: |error|.
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
    """The worst element's tile with its neighbours, as a picture, and the elements next to it, as numbers.

    Attributes:
        cells, cell: as of Diff.
        first, shape: the part of the output that is pictured: its first element, its rows and columns.
        near: [row, column] of the first of the elements beside the worst.
        got, expected, units: those elements, (rows, columns) each; `units` as of Diff's cells.
    """

    cells: Annotated[np.ndarray, CELLS]
    cell: tuple[int, int]
    first: tuple[int, int]
    shape: tuple[int, int]
    near: tuple[int, int]
    got: Annotated[np.ndarray, ELEMENTS]
    expected: Annotated[np.ndarray, ELEMENTS]
    units: Annotated[np.ndarray, ELEMENTS]

    def __post_init__(self) -> None:
        _refuse_misfit(self.cells, self.cell, self.shape)
        if not self.got.shape == self.expected.shape == self.units.shape:
            raise ValueError("got, expected and units hold the same elements")

    def small(self) -> Closeup:
        """The same in at most MOST_RECORDED_CELLS cells per side."""
        cells, cell = _small(self.cells, self.cell)
        return dataclasses.replace(self, cells=cells, cell=cell)

    def to_record(self) -> dict[str, Any]:
        """What a recording keeps."""
        return {
            "cells": CELLS.written(self.cells),
            "cell": list(self.cell),
            "first": list(self.first),
            "shape": list(self.shape),
            "near": list(self.near),
            **{name: ELEMENTS.written(getattr(self, name)) for name in ("got", "expected", "units")},
        }


@dataclass(frozen=True)
class Diff:
    """The error as a picture: (rows, columns) cells, each the largest error of `cell` elements.

    The error is what goes beyond the rounding of the right result, in units of what is allowed at each element
    (`exact`: any difference is wrong, so |error|). inf marks a cell with an element that is not finite. `tile` is rows
    and columns of the output's tiles, None where it has none.
    """

    cells: Annotated[np.ndarray, CELLS]
    cell: tuple[int, int]
    shape: tuple[int, int]
    exact: bool
    tile: tuple[int, int] | None = None
    closeup: Closeup | None = None

    def __post_init__(self) -> None:
        _refuse_misfit(self.cells, self.cell, self.shape)

    def small(self) -> Diff:
        """The same in at most MOST_RECORDED_CELLS cells per side, each the largest of those that it replaces."""
        cells, cell = _small(self.cells, self.cell)
        return dataclasses.replace(self, cells=cells, cell=cell, closeup=self.closeup and self.closeup.small())

    def to_record(self) -> dict[str, Any]:
        """What a recording keeps of it."""
        return {
            "cells": CELLS.written(self.cells),
            "cell": list(self.cell),
            "shape": list(self.shape),
            "exact": self.exact,
            "tile": self.tile and list(self.tile),
            "closeup": self.closeup and self.closeup.to_record(),
        }


def _small(cells: np.ndarray, cell: tuple[int, int]) -> tuple[np.ndarray, tuple[int, int]]:
    rows, columns = (-(-count // MOST_RECORDED_CELLS) for count in cells.shape)
    return pooled(cells, (rows, columns)), (cell[0] * rows, cell[1] * columns)


def _refuse_misfit(cells: np.ndarray, cell: tuple[int, int], shape: tuple[int, int]) -> None:
    """Raise ValueError unless the cells cover the elements, and no more."""
    if min(*cell, *shape) < 1 or cells.shape != tuple(-(-size // per) for size, per in zip(shape, cell, strict=True)):
        raise ValueError(f"{cells.shape} cells of {cell} elements don't make a picture of {shape} elements")


@dataclass(frozen=True)
class RunResult:
    """One run. What was timed is None under the interpreter, and where the check failed.

    Attributes:
        timing, baseline, peak: as of RunTimes, as is what follows `stages`.
        clock_mhz: the SM clock while it was timed, the median.
        note: what a reader must know.
        stages: seconds that each stage took.
        recorded: an earlier run on the GPU that is named, beside one that was not timed.
    """

    experiment: Experiment
    backend: str
    device: Device
    check: Check
    diff: Diff | None
    timing: Timing | None = None
    baseline: Baseline | None = None
    peak: Peak | None = None
    clock_mhz: int | None = None
    note: str = ""
    stages: dict[str, float] = field(default_factory=dict)
    recorded: RunResult | None = None
    baselines: tuple[Baseline, ...] = ()
    clocks: Clocks | None = None
    launch_overhead: LaunchOverhead | None = None
    launches_per_sample: int = 1
    copy_gbps: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The reply of `/run` (the picture of the error is left out)."""
        return {
            "experiment": self.experiment.to_json(),
            "backend": self.backend,
            "device": dataclasses.asdict(self.device),
            "timing": self.timing and dataclasses.asdict(self.timing),
            "baseline": self.baseline and self.baseline.to_json(),
            "peak": self.peak and dataclasses.asdict(self.peak),
            "check": dataclasses.asdict(self.check),
            "clock_mhz": self.clock_mhz,
            "l2": self.experiment.run.l2,
            "distribution": self.experiment.run.distribution,
            "note": self.note,
            "stages": self.stages,
            "recorded": self.recorded and self.recorded.to_json(),
            "baselines": [one.to_json() for one in self.baselines],
            "clocks": self.clocks and dataclasses.asdict(self.clocks),
            "launch_overhead": self.launch_overhead and dataclasses.asdict(self.launch_overhead),
            "launches_per_sample": self.launches_per_sample,
            "copy_gbps": self.copy_gbps,
        }

    def to_record(self) -> dict[str, Any]:
        """What a recording keeps: the reply, less what it has nothing to say of, and the picture of the error."""
        fields = dataclasses.replace(self, recorded=None).to_json()  # the one beside it is found again
        if self.baseline:
            fields["baseline"] = self.baseline.to_record()
        fields["baselines"] = [one.to_record() for one in self.baselines]
        nothing: dict[str, Any] = {"baselines": [], "launches_per_sample": 1}
        nothing |= dict.fromkeys(("clocks", "launch_overhead", "copy_gbps"))
        kept = {name: value for name, value in fields.items() if name not in nothing or value != nothing[name]}
        return {**kept, **({"diff": self.diff.small().to_record()} if self.diff else {})}
