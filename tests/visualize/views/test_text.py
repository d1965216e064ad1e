"""Text as values, which render as HTML and as plain text; the glossary; and tables."""

import html as unescaping
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from markupsafe import Markup, escape

from tests.experiments import experiment_of
from tilescope.numbers import SOURCES
from visualize.views import prose
from visualize.views.prose import (
    FILE,
    Hint,
    Sourced,
    Strong,
    html,
    mark,
    meaning,
    plain,
    say,
    table,
)
from visualize.web.page import glossary_dialog

HEADER = (Sourced("waves", "predicted"), "counted", "counted", "")
ROWS = [
    (1, Strong("<x>"), "a{b}", say("{} & {}", "c", 1)),
    ("a, b", "", 2.5, Hint("✓", "equal")),
    ("1,048,576", "-1,234.5", "1,2", "1,000 B"),
]


def as_source(markup):
    """Return HTML as text, with a line for each row."""
    return escape(re.sub("<(?=tr|table)", " ¶ <", str(markup)))


def test_tables_are_the_approved_ones(approve):
    tables = {
        "captioned": table(HEADER, ROWS, 'by "ncu" <2>'),
        "without rows": table(HEADER, []),
    }
    approve("tables", {name: as_source(shown) for name, shown in tables.items()})


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
