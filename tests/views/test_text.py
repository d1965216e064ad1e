"""Text as values, which render as HTML and as plain text; the glossary; and tables with facets and pages."""

from __future__ import annotations

import csv
import dataclasses
import html as unescaping
import io
import json
import pickle
import re
import urllib.parse
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup, escape

from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.knobs import ConfigError, knobs, read_fields
from tests.experiments import experiment_of
from tests.messages import links
from visualize.glossary import FILE, meaning
from visualize.numbers import SOURCES, mark
from visualize.views import prose
from visualize.views.prose import Hint, Sourced, Strong, html, plain, say
from visualize.views.state import State, View
from visualize.views.tables import ALL, Column, Table, experiment_columns, table
from visualize.web.page import glossary_dialog

HEADER = (Sourced("waves", "predicted"), "counted", "counted", "")
ROWS = [(1, Strong("<x>"), "a{b}", say("{} & {}", "c", 1)), ("a, b", "", 2.5, Hint("✓", "equal"))]


def test_a_table_has_a_caption_scopes_and_its_rows():
    shown = table(HEADER, ROWS, 'by "ncu" <2>')
    assert "<table><caption>by &#34;ncu&#34; &lt;2&gt;</caption><thead><tr>" in shown
    assert shown.count('<th scope="col">') == 3
    assert "<td></td></tr></thead>" in shown, "a screen reader must not announce an empty heading"
    assert '<th scope="col">waves <span class="mark predicted"' in shown
    assert "<tr><td>1</td><td><b>&lt;x&gt;</b></td><td>a{b}</td><td>c &amp; 1</td></tr>" in shown
    end = '<td><span title="equal" class="">✓</span></td></tr></tbody></table>'
    assert shown.endswith(f"<td>2.5</td>{end}</div>")
    assert "<caption>" not in table(HEADER, [])


def test_a_tables_link_saves_its_cells_as_csv():
    shown = table(HEADER, [*ROWS, ("1,048,576", "-1,234.5", "1,2", "1,000 B")])
    link = re.search(
        r'<a class="save-csv" download="waves predicted.csv" href="data:text/csv,([^"]+)"', shown
    )
    assert link, shown
    rows = csv.reader(io.StringIO(urllib.parse.unquote(link[1]).removeprefix("\ufeff"), newline=""))
    assert list(rows) == [
        ["waves predicted", "counted", "counted", ""],
        ["1", "<x>", "a{b}", "c & 1"],
        ["a, b", "", "2.5", "✓"],
        ["1048576", "-1234.5", "1,2", "1,000 B"],
    ]


@dataclass(frozen=True)
class Run:
    kernel: str
    warps: int
    ms: float | None
    status: str = "timed"


KERNELS = ("flat", "tiled", "padded")
RUNS = Table[Run](
    "runs",
    "run",
    (
        Column("kernel", "Kernel", facet="The kernel that ran.", choices=KERNELS),
        Column("warps", "num_warps", facet="Warps per program."),
        Column("time", Sourced("Time", "recorded"), lambda run: run.ms, unit="ms"),
        Column(
            "status",
            "Status",
            cell=lambda run: Strong(run.status),
            facet="How it ended.",
            labels={"timed": "Timed"},
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


def facets(html):
    """Return the text and the address of each facet's links."""
    return {
        heading: links(nav)
        for heading, nav in re.findall(r"<nav [^>]*><b>(.*?)</b>(.*?)</nav>", html)
    }


def listed(html):
    return [
        re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(<td.*?)</tr>", html)
    ]


def pages(html):
    (pager,) = re.findall(r'<(?:p|div) class="pager">(.*?)(?:<button|</p>)', html)
    part, *_ = pager.split("<a")
    return part.strip(), [int(number) for number in re.findall(r"runs_page=(\d+)", pager)]


def test_options_are_knobs_for_each_facet_the_order_and_the_page():
    assert knobs(RunsView, "runs_").keys() == {"kernel", "warps", "status", "sort", "page"}
    assert dataclasses.astuple(RunsView()) == (ALL, ALL, ALL, "", 1)
    chosen = read_fields(
        RunsView, {"runs_kernel": "tiled", "runs_sort": "-time", "runs_page": "2"}, "runs"
    )
    assert pickle.loads(pickle.dumps(chosen)) == chosen == RunsView("tiled", ALL, ALL, "-time", 2)
    for field, value in (("kernel", "sort"), ("sort", "date"), ("page", 0), ("warps", "8" * 101)):
        with pytest.raises(ConfigError) as error:
            read_fields(RunsView, {f"runs_{field}": value}, "runs")
        assert error.value.field == f"runs_{field}"


def test_a_page_of_rows_has_cells_with_units_styles_and_links():
    rows = listed(render())
    assert len(rows) == 3
    assert rows[0] == ['<a href="?warps=4">flat</a>', "4", "0.200 ms", "<b>timed</b>"]
    assert rows[1][2] == "50.0 µs"
    assert rows[2] == ["tiled", "8", "", "<b>failed</b>"], "no value, no link"
    assert '<td class="time">0.200 ms</td>' in render()


def test_the_pager_says_which_rows_are_listed_and_links_to_the_neighbouring_pages():
    assert pages(render()) == ("1–3 of 7", [2])
    assert pages(render(page=2)) == ("4–6 of 7", [1, 3])
    assert pages(render(page=3)) == ("7–7 of 7", [2])
    assert render(page=3) == render(page=9_999), "beyond the last page is the last page"
    assert pages(render(ALL_RUNS[:1])) == ("1 run", [])
    assert pages(render(ALL_RUNS[:3])) == ("3 runs", [])
    assert pages(render(kernel="padded")) == ("No run matches.", [])
    assert "<table" not in render(kernel="padded")
    assert "No run is stored yet." in render([])


def test_facets_filter_together_and_count_with_the_other_facets_applied():
    assert [row[1:] for row in listed(render(kernel="tiled", warps="8"))] == [
        ["8", "", "<b>failed</b>"],
        ["8", "0.100 ms", "<b>timed</b>"],
    ]
    assert {
        name: list(dict(found))
        for name, found in facets(render(kernel="tiled", status="timed")).items()
    } == {
        "Kernel": ["All 6", "flat 3", "tiled 3"],
        "num_warps": ["All 3", "4 1", "8 1", "16 1"],
        "Status": ["All 4", "failed 1", "Timed 3"],
    }


def test_a_facets_link_changes_only_its_own_value_and_a_chosen_value_without_rows_is_still_listed():
    page = render(kernel="tiled", page=2)
    _, address = facets(page)["num_warps"][2]
    kept = {"kernel": "matmul.grouped", "tab": "runs", "runs_kernel": "tiled"}
    assert address == {**kept, "runs_warps": "8", "runs_page": "1"}, "it returns to the first page"
    assert re.findall(r'aria-current="true">(\w+)', page) == ["tiled", "All", "All"]
    assert "padded 0" in dict(facets(render(kernel="padded"))["Kernel"])
    assert "32 0" in dict(facets(render(warps="32"))["num_warps"])
    alone = [run for run in ALL_RUNS if run.kernel == "flat"]
    assert facets(render(alone)).keys() == {"num_warps"}
    assert facets(render(alone, kernel="flat")).keys() == {"Kernel", "num_warps"}, (
        "a selected facet can be cleared"
    )


@pytest.mark.parametrize(("order", "state"), [("time", "ascending"), ("-time", "descending")])
def test_rows_are_sorted_by_value_with_missing_ones_last(order, state):
    times = [0.01, 0.05, 0.1, 0.2, 0.3, 1.5]
    rows = RUNS.select(ALL_RUNS, vars(RunsView(runs_sort=order)))
    assert [run.ms for run in rows] == [*(times if order == "time" else reversed(times)), None]
    ((shown, address),) = re.findall(
        r'aria-sort="(\w+)"><a href="\?([^"]*)">Time', render(sort=order)
    )
    assert shown == state
    assert ("runs_sort=-time" in address) == (order == "time"), "a click sorts the other way"
    assert RUNS.select(ALL_RUNS, vars(RunsView())) == ALL_RUNS
    by_kernel = RUNS.select(ALL_RUNS, vars(RunsView(runs_sort="kernel")))
    assert by_kernel == sorted(ALL_RUNS, key=lambda run: run.kernel), "sorting is stable"


def test_text_with_numbers_is_sorted_by_the_numbers():
    shapes = Table[str]("shapes", "shape", (Column("shape", "Shape", lambda shape: shape),))
    options = vars(shapes.make_options("Shapes", __name__)(shapes_sort="shape"))
    rows = ["1024 × 64", "64 × 512", "512 × 64", "K 9", "64 × 1024", "K 10"]
    assert shapes.select(rows, options) == [
        "64 × 512",
        "64 × 1024",
        "512 × 64",
        "1024 × 64",
        "K 9",
        "K 10",
    ]


def test_the_columns_of_an_experiment_are_short_and_say_if_it_cannot_be_read():
    fields = {
        "problem": {"dtype": "float32", "layout": "NT"},
        "config": {"BLOCK_M": 128, "num_warps": 1},
    }
    experiment = from_json({"kernel": "matmul.grouped", **fields})
    columns = experiment_columns(lambda row: row, lambda _: ("GROUP_SIZE",))
    config = "128 × 128 × 32, 1 warp, 3 stages"
    assert [column.value_of(experiment) for column in columns] == [
        "512 × 512 × 512",
        "float32, NT",
        config,
    ]
    assert (
        columns[2].cell_of(experiment).__html__()
        == f'<span title="{config}" class="">{config}</span>'
    )
    assert [column.value_of(None) for column in columns] == [
        "",
        "",
        "of another version of this kernel",
    ]
    assert prose.config_text(experiment.config) == "128 × 128 × 32, GROUP_SIZE 4, 1 warp, 3 stages"


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
    assert file["type"] == "text/csv;charset=utf-8"
    assert 'id="runs-csv"' in render()
    assert "save-csv" not in render()


@given(st.text(), st.text())
def test_any_text_is_escaped_in_html_and_quoted_in_csv(kernel, status):
    rows = [Run(kernel, 1, 1.0, status), Run("b", 2, 2.0, "c")]
    shown = str(RUNS.render(rows, state_of()))
    assert f'<td class="kernel">{escape(kernel)}</td>' in shown
    assert f'<td class="status"><b>{escape(status)}</b></td>' in shown
    assert [row[0] for row in saved(rows)[1]] == ["kernel", kernel, "b"]


def test_a_column_that_only_some_rows_have_is_left_out_and_a_facet_that_always_selects_one_value_has_none():
    """Sweeps vary different knobs: one class of options serves all, and each table has the columns of its rows."""
    narrow = dataclasses.replace(RUNS, columns=RUNS.columns[:1])
    html = str(narrow.render(ALL_RUNS, state_of(kernel="flat", warps="4", sort="-time")))
    assert facets(html).keys() == {"Kernel"}
    assert listed(html) == [["flat"]] * 3
    column = Column("warps", "Warps", facet="Warps.", choices=("4", "8", "16"), default="8")
    narrow = dataclasses.replace(RUNS, columns=(RUNS.columns[0], column))
    options = narrow.make_options("Narrow", __name__)
    assert knobs(options)["runs_warps"].choices == ("8", "4", "16")
    html = str(
        narrow.render(ALL_RUNS, dataclasses.replace(state_of(), view=View("runs", (options(),))))
    )
    assert listed(html) == [["tiled"], ["flat"], ["tiled"]]
    assert [text for text, _ in facets(html)["Warps"]] == ["8 3", "4 2", "16 2"]


HOSTILE = (
    "<script>alert(1)</script>",
    "{0}",
    "{",
    "}{",
    "a & b",
    '"quoted"',
    "it's",
    "{secret!r}",
    "<b>",
    "%s",
)
WRAPPED = {
    "bare": lambda value: value,
    "strong": Strong,
    "sourced": lambda value: Sourced(value, "predicted"),
    "hint": lambda value: prose.Hint(value, value, "unsure"),
    "code": prose.Code,
    "joined": lambda value: prose.join((value, value), " <, "),
    "link": lambda value: prose.Link(value, "a=1&b=2"),
}


def visible(markup):
    """Return the text that a browser shows."""
    return unescaping.unescape(re.sub(r"<[^>]*>", "", markup))


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_value_is_text_in_both_renderings(value, wrap):
    sentence = say("Before {} after.", wrap(value))
    assert value in str(sentence)
    assert "<script" not in html([sentence])
    assert value in visible(html([sentence]))
    assert Markup("<i>{}</i>").format(sentence) == f"<i>{html([sentence])}</i>"


@given(st.text())
def test_any_text_survives_html(value):
    representable = unescaping.unescape(str(Markup.escape(f"{value}|{value}")))
    assert visible(html([say("{}|{}", value, Strong(value))])) == representable


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


def test_nested_sentences_and_templates_are_escaped_once():
    sentence = say("({})", say("{} & {}", Strong("<"), "&"))
    assert html([sentence]) == "(<b>&lt;</b> &amp; &amp;)"
    assert str(sentence) == "(< & &)"
    assert html([say("a < b & c {}", 1)]) == "a &lt; b &amp; c 1"


def test_empty_sentences_leave_no_spaces():
    parts = ["One.", "", say("{}", ""), "Two."]
    assert plain(parts) == html(parts) == "One. Two."
    assert prose.claim("", "One.") == '<p class="claim">One.</p>'
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


HEADINGS = re.findall(r"^### (.+)$", FILE.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_mark_is_explained():
    assert set(SOURCES) <= set(HEADINGS)


def test_the_dialog_lists_every_section_and_term_with_its_meaning():
    dialog = glossary_dialog()
    sections = re.findall(r"^## (.+)$", FILE.read_text(encoding="utf-8"), re.MULTILINE)
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
