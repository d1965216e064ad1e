"""Tables of cells, and lists with facets, sorting, pages and CSV."""

import csv
import io
import json
import re
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from itertools import zip_longest
from typing import Any, Generic, TypeVar

from markupsafe import Markup

from tilescope.declare.knobs import knob
from tilescope.numbers import count_noun, format_number
from visualize.views import slots
from visualize.views.panel import Slots
from visualize.views.prose import Link, Sourced, hint
from visualize.views.state import State

ALL = "all"

# Width of a funnel's longest bar in percent of the row, which leaves space for a name and a number.
_WIDEST_BAR = 22

R = TypeVar("R")


def table(header: Iterable[Any], rows: Iterable[Iterable[Any]], caption: Any = "") -> Markup:
    """Render an HTML table in a scrollable frame, with a link that saves its cells as CSV.

    A cell is a `prose` value or anything that `str` accepts; strings are escaped. Cells that a row lacks are empty.
    """
    headings = [*map(_heading, header)]
    cells = [[_cell(cell) for cell, _ in zip_longest(row, headings, fillvalue="")] for row in rows]
    file = urllib.parse.quote(
        _csv([_number(cell.striptags()) for cell in row] for row in (headings, *cells))
    )
    name = _cell(caption).striptags() or headings[0].striptags() or "table"
    save = Markup(
        '<a class="control save-csv" download="{}.csv" href="data:text/csv,{}" title="Save as CSV">CSV</a>'
    )
    return Markup('<div class="scroll">{}{}</div>').format(
        save.format(name, file), _table(headings, cells, caption)
    )


def _number(text: str) -> str:
    # Other programs read numbers without separators of thousands.
    return text.replace(",", "") if re.fullmatch(r"-?\d{1,3}(,\d{3})+(\.\d+)?", text) else text


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    """Return a CSV file (RFC 4180). Its byte order mark makes spreadsheets read it as UTF-8."""
    file = io.StringIO()
    csv.writer(file).writerows(rows)
    return "\ufeff" + file.getvalue()


def _heading(name: Any, sort: Markup | str = "") -> Markup:
    # A screen reader would announce an empty heading, so a column without a name gets an ordinary cell.
    return Markup('<th scope="col"{}>{}</th>').format(sort, name) if str(name) else _cell("")


def _cell(value: Any, style: str = "") -> Markup:
    return Markup("<td{}>{}</td>").format(
        Markup(' class="{}"').format(style) if style else "", value
    )


def _table(
    headings: Iterable[Markup], rows: Iterable[Iterable[Markup]], caption: Any = ""
) -> Markup:
    title = Markup("<caption>{}</caption>").format(caption) if str(caption) else ""
    body = Markup("").join(Markup("<tr>{}</tr>").format(Markup("").join(cells)) for cells in rows)
    head = Markup("").join(headings)
    return Markup("<table>{}<thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(
        title, head, body
    )


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column of a Table.

    Attributes:
        name: its name in addresses and CSV files, and the CSS class of its cells. If `value` is None, it is also the
            attribute of a row that has the value.
        title: its heading, a string or a `prose` value.
        value: row → the value by which rows are sorted and filtered, and which CSV files contain: numbers, or strings,
            or None for an empty cell.
        cell: row → the cell on the page. Default: the value with its unit.
        unit: unit of numeric values, as in `numbers.format_number`.
        facet: help text of the filter by this column; "" for a column without a filter.
    """

    name: str
    title: Any
    value: Callable[[R], Any] | None = None
    cell: Callable[[R], Any] | None = None
    unit: str = ""
    facet: str = ""

    def value_of(self, row: R) -> Any:
        return self.value(row) if self.value else getattr(row, self.name)

    def cell_of(self, row: R) -> Any:
        if self.cell:
            return self.cell(row)
        value = self.value_of(row)
        return (
            ""
            if value is None
            else format_number(value, self.unit)
            if isinstance(value, int | float)
            else value
        )


@dataclass(frozen=True)
class Table(Generic[R]):
    """A list of rows with facets, sorting, pages and CSV. The page's address holds its options.

    Its panel answers the action `<name>-csv` with `save`.

    Attributes:
        name: prefix of its options in the address.
        noun: what a row is, such as "recording".
    """

    name: str
    noun: str
    columns: tuple[Column[R], ...]
    rows_per_page: int = 40

    def make_options(self, class_name: str, module: str) -> type[Any]:
        """Create a frozen dataclass of knobs: the chosen value of each facet, the sort order and the page.

        Assign it to `class_name` in `module`; pickle looks for it there.
        """
        sort_help = "Column that orders the rows; with a minus sign, in descending order. Empty: the usual order."
        orders = [f"{sign}{column.name}" for column in self.columns for sign in ("", "-")]
        options = {}
        for column in self._facets:
            options[column.name] = knob(ALL, "", column.facet, longest=100)
        options["sort"] = knob("", "", sort_help, choices=("", *orders))
        options["page"] = knob(1, "", "Page of the list.", low=1, high=10_000)
        fields = [
            (f"{self.name}_{name}", type(option.default), option)
            for name, option in options.items()
        ]
        declared = make_dataclass(class_name, fields, frozen=True)
        declared.__module__ = module
        return declared

    def select(self, rows: Iterable[R], options: Mapping[str, Any]) -> list[R]:
        """Return the rows that match all facets, in the chosen order. Rows without a value come last.

        Args:
            options: values by their names in the address.
        """
        matching = self._match(rows, options)
        order = options[f"{self.name}_sort"]
        column = next(
            (column for column in self.columns if column.name == order.removeprefix("-")), None
        )
        if column is None:
            return matching
        filled = [row for row in matching if column.value_of(row) is not None]
        filled.sort(key=lambda row: _natural_key(column.value_of(row)), reverse=order[0] == "-")
        return filled + [row for row in matching if column.value_of(row) is None]

    def _match(
        self, rows: Iterable[R], options: Mapping[str, Any], ignore: Column[R] | None = None
    ) -> list[R]:
        chosen = [
            (column, options[f"{self.name}_{column.name}"])
            for column in self._facets
            if column is not ignore
        ]
        return [
            row
            for row in rows
            if all(value in (ALL, str(column.value_of(row))) for column, value in chosen)
        ]

    def save(self, rows: Iterable[R], state: State) -> Slots:
        """Make the browser save all matching rows as CSV. The header names the units."""
        header = [
            f"{column.name} ({column.unit})" if column.unit else column.name
            for column in self.columns
        ]
        matching = self.select(rows, state.view.to_address())
        file = _csv(
            [header, *([column.value_of(row) for column in self.columns] for row in matching)]
        )
        return save_file(f"tilescope_{self.name}.csv", file)

    def render(
        self, rows: Sequence[R], state: State, row_address: Callable[[R], str] = lambda _: ""
    ) -> Markup:
        """Render the facets, one page of the matching rows, links to the other pages, and a button for CSV.

        Args:
            rows: all rows, in their usual order.
            state: the page's state, whose view has this table's options.
            row_address: address that the row's first cell links to; "" for none.
        """
        if not rows:
            return hint(f"No {self.noun} is stored yet.")
        options = state.view.to_address()
        matching = self.select(rows, options)
        pages = max(1, -(-len(matching) // self.rows_per_page))
        page = min(options[f"{self.name}_page"], pages)
        start = (page - 1) * self.rows_per_page
        visible = matching[start : start + self.rows_per_page]
        part = count_noun(len(matching), self.noun) if matching else f"No {self.noun} matches."
        if pages > 1:
            part = f"{start + 1:,}–{start + len(visible):,} of {len(matching):,}"
        moves = [
            Link(text, self._link(state, page=number))
            for text, number in (("Previous", page - 1), ("Next", page + 1))
            if 1 <= number <= pages
        ]
        headings = (
            self._sort_heading(column, state, options[f"{self.name}_sort"])
            for column in self.columns
        )
        table = _table(headings, (_cells(self.columns, row, row_address(row)) for row in visible))
        return Markup(
            '<div class="recordings">{}<div class="pager quiet">{} {} {}</div>{}</div>'
        ).format(
            self._facet_lines(rows, state, options),
            part,
            Markup(" ").join(moves),
            slots.button(f"{self.name}-csv", "Save as CSV", is_enabled=bool(matching)),
            Markup('<div class="scroll">{}</div>').format(table) if matching else "",
        )

    def _facet_lines(self, rows: Sequence[R], state: State, options: Mapping[str, Any]) -> Markup:
        """Render a line of links per facet, with the number of rows that also match the other facets.

        A facet with one value is hidden.
        """
        link = Markup('<a href="?{}"{}>{} <span>{:,}</span></a>')
        current = Markup(' aria-current="true"')
        lines = Markup()
        for column in self._facets:
            chosen = options[f"{self.name}_{column.name}"]
            values = {column.value_of(row) for row in rows}
            if len(values) < 2 and chosen == ALL:
                continue
            counts = Counter(
                str(column.value_of(row)) for row in self._match(rows, options, ignore=column)
            )
            counts[ALL] = counts.total()
            links = Markup()
            for value in dict.fromkeys([ALL, *map(str, sorted(values - {None})), chosen]):
                if counts[value] or value == chosen:
                    address = self._link(state, **{column.name: value}, page=1)
                    label = "All" if value == ALL else value
                    links += link.format(
                        address, current if value == chosen else "", label, counts[value]
                    )
            lines += Markup('<nav aria-label="{}"><b>{}</b>{}</nav>').format(
                str(column.title), column.title, links
            )
        return Markup('<div class="facets">{}</div>').format(lines)

    @property
    def _facets(self) -> list[Column[R]]:
        return [column for column in self.columns if column.facet]

    def _sort_heading(self, column: Column[R], state: State, order: str) -> Markup:
        """Return a heading whose link sorts in ascending order, or in descending order if it is ascending."""
        direction = {column.name: "ascending", f"-{column.name}": "descending"}.get(order)
        reverse = f"-{column.name}" if order == column.name else column.name
        address = self._link(state, sort=reverse, page=1)
        return _heading(
            Link(column.title, address),
            Markup(' aria-sort="{}"').format(direction) if direction else "",
        )

    def _link(self, state: State, **options: object) -> str:
        """Return the page's address with some of this table's options changed."""
        return state.link(**{f"{self.name}_{name}": value for name, value in options.items()})


def _cells(columns: Iterable[Column[R]], row: R, address: str) -> Iterator[Markup]:
    for place, column in enumerate(columns):
        cell = column.cell_of(row)
        yield _cell(Link(cell, address) if address and not place else cell, column.name)


def _natural_key(value: Any) -> Any:
    """Return a sort key that orders numbers within text by value: "512 × 512" before "1024 × 1024"."""
    if not isinstance(value, str):
        return value
    return [
        int(part) if place % 2 else part for place, part in enumerate(re.split(r"(\d+)", value))
    ]


def save_file(name: str, text: str) -> Slots:
    """Make the browser save a file."""
    file = {"name": name, "text": text}
    return {"saved-file": json.dumps(file, ensure_ascii=False)}


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
