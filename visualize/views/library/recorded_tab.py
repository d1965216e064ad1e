"""The Recorded panel: everything that was recorded, by kernel, GPU and kind, each one a link. /recorded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from kernels import discover, once
from kernels.experiment import Experiment, argument_schemas, nest
from kernels.gpus import GPUS
from kernels.knobs import knob, read_fields
from kernels.measuring.session import MEASUREMENTS
from kernels.results import records
from visualize.views import slots
from visualize.views.address import query
from visualize.views.endpoint import Api, Endpoint, answered, view_of
from visualize.views.library import text
from visualize.views.library.text import RecordedRow
from visualize.views.numbers import Number, key_numbers
from visualize.views.slots import slot
from visualize.views.snapshot import Known
from visualize.views.state import short_experiment
from visualize.views.tables import Facet
from visualize.views.view import Panel, Slots

ALL = "all"

# Rows that are listed at once.
PAGE = 40

# The tab that shows a kind of measurement; one that is not named here is opened where a page opens.
SHOWN_ON = {"run": "result", "timeline": "schedule", "counters": "coalescing", "reuse": "reuse"}

# Kinds in the order in which they are offered, by the word of their recordings.
KINDS = tuple(dict.fromkeys(one.form.word for one in MEASUREMENTS.values()))


@dataclass(frozen=True)
class RecordedView:
    """Which recordings are listed. Links set it, so that none of it has a control."""

    recorded_kernel: str = knob(ALL, "", "The kernel whose recordings are listed.", choices=(ALL, *discover()))
    recorded_gpu: str = knob(ALL, "", "The GPU that they were recorded on.", choices=(ALL, *GPUS))
    recorded_kind: str = knob(ALL, "", "What was recorded.", choices=(ALL, *KINDS))
    recorded_page: int = knob(1, "", "The page of the list.", low=1, high=10_000)

    def chosen(self) -> dict[str, str]:
        """What an entry must have, by its attribute; what may be anything is left out."""
        wanted = {"kernel": self.recorded_kernel, "gpu": self.recorded_gpu, "kind": self.recorded_kind}
        return {name: value for name, value in wanted.items() if value != ALL}


@dataclass(frozen=True)
class Part:
    """Which part of a list a reply holds."""

    limit: int = knob(50, "", "Recordings in a reply, at most.", low=1, high=500)
    offset: int = knob(0, "", "Recordings of the list that are skipped.", low=0, high=1_000_000)


_PREFIX = "recorded_"

# What /recorded takes.
SCHEMAS = {
    name: schema
    for name, schema in {**argument_schemas(RecordedView, _PREFIX), **argument_schemas(Part)}.items()
    if name != "page"
}


@dataclass(frozen=True)
class Entry:
    """One recording.

    Attributes:
        kind: the word of its kind.
        numbers: those that it is known by.
    """

    kind: str
    experiment: Experiment
    gpu: str
    date: str
    numbers: tuple[Number, ...]

    @property
    def kernel(self) -> str:
        return self.experiment.kernel

    @property
    def tab(self) -> str:
        """The tab that shows it; "" for the one that a page opens on."""
        return SHOWN_ON.get(self.kind, "")

    def payload(self) -> dict[str, Any]:
        """The API's payload that asks for it; what is the kernel's default is left out."""
        return payload(replace(self.experiment, gpu=self.gpu))

    def address(self) -> dict[str, Any]:
        """The state of the page that shows it."""
        there = {"tab": self.tab} if self.tab else {}
        return {**short_experiment(replace(self.experiment, gpu=self.gpu)), **there}


def payload(experiment: Experiment) -> dict[str, Any]:
    """The API's payload of an experiment; what is the kernel's default is left out."""
    return {name: value for name, value in nest(short_experiment(experiment)).items() if value}


@once
def entries() -> tuple[Entry, ...]:
    """All recordings by kernel, kind and size."""
    forms = dict.fromkeys(one.form for one in MEASUREMENTS.values())
    found = [
        Entry(
            form.word,
            one.measured.experiment,
            one.gpu,
            one.date,
            key_numbers(form.recall(one.measured, one.measured.experiment, "")),
        )
        for form in forms
        for one in records.shipped(form)
    ]
    order = list(discover())
    return tuple(sorted(found, key=lambda one: (order.index(one.kernel), KINDS.index(one.kind))))


def among(wanted: dict[str, str], but: str = "") -> list[Entry]:
    """The recordings that have what is wanted.

    Args:
        but: an attribute that may be anything, all the same.
    """
    return [
        one for one in entries() if all(getattr(one, name) == value for name, value in wanted.items() if name != but)
    ]


class RecordedPanel(Panel):
    """Everything that was recorded, each one a link to the state that shows it."""

    options = (RecordedView,)
    uses_compiler = False
    is_compared = False

    def layout(self) -> Markup:
        return slot("recorded-claim") + slots.picture(slot("recorded"))

    def draw(self, known: Known) -> Slots:
        view = known.state.view.of(RecordedView)
        # Those of the page's kernel first.
        found = sorted(among(view.chosen()), key=lambda one: one.kernel != known.state.kernel.id)
        pages = max(1, -(-len(found) // PAGE))
        page = min(view.recorded_page, pages)
        shown = found[(page - 1) * PAGE : page * PAGE]

        def to_page(number: int) -> str:
            return query(known.state.moved_to(recorded_page=number)) if 1 <= number <= pages else ""

        facets = [_facet(known, view, name) for name in ("kind", "kernel", "gpu")]
        rows = [
            RecordedRow(one.kind, one.experiment, one.gpu, one.date, one.numbers, query(one.address())) for one in shown
        ]
        first = (page - 1) * PAGE + 1
        pager = text.recorded_pager(first, len(rows), len(found), to_page(page - 1), to_page(page + 1))
        return {
            "recorded-claim": text.recorded_headline(len(entries()), sorted({one.gpu for one in entries()})),
            "recorded": text.recorded_list(facets, pager, rows),
        }

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        def recorded(
            kernel: str = "", gpu: str = "", kind: str = "", limit: int = Part.limit, offset: int = Part.offset
        ) -> dict[str, Any]:
            """Lists what was recorded on a GPU: all of it, or what is of one kernel, GPU or kind.

            `recorded` has, per recording, its kind, experiment, GPU, date, its main numbers with their units, and the
            page's address that shows it. `total` counts the whole list; a reply holds `limit` recordings of it, from
            `offset` on.
            """
            return answered(lambda: reply(kernel, gpu, kind, limit, offset))

        return (Endpoint("recorded", recorded, schemas=SCHEMAS),)


def _facet(known: Known, view: RecordedView, name: str) -> Facet:
    """The choices of one filter: how many each would list with the other filters as they are, and its link."""
    wanted, rest = view.chosen(), among(view.chosen(), but=name)
    counts = {ALL: len(rest)}
    for one in entries():
        counts.setdefault(getattr(one, name), 0)
    for one in rest:
        counts[getattr(one, name)] += 1
    links = {value: query(known.state.moved_to(**{f"recorded_{name}": value, "recorded_page": 1})) for value in counts}
    return Facet(name, wanted.get(name, ALL), counts, links)


def reply(
    kernel: object = "", gpu: object = "", kind: object = "", limit: object = Part.limit, offset: object = Part.offset
) -> dict[str, Any]:
    """The body of /recorded.

    Raises:
        ConfigError: where there is no such kernel, GPU or kind, and for a limit or an offset out of range.
    """
    part = read_fields(Part, {"limit": limit, "offset": offset}, "/recorded")
    view = view_of(RecordedView, _PREFIX, {"kernel": kernel, "gpu": gpu, "kind": kind}, "/recorded")
    listed = among(view.chosen())
    return {
        "total": len(listed),
        "limit": part.limit,
        "offset": part.offset,
        "recorded": [
            {
                "kind": one.kind,
                "experiment": one.payload(),
                "gpu": one.gpu,
                "date": one.date,
                "numbers": [vars(number) for number in one.numbers],
                "address": query(one.address()),
            }
            for one in listed[part.offset : part.offset + part.limit]
        ],
    }
