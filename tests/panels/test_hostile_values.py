"""Hostile messages to the page's handlers: each is answered with a sentence or changes nothing."""

from __future__ import annotations

import json
import urllib.parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import discover
from kernels.gpus import GPUS
from kernels.knobs import ConfigError, knobs
from tests.panels.sent import request, settings_of, slots_of, updates
from visualize.views.tabs import SETTINGS
from visualize.web.controls import presets
from visualize.web.redraw import read_message

pytestmark = pytest.mark.xdist_group("hostile")

LONG = "9" * 5000
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["", LONG, "-1", "4096", "1e999", "<script>alert(1)</script>", "' OR 1=1 --", "../../etc/passwd", "\0"]
    ),
    st.sampled_from([*discover(), *GPUS, *SETTINGS.tabs, "float16", "TN"]),
)
JSON = st.recursive(SCALARS, lambda of: st.lists(of, max_size=3) | st.dictionaries(st.text(max_size=8), of, max_size=3))
FIELDS = sorted(
    {"kernel", "form_of", "preset", "gpu", "with", "tab"}
    | {name for kernel in discover().values() for name in (*knobs(kernel.config), *kernel.problem_knobs())}
    | {name for options in SETTINGS.options for name in knobs(options)}
)


def wrong_text(value):
    """As JSON, where that can be; nested deeper than a parser goes; or no JSON at all."""
    return st.sampled_from([json.dumps(value), "[" * 100_000, "{", "", "{}", f'{{"M": {LONG}}}', "x" * 70_000])


@st.composite
def messages(draw):
    """A message of the page with some of it replaced: fields, or all of it."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.one_of(JSON, JSON.flatmap(wrong_text)))
    message = json.loads(settings_of({"kernel": draw(st.sampled_from(list(discover())))}))
    message["settings"] |= draw(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
    keys = st.sampled_from(["number", "settings", "open", "follow", "kept"])
    return json.dumps(message | draw(st.dictionaries(keys, JSON, max_size=1)))


@pytest.fixture(scope="module")
def page(shared_page):
    """The page stays the same from value to value, as one that is served does."""
    return shared_page


def assert_is_sendable(update):
    """A browser can be sent it, in sentences that are not endless."""
    update.encode()
    for sentence in json.loads(slots_of(update).get("problems", "{}")).values():
        assert len(sentence) < 1500, sentence[:3000]


@given(message=messages())
def test_a_message_is_drawn_or_refused(page, message):
    assert_is_sendable(page.on_message(request(), message))


@pytest.mark.parametrize("message", ["[" * 30_000, '{"kernel":' * 6_000], ids=["lists", "objects"])
def test_messages_that_go_too_deep_are_refused(page, message):
    assert_is_sendable(page.on_message(request(), message))


@given(fields=st.dictionaries(st.sampled_from(["tour", "stop", *FIELDS]), st.text(max_size=20)), kept=JSON)
def test_any_address_opens_whatever_the_browser_has_kept(page, fields, kept):
    message = {"open": urllib.parse.urlencode(fields), "kept": kept}
    assert_is_sendable(page.on_message(request(), json.dumps(message)))


@given(link=JSON)
def test_a_link_is_followed_or_refused_and_what_is_no_link_gets_no_code(page, link):
    assert_is_sendable(page.on_message(request(), json.dumps({"follow": link})))
    (slots,) = updates(page.on_action, json.dumps({"action": "share", "link": link}))
    assert slots == {"share": ""}


@given(tour=JSON, stop=JSON)
def test_what_is_no_stop_is_not_shown(page, tour, stop):
    assert updates(page.on_action, json.dumps({"action": "tour", "tour": tour, "stop": stop})) == []


@given(message=messages(), data=st.data())
def test_an_unreadable_message_starts_no_work(page, message, data):
    """A message that reads as an experiment is not submitted here."""
    try:
        sent = read_message(message)
        page.read(sent)
    except ConfigError:
        action = data.draw(st.sampled_from(list(page.actions)))
        text = message if not isinstance(message, str) else message[:-1] + f', "action": "{action}"}}'
        (slots,) = updates(page.on_action, text)
        assert set(json.loads(slots["problems"]))
    assert not page.session.jobs


@pytest.mark.parametrize("number", [-1, 99, "0", 0.5, [], {}])
def test_a_preset_that_is_none_is_refused(page, number):
    message = json.loads(settings_of({}))
    message["settings"]["preset"] = number
    (sentence,) = json.loads(slots_of(page.on_message(request(), json.dumps(message)))["problems"]).values()
    last = len(presets(discover()["matmul.grouped"])) - 1
    assert sentence == f"The preset is {number!r}; matmul.grouped has presets 0 to {last}."
