"""What a GPU measured, for machines that have none: runs, layouts, counts, timelines. One JSON object a line.

A Recording is an Experiment, the device and versions, the date, and what was measured. Shipped files and a local
store share this schema.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels import discover
from kernels.experiment import Experiment, Run, from_json
from kernels.lanes import CompiledFacts
from kernels.results import (
    Baseline,
    Check,
    Counters,
    Device,
    GroupSizeRow,
    GroupSizeStudy,
    LayoutRow,
    LayoutStudy,
    OpCounts,
    Peak,
    RunResult,
    SharedCounts,
    Timeline,
    Timing,
)
from kernels.results.group_size_study import any_group_size

DIRECTORY = Path(__file__).parent


@dataclass(frozen=True)
class Recording:
    """What was measured of an experiment on `gpu` (a name of the GPU table): one of the kinds below.

    `date` is that of the day, as in ISO 8601.
    """

    gpu: str
    date: str
    measured: RunResult | LayoutStudy | Counters | GroupSizeStudy | Timeline

    def to_line(self) -> str:
        kind = _KINDS[type(self.measured)]
        measured = self.measured.to_record() if isinstance(self.measured, Timeline) else self.measured.to_json()
        fields = {"gpu": self.gpu, "date": self.date, kind: measured}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":") if kind in _LONG else None)

    @classmethod
    def from_line(cls, line: str) -> Recording:
        fields = json.loads(line)
        gpu, date = fields["gpu"], fields["date"]
        read = next(_READERS[kind] for kind in _READERS if kind in fields)
        return cls(gpu, date, read(next(fields[kind] for kind in _READERS if kind in fields), gpu, date))


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


def _reuse(fields: dict[str, Any], gpu: str, date: str) -> GroupSizeStudy:
    numbers = ("dram_read_bytes", "dram_write_bytes", "times_ms")
    return GroupSizeStudy(
        experiment=from_json(fields["experiment"], discover()),
        backend="recorded",
        device=Device(**{**fields["device"], "backend": "recorded"}),
        tool=fields["tool"],
        rows=tuple(GroupSizeRow(**{**row, **{name: tuple(row[name]) for name in numbers}}) for row in fields["rows"]),
        clock_mhz=fields["clock_mhz"],
        note=f"Recorded on {gpu}, {date}.",
    )


def _counters(fields: dict[str, Any], gpu: str, date: str) -> Counters:
    return Counters(
        experiment=from_json(fields["experiment"], discover()),
        backend="recorded",
        device=Device(**{**fields["device"], "backend": "recorded"}),
        tool=fields["tool"],
        compiled=CompiledFacts.from_json(fields["compiled"]),
        launch=fields["launch"],
        ops=tuple(OpCounts(**row) for row in fields["ops"]),
        shared=tuple(SharedCounts(**{**row, "source": tuple(row["source"])}) for row in fields["shared"]),
        note=f"Counted on {gpu}, {date}.",
    )


def _timeline(fields: dict[str, Any], gpu: str, date: str) -> Timeline:
    return Timeline(
        experiment=from_json(fields["experiment"], discover()),
        backend="recorded",
        device=Device(**{**fields["device"], "backend": "recorded"}),
        sm=tuple(fields["sm"]),
        start_ns=tuple(fields["start_ns"]),
        end_ns=tuple(fields["end_ns"]),
        kernel_ms=fields["kernel_ms"],
        plain=Timing(**fields["plain"]),
        instrumented=Timing(**fields["instrumented"]),
        registers=tuple(fields["registers"]),
        passed=fields["passed"],
        clock_mhz=fields["clock_mhz"],
        note=f"Recorded on {gpu}, {date}.",
    )


_KINDS: dict[type, str] = {
    RunResult: "run",
    LayoutStudy: "layouts",
    Counters: "counters",
    GroupSizeStudy: "reuse",
    Timeline: "timeline",
}
# Kinds whose lines are long, written without blanks.
_LONG = ("counters", "reuse", "timeline")
_READERS: dict[str, Callable[[dict[str, Any], str, str], Any]] = {
    "run": _run,
    "layouts": _layouts,
    "counters": _counters,
    "reuse": _reuse,
    "timeline": _timeline,
}


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


def find_counters(experiment: Experiment, gpu: str) -> Counters | None:
    """The recorded counts, or None. How a run is timed, and on what numbers, does not matter to them."""
    return _found(experiment, gpu, Counters)


def find_reuse(experiment: Experiment, gpu: str) -> GroupSizeStudy | None:
    """The recorded comparison of GROUP_SIZEs, or None. Which of them the experiment has does not matter."""
    return _found(experiment, gpu, GroupSizeStudy)


def find_timeline(experiment: Experiment, gpu: str) -> Timeline | None:
    """The recorded timeline, or None. How a run is timed, and on what numbers, is that of the recording."""
    return _found(experiment, gpu, Timeline)


def timelines(gpu: str) -> tuple[Experiment, ...]:
    """What has a recorded timeline on `gpu`."""
    return tuple(one.measured.experiment for one in shipped() if isinstance(one.measured, Timeline) and one.gpu == gpu)


def _found(experiment: Experiment, gpu: str, kind: type) -> Any:
    found = _index().get((_key(experiment, kind), gpu, kind))
    run = found.experiment.run if isinstance(found, Timeline) else experiment.run
    return found and dataclasses.replace(found, experiment=dataclasses.replace(experiment, run=run))


@functools.cache
def _index() -> dict[tuple[Experiment, str, type], Any]:
    """What was measured, by experiment, GPU and kind."""
    return {
        (_key(one.measured.experiment, type(one.measured)), one.gpu, type(one.measured)): one.measured
        for one in reversed(shipped())  # of several, the first counts
    }


def _key(experiment: Experiment, kind: type) -> Experiment:
    if kind not in (Counters, GroupSizeStudy, Timeline):
        return dataclasses.replace(experiment, gpu="")
    problem = discover()[experiment.kernel].family.essential(experiment.problem)
    key = dataclasses.replace(experiment, gpu="", problem=problem, run=Run())
    return any_group_size(key) if kind is GroupSizeStudy else key
