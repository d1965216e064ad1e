"""Hostile messages to the page's handlers: each gets a sentence or changes nothing."""

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


@st.composite
def messages(draw):
    """Draw a message of the page with some fields replaced, or another value or text."""
    if draw(st.integers(0, 4)) == 0:
        texts = ["[" * 100_000, '{"kernel":' * 6_000, "{", "", "{}", f'{{"M": {LONG}}}', "x" * 70_000]
        return draw(st.one_of(JSON, JSON.map(json.dumps), st.sampled_from(texts)))
    message = json.loads(settings_of({"kernel": draw(st.sampled_from(list(discover())))}))
    message["settings"] |= draw(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
    keys = st.sampled_from(["number", "settings", "open", "follow", "stored_run"])
    return json.dumps(message | draw(st.dictionaries(keys, JSON, max_size=1)))


def assert_is_sendable(update):
    update.encode()
    for sentence in json.loads(slots_of(update).get("problems", "{}")).values():
        assert len(sentence) < 1500, sentence[:3000]


@given(message=messages())
def test_a_message_is_drawn_or_refused(shared_page, message):
    assert_is_sendable(shared_page.on_message(request(), message))


@pytest.mark.parametrize("message", ["[" * 30_000, '{"kernel":' * 6_000], ids=["lists", "objects"])
def test_a_message_that_is_nested_too_deeply_is_refused(shared_page, message):
    assert "which the page does not send" in slots_of(shared_page.on_message(request(), message))["problems"]


@given(fields=st.dictionaries(st.sampled_from(["tour", "stop", *FIELDS]), st.text(max_size=20)), stored_run=JSON)
def test_any_address_opens_whatever_is_in_the_browsers_storage(shared_page, fields, stored_run):
    message = {"open": urllib.parse.urlencode(fields), "stored_run": stored_run}
    assert_is_sendable(shared_page.on_message(request(), json.dumps(message)))


@given(link=JSON)
def test_a_link_is_followed_or_refused_and_other_values_have_no_qr_code(shared_page, link):
    assert_is_sendable(shared_page.on_message(request(), json.dumps({"follow": link})))
    (slots,) = updates(shared_page.on_action, json.dumps({"action": "share", "link": link}))
    assert slots == {"share": ""}


@given(tour=JSON, stop=JSON)
def test_only_a_tours_stop_is_shown(shared_page, tour, stop):
    assert updates(shared_page.on_action, json.dumps({"action": "tour", "tour": tour, "stop": stop})) == []


@given(message=messages(), data=st.data())
def test_an_unreadable_message_starts_no_work(shared_page, message, data):
    """A message that reads as an experiment is not submitted here."""
    try:
        sent = read_message(message)
        shared_page.read(sent)
    except ConfigError:
        action = data.draw(st.sampled_from(list(shared_page.actions)))
        text = message if not isinstance(message, str) else message[:-1] + f', "action": "{action}"}}'
        (slots,) = updates(shared_page.on_action, text)
        assert set(json.loads(slots["problems"]))
    assert not shared_page.session.jobs


@pytest.mark.parametrize("number", [-1, 99, "0", 0.5, [], {}])
def test_an_unknown_preset_is_refused(shared_page, number):
    message = json.loads(settings_of({}))
    message["settings"]["preset"] = number
    (sentence,) = json.loads(slots_of(shared_page.on_message(request(), json.dumps(message)))["problems"]).values()
    last = len(presets(discover()["matmul.grouped"])) - 1
    assert sentence == f"The preset is {number!r}; matmul.grouped has presets 0 to {last}."
