"""Tables of cells, and lists with facets. The browser sorts lists and saves any table as CSV (`assets/table.js`)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from itertools import zip_longest
from typing import Any, Generic, TypeVar

from markupsafe import Markup

from tilescope.declare.knobs import knob
from tilescope.numbers import count_noun, format_number
from visualize.views.prose import Link, Sourced
from visualize.views.state import State

ALL = "all"

# Maximum rows of a list on the page. A row takes a kilobyte.
MAX_ROWS = 100

# Width of a funnel's longest bar in percent of the row, which leaves space for a name and a number.
_WIDEST_BAR = 22

_CELL = Markup("<td>{}</td>")
_LIST_CELL = Markup('<td class="{}" data-value="{}">{}</td>')
_SORT = Markup('<th scope="col"><button type="button">{}</button></th>')
_FRAME = Markup(
    '<div class="scroll"><button type="button" class="control save-csv" title="Save as CSV">CSV</button>'
    "<table>{}<thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>"
)

R = TypeVar("R")


def table(header: Iterable[Any], rows: Iterable[Iterable[Any]], caption: Any = "") -> Markup:
    """Render an HTML table in a scrollable frame, with a button that saves its cells as CSV (see `table.js`).

    A cell is a `prose` value or anything that `str` accepts; strings are escaped. Cells that a row lacks are empty.
    """
    headings = list(header)
    cells = (
        [_CELL.format(cell) for cell, _ in zip_longest(row, headings, fillvalue="")] for row in rows
    )
    return _frame(map(_heading, headings), cells, caption)


def _heading(name: Any) -> Markup:
    # A screen reader would announce an empty heading, so a column without a name gets an ordinary cell.
    return (Markup('<th scope="col">{}</th>') if str(name) else _CELL).format(name)


def _frame(
    headings: Iterable[Markup], rows: Iterable[Iterable[Markup]], caption: Any = ""
) -> Markup:
    title = Markup("<caption>{}</caption>").format(caption) if str(caption) else ""
    body = Markup("").join(Markup("<tr>{}</tr>").format(Markup("").join(cells)) for cells in rows)
    return _FRAME.format(title, Markup("").join(headings), body)


@dataclass(frozen=True)
class Column(Generic[R]):
    """A column of a Table.

    Attributes:
        name: its name in addresses, and the CSS class of its cells. If `value` is None, it is also the
            attribute of a row that has the value.
        title: its heading, a string or a `prose` value.
        value: row → the value by which rows are sorted and filtered, and which CSV files contain: a number, a string,
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
    """A list of rows with facets, whose choices are options in the page's address.

    Attributes:
        name: prefix of its options in the address.
        noun: what a row is, such as "recording".
    """

    name: str
    noun: str
    columns: tuple[Column[R], ...]

    def make_options(self, class_name: str, module: str) -> type[Any]:
        """Create a frozen dataclass of knobs: the chosen value of each facet.

        Assign it to `class_name` in `module`; pickle looks for it there.
        """
        fields = []
        for column in self._facets:
            option = knob(ALL, "", column.facet, longest=100)
            fields.append((f"{self.name}_{column.name}", str, option))
        declared = make_dataclass(class_name, fields, frozen=True)
        declared.__module__ = module
        return declared

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

    def render(
        self, rows: Sequence[R], state: State, row_address: Callable[[R], str] = lambda _: ""
    ) -> Markup:
        """Render the facets and the first matching rows.

        Args:
            rows: all rows.
            state: the page's state, whose view has this table's options.
            row_address: address that the row's first cell links to; "" for none.
        """
        options = state.view.to_address()
        matching = self._match(rows, options)
        count = count_noun(len(matching), self.noun) if matching else f"No {self.noun} matches."
        if len(matching) > MAX_ROWS:
            count = f"The first {MAX_ROWS} of {count}"
        cells = (_cells(self.columns, row, row_address(row)) for row in matching[:MAX_ROWS])
        headings = (_SORT.format(column.title) for column in self.columns)
        return Markup('<div class="recordings">{}<div class="quiet">{}</div>{}</div>').format(
            self._facet_lines(rows, state, options),
            count,
            _frame(headings, cells) if matching else "",
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
                    address = state.link(**{f"{self.name}_{column.name}": value})
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


def _cells(columns: Iterable[Column[R]], row: R, address: str) -> Iterator[Markup]:
    for place, column in enumerate(columns):
        cell = column.cell_of(row)
        value = column.value_of(row)
        linked = Link(cell, address) if address and not place else cell
        yield _LIST_CELL.format(column.name, "" if value is None else value, linked)


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
