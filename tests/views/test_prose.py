"""Text as values: a sentence renders as HTML and as plain text, and neither takes values for markup."""

from __future__ import annotations

import html as unescaping
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from kernels.experiment import from_json
from visualize.views import prose
from visualize.views.numbers import SOURCES, mark
from visualize.views.prose import Sourced, Strong, html, plain, say

HOSTILE = ("<script>alert(1)</script>", "{0}", "{", "}{", "a & b", '"quoted"', "it's", "{secret!r}", "<b>", "%s")
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
    sentence = say("This launch reads {} from DRAM; {:,} requests.", Sourced(Strong("4.2 GB"), "predicted"), 1234)
    assert str(sentence) == "This launch reads 4.2 GB from DRAM; 1,234 requests."
    assert html([sentence]).startswith('This launch reads <b>4.2 GB</b> <span class="mark predicted"')
    assert visible(html([sentence])) == "This launch reads 4.2 GB predicted from DRAM; 1,234 requests."
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
    assert (str(wave), html([wave])[:20]) == ("waves", '<span title="The pro')
    with pytest.raises(LookupError, match=r"glossary\.md does not define 'wavelet'"):
        prose.term("wavelet")


def test_a_config_and_a_dtype_are_short_and_name_choices_that_are_not_the_default():
    fields = {"config": {"BLOCK_M": 128, "num_warps": 1}, "problem": {"dtype": "float32", "layout": "NT"}}
    experiment = from_json({"kernel": "matmul.grouped", **fields})
    assert prose.config_text(experiment.config) == "128 × 128 × 32, GROUP_SIZE 4, 1 warp, 3 stages"
    assert prose.dtype_text(experiment.problem) == "float32, NT"


def test_a_caption_names_run_fields_that_are_not_the_default_and_only_known_sources():
    experiment = from_json({"kernel": "transpose.flat", "run": {"seed": 3, "l2": "cold"}})
    caption = prose.picture_caption(experiment, "L4", "predicted", "counted", "predicted")
    assert caption.endswith("num_stages 3 · seed 3, cold · L4 · predicted and counted")
    for sources in ((), ("guessed",)):
        with pytest.raises(ValueError, match="allowed are measured"):
            prose.picture_caption(experiment, "L4", *sources)
