"""Tables: pandas frames rendered for the page, with facets and links to further pages of a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from visualize.views.prose import Link, Sourced, kind_name

# The widest bar of a funnel, in percent of the row: a name and a number stand beside it.
_WIDEST_BAR = 22


def frame(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> pd.DataFrame:
    """Return a frame of cells, each a `prose` value or anything that `str` accepts. Headings may repeat."""
    return pd.DataFrame(list(rows), columns=pd.Index(header, dtype=object), dtype=object)


def table(cells: pd.DataFrame, caption: Any = "") -> Markup:
    """Render a frame as an HTML table. Strings are escaped."""
    # A screen reader would announce an empty heading, so a column without a name gets an ordinary cell.
    head = Markup("").join(
        Markup('<th scope="col">{}</th>').format(name) if str(name) else Markup("<td></td>") for name in cells.columns
    )
    rows = _join("<tr>{}</tr>", (_join("<td>{}</td>", row) for row in cells.itertuples(index=False, name=None)))
    title = Markup("<caption>{}</caption>").format(caption) if str(caption) else ""
    return scrolling(Markup("<table>{}<thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(title, head, rows))


def scrolling(table: Markup) -> Markup:
    """Wrap a table in a scrollable frame with a button that saves it as CSV (`tables.js`)."""
    button = '<button type="button" class="save-csv" aria-label="Save this table as CSV">CSV</button>'
    return Markup('<div class="scroll">{}{}</div>').format(table, Markup(button))


def _join(template: str, values: Iterable[Any]) -> Markup:
    return Markup("").join(Markup(template).format(value) for value in values)


@dataclass(frozen=True)
class Facet:
    """One filter of a list.

    Attributes:
        name: "kind", "kernel" or "gpu".
        chosen: the current value.
        counts: number of rows by value, "all" first.
        links: address that selects each value.
    """

    name: str
    chosen: str
    counts: Mapping[str, int]
    links: Mapping[str, str]


_FACETS = {"kind": "What", "kernel": "Kernel", "gpu": "GPU"}


def facet_links(facets: Sequence[Facet]) -> Markup:
    """Render each facet as a row of links, each with the number of rows that it lists."""
    return Markup('<div class="facets">{}</div>').format(Markup("").join(map(_facet_row, facets)))


def _facet_row(facet: Facet) -> Markup:
    link = Markup('<a href="?{}"{}>{} <span>{:,}</span></a>')
    current = {facet.chosen: Markup(' aria-current="true"')}
    links = Markup("").join(
        link.format(facet.links[value], current.get(value, ""), _facet_label(facet.name, value), count)
        for value, count in facet.counts.items()
        if count or value == facet.chosen
    )
    return Markup('<nav aria-label="{0}"><b>{0}</b>{1}</nav>').format(_FACETS[facet.name], links)


def _facet_label(name: str, value: str) -> str:
    if value == "all":
        return "All"
    return kind_name(value, plural=True) if name == "kind" else value


def pager(part: str, **links: str) -> Markup:
    """Render which part of a list is shown, and links to other parts.

    Args:
        links: address by link text; "" leaves the link out.
    """
    shown = Markup(" ").join(Link(text, address) for text, address in links.items() if address)
    return Markup('<p class="pager">{} {}</p>').format(part, shown)


def traffic_funnel(stages: Sequence[tuple[Any, int, str]], label: str) -> Markup:
    """Render the bytes at each stage of their way as bars.

    Args:
        stages: name, bytes and source (a mark) of each stage.
        label: the bars' name for screen readers.
    """
    most = max((value for _, value, _ in stages), default=0) or 1
    rows = Markup("").join(
        Markup(
            '<li><span class="stage">{}</span><span class="bar" style="width:{:.2f}%"></span>'
            "<span>{:,} bytes</span></li>"
        ).format(Sourced(name, source), _WIDEST_BAR * value / most, value)
        for name, value, source in stages
    )
    return Markup('<ul class="funnel" aria-label="{}">{}</ul>').format(label, rows)
