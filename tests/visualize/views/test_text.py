"""Text as values, which render as HTML and as plain text; the glossary; and tables with facets."""

import dataclasses
import html as unescaping
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
from visualize.views.tables import ALL, MAX_ROWS, Column, Table, table
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


def as_source(markup):
    """Return HTML as text, with a line for each row and facet."""
    return escape(re.sub("<(?=tr|nav|table)", " ¶ <", str(markup)))


def test_options_are_knobs_for_each_facet():
    assert knobs(RunsView).keys() == {"runs_kernel", "runs_warps", "runs_status"}
    chosen = read_fields(RunsView, {"runs_kernel": "tiled"}, "runs")
    assert pickle.loads(pickle.dumps(chosen)) == chosen == RunsView("tiled", ALL, ALL)
    for field, value in (("kernel", 7), ("warps", "8" * 101)):
        with pytest.raises(ConfigError) as error:
            read_fields(RunsView, {f"runs_{field}": value}, "runs")
        assert error.value.field == f"runs_{field}"


def test_tables_are_the_approved_ones(approve):
    narrow = dataclasses.replace(RUNS, columns=RUNS.columns[:1])
    flat = [run for run in ALL_RUNS if run.kernel == "flat"]
    tables = {
        "captioned": table(HEADER, ROWS, 'by "ncu" <2>'),
        "without rows": table(HEADER, []),
        "all runs": render(),
        "one run": render(ALL_RUNS[:1]),
        "two facets": render(kernel="tiled", warps="8"),
        "other facets": render(kernel="tiled", status="timed"),
        "a value without rows": render(kernel="padded"),
        "an unknown value": render(warps="32"),
        "one kernel": render(flat),
        "one kernel, which is selected": render(flat, kernel="flat"),
        "one column": narrow.render(ALL_RUNS, state_of(kernel="flat", warps="4")),
    }
    approve("tables", {name: as_source(shown) for name, shown in tables.items()})
    assert "The first 100 of 105 runs" in render(ALL_RUNS * 15)
    assert render(ALL_RUNS * 15).count("<tr>") == 1 + MAX_ROWS


@given(st.text(), st.text())
def test_any_text_is_escaped_in_html(kernel, status):
    rows = [Run(kernel, 1, 1.0, status), Run("b", 2, 2.0, "c")]
    shown = str(RUNS.render(rows, state_of()))
    for name, value, cell in (("kernel", kernel, "{}"), ("status", status, "<b>{}</b>")):
        text = escape(value)
        assert f'<td class="{name}" data-value="{text}">{cell.format(text)}</td>' in shown


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
