"""One product with B stored each way, timed in turns."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from kernels.experiment import Experiment
from kernels.results.run_times import Device, Timing


@dataclass(frozen=True)
class LayoutRow:
    """One way to store B in a product.

    Attributes:
        way: "given", "transposed" (from the start), or "transposed first" (as given, and transposed by our own kernel
            in each launch, whose time counts).
        layout: how the operands that are given are stored.
        transposition_ms: the median of the transposition alone, None where there is none.
        baseline: times of the library's call on the operands that are given, None where it has none.
    """

    way: str
    layout: str
    timing: Timing
    transposition_ms: float | None
    baseline: Timing | None
    passed: bool
    relative_rms: float


@dataclass(frozen=True)
class LayoutStudy:
    """What the layout of B does to a product: every way, timed in turns."""

    experiment: Experiment
    backend: str
    device: Device
    rows: tuple[LayoutRow, ...]
    clock_mhz: int | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """The reply of `/layouts`."""
        return {
            "experiment": self.experiment.to_json(),
            "backend": self.backend,
            "device": dataclasses.asdict(self.device),
            "rows": [dataclasses.asdict(row) for row in self.rows],
            "clock_mhz": self.clock_mhz,
            "note": self.note,
        }
