"""What anybody can send to the page's own handlers: each answers in a sentence, or changes nothing."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import discover
from kernels.gpus import GPUS
from kernels.knobs import ConfigError, knobs
from tests.panels.sent import named, request, set_to
from visualize.panels.panel import Ask
from visualize.panels.tabs import SETTINGS
from visualize.state.presets import presets

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
def sent_settings(draw):
    """What the page sends, with some of it replaced: fields, or all of it."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.one_of(JSON, JSON.flatmap(wrong_text)))
    flat = json.loads(set_to({"kernel": draw(st.sampled_from(list(discover())))}))
    return json.dumps(flat | draw(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3)))


def collected(answers):
    """All that an asynchronous handler yields."""

    async def gathered():
        return [answer async for answer in answers]

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(gathered())).result(60)


@pytest.fixture(scope="module")
def page(shared_page):
    """The page stays the same from value to value, as one that is served does."""
    return shared_page


def handler_of(page, name):
    """One of the page's handlers, as Gradio calls it."""
    return next(event.fn for event in page.blocks.fns.values() if getattr(event.fn, "__name__", "") == name)


def assert_is_sendable(answer):
    """A browser can be sent it, in sentences that are not endless."""
    for name, value in named(answer).items():
        if name == "problems" and isinstance(value, str):
            assert all(len(sentence) < 1500 for sentence in json.loads(value).values()), value[:3000]
        if isinstance(value, str):
            value.encode()


@given(sent=sent_settings())
def test_a_change_or_another_kernel_is_drawn_or_refused(page, sent):
    assert_is_sendable(page.handlers.on_change(request(), sent))
    assert_is_sendable(page.handlers.on_select(request(), sent))


@pytest.mark.parametrize("sent", ["[" * 30_000, '{"kernel":' * 6_000], ids=["lists", "objects"])
def test_settings_that_go_too_deep_are_refused(page, sent):
    assert_is_sendable(page.handlers.on_change(request(), sent))


@given(sent=sent_settings(), name=st.sampled_from(SETTINGS.tabs))
def test_a_tab_is_drawn_or_stays(page, sent, name):
    assert_is_sendable(page.handlers.opening(name)(request(), sent))


@given(fields=st.dictionaries(st.sampled_from(["tour", "stop", *FIELDS]), st.text(max_size=20)), kept=JSON)
def test_any_address_opens_whatever_the_browser_has_kept(page, fields, kept):
    assert_is_sendable(page.handlers.on_load(request(**fields), kept))


@given(wanted=st.one_of(JSON, JSON.flatmap(wrong_text), st.builds(lambda link: json.dumps({"follow": link}), JSON)))
def test_any_link_is_followed_or_refused(page, wanted):
    assert_is_sendable(page.handlers.on_follow(request(), wanted))


@given(value=st.one_of(JSON, JSON.flatmap(wrong_text), st.builds(lambda link: json.dumps({"link": link}), JSON)))
def test_what_is_no_link_gets_no_code(page, value):
    orjson.dumps(handler_of(page, "on_share")(value))  # as Gradio writes it into its answer


@given(value=st.one_of(JSON, st.builds(lambda tour, stop: json.dumps({"tour": tour, "stop": stop}), JSON, JSON)))
def test_what_is_no_stop_is_not_shown(page, value):
    assert collected(handler_of(page, "on_stop")(value)) == []


@given(sent=sent_settings())
def test_what_can_not_be_read_starts_no_work(page, sent):
    """Handlers of buttons and of the compiler: what reads as an experiment is not submitted here."""
    try:
        page.handlers.read(sent)
    except ConfigError:
        pass
    else:
        return
    assert collected(page.handlers.on_compile(request(), sent)) == []
    actions = [action for panels in page.panels.values() for panel in panels for action in panel.actions]
    for action in actions:
        handler = page.handlers.asking(action) if isinstance(action, Ask) else page.handlers.measuring(action)
        (refused,) = collected(handler(request(), sent))
        assert_is_sendable(refused)
    assert not page.session.jobs


@pytest.mark.parametrize("number", [-1, 99, "0", 0.5, [], {}])
def test_a_preset_that_is_none_is_refused(page, number):
    sent = json.dumps({**json.loads(set_to({})), "preset": number})
    (sentence,) = json.loads(named(page.handlers.on_select(request(), sent))["problems"]).values()
    last = len(presets(discover()["matmul.grouped"])) - 1
    assert sentence == f"The preset is {number!r}; matmul.grouped has presets 0 to {last}."
