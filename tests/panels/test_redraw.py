"""The page's handlers, without a browser: each message gets a reply, a late one changes nothing; and Pin."""

import datetime
import json
import re
import threading
import urllib.parse
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kernels.experiment import Run
from kernels.knobs import ConfigError
from kernels.measuring.measurement import Job
from kernels.measuring.session import MEASUREMENTS
from kernels.measuring.timeline import TIMELINE
from kernels.results import Failure, records
from tests.experiments import fields
from tests.messages import decode, links, opened, request, settings_of, slots_of, updates
from tests.waiting import run_coroutine
from visualize.numbers import Number
from visualize.views.compare import pair_slots, ratio, render_comparison
from visualize.views.result.view import encode_run
from visualize.views.slots import NONE
from visualize.views.state import read_pinned
from visualize.views.tabs import SETTINGS
from visualize.web.page import layout
from visualize.web.redraw import MAX_OPEN_PAGES, OpenPages

RUN = MEASUREMENTS["run"]


def preset(number):
    """Return the message when a preset is clicked: the controls still hold the previous values."""
    message = json.loads(settings_of(""))
    message["settings"]["preset"] = number
    return json.dumps(message)


def change(page, flat):
    """Return the slots that a change to these fields fills immediately."""
    return slots_of(page.on_message(request(), settings_of(flat)))


RECORDED_RUN = records.find(RUN.form, records.experiments(RUN.form, "H200")[0], "H200")


def open_address(page, stored_run="", **fields):
    message = {"number": 1, "open": "?" + urllib.parse.urlencode(fields), "stored_run": stored_run}
    return slots_of(page.on_message(request(), json.dumps(message)))


def test_a_slow_reply_to_a_slider_does_not_undo_a_preset(page):
    started = threading.Event()
    go_on = threading.Event()
    late = []

    def find_slowly(_):
        if not started.is_set():
            started.set()
            assert go_on.wait(20)

    page.session.finder = find_slowly
    slider = threading.Thread(target=lambda: late.append(change(page, "M=640")))
    slider.start()
    assert started.wait(20)
    chosen = slots_of(page.on_message(request(), preset(0)))
    go_on.set()
    slider.join(20)
    assert "M=576" in chosen["link"], "the preset's own shape"
    assert page.read(json.loads(preset(0))).experiment.problem.M == 576, "Run runs it, too"
    assert late == [{}]


def test_a_config_that_nobody_chose_follows_the_gpu(page):
    """The published default of fused_add_relu needs more shared memory than RTXPRO6000 has."""

    def turn_to(gpu, config):
        """Choose a GPU in the menu; the other controls hold this config. Return the new settings."""
        slots = change(page, {**fields(f"matmul.fused_add_relu gpu={gpu}"), **config})
        return json.loads(slots["settings"])

    def config_of(settings):
        return {name: settings[name] for name in published}

    published = vars(opened("matmul.fused_add_relu").experiment.config)
    change(page, "matmul.fused_add_relu")
    offered = config_of(turn_to("RTXPRO6000", published))
    assert offered != published
    assert config_of(turn_to("H200", offered)) == published
    assert config_of(turn_to("RTXPRO6000", published)) == offered
    chosen = {**offered, "GROUP_SIZE": 3}
    assert config_of(turn_to("H200", chosen)) == chosen


def test_an_unknown_tour_is_named_with_those_there_are(page):
    problems = json.loads(open_address(page, tour="nothing")["problems"])
    assert problems["tour"].startswith("tour is 'nothing'; allowed are why-grouping, ")


def test_a_compile_of_earlier_settings_is_not_drawn(page):
    started = threading.Event()
    compiled = Future()
    late = []

    def compile_slowly():
        started.set()
        return compiled

    page.session.compiler = compile_slowly
    change(page, "M=640")
    waiting = threading.Thread(target=lambda: late.extend(updates(page.on_stream)))
    waiting.start()
    assert started.wait(20)
    page.on_message(request(), preset(0))
    with suppress(InvalidStateError):  # the stream may have cancelled it
        compiled.set_result(Failure("compile", "compile_error", "no"))
    waiting.join(20)
    assert all("program-order-plot" not in slots for slots in late)


def test_a_reply_has_numbers_and_says_whether_more_follows(page):
    update = json.loads(page.on_message(request(), settings_of("M=640")))
    assert "M=640" in update["slots"]["link"]
    assert update["slots"]["program-order-plot"]
    assert update["number"] == 1
    assert update["reply_to"] == 1
    assert update["has_more"], "the kernel is not compiled yet"
    update = json.loads(page.on_message(request(), settings_of("tab=recorded")))
    assert update["number"] == 2
    assert not update["has_more"]
    update = json.loads(page.on_message(request(), "no message"))
    assert update["has_more"], "it ended the stream of the settings before"


def test_a_value_that_cannot_be_drawn_is_refused_next_to_its_control(page):
    failed = Future()
    failed.set_result(Failure("compile", "timeout", "It took too long."))
    page.session.compiler = lambda: failed
    change(page, "tab=program-order num_warps=16 programs_per_sm=32")
    *_, refused = updates(page.on_stream)
    assert "programs_per_sm must be at most 4" in json.loads(refused["problems"])["programs_per_sm"]


def test_without_a_gpu_a_timeline_is_the_recorded_one_or_a_sentence(page):
    def last_update(flat):
        change(page, flat)
        return updates(page.on_action, settings_of(flat, action="record-timeline"))[-1]

    first, *others = records.experiments(TIMELINE.form, "H200")
    recorded = {**first.to_address(), "gpu": "H200", "tab": "program-order"}
    last = last_update(recorded)
    assert "256 programs" in last["timeline"]
    assert last["gantt-plot"]
    loops = next(experiment for experiment in others if experiment.kernel == "matmul.persistent")
    last = last_update({**loops.to_address(), "gpu": "H200", "tab": "program-order"})
    assert "tiles; their equal times are" in last["timeline"]
    assert (
        decode(last["moment-plot"])["layout"]["title"]["text"]
        == "True time, tiles spread evenly (assumed)"
    )
    last = last_update({**recorded, "GROUP_SIZE": 3})
    assert "no timeline of this experiment on H200 was recorded" in last["status"]
    assert set(last) <= {"problems", "status", "cancel"}, "the picture stays"
    no_timeline = change(page, {**recorded, "GROUP_SIZE": 3})["timeline"]
    assert "No timeline of this experiment was recorded on H200" in no_timeline
    assert re.search(
        r'href="\?kernel=matmul.grouped&amp;M=2048&amp;.*gpu=H200&amp;tab=program-order',
        no_timeline,
    )


def test_a_bad_value_during_a_run_keeps_its_sentence_and_the_run_its_result(page):
    job = Job(RECORDED_RUN.experiment)
    page.session.submit = lambda *_, **__: job
    flat = RECORDED_RUN.experiment.to_address()
    message = json.loads(settings_of(flat))
    message["settings"]["M"] = 20_000

    async def scene():
        stream = page.on_action(request(), settings_of(flat, action="run"))
        started = slots_of(await anext(stream))
        assert json.loads(started["problems"]) == {}
        assert "starting" in started["card"]
        assert "M must be" in slots_of(page.on_message(request(), json.dumps(message)))["problems"]
        progress = slots_of(await anext(stream))
        job.end(RECORDED_RUN)
        (ended,) = [slots_of(update) async for update in stream]
        assert "problems" not in progress | ended
        assert "✓ 0 wrong" in ended["card"]

    run_coroutine(scene())


def test_a_run_that_ends_appears_on_the_open_history(page, store):
    page.session.store = store
    flat = {**RECORDED_RUN.experiment.to_address(), "gpu": "H200", "tab": "history"}
    assert "<b>0</b> runs of this experiment" in change(page, flat)["history-headline"]
    job = Job(RECORDED_RUN.experiment)
    page.session.submit = lambda *_, **__: job
    store.put(
        RUN,
        "H200",
        replace(RECORDED_RUN, backend="cuda", note=""),
        datetime.datetime.now(datetime.UTC),
    )
    job.end(RECORDED_RUN)
    *_, ended = updates(page.on_action, settings_of(flat, action="run"))
    assert "the only run so far" in ended["history-headline"]


@pytest.mark.parametrize("query", [{}, {"kernel": "matmul.grouped", "tab": "result"}])
def test_the_opening_and_the_default_kernel_show_an_interpreters_check_before_any_run(page, query):
    slots = open_address(page, **query)
    assert 'class="mark interpreter"' in slots["card"]
    assert "Error of C" in str(decode(slots["diff-plot"])["layout"]["title"])


def test_a_run_in_the_browsers_storage_is_shown_if_the_app_has_none(page):
    # A launch that was not recorded, and that this app has not seen
    of = RECORDED_RUN.experiment
    of = replace(of, run=Run(seed=12345), problem=replace(of.problem, M=of.problem.M - 8))
    query = {**of.to_address(), "gpu": "H200"}
    assert "No run of this config yet" in open_address(page, **query)["card"]
    ended = datetime.datetime(
        2026, 11, 21, 14, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=1))
    )
    stored_run = encode_run(
        replace(RECORDED_RUN, backend="cuda", note="", experiment=of), "H200", ended
    )
    card = open_address(page, stored_run, **query)["card"]
    assert "✓ 0 wrong" in card
    assert '<time datetime="2026-11-21T13:02:00+00:00">2026-11-21 13:02 UTC</time>' in card
    assert (
        "No run of this config yet"
        in open_address(page, stored_run, **{**query, "M": "64"})["card"]
    )


def test_a_kernel_that_is_compiled_during_a_redraw_is_drawn_in_the_stream(page):
    compiled = page.session.compile(opened("gpu=H200").experiment).result()
    finds = iter([None, None, None])
    page.session.finder = lambda _: next(finds, compiled)
    change(page, "tab=requests gpu=H200")
    assert updates(page.on_stream)[-1]["request-plot"]


def test_every_slot_that_a_handler_fills_is_on_the_page(page):
    html = layout(page)
    for tab in SETTINGS.tabs:
        for measurement in MEASUREMENTS.values():
            recorded = records.experiments(measurement.form, "H200")[0]
            state = opened({**recorded.to_address(), "gpu": "H200", "tab": tab})
            missing = [
                name
                for name in page.fill(state) | page.draw(state)[0]
                if f'id="{name}"' not in html
            ]
            assert not missing, (tab, measurement.name)


def test_the_least_recently_used_page_is_evicted_first():
    def find(number):
        return pages.find(SimpleNamespace(session_hash=f"page {number}"))

    pages = OpenPages()
    first, second, *_ = [find(number) for number in range(MAX_OPEN_PAGES)]
    assert find(0) is first
    find(MAX_OPEN_PAGES)
    assert find(0) is first
    assert find(1) is not second


def test_a_new_measurement_cancels_the_previous_one_and_closing_the_page_cancels_both():
    pages = OpenPages()
    before = Job(None)
    after = Job(None)
    page = pages.find(request())
    page.changes = 1
    page.replace_job(before)
    page.replace_job(after)
    assert before.is_cancelled
    assert not after.is_cancelled
    pages.close(request())
    assert after.is_cancelled
    assert page.changes != 1, "its handlers are superseded"
    assert pages.find(request()) is not page


def test_an_update_takes_less_than_150_kilobytes(page):
    for flat in (
        "tab=program-order M=16384 N=16384 BLOCK_M=16 BLOCK_N=16 step=5",  # a million programs
        "transpose.tiled tab=requests model=textbook operation=1 request=200",
    ):
        assert 10_000 < len(page.on_message(request(), settings_of(flat)).encode()) < 150_000


PINNED = "kernel=matmul.grouped&M=576&N=576&K=288&BLOCK_N=64&GROUP_SIZE=1"
SET = f"M=576 N=576 K=288 BLOCK_M=64 BLOCK_N=64 GROUP_SIZE=3 with={PINNED}"


def followed(page, query):
    return slots_of(page.on_message(request(), json.dumps({"follow": query})))


def test_only_with_a_pinned_experiment_a_slot_holds_two_values(shared_page):
    own = change(shared_page, f"{SET} with=")
    assert " " not in own["program-order-plot"]
    assert "pinned" not in own["program-order-headline"]
    assert dict(links(own["compare"])).keys() == {"Pin"}
    both = change(shared_page, SET)
    pinned = change(shared_page, dict(urllib.parse.parse_qsl(PINNED)))
    assert both["program-order-plot"].split(" ") == [
        own["program-order-plot"],
        pinned["program-order-plot"],
    ]
    columns = '<div class="beside"><div class="own">{}</div><div class="pinned">{}</div></div>'
    assert both["program-order-headline"] == columns.format(
        own["program-order-headline"], pinned["program-order-headline"]
    )


def test_the_strip_names_differences_and_a_few_numbers_and_folds_the_table_of_all(shared_page):
    strip, table = change(shared_page, f"{SET} first=9")["compare"].split("<details>")
    assert "Pinned → now: GROUP_SIZE 1 → <b>3</b>." in strip
    assert "blocks for 9 programs 90 → <b>54</b> (0.600 ×)</span>" in strip
    assert ">M<" not in table, "equal knobs are left out"
    assert all(word in table for word in ("GROUP_SIZE", "waves", "same", "0.600 ×"))
    assert (
        "In this view, all numbers that are known for both are equal."
        in change(shared_page, SET)["compare"]
    )
    many = {f"knob{place}": place for place in range(7)}
    assert "knob3 3 → <b>–</b>, 3 more." in render_comparison({}, many, [], [])


def test_the_pinned_picture_shows_the_same_operation_although_another_one_wastes_more(shared_page):
    own = "matmul.grouped tab=requests model=textbook BLOCK_M=128 BLOCK_N=64"
    wide = "kernel=matmul.grouped&BLOCK_M=64&BLOCK_N=128"
    titles = (
        change(shared_page, flat)["flow-title"]
        for flat in (own, f"{own} BLOCK_M=64 BLOCK_N=128", f"{own} with={wide}")
    )
    operations = [re.findall("load of [AB]", title) for title in titles]
    assert operations == [["load of A"], ["load of B"], ["load of A", "load of A"]]


TIME = Number("time", 2.0, "ms", "recorded")
LOADS = [Number(name, 5, "", "predicted") for name in "abcd"]
NO_NUMBER = (
    "No number is known for both experiments. Press Run; for the pinned one, press Swap first."
)
HALF = [replace(number, value=number.value / 2) for number in (*LOADS, TIME)]


@pytest.mark.parametrize(
    ("numbers", "pinned", "sentence"),
    [
        ([TIME], LOADS, NO_NUMBER),
        ([TIME], [TIME], "In this view, all numbers that are known for both are equal."),
        (
            HALF,
            [*LOADS, TIME],
            "a 5 → 2.50 (0.500 ×) · b 5 → 2.50 (0.500 ×) · time 2.00 ms → 1.00 ms (0.500 ×)",
        ),
    ],
)
def test_the_strip_has_at_most_three_numbers_or_says_why_it_has_none(numbers, pinned, sentence):
    strip = render_comparison({"M": 1}, {"M": 2}, numbers, pinned)
    assert (
        re.sub("<[^>]*>", "", strip.split("<details>")[0]) == f"Pinned → now: M 2 → 1. {sentence}"
    )
    assert "<table" in strip


@pytest.mark.parametrize("tab", SETTINGS.tabs)
def test_two_kernels_of_two_families_are_compared_on_every_tab(shared_page, tab):
    answer = change(shared_page, f"transpose.tiled tab={tab} operation=1 with={PINNED}")
    assert "kernel matmul.grouped → <b>transpose.tiled</b>" in answer["compare"]
    assert "<td>–</td>" in answer["compare"], "a transpose has no K"


TILES = "BLOCK_M=128&BLOCK_N=128&BLOCK_K=32&GROUP_SIZE=4&num_warps=4&num_stages=3"
RECORDED = f"kernel=matmul.grouped&gpu=H200&M=4096&N=4096&K=4096&{TILES}"


def test_a_pinned_run_is_beside_the_current_experiment_and_not_beside_an_older_run(page):
    """The page showed the pinned run, and then a setting changed."""
    before = followed(page, f"{RECORDED}&tab=result&{urllib.parse.urlencode({'with': RECORDED})}")
    assert before["result"].count("the speed of torch.matmul") == 2
    flat = {**json.loads(before["settings"]), "num_warps": 2}
    answer = change(page, flat)
    now, pinned = answer["result"].split('<div class="pinned">')
    assert "No result for this config" in now
    assert "the speed of torch.matmul" in pinned
    assert answer["time-plot"].startswith(f"{NONE} ")
    assert answer["predicted-time"].count("predicted without compiling") == 2
    assert "time-plot" not in change(page, {**flat, "tab": "requests"})


def test_a_pinned_request_has_no_contrast_when_the_own_one_has_none(shared_page):
    answer = change(shared_page, f"{SET} tab=requests")
    assert answer["contrast"] == NONE
    assert "Versus" not in answer["contrast-title"]


def test_pin_swap_and_unpin_are_links_to_states(shared_page):
    pin = dict(links(change(shared_page, f"{SET} with=")["compare"]))["Pin"]
    assert "Nothing differs yet" in followed(shared_page, urllib.parse.urlencode(pin))["compare"]
    ways = dict(links(change(shared_page, SET)["compare"]))
    swapped = opened(ways["Swap"])
    unpinned = opened(ways["Unpin"])
    assert swapped.experiment.config.GROUP_SIZE == 1
    assert swapped.pinned.config.GROUP_SIZE == 3
    assert unpinned.experiment.config.GROUP_SIZE == 3
    assert unpinned.pinned is None


def test_a_link_holds_both_and_another_kernel_keeps_the_pinned_experiment(shared_page):
    state = opened(SET)
    assert SETTINGS.state(state.to_address(), None) == state
    assert SETTINGS.state(SETTINGS.short_address(state), None) == state
    kept = SETTINGS.change_kernel(fields(f"{SET} form_of=matmul.grouped"), "matmul.persistent")
    assert kept["with"] == PINNED
    query = urllib.parse.urlencode(fields(f"matmul.grouped with={PINNED}"))
    assert json.loads(followed(shared_page, query)["settings"])["with"] == PINNED


@pytest.mark.parametrize(
    "wrong",
    [
        "kernel=sort",
        "M=5",
        "kernel=matmul.grouped&M=0",
        "x" * 1001,
        "kernel=matmul.grouped&gpu=this",
    ],
)
def test_an_invalid_pinned_experiment_is_refused_and_the_rest_opens(shared_page, wrong):
    with pytest.raises(ConfigError) as error:
        read_pinned(wrong, None)
    assert error.value.field == "with"
    query = urllib.parse.urlencode(fields(f"matmul.grouped M=640 with={wrong}"))
    answer = followed(shared_page, query)
    assert "pinned" in json.loads(answer["problems"])["with"]
    assert "M=640" in answer["link"]


def test_a_pinned_experiment_that_cannot_be_drawn_says_why_beside_the_current_one(shared_page):
    """An SM holds 64 warps: 32 programs of 2, but not of 4."""
    answer = change(shared_page, f"{SET} num_warps=2 programs_per_sm=32")
    assert "programs_per_sm must be at most" in answer["compare"]
    assert " " not in answer["program-order-plot"]
    assert json.loads(answer["problems"]) == {}


def test_the_ratio_of_two_numbers():
    def number(value, unit="", name="n"):
        return Number(name, value, unit, "predicted")

    assert ratio(number(54), number(90)) == "0.600 ×"
    assert ratio(number(5), number(5)) == ratio(number(0), number(0)) == "same"
    assert ratio(number(5), number(0)) == "+5"
    assert (
        ratio(number(5), None)
        == ratio(None, number(5))
        == ratio(number(5, "ms"), number(5, "bytes"))
        == ""
    )


def test_a_plot_without_a_figure_shows_the_pinned_one():
    for own, value in (("now", "now then"), (NONE, f"{NONE} then"), ("", " then")):
        assert pair_slots({"a-plot": own}, {"a-plot": "then"}) == {"a-plot": value}
        for none in (NONE, ""):
            assert pair_slots({"a-plot": own}, {"a-plot": none}) == {"a-plot": own}
