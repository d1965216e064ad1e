"""What a GPU measured, for machines that have none: runs, and comparisons of layouts. One JSON object a line.

A Recording is an Experiment, the device and versions, the date, and what was measured. Shipped files and a local
store share this schema.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels import discover
from kernels.experiment import Experiment, from_json
from kernels.runner.results import Baseline, Check, Device, LayoutRow, LayoutStudy, Peak, RunResult, Timing

DIRECTORY = Path(__file__).parent


@dataclass(frozen=True)
class Recording:
    """A run or a comparison of layouts, measured on `gpu` (its name in the GPU table) on `date` (ISO 8601)."""

    gpu: str
    date: str
    measured: RunResult | LayoutStudy

    def to_line(self) -> str:
        kind = "run" if isinstance(self.measured, RunResult) else "layouts"
        return json.dumps({"gpu": self.gpu, "date": self.date, kind: self.measured.to_json()}, ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str) -> Recording:
        fields = json.loads(line)
        gpu, date = fields["gpu"], fields["date"]
        if "run" in fields:
            return cls(gpu, date, _run(fields["run"], gpu, date))
        return cls(gpu, date, _layouts(fields["layouts"], gpu, date))


def _layouts(fields: dict[str, Any], gpu: str, date: str) -> LayoutStudy:
    rows = (
        LayoutRow(
            **{**row, "timing": Timing(**row["timing"]), "baseline": row["baseline"] and Timing(**row["baseline"])}
        )
        for row in fields["rows"]
    )
    return LayoutStudy(
        experiment=from_json(fields["experiment"], discover()),
        backend="recorded",
        device=Device(**{**fields["device"], "backend": "recorded"}),
        rows=tuple(rows),
        clock_mhz=fields["clock_mhz"],
        note=f"Recorded on {gpu}, {date}.",
    )


def _run(fields: dict[str, Any], gpu: str, date: str) -> RunResult:
    baseline: Any = fields["baseline"] and dict(fields["baseline"])
    if baseline:
        name, ratio = baseline.pop("name"), baseline.pop("ratio")
        baseline = Baseline(name, Timing(**baseline), ratio)
    return RunResult(
        experiment=from_json(fields["experiment"], discover()),
        backend="recorded",
        device=Device(**{**fields["device"], "backend": "recorded"}),
        check=Check(**{**fields["check"], "worst_index": tuple(fields["check"]["worst_index"])}),
        diff=None,
        timing=fields["timing"] and Timing(**fields["timing"]),
        baseline=baseline,
        peak=fields["peak"] and Peak(**fields["peak"]),
        clock_mhz=fields["clock_mhz"],
        note=f"Recorded on {gpu}, {date}.",
        stages=fields["stages"],
    )


@functools.cache
def shipped() -> tuple[Recording, ...]:
    """All recordings that come with the product."""
    return tuple(
        Recording.from_line(line)
        for file in sorted(DIRECTORY.glob("*.jsonl"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if line.strip()
    )


def find(experiment: Experiment, gpu: str) -> RunResult | None:
    """The recorded run of this experiment on `gpu`, or None. The experiment's own `gpu` field is left aside."""
    return _found(experiment, gpu, RunResult)


def find_layouts(experiment: Experiment, gpu: str) -> LayoutStudy | None:
    """The recorded comparison of layouts, or None."""
    return _found(experiment, gpu, LayoutStudy)


def _found(experiment: Experiment, gpu: str, kind: type) -> Any:
    wanted = dataclasses.replace(experiment, gpu="")
    for recording in shipped():
        measured = recording.measured
        same = dataclasses.replace(measured.experiment, gpu="") == wanted
        if same and recording.gpu == gpu and isinstance(measured, kind):
            return dataclasses.replace(measured, experiment=experiment)
    return None
