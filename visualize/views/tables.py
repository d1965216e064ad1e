"""Tables of cells, which the browser saves as CSV (`assets/table.js`)."""

from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from visualize.views.prose import Sourced
from visualize.views.templates import template

# The value of a filter that selects everything.
ALL = "all"

# Width of a funnel's longest bar in percent of the row, which leaves space for a name and a number.
_WIDEST_BAR = 22

_TABLE = template(
    """
{% call frame(caption) %}
<thead><tr>
{% for name in header %}
{# A screen reader would announce an empty heading. #}
{% if name|string %}<th scope="col">{{ name }}</th>{% else %}<td></td>{% endif %}
{% endfor %}
</tr></thead>
<tbody>
{% for row in rows %}
<tr>{% for cell in row %}<td>{{ cell }}</td>{% endfor %}{{ "<td></td>" | safe * (header|length - row|length) }}</tr>
{% endfor %}
</tbody>
{% endcall %}
"""
)
_FUNNEL = template(
    """
<ul class="funnel" aria-label="{{ label }}">
{% for name, value, width in stages %}
<li><span class="stage">{{ name }}</span><span class="bar" style="width:{{ width }}%"></span>
<span>{{ value }} bytes</span></li>
{% endfor %}
</ul>
"""
)


def table(header: Iterable[Any], rows: Iterable[Iterable[Any]], caption: Any = "") -> Markup:
    """Render an HTML table in a scrollable frame, with a button that saves its cells as CSV (see `table.js`).

    A cell is a `prose` value or anything that `str` accepts; strings are escaped. Cells that a row lacks are empty.
    """
    return _TABLE(header=[*header], rows=map(list, rows), caption=caption)


def traffic_funnel(stages: Sequence[tuple[Any, int, str]], label: str) -> Markup:
    """Render the bytes at each stage as bars.

    Args:
        stages: name, bytes and source (a mark) of each stage.
        label: the bars' name for screen readers.
    """
    most = max(value for _, value, _ in stages) or 1
    rows = [
        (Sourced(name, source), f"{value:,}", f"{_WIDEST_BAR * value / most:.2f}")
        for name, value, source in stages
    ]
    return _FUNNEL(stages=rows, label=label)
