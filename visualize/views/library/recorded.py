"""The endpoint /recorded: the shipped recordings, each with the address of the page that shows it."""

from dataclasses import dataclass, replace
from typing import Any

from tilescope.caching import once
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment, Json
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import knob
from tilescope.measure.session import MEASUREMENTS
from tilescope.numbers import Number, key_numbers
from tilescope.results import records
from tilescope.results.records import Recording
from visualize.views.panel import Api, Endpoint
from visualize.views.state import query
from visualize.views.tables import ALL

# The picture that shows a kind of recording. A kind without one opens the page's first picture.
TABS_BY_KIND = {
    "run": "result",
    "counters": "requests",
    "reuse": "dram-reads",
    "timeline": "program-order",
}


@dataclass(frozen=True)
class Entry:
    """One recording.

    Attributes:
        kind: the word of its kind.
        experiment: what was measured, on the GPU that measured it.
        numbers: its key numbers.
    """

    kind: str
    experiment: Experiment
    date: str
    numbers: tuple[Number, ...]


@dataclass(frozen=True)
class Part:
    """The launches that a reply describes."""

    kernel: str = knob(ALL, "", "The kernel that was launched.", choices=(ALL, *discover()))
    gpu: str = knob(ALL, "", "The GPU that the kernel ran on.", choices=(ALL, *GPUS))

    def matches(self, kernel: str, gpu: str) -> bool:
        return self.kernel in (ALL, kernel) and self.gpu in (ALL, gpu)


@dataclass(frozen=True)
class RecordedPart(Part):
    """The recordings that a reply of /recorded holds."""

    kind: str = knob(ALL, "", "The kind of recording.", choices=(ALL, *TABS_BY_KIND))
    limit: int = knob(50, "", "Maximum number of recordings in a reply.", low=1, high=500)
    offset: int = knob(0, "", "Number of recordings to skip.", low=0, high=1_000_000)


def recorded_launch(recording: Recording[Any]) -> Experiment:
    """Return the recording's experiment on the GPU on which it was recorded."""
    return replace(recording.measured.experiment, gpu=recording.gpu)


def address(experiment: Experiment, kind: str) -> str:
    """Return the query that shows an experiment's result of a kind."""
    tab = {"tab": TABS_BY_KIND[kind]} if kind in TABS_BY_KIND else {}
    return query({**experiment.short_address(), **tab})


@once
def entries() -> tuple[Entry, ...]:
    """Return all recordings by kernel, kind and size."""
    rows = []
    for form in dict.fromkeys(measurement.form for measurement in MEASUREMENTS.values()):
        for recording in records.shipped(form):
            recorded = form.recall(recording.measured, recording.measured.experiment, "")
            rows.append(
                Entry(form.word, recorded_launch(recording), recording.date, key_numbers(recorded))
            )
    order = list(discover())
    return tuple(sorted(rows, key=lambda row: order.index(row.experiment.kernel)))


def _recorded(_: Api, options: RecordedPart) -> Json:
    """Lists recordings from real GPUs: all of them, or those of one kernel, GPU or kind.

    `recorded` has, per recording, its kind, experiment, GPU, date, main numbers with units, and the page's
    address that shows it. `total` counts the whole list. A reply holds `limit` recordings, from `offset` on.
    """
    rows = [
        entry
        for entry in entries()
        if options.matches(entry.experiment.kernel, entry.experiment.gpu)
        and options.kind in (ALL, entry.kind)
    ]
    return {
        "total": len(rows),
        "limit": options.limit,
        "offset": options.offset,
        "recorded": [
            {
                "kind": row.kind,
                "experiment": row.experiment.short_json(),
                "gpu": row.experiment.gpu,
                "date": row.date,
                "numbers": [vars(number) for number in row.numbers],
                "address": address(row.experiment, row.kind),
            }
            for row in rows[options.offset : options.offset + options.limit]
        ],
    }


RECORDED = Endpoint("recorded", _recorded, options=RecordedPart)
