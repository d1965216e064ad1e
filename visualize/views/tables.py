"""Tables: pandas frames whose cells are text values, rendered for the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup


def frame(header: Sequence[Any], rows: Iterable[Sequence[Any]]) -> pd.DataFrame:
    """A frame of text values, or of anything that `str` writes; headings may repeat."""
    return pd.DataFrame(list(rows), columns=pd.Index(header, dtype=object), dtype=object)


def table(cells: pd.DataFrame, caption: Any = "") -> Markup:
    """A frame as a table of the page. What has no markup of its own is escaped."""
    # A column without a name has no heading: an empty one would be read out as one.
    head = Markup("").join(
        Markup('<th scope="col">{}</th>').format(name) if str(name) else Markup("<td></td>") for name in cells.columns
    )
    rows = _joined("<tr>{}</tr>", (_joined("<td>{}</td>", row) for row in cells.itertuples(index=False, name=None)))
    title = Markup("<caption>{}</caption>").format(caption) if str(caption) else ""
    return scrolling(Markup("<table>{}<thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(title, head, rows))


def scrolling(table: Markup) -> Markup:
    """A table in a frame that scrolls, with a button that saves what it says as CSV: `tables.js`."""
    button = '<button type="button" class="save-csv" aria-label="Save this table as CSV">CSV</button>'
    return Markup('<div class="scroll">{}{}</div>').format(table, Markup(button))


def _joined(template: str, values: Iterable[Any]) -> Markup:
    return Markup("").join(Markup(template).format(value) for value in values)
