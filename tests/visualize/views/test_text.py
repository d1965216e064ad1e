"""Text as values, which render as HTML and as plain text; the glossary; and tables with facets and pages."""

import csv
import dataclasses
import html as unescaping
import io
import json
import pickle
import re
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markupsafe import Markup, escape

from tests.experiments import experiment_of
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import ConfigError, knobs, read_fields
from tilescope.numbers import SOURCES
from visualize.glossary import FILE, mark, meaning
from visualize.views import prose
from visualize.views.prose import Hint, Sourced, Strong, html, plain, say
from visualize.views.state import State, View
from visualize.views.tables import ALL, Column, Table, table
from visualize.web.page import glossary_dialog

HEADER = (Sourced("waves", "predicted"), "counted", "counted", "")
ROWS = [
    (1, Strong("<x>"), "a{b}", say("{} & {}", "c", 1)),
    ("a, b", "", 2.5, Hint("✓", "equal")),
    ("1,048,576", "-1,234.5", "1,2", "1,000 B"),
]


@dataclass(frozen=True)
class Run:
    kernel: str
    warps: int
    ms: float | None
    status: str = "timed"


RUNS = Table[Run](
    "runs",
    "run",
    (
        Column("kernel", "Kernel", facet="The kernel that ran."),
        Column("warps", "num_warps", facet="Warps per program."),
        Column("time", Sourced("Time", "recorded"), lambda run: run.ms, unit="ms"),
        Column(
            "status",
            "Status",
            cell=lambda run: Strong(run.status),
            facet="How it ended.",
        ),
    ),
    rows_per_page=3,
)
RunsView = RUNS.make_options("RunsView", __name__)
ALL_RUNS = [
    Run("flat", 4, 0.2),
    Run("tiled", 16, 0.05),
    Run("tiled", 8, None, "failed"),
    Run("flat", 8, 0.01),
    Run("tiled", 4, 0.3),
    Run("flat", 16, 1.5),
    Run("tiled", 8, 0.1),
]


def state_of(**chosen):
    """Return a state of the page with these options of RUNS."""
    options = RunsView(**{f"runs_{name}": value for name, value in chosen.items()})
    return State(experiment_of("matmul.grouped"), View("runs", (options,)), GPUS["H200"])


def render(rows=ALL_RUNS, **chosen):
    return str(
        RUNS.render(rows, state_of(**chosen), lambda run: f"warps={run.warps}" if run.ms else "")
    )


def saved(rows=ALL_RUNS, **chosen):
    """Return the file that the browser saves, and its rows."""
    file = json.loads(RUNS.save(rows, state_of(**chosen))["saved-file"])
    return file, list(csv.reader(io.StringIO(file["text"].removeprefix("\ufeff"), newline="")))


def as_source(markup):
    """Return HTML as text, with a line for each row and facet."""
    return escape(re.sub("<(?=tr|nav|table)", " ¶ <", str(markup)))


def test_options_are_knobs_for_each_facet_the_order_and_the_page():
    assert knobs(RunsView, "runs_").keys() == {"kernel", "warps", "status", "sort", "page"}
    assert dataclasses.astuple(RunsView()) == (ALL, ALL, ALL, "", 1)
    chosen = read_fields(
        RunsView, {"runs_kernel": "tiled", "runs_sort": "-time", "runs_page": "2"}, "runs"
    )
    assert pickle.loads(pickle.dumps(chosen)) == chosen == RunsView("tiled", ALL, ALL, "-time", 2)
    for field, value in (("sort", "date"), ("page", 0), ("warps", "8" * 101)):
        with pytest.raises(ConfigError) as error:
            read_fields(RunsView, {f"runs_{field}": value}, "runs")
        assert error.value.field == f"runs_{field}"


def test_tables_are_the_approved_ones(approve):
    narrow = dataclasses.replace(RUNS, columns=RUNS.columns[:1])
    flat = [run for run in ALL_RUNS if run.kernel == "flat"]
    tables = {
        "captioned": table(HEADER, ROWS, 'by "ncu" <2>'),
        "without rows": table(HEADER, []),
        "the first page": render(),
        "the second page": render(page=2),
        "the last page": render(page=3),
        "one run": render(ALL_RUNS[:1]),
        "as many as a page has": render(ALL_RUNS[:3]),
        "no run": render([]),
        "two facets": render(kernel="tiled", warps="8"),
        "other facets": render(kernel="tiled", status="timed"),
        "a facet of a later page": render(kernel="tiled", page=2),
        "a value without rows": render(kernel="padded"),
        "an unknown value": render(warps="32"),
        "one kernel": render(flat),
        "one kernel, which is selected": render(flat, kernel="flat"),
        "ascending": render(sort="time"),
        "descending": render(sort="-time"),
        "one column": narrow.render(ALL_RUNS, state_of(kernel="flat", warps="4", sort="-time")),
    }
    approve("tables", {name: as_source(shown) for name, shown in tables.items()})
    assert render(page=3) == render(page=9_999), "beyond the last page is the last page"


def test_rows_are_sorted_by_value_with_missing_ones_last():
    times = [0.01, 0.05, 0.1, 0.2, 0.3, 1.5]
    for order, sorted_times in (("time", times), ("-time", times[::-1])):
        rows = RUNS.select(ALL_RUNS, vars(RunsView(runs_sort=order)))
        assert [run.ms for run in rows] == [*sorted_times, None]
    assert RUNS.select(ALL_RUNS, vars(RunsView())) == ALL_RUNS
    by_kernel = RUNS.select(ALL_RUNS, vars(RunsView(runs_sort="kernel")))
    assert by_kernel == sorted(ALL_RUNS, key=lambda run: run.kernel), "sorting is stable"


def test_text_with_numbers_is_sorted_by_the_numbers():
    shapes = Table[str]("shapes", "shape", (Column("shape", "Shape", lambda shape: shape),))
    options = vars(shapes.make_options("Shapes", __name__)(shapes_sort="shape"))
    rows = ["64 × 512", "64 × 1024", "512 × 64", "1024 × 64", "K 9", "K 10"]
    assert shapes.select(rows[::-1], options) == rows


def test_csv_holds_all_matching_rows_as_values_with_units_in_the_header():
    file, rows = saved(kernel="tiled", sort="time", page=2)
    assert [",".join(row) for row in rows] == [
        "kernel,warps,time (ms),status",
        "tiled,16,0.05,timed",
        "tiled,8,0.1,timed",
        "tiled,4,0.3,timed",
        "tiled,8,,failed",
    ]
    assert file["text"].startswith("\ufeffkernel,")
    assert file["name"] == "tilescope_runs.csv"
    assert 'id="runs-csv"' in render()
    assert "save-csv" not in render()


@given(st.text(), st.text())
def test_any_text_is_escaped_in_html_and_quoted_in_csv(kernel, status):
    rows = [Run(kernel, 1, 1.0, status), Run("b", 2, 2.0, "c")]
    shown = str(RUNS.render(rows, state_of()))
    assert f'<td class="kernel">{escape(kernel)}</td>' in shown
    assert f'<td class="status"><b>{escape(status)}</b></td>' in shown
    assert [row[0] for row in saved(rows)[1]] == ["kernel", kernel, "b"]


WRAPPED = {
    "bare": lambda value: value,
    "strong": Strong,
    "sourced": lambda value: Sourced(value, "predicted"),
    "hint": lambda value: prose.Hint(value, value, "unsure"),
    "code": prose.Code,
    "nested": lambda value: say("< {} & {}", Strong(value), value),
    "joined": lambda value: prose.join((value, value), " <, "),
    "link": lambda value: prose.Link(value, "a=1&b=2"),
}


def visible(markup):
    """Return the text that a browser shows."""
    return unescaping.unescape(re.sub(r"<[^>]*>", "", markup))


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
@given(value=st.text())
@example(value="<script>{0}{secret!r}</script>")
def test_any_text_is_the_same_text_in_both_renderings(value, wrap):
    sentence = say("Before {} after.", wrap(value))
    assert value in str(sentence)
    assert "<script" not in html([sentence])
    assert unescaping.unescape(str(escape(value))) in visible(html([sentence]))
    assert Markup("<i>{}</i>").format(sentence) == f"<i>{html([sentence])}</i>"


def test_html_shows_the_source_of_a_number_and_plain_text_does_not():
    sentence = say(
        "This launch reads {} from DRAM; {:,} requests.",
        Sourced(Strong("4.2 GB"), "predicted"),
        1234,
    )
    assert str(sentence) == "This launch reads 4.2 GB from DRAM; 1,234 requests."
    assert html([sentence]).startswith(
        'This launch reads <b>4.2 GB</b> <span class="mark predicted"'
    )
    assert (
        visible(html([sentence])) == "This launch reads 4.2 GB predicted from DRAM; 1,234 requests."
    )
    word = say("One program per SM is {} here.", prose.Mark("assumed"))
    assert str(word) == visible(html([word])) == "One program per SM is assumed here."


def test_empty_sentences_leave_no_spaces():
    parts = ["One.", "", say("{}", ""), "Two."]
    assert plain(parts) == html(parts) == "One. Two."
    assert prose.lead("", "One.") == '<p class="lead">One.</p>'
    assert prose.hint("<", "2") == '<p class="hint">&lt; 2</p>'


def test_only_known_sources_have_a_mark_and_only_glossary_terms_a_hover_text():
    assert all(f'class="mark {source}"' in mark(source) for source in SOURCES)
    with pytest.raises(ValueError, match="guessed"):
        mark("guessed")
    wave = prose.term("wave", "waves")
    assert str(wave) == "waves"
    assert 'title="The programs that' in html([wave])
    with pytest.raises(LookupError, match=r"glossary\.md does not define 'wavelet'"):
        prose.term("wavelet")


def test_a_caption_names_run_fields_that_are_not_the_default_and_only_known_sources():
    experiment = experiment_of("transpose.flat seed=3 l2=cold")
    caption = prose.picture_caption(experiment, "L4", "predicted", "counted", "predicted")
    assert caption.endswith("num_stages 3 · seed 3, cold · L4 · predicted and counted")
    for sources in ((), ("guessed",)):
        with pytest.raises(ValueError, match="allowed are measured"):
            prose.picture_caption(experiment, "L4", *sources)


HEADINGS = re.findall(r"^### (.+)$", FILE.read_text(), re.MULTILINE)


def test_the_dialog_lists_every_section_and_term_with_its_meaning():
    dialog = glossary_dialog()
    sections = re.findall(r"^## (.+)$", FILE.read_text(), re.MULTILINE)
    assert [
        unescaping.unescape(heading) for heading in re.findall("<h3>(.*?)</h3>", dialog)
    ] == sections
    rows = [
        tuple(map(unescaping.unescape, row))
        for row in re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", dialog)
    ]
    assert rows == [(term, meaning(term)) for term in HEADINGS]
    assert len(set(HEADINGS)) == len(HEADINGS)
    assert dialog.startswith('<dialog popover id="glossary"')
    assert set(SOURCES) <= set(HEADINGS), "every mark is explained"
