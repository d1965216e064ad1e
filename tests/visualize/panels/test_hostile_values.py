"""Hostile messages get a sentence or change nothing, and text from outside is shown as text and never as markup."""

import html
import json
import re
import urllib.parse
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.messages import opened, settings_of, updates
from tilescope.declare.discovery import discover
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import ConfigError, knobs
from tilescope.measure.counters import COUNTERS, GROUP_SIZES
from tilescope.measure.run import RUN
from tilescope.measure.timeline import TIMELINE
from tilescope.results import Failure, records
from visualize.views import prose
from visualize.views.result.view import draw_run
from visualize.views.state import Snapshot
from visualize.views.tabs import OPTIONS, TABS, TITLES, read_state
from visualize.web.actions import Actions, encode
from visualize.web.controls import presets
from visualize.web.scripts import changed_values, shipped_scripts

pytestmark = pytest.mark.xdist_group("hostile")

LONG = "9" * 5000
ODD = [
    "",
    LONG,
    "-1",
    "4096",
    "1e999",
    "<script>alert(1)</script>",
    "' OR 1=1 --",
    "../../etc/passwd",
    "\0",
]
KNOWN = [*discover(), *GPUS, *TITLES, "float16", "TN"]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(ODD + KNOWN)
)
JSON = st.recursive(
    SCALARS,
    lambda of: st.lists(of, max_size=3) | st.dictionaries(st.text(max_size=8), of, max_size=3),
)
FIELDS = sorted(
    {"kernel", "form_of", "preset", "gpu", "with", "tab"}
    | {
        name
        for kernel in discover().values()
        for name in (*knobs(kernel.config), *kernel.problem_knobs())
    }
    | {name for options in OPTIONS for name in knobs(options)}
)


@st.composite
def messages(draw):
    """Draw a message of the page with some fields replaced, or another object."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.dictionaries(st.text(max_size=8), JSON, max_size=3))
    message = settings_of(draw(st.sampled_from(list(discover()))))
    message["settings"] |= draw(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
    keys = st.sampled_from(["shown", "settings", "open", "follow"])
    return message | draw(st.dictionaries(keys, JSON, max_size=1))


def assert_is_sendable(slots):
    encode(slots).encode()
    for sentence in json.loads(slots.get("problems", "{}")).values():
        assert len(sentence) < 1500, sentence[:3000]


@given(message=messages())
def test_a_message_is_drawn_or_refused(shared_page, message):
    assert_is_sendable(shared_page.change(message))


@given(fields=st.dictionaries(st.sampled_from(["tour", "stop", *FIELDS]), st.text(max_size=20)))
def test_any_address_opens(shared_page, fields):
    assert_is_sendable(shared_page.change({"open": urllib.parse.urlencode(fields)}))


@given(link=JSON, stop=JSON)
@example(link="http://\ud800", stop=1)
def test_a_link_is_followed_or_refused_and_other_values_have_neither_a_qr_code_nor_a_tours_stop(
    shared_page, link, stop
):
    assert_is_sendable(shared_page.change({"follow": link}))
    actions = Actions(shared_page)
    assert updates(actions.start({"action": "share", "link": link}, "page")) == [{"share": ""}]
    message = {"action": "tour", "tour": link, "stop": stop}
    assert updates(actions.start(message, "page")) == [{}]


@given(message=messages(), data=st.data())
def test_an_unreadable_message_starts_no_work(shared_page, message, data):
    """Messages that the page can read are not submitted here."""
    try:
        shared_page.read(message)
    except ConfigError:
        actions = Actions(shared_page)
        action = data.draw(st.sampled_from(list(actions.actions)))
        with pytest.raises(ConfigError):
            actions.start({**message, "action": action}, "page")
    assert not shared_page.session.jobs


@pytest.mark.parametrize("gpu", [3, [], {"H200": 1}, ["H200"], "no such GPU", LONG])
def test_a_script_is_compiled_only_for_a_gpu_of_the_table(gpu):
    launches = shipped_scripts()["script.softmax"].launches
    with pytest.raises(ConfigError, match="gpu must be"):
        changed_values(launches, {"gpu": gpu}, "H200")


@pytest.mark.parametrize("number", [-1, 99, "0", 0.5, [], {}])
def test_an_unknown_preset_is_refused(shared_page, number):
    message = settings_of("")
    message["settings"]["preset"] = number
    (sentence,) = json.loads(shared_page.change(message)["problems"]).values()
    grouped = discover()["matmul.grouped"]
    last = len(presets(grouped, grouped.family.problem(), GPUS["H200"])) - 1
    assert sentence == f"The preset is {number!r}; matmul.grouped has presets 0 to {last}."


HOSTILE = '<script>alert("{0}")</script> & {gpu}'


def count_as_text(*markups):
    """Return how often the hostile string is visible as text. Fail if it is markup."""
    for markup in markups:
        assert "<script" not in markup
    return sum(html.unescape(re.sub(r"<[^>]*>", "", markup)).count(HOSTILE) for markup in markups)


def draw(snapshot):
    """Return the HTML of all panels, drawn from a snapshot. The browser shows other values as text."""
    slots = draw_run(snapshot)
    for tab in TABS:
        for panel in tab.panels:
            slots |= panel().draw(snapshot)
    return [value for value in slots.values() if value.startswith("<")]


@pytest.mark.parametrize(
    ("measurement", "times"), [(RUN, 6), (COUNTERS, 6), (GROUP_SIZES, 5), (TIMELINE, 3)]
)
def test_a_recording_is_text_on_every_panel(measurement, times):
    recorded = records.shipped(measurement.form)[0].measured
    fields = {"note": HOSTILE, "device": replace(recorded.device, name=HOSTILE)}
    if hasattr(recorded, "tool"):
        fields["tool"] = HOSTILE
    hostile = replace(recorded, **fields)
    state = read_state({**recorded.experiment.to_address(), "gpu": "H200"}, None)
    state = replace(state, gpu=replace(GPUS["H200"], name=HOSTILE, caveat=HOSTILE))
    assert count_as_text(*draw(Snapshot(state, measured={measurement.name: hostile}))) >= times
    assert count_as_text(prose.render_end(hostile)) == 1


def test_a_failure_is_text_and_a_bad_argument_a_sentence_without_a_stage():
    failure = Failure("compile", 'kind"<script>', HOSTILE)
    snapshot = Snapshot(opened("matmul.grouped"), failure=failure)
    assert count_as_text(*draw(snapshot)) >= 2
    lines = (
        prose.render_end(failure),
        prose.render_alert(HOSTILE),
        prose.render_compiling(HOSTILE),
    )
    assert count_as_text(*lines) == 3
    assert prose.render_failure(Failure("config", "no_gpu", "Omit gpu.")).striptags() == "Omit gpu."
    assert (
        prose.render_failure(Failure("check", "timeout", "It took 60 s.")).striptags()
        == "check: It took 60 s."
    )
    assert "in the queue, 2 ahead of you" in prose.render_progress("interpreter", "queued", 2, 0.5)
