"""Text as values: the same sentence as HTML and as plain text, with nothing in it taken for markup."""

from __future__ import annotations

import html as unescaping
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from visualize.views import prose
from visualize.views.numbers import SOURCES, figure, mark
from visualize.views.prose import Code, Hint, Link, Listed, Mark, Sourced, Strong, claim, html, plain, say, term

HOSTILE = ("<script>alert(1)</script>", "{0}", "{", "}{", "a & b", '"quoted"', "it's", "{secret!r}", "<b>", "%s")
WRAPPED = (Strong, lambda value: Sourced(value, "predicted"), lambda value: Hint(value, value, "unsure"), Code)
WRAPPED += (lambda value: Listed((value, value), " <, "), lambda value: Link(value, "a=1&b=2"), lambda value: value)


def text_of(markup):
    """What a browser shows of markup that has only our own tags."""
    return unescaping.unescape(re.sub(r"<[^>]*>", "", markup))


@pytest.mark.parametrize("wrap", WRAPPED)
@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_from_outside_is_text_in_both_renderings(value, wrap):
    said = say("Before {} after.", wrap(value))
    assert value in str(said)
    assert "<script" not in html([said])
    assert value in text_of(html([said]))
    assert Markup("<i>{}</i>").format(said) == f"<i>{html([said])}</i>"


@given(st.text())
def test_any_text_survives_the_way_through_html(value):
    assert text_of(html([say("{}|{}", value, Strong(value))])) == html_of_plain(f"{value}|{value}")


def html_of_plain(value):
    """Text as it comes back from escaping: HTML has no other way to write a character that it can't hold."""
    return unescaping.unescape(str(Markup.escape(value)))


def test_plain_text_has_what_the_page_shows_less_its_marks():
    said = say("This launch reads {} from DRAM; {:,} requests.", Sourced(Strong("4.2 GB"), "predicted"), 1234)
    assert str(said) == "This launch reads 4.2 GB from DRAM; 1,234 requests."
    assert html([said]).startswith('This launch reads <b>4.2 GB</b> <span class="mark predicted"')
    assert text_of(html([said])) == "This launch reads 4.2 GB predicted from DRAM; 1,234 requests."


def test_a_mark_that_is_a_word_of_the_sentence_stays_in_plain_text():
    said = say("One program per SM is {} here.", Mark("assumed"))
    assert str(said) == text_of(html([said])) == "One program per SM is assumed here."


def test_sentences_within_sentences_are_escaped_once():
    said = say("({})", say("{} & {}", Strong("<"), "&"))
    assert html([said]) == "(<b>&lt;</b> &amp; &amp;)"
    assert str(said) == "(< & &)"


def test_empty_sentences_leave_no_blanks():
    parts = ["One.", "", say("{}", ""), "Two."]
    assert plain(parts) == html(parts) == "One. Two."
    assert claim("", "One.") == '<p class="claim">One.</p>'
    assert prose.hint("<", "2") == '<p class="hint">&lt; 2</p>'


def test_a_template_is_text_too():
    assert html([say("a < b & c {}", 1)]) == "a &lt; b &amp; c 1"


def test_every_source_has_a_mark_and_nothing_else_has():
    for source in SOURCES:
        assert f'class="mark {source}"' in mark(source)
    with pytest.raises(ValueError, match="guessed"):
        mark("guessed")


def test_a_number_of_the_strip_escapes_value_label_and_detail():
    shown = figure("<b>", "a & b", "measured", 'NVIDIA "H200" <x>')
    assert "<b>" not in shown
    assert "a &amp; b" in shown
    assert 'title="NVIDIA &#34;H200&#34; &lt;x&gt;"' in shown


def test_a_term_of_the_glossary_carries_its_meaning():
    assert html([term("wave", "waves")]).startswith('<span title="The programs that all SMs hold at once.')
    assert str(term("wave", "waves")) == "waves"
    with pytest.raises(LookupError, match="wavelet"):
        term("wavelet")
