"""The page's handlers, without a browser: each message gets a reply, and a late reply changes nothing."""

from __future__ import annotations

import datetime
import json
import re
import threading
import urllib.parse
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace

import pytest

from kernels.experiment import Run
from kernels.gpus import GPUS
from kernels.measuring.measurement import Job
from kernels.measuring.session import MEASUREMENTS
from kernels.measuring.timeline import TIMELINE
from kernels.results import Failure, records
from tests.figure_values import decode
from tests.panels.sent import opened, request, settings_of, slots_of, updates
from tests.waiting import run_coroutine
from visualize.views import status
from visualize.views.result.view import encode_run
from visualize.views.tabs import SETTINGS
from visualize.web.page import layout

RUN = MEASUREMENTS["run"]


def preset(number):
    """Return the message when a preset is clicked: the controls still hold the previous values."""
    message = json.loads(settings_of({}))
    message["settings"]["preset"] = number
    return json.dumps(message)


def change(page, flat):
    """Return the slots that a change to these fields fills immediately."""
    return slots_of(page.on_message(request(), settings_of(flat)))


def stream(page, flat):
    """Return the updates that follow a change to these fields."""
    change(page, flat)
    return updates(page.on_stream)


def open_address(page, stored_run="", **fields):
    message = {"number": 1, "open": "?" + urllib.parse.urlencode(fields), "stored_run": stored_run}
    return slots_of(page.on_message(request(), json.dumps(message)))


def fail_compiles(page, kind, message):
    """Replace the compiler by one that always fails."""
    done = Future()
    done.set_result(Failure("compile", kind, message))
    page.session.compiler = lambda: done


def test_a_slow_reply_to_a_slider_does_not_undo_a_preset(page):
    started, go_on, late = threading.Event(), threading.Event(), []

    def find_slowly(_):
        if not started.is_set():
            started.set()
            assert go_on.wait(20)

    page.session.finder = find_slowly
    slider = threading.Thread(target=lambda: late.append(change(page, {"M": 640})))
    slider.start()
    assert started.wait(20)
    chosen = slots_of(page.on_message(request(), preset(0)))
    go_on.set()
    slider.join(20)
    assert "M=576" in chosen["link"], "the preset's own shape"
    assert late == [{}]


def test_a_compile_of_earlier_settings_is_not_drawn(page):
    started, compiled, late = threading.Event(), Future(), []

    def compile_slowly():
        started.set()
        return compiled

    page.session.compiler = compile_slowly
    waiting = threading.Thread(target=lambda: late.extend(stream(page, {"M": 640})))
    waiting.start()
    assert started.wait(20)
    page.on_message(request(), preset(0))
    with suppress(InvalidStateError):  # the stream may have cancelled it
        compiled.set_result(Failure("compile", "compile_error", "no"))
    waiting.join(20)
    assert all("schedule-plot" not in slots for slots in late)


def test_a_run_right_after_a_preset_was_clicked_runs_the_preset(page):
    assert page.read(json.loads(preset(0))).experiment.problem.M == 576


def test_a_reply_has_numbers_and_says_whether_more_follows(page):
    update = json.loads(page.on_message(request(), settings_of({"M": 640})))
    assert "M=640" in update["slots"]["link"]
    assert update["slots"]["schedule-plot"]
    assert (update["number"], update["reply_to"]) == (1, 1)
    assert update["has_more"], "the kernel is not compiled yet"
    update = json.loads(page.on_message(request(), settings_of({"tab": "recorded"})))
    assert (update["number"], update["has_more"]) == (2, False)
    update = json.loads(page.on_message(request(), "no message"))
    assert update["has_more"], "it ended the stream of the settings before"


@pytest.mark.parametrize("tab", ["schedule", "reuse", "coalescing", "compiler"])
def test_the_compilers_message_is_text_and_no_markup(page, tab):
    fail_compiles(page, "compile_error", "<script>alert(1)</script> & more")
    claim = stream(page, {"tab": tab})[-1][f"{tab}-claim"]
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in claim
    assert "<script" not in claim


def test_a_value_that_cannot_be_drawn_is_refused_next_to_its_control(page):
    fail_compiles(page, "timeout", "It took too long.")
    *_, refused = stream(page, {"tab": "schedule", "num_warps": 16, "programs_per_sm": 32})
    assert "programs_per_sm must be at most 4" in json.loads(refused["problems"])["programs_per_sm"]


def test_a_timeline_of_this_machine_takes_precedence_over_the_recorded_one(make_page, monkeypatch):
    page = make_page(GPUS["H200"])
    experiment = records.experiments(TIMELINE.form, "H200")[0]
    flat = {**experiment.to_address(), "gpu": "H200", "tab": "schedule", "seed": 3}
    current = SETTINGS.state(flat, page.session.gpu)

    def timeline():
        return page.draw(current)[0]["timeline"]

    recorded = page.session.find_value(current.experiment, "timeline")
    assert recorded.backend == "recorded", "whatever the seed"
    assert "Recorded on H200" in timeline()
    live = replace(recorded, backend="cuda", note="", experiment=current.experiment)
    monkeypatch.setattr(TIMELINE, "measure", lambda *_: live)
    assert page.session.submit(current.experiment, "timeline").result() is live
    assert page.session.find_value(replace(current.experiment, run=experiment.run), "timeline") is live
    assert "Recorded on H200" not in timeline()
    assert 'class="mark measured"' in timeline()


def test_without_a_gpu_a_timeline_is_the_recorded_one_or_a_sentence(page):
    def last_update(flat):
        change(page, {**flat, "tab": "schedule"})
        return updates(page.on_action, settings_of({**flat, "tab": "schedule"}, action="record-timeline"))[-1]

    recorded = records.experiments(TIMELINE.form, "H200")[0].to_address()
    last = last_update({**recorded, "gpu": "H200"})
    assert "256 programs" in last["timeline"]
    assert last["gantt-plot"]
    loops = next(one for one in records.experiments(TIMELINE.form, "H200") if one.kernel == "matmul.persistent")
    last = last_update({**loops.to_address(), "gpu": "H200"})
    assert "tiles; their equal times are" in last["timeline"]
    assert decode(last["moment-plot"])["layout"]["title"]["text"] == "True time, tiles spread evenly (assumed)"
    last = last_update({**recorded, "gpu": "H200", "GROUP_SIZE": 3})
    assert "no timeline of this experiment on H200 was recorded" in last["status"]
    assert set(last) <= {"problems", "status", "cancel"}, "the picture stays"
    no_timeline = change(page, {**recorded, "gpu": "H200", "GROUP_SIZE": 3, "tab": "schedule"})["timeline"]
    assert "No timeline of this experiment was recorded on H200" in no_timeline
    assert re.search(r'href="\?kernel=matmul.grouped&amp;M=2048&amp;.*gpu=H200&amp;tab=schedule', no_timeline)


def test_a_bad_value_during_a_run_keeps_its_sentence_and_the_run_its_result(page):
    run = records.find(RUN.form, records.experiments(RUN.form, "H200")[0], "H200")
    job = Job(run.experiment)
    page.session.submit = lambda *_: job
    message = json.loads(settings_of(run.experiment.to_address()))
    message["settings"]["M"] = 20_000

    async def scene():
        stream = page.on_action(request(), settings_of(run.experiment.to_address(), action="run"))
        started = slots_of(await anext(stream))
        assert (json.loads(started["problems"]), "starting" in started["card"]) == ({}, True)
        assert "M must be" in slots_of(page.on_message(request(), json.dumps(message)))["problems"]
        progress = slots_of(await anext(stream))
        job.end(run)
        (ended,) = [slots_of(update) async for update in stream]
        assert "problems" not in progress | ended
        assert "✓ 0 wrong" in ended["card"]

    run_coroutine(scene())


def test_a_run_that_ends_appears_on_the_open_history(page, store):
    page.session.store = store
    run = records.find(RUN.form, records.experiments(RUN.form, "H200")[0], "H200")
    flat = {**run.experiment.to_address(), "gpu": "H200", "tab": "history"}
    assert "No runs" in change(page, flat)["history-claim"]
    job = Job(run.experiment)
    page.session.submit = lambda *_: job
    store.put(RUN, "H200", replace(run, backend="cuda", note=""), datetime.datetime.now(datetime.UTC))
    job.end(run)
    *_, ended = updates(page.on_action, settings_of(flat, action="run"))
    assert "the only run so far" in ended["history-claim"]


def test_a_queued_run_says_how_many_are_before_it():
    assert "in the queue, 2 before you" in status.render_progress("interpreter", "queued", 2, 0.5)


@pytest.mark.parametrize("query", [{}, {"kernel": "matmul.grouped", "tab": "result"}])
def test_the_opening_and_the_default_kernel_show_an_interpreters_check_before_any_run(page, query):
    slots = open_address(page, **query)
    assert 'class="mark interpreter"' in slots["card"]
    assert "Error of C" in str(decode(slots["diff-plot"])["layout"]["title"])


def test_a_run_in_the_browsers_storage_is_shown_if_the_app_has_none(page):
    run = records.find(RUN.form, records.experiments(RUN.form, "H200")[0], "H200")
    live = replace(run, backend="cuda", note="", experiment=replace(run.experiment, run=Run(seed=12345)))
    # of a launch that was not recorded, and that this app has not seen
    problem = replace(live.experiment.problem, M=live.experiment.problem.M - 8)
    live = replace(live, experiment=replace(live.experiment, problem=problem))
    query = {**live.experiment.to_address(), "gpu": "H200"}
    assert "Not run yet" in open_address(page, **query)["card"]
    ended = datetime.datetime(2026, 11, 21, 14, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
    stored_run = encode_run(live, "H200", ended)
    card = open_address(page, stored_run, **query)["card"]
    assert "✓ 0 wrong" in card
    assert '<time datetime="2026-11-21T13:02:00+00:00">2026-11-21 13:02 UTC</time>' in card
    assert "Not run yet" in open_address(page, stored_run, **{**query, "M": "64"})["card"]


def test_a_kernel_that_is_compiled_during_a_redraw_is_drawn_in_the_stream(page):
    compiled = page.session.compile(opened({"gpu": "H200"}).experiment).result()
    finds = iter([None, None, None])
    page.session.finder = lambda _: next(finds, compiled)
    change(page, {"tab": "coalescing", "gpu": "H200"})
    assert updates(page.on_stream)[-1]["request-plot"]


def test_every_slot_that_a_handler_fills_is_on_the_page(page):
    html = layout(page)
    for tab in SETTINGS.tabs:
        for measurement in MEASUREMENTS.values():
            recorded = records.experiments(measurement.form, "H200")[0]
            state = opened({**recorded.to_address(), "gpu": "H200", "tab": tab})
            missing = [name for name in page.fill(state) | page.draw(state)[0] if f'id="{name}"' not in html]
            assert not missing, (tab, measurement.name)
