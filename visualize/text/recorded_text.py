"""What the Recorded tab says: the filters, and one row per recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kernels.experiment import Experiment
from kernels.spec import shape_text
from visualize.views import tables
from visualize.views.numbers import Number, counted, enumerated
from visualize.views.prose import Hint, Link, Sourced, headline

# What a kind of recording is called: one, and several.
_KINDS = {
    "run": ("run", "Runs"),
    "counters": ("counts", "Counts"),
    "reuse": ("GROUP_SIZE study", "GROUP_SIZE studies"),
    "timeline": ("timeline", "Timelines"),
}
# How the numbers of a kind are written, by how many there are.
_RESULTS = {
    ("run", 1): "{} wrong elements",
    ("counters", 2): "{} requests, {} DRAM",
    ("reuse", 1): "{} DRAM reads",
    ("reuse", 2): "{} to {} DRAM reads",
    ("timeline", 2): "{} programs in {}",
}
_FACETS = {"kind": "What", "kernel": "Kernel", "gpu": "GPU"}


@dataclass(frozen=True)
class Facet:
    """One filter.

    Attributes:
        name: "kind", "kernel" or "gpu".
        chosen: the value that is set.
        counts: how many recordings each value has, "all" first.
        links: the address query that sets each value.
    """

    name: str
    chosen: str
    counts: Mapping[str, int]
    links: Mapping[str, str]


@dataclass(frozen=True)
class Row:
    """One recording as it is listed.

    Attributes:
        link: the address query of the state that shows it.
    """

    kind: str
    experiment: Experiment
    gpu: str
    date: str
    numbers: Sequence[Number]
    link: str


def claim(count: int, gpus: Sequence[str]) -> Markup:
    """How much was recorded, and where."""
    if not count:
        return headline(0, "recordings", "Nothing was recorded yet.")
    return headline(
        f"{count:,}",
        f"recordings on {enumerated(gpus)}",
        "Runs, timelines, counts and studies as a real GPU gave them. Each opens without a GPU.",
    )


def gallery(facets: Sequence[Facet], pager: Markup, rows: Sequence[Row]) -> Markup:
    """The filters over the list."""
    chosen = Markup("").join(map(chips, facets))
    return Markup('<div class="recordings"><div class="facets">{}</div>{}{}</div>').format(chosen, pager, _table(rows))


def chips(facet: Facet) -> Markup:
    """A filter as links, each with how many it would list."""
    chip = Markup('<a href="?{}"{}>{} <span>{:,}</span></a>')
    current = Markup(' aria-current="true"')
    links = Markup("").join(
        chip.format(facet.links[value], current if value == facet.chosen else "", _said(facet.name, value), count)
        for value, count in facet.counts.items()
        if count or value == facet.chosen
    )
    return Markup('<nav aria-label="{0}"><b>{0}</b>{1}</nav>').format(_FACETS[facet.name], links)


def _said(facet: str, value: str) -> str:
    if value == "all":
        return "All"
    return kind_name(value, several=True) if facet == "kind" else value


def kind_name(kind: str, several: bool = False) -> str:
    """What a kind of measurement is called.

    >>> kind_name("reuse"), kind_name("check", several=True)
    ('GROUP_SIZE study', 'Checks')
    """
    return _KINDS.get(kind, (kind, f"{kind.capitalize()}s"))[several]


def pager(first: int, shown: int, of: int, before: str, after: str) -> Markup:
    """Which part of the list is shown, and the way to the next.

    Args:
        before, after: address queries; "" where there is no such page.
    """
    if not shown:
        return Markup('<p class="pager">Nothing of this was recorded.</p>')
    part = counted(of, "recording") if shown == of else f"{first:,}–{first + shown - 1:,} of {of:,}"
    steps = [Link(word, address) for word, address in (("Previous", before), ("Next", after)) if address]
    return Markup('<p class="pager">{} {}</p>').format(part, Markup(" ").join(steps))


def _table(rows: Sequence[Row]) -> Markup:
    header = ("Kernel", "What", Sourced("Result", "recorded"), "Shape", "Type", "Config", "GPU", "Date")
    cells = [
        (
            Link(row.experiment.kernel, row.link),
            kind_name(row.kind),
            _result(row.kind, row.numbers),
            shape_text(row.experiment.problem),
            dtype(row.experiment.problem),
            # A list has room for a part of it; what does not fit is cut off, and is its hover text.
            Hint(named := _config(row), named),
            row.gpu,
            row.date,
        )
        for row in rows
    ]
    return tables.table(tables.frame(header, cells))


def _config(row: Row) -> str:
    return config(row.experiment.config, varied=("GROUP_SIZE",) if row.kind == "reuse" else ())


def _result(kind: str, found: Sequence[Number]) -> str:
    """The numbers of a recording in a few words."""
    template = _RESULTS.get((kind, len(found)), ", ".join(["{}"] * len(found)))
    return template.format(*found)


def dtype(problem: Any) -> str:
    """The type, and what else the problem says where it is not the default."""
    usual = type(problem)()
    others = [
        value
        for name, value in vars(problem).items()
        if isinstance(value, str) and name != "dtype" and value != getattr(usual, name)
    ]
    return ", ".join([problem.dtype, *others])


def config(chosen: Any, varied: Sequence[str] = ()) -> str:
    """A config in short: the tile, what else the kernel has, warps and stages.

    Args:
        varied: fields that the recording holds several values of, so that none is named.
    """
    fields = {name: value for name, value in vars(chosen).items() if name not in varied}
    tile = " × ".join(str(fields.pop(name)) for name in list(fields) if name.startswith("BLOCK"))
    warps, stages = fields.pop("num_warps"), fields.pop("num_stages")
    others = [f"{name} {value}" for name, value in fields.items()]
    return ", ".join(filter(None, [tile, *others, counted(warps, "warp"), counted(stages, "stage")]))
