"""Tables: one function renders a frame for the page, the browser saves it as CSV."""

from __future__ import annotations

from visualize.views.prose import Hint, Sourced, Strong, say
from visualize.views.tables import frame, table

BUTTON = '<button type="button" class="save-csv" aria-label="Save this table as CSV">CSV</button>'
HEADER = (Sourced("waves", "predicted"), "counted", "counted", "")
ROWS = [(1, Strong("<x>"), "a{b}", say("{} & {}", "c", 1)), ("a, b", "", 2.5, Hint("✓", "equal"))]


def test_a_table_has_caption_scopes_and_a_row_for_each_of_the_frame():
    shown = table(frame(HEADER, ROWS), 'by "ncu" <2>')
    assert shown.startswith('<div class="scroll"><table><caption>by &#34;ncu&#34; &lt;2&gt;</caption><thead><tr>')
    assert shown.count('<th scope="col">') == 3
    assert "<td></td></tr></thead>" in shown, "no heading is read out where there is none"
    assert '<th scope="col">waves <span class="mark predicted"' in shown
    assert "<tr><td>1</td><td><b>&lt;x&gt;</b></td><td>a{b}</td><td>c &amp; 1</td></tr>" in shown
    assert shown.endswith(f'<td>2.5</td><td><span title="equal">✓</span></td></tr></tbody></table>{BUTTON}</div>')


def test_a_table_without_rows_or_caption_still_has_its_heading():
    shown = table(frame(HEADER, []))
    assert "<caption>" not in shown
    assert shown.count("<th ") == 3
    assert "<tbody></tbody>" in shown
