"""Tables of cells, which the browser saves as CSV (`assets/table.js`)."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from markupsafe import Markup

from visualize.views.prose import Sourced

# The value of a filter that selects everything.
ALL = "all"

# Width of a funnel's longest bar in percent of the row, which leaves space for a name and a number.
_WIDEST_BAR = 22

_CELL = Markup("<td>{}</td>")
_FRAME = Markup(
    '<div class="scroll"><button type="button" class="control save-csv" title="Save as CSV">CSV</button>'
    "<table>{}<thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>"
)


def table(header: Iterable[Any], rows: Iterable[Iterable[Any]], caption: Any = "") -> Markup:
    """Render an HTML table in a scrollable frame, with a button that saves its cells as CSV (see `table.js`).

    A cell is a `prose` value or anything that `str` accepts; strings are escaped. Cells that a row lacks are empty.
    """
    headings = list(header)
    cells = (
        [_CELL.format(cell) for cell, _ in zip_longest(row, headings, fillvalue="")] for row in rows
    )
    return frame(map(_heading, headings), cells, caption)


def _heading(name: Any) -> Markup:
    # A screen reader would announce an empty heading, so a column without a name gets an ordinary cell.
    return (Markup('<th scope="col">{}</th>') if str(name) else _CELL).format(name)


def frame(
    headings: Iterable[Markup], rows: Iterable[Iterable[Markup]], caption: Any = ""
) -> Markup:
    """Render a table of rendered cells as `table` does."""
    title = Markup("<caption>{}</caption>").format(caption) if str(caption) else ""
    body = Markup("").join(Markup("<tr>{}</tr>").format(Markup("").join(cells)) for cells in rows)
    return _FRAME.format(title, Markup("").join(headings), body)


def traffic_funnel(stages: Sequence[tuple[Any, int, str]], label: str) -> Markup:
    """Render the bytes at each stage as bars.

    Args:
        stages: name, bytes and source (a mark) of each stage.
        label: the bars' name for screen readers.
    """
    most = max(value for _, value, _ in stages) or 1
    stage = Markup(
        '<li><span class="stage">{}</span><span class="bar" style="width:{:.2f}%"></span><span>{:,} bytes</span></li>'
    )
    rows = Markup("").join(
        stage.format(Sourced(name, source), _WIDEST_BAR * value / most, value)
        for name, value, source in stages
    )
    return Markup('<ul class="funnel" aria-label="{}">{}</ul>').format(label, rows)
