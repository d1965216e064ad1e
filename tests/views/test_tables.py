"""Tables of cells, and lists with facets, sorting, pages and CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import pickle
import re
import urllib.parse
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.knobs import ConfigError, knobs, read_fields
from visualize.views.prose import Hint, Sourced, Strong, say
from visualize.views.state import State, View
from visualize.views.tables import ALL, Column, Table, experiment_columns, table

BUTTON = '<button type="button" class="save-csv" aria-label="Save this table as CSV">CSV</button>'
HEADER = (Sourced("waves", "predicted"), "counted", "counted", "")
ROWS = [(1, Strong("<x>"), "a{b}", say("{} & {}", "c", 1)), ("a, b", "", 2.5, Hint("✓", "equal"))]


def test_a_table_has_a_caption_scopes_and_its_rows():
    shown = table(HEADER, ROWS, 'by "ncu" <2>')
    assert shown.startswith('<div class="scroll"><table><caption>by &#34;ncu&#34; &lt;2&gt;</caption><thead><tr>')
    assert shown.count('<th scope="col">') == 3
    assert "<td></td></tr></thead>" in shown, "a screen reader must not announce an empty heading"
    assert '<th scope="col">waves <span class="mark predicted"' in shown
    assert "<tr><td>1</td><td><b>&lt;x&gt;</b></td><td>a{b}</td><td>c &amp; 1</td></tr>" in shown
    assert shown.endswith(
        f'<td>2.5</td><td><span title="equal" class="">✓</span></td></tr></tbody></table>{BUTTON}</div>'
    )
    empty = table(HEADER, [])
    assert "<caption>" not in empty
    assert empty.count("<th ") == 3
    assert "<tbody></tbody>" in empty


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
            "status", "Status", cell=lambda run: Strong(run.status), facet="How it ended.", labels={"timed": "Timed"}
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
    return State(from_json({"kernel": "matmul.grouped"}), View("runs", (options,)), GPUS["H200"])


def render(rows=ALL_RUNS, **chosen):
    return str(RUNS.render(rows, state_of(**chosen), lambda run: f"warps={run.warps}" if run.ms else ""))


def saved(rows=ALL_RUNS, **chosen):
    """Return the file that the browser saves."""
    return json.loads(RUNS.save(rows, state_of(**chosen))["saved-file"])


def saved_rows(*arguments, **chosen):
    return list(csv.reader(io.StringIO(saved(*arguments, **chosen)["text"].removeprefix("\ufeff"), newline="")))


def facets(html):
    """Return the links of each facet: text, number of rows, address."""
    found = {}
    for heading, links in re.findall(r"<nav [^>]*><b>(.*?)</b>(.*?)</nav>", html):
        found[heading] = [
            (text, int(count), dict(urllib.parse.parse_qsl(address.replace("&amp;", "&"))))
            for address, text, count in re.findall(r'<a href="\?([^"]*)"[^>]*>(.*?) <span>(.*?)</span></a>', links)
        ]
    return found


def listed(html):
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(<td.*?)</tr>", html)]


def pages(html):
    (pager,) = re.findall(r'<(?:p|div) class="pager">(.*?)(?:<button|</p>)', html)
    part, *_ = pager.split("<a")
    return part.strip(), [int(number) for number in re.findall(r"runs_page=(\d+)", pager)]


def test_options_are_knobs_for_each_facet_the_order_and_the_page():
    assert knobs(RunsView, "runs_").keys() == {"kernel", "warps", "status", "sort", "page"}
    assert dataclasses.astuple(RunsView()) == (ALL, ALL, ALL, "", 1)
    assert knobs(RunsView)["runs_kernel"].help == "The kernel that ran."
    chosen = read_fields(RunsView, {"runs_kernel": "tiled", "runs_sort": "-time", "runs_page": "2"}, "runs")
    assert chosen == RunsView("tiled", ALL, ALL, "-time", 2)
    assert pickle.loads(pickle.dumps(chosen)) == chosen
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
    chosen = facets(render(kernel="tiled", status="timed"))
    assert [(text, count) for text, count, _ in chosen["Kernel"]] == [("All", 6), ("flat", 3), ("tiled", 3)]
    assert [(text, count) for text, count, _ in chosen["num_warps"]] == [("All", 3), ("4", 1), ("8", 1), ("16", 1)]
    assert [(text, count) for text, count, _ in chosen["Status"]] == [("All", 4), ("failed", 1), ("Timed", 3)]


def test_a_facets_link_changes_only_its_own_value_and_returns_to_the_first_page():
    html = render(kernel="tiled", page=2)
    (_, _, address) = facets(html)["num_warps"][2]
    kept = {"kernel": "matmul.grouped", "tab": "runs", "runs_kernel": "tiled"}
    assert address == {**kept, "runs_warps": "8", "runs_page": "1"}
    assert re.findall(r'aria-current="true">(\w+)', html) == ["tiled", "All", "All"]


def test_a_chosen_value_without_rows_is_still_listed_and_a_facet_of_one_value_is_not():
    assert ("padded", 0) in [link[:2] for link in facets(render(kernel="padded"))["Kernel"]]
    assert ("32", 0) in [link[:2] for link in facets(render(warps="32"))["num_warps"]]
    alone = [run for run in ALL_RUNS if run.kernel == "flat"]
    assert facets(render(alone)).keys() == {"num_warps"}
    assert facets(render(alone, kernel="flat")).keys() == {"Kernel", "num_warps"}, "a selected facet can be cleared"


@pytest.mark.parametrize(("order", "expected"), [("time", [0.01, 0.05, 0.1, 0.2, 0.3, 1.5, None]),
                                                 ("-time", [1.5, 0.3, 0.2, 0.1, 0.05, 0.01, None])])  # fmt: skip
def test_rows_are_sorted_by_value_with_missing_ones_last(order, expected):
    assert [run.ms for run in RUNS.select(ALL_RUNS, vars(RunsView(runs_sort=order)))] == expected
    html = render(sort=order)
    state = "descending" if order[0] == "-" else "ascending"
    (heading,) = re.findall(r'<th scope="col" aria-sort="(\w+)"><a href="\?([^"]*)">Time', html)
    assert heading[0] == state
    assert ("runs_sort=-time" in heading[1]) == (order == "time"), "the other way"
    assert render().count("aria-sort") == 0
    assert RUNS.select(ALL_RUNS, vars(RunsView())) == ALL_RUNS
    by_kernel = RUNS.select(ALL_RUNS, vars(RunsView(runs_sort="kernel")))
    assert by_kernel == sorted(ALL_RUNS, key=lambda run: run.kernel), "sorting is stable"


def test_text_with_numbers_is_sorted_by_the_numbers():
    shapes = Table[str]("shapes", "shape", (Column("shape", "Shape", lambda shape: shape),))
    options = vars(shapes.make_options("Shapes", __name__)(shapes_sort="shape"))
    rows = ["1024 × 64", "64 × 512", "512 × 64", "K 9", "64 × 1024", "K 10"]
    assert shapes.select(rows, options) == ["64 × 512", "64 × 1024", "512 × 64", "1024 × 64", "K 9", "K 10"]


def test_the_columns_of_an_experiment_are_short_and_say_if_it_cannot_be_read():
    experiment = from_json({"kernel": "matmul.grouped"})
    columns = experiment_columns(lambda row: row, lambda _: ("GROUP_SIZE",))
    config = "64 × 128 × 32, 4 warps, 3 stages"
    assert [column.value_of(experiment) for column in columns] == ["512 × 512 × 512", "float16", config]
    assert columns[2].cell_of(experiment).__html__() == f'<span title="{config}" class="">{config}</span>'
    assert [column.value_of(None) for column in columns] == ["", "", "of another version of this kernel"]


def test_csv_holds_all_matching_rows_as_values_with_units_in_the_header():
    rows = saved_rows(kernel="tiled", sort="time", page=2)
    assert rows == [
        ["kernel", "warps", "time (ms)", "status"],
        ["tiled", "16", "0.05", "timed"],
        ["tiled", "8", "0.1", "timed"],
        ["tiled", "4", "0.3", "timed"],
        ["tiled", "8", "", "failed"],
    ]
    file = saved()
    assert file["text"].startswith("\ufeffkernel,")
    assert (file["name"], file["type"]) == ("tilescope_runs.csv", "text/csv;charset=utf-8")
    assert 'id="runs-csv"' in render()
    assert BUTTON not in render()


@given(st.text(), st.text())
def test_any_text_is_escaped_in_html_and_quoted_in_csv(kernel, status):
    rows = [Run(kernel, 1, 1.0, status), Run("b", 2, 2.0, "c")]
    html = str(RUNS.render(rows, state_of()))
    assert f'<td class="kernel">{escape(kernel)}</td>' in html
    assert f'<td class="status"><b>{escape(status)}</b></td>' in html
    assert [row[0] for row in saved_rows(rows)] == ["kernel", kernel, "b"]


def test_a_column_that_only_some_rows_have_is_left_out_by_replacing_the_columns():
    """Sweeps vary different knobs: one class of options serves all, and each table has the columns of its rows."""
    narrow = dataclasses.replace(RUNS, columns=RUNS.columns[:1])
    html = str(narrow.render(ALL_RUNS, state_of(kernel="flat", warps="4", sort="-time")))
    assert facets(html).keys() == {"Kernel"}
    assert listed(html) == [["flat"]] * 3


def test_a_facet_that_always_selects_one_value_has_no_column():
    column = Column("warps", "Warps", facet="Warps.", choices=("4", "8", "16"), default="8")
    table = dataclasses.replace(RUNS, columns=(RUNS.columns[0], column))
    options = table.make_options("Narrow", __name__)
    assert knobs(options)["runs_warps"].choices == ("8", "4", "16")
    html = str(table.render(ALL_RUNS, dataclasses.replace(state_of(), view=View("runs", (options(),)))))
    assert listed(html) == [["tiled"], ["flat"], ["tiled"]]
    assert [link[:2] for link in facets(html)["Warps"]] == [("8", 3), ("4", 2), ("16", 2)]
