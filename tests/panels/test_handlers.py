"""The page's handlers, without a browser: an answer that comes too late changes nothing."""

from __future__ import annotations

import asyncio
import datetime
import json
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import gradio as gr
import pytest

from kernels.experiment import Run
from kernels.gpus import GPUS
from kernels.measuring.session import MEASUREMENTS
from kernels.measuring.timeline import TIMELINE
from kernels.results import Failure, records
from tests.panels.sent import named, opened, request, set_to
from visualize.panels.tabs import SETTINGS
from visualize.state import kept_run
from visualize.widgets import link

RUN = MEASUREMENTS["run"]


def preset(number):
    """What is sent when a preset is clicked: the controls still hold what was set before."""
    return json.dumps({**json.loads(set_to({})), "preset": number})


def compiled(page, flat):
    """All that is drawn while and once what these fields set is compiled."""
    return answers(page.handlers.on_compile, f"1 {link.query(opened(flat).to_address())}")


def button(page, elem_id):
    """The handler of a panel's button, as the page joins it."""
    actions = (one for panels in page.panels.values() for panel in panels for one in panel.actions)
    return page.handlers.measuring(next(one for one in actions if one.button.elem_id == elem_id))


def answers(handler, *values):
    """All that a handler yields for the page."""

    async def collected():
        return [answer async for answer in handler(request(), *values)]

    # In a thread of its own: where a browser's tests ran before, this one has a running loop already.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(collected())).result(20)


def compiles_to(page, outcome):
    """Whatever is compiled comes to this."""

    def compile_now():
        done = Future()
        done.set_result(outcome)
        return done

    page.session.compiler = compile_now


def hold_first_answer(page):
    """Hold the next answer where it asks what is compiled. Two events: it has come there, and it may go on."""
    started, go_on = threading.Event(), threading.Event()

    def finder(_):
        if not started.is_set():
            started.set()
            assert go_on.wait(20)

    page.session.finder = finder
    return started, go_on


def test_a_slow_answer_to_a_slider_does_not_undo_a_preset(page):
    started, go_on = hold_first_answer(page)
    late = []
    slider = threading.Thread(target=lambda: late.append(page.handlers.on_change(request(), set_to({"M": 640}))))
    slider.start()
    assert started.wait(20)
    chosen = page.handlers.on_select(request(), preset(0))
    go_on.set()
    slider.join(20)
    assert "M=576" in named(chosen)["link"], "the preset's own shape"
    assert late == [{page.components.problems: gr.skip()}]


def test_what_the_compiler_said_of_what_was_set_before_is_not_drawn(page):
    """Nor does it wait for the page to ask anew: what was set since may have been compiled before."""
    asked, compiled_later = threading.Event(), Future()

    def compiler():
        asked.set()
        return compiled_later

    page.session.compiler = compiler
    before = named(page.handlers.on_change(request(), set_to({"M": 640})))
    late = []
    waiting = threading.Thread(
        target=lambda: late.extend(answers(page.handlers.on_compile, f"1 {link.shown_query(before['link'])}"))
    )
    waiting.start()
    assert asked.wait(20)
    page.handlers.on_select(request(), preset(0))
    compiled_later.set_result(Failure("compile", "compile_error", "no"))
    waiting.join(20)
    assert late
    assert "schedule-claim" not in named(late[-1])
    assert all("schedule-plot" not in named(answer) for answer in late)


def test_a_slow_answer_to_one_change_does_not_undo_a_quick_one_to_another(page):
    """A page sends one at a time, but anybody can send two."""
    started, go_on = hold_first_answer(page)
    late = []
    first = threading.Thread(target=lambda: late.append(page.handlers.on_change(request(), set_to({"color": "wave"}))))
    first.start()
    assert started.wait(20)
    second = page.handlers.on_change(request(), set_to({"color": "wave", "warp_size": 2}))
    go_on.set()
    first.join(20)
    assert "warp_size=2" in named(second)["link"]
    assert late == [{page.components.problems: gr.skip()}]


def test_a_run_right_after_a_preset_was_clicked_runs_the_preset(page):
    assert page.handlers.read(preset(0)).experiment.problem.M == 576


def test_an_answer_in_time_draws(page):
    answer = named(page.handlers.on_change(request(), set_to({"M": 640})))
    assert "M=640" in answer["link"]
    assert answer["schedule-plot"]


def test_a_tab_that_an_answer_has_opened_is_not_drawn_again(page):
    sent = set_to({"tab": "coalescing"})
    assert named(page.handlers.opening("coalescing")(request(), sent)) == {"open-tab": "coalescing"}
    answer = named(page.handlers.opening("schedule")(request(), sent))
    assert answer["open-tab"] == "schedule"
    assert answer["schedule-plot"]


def test_what_is_drawn_of_the_compiled_kernel_is_sent_once(page):
    """Gradio sends the last answer twice: that one must be empty."""
    compiles_to(page, Failure("compile", "timeout", "It took too long."))
    *_, drawn, nothing = compiled(page, {"tab": "schedule"})
    assert "It took too long." in named(drawn)["schedule-claim"]
    assert nothing == {page.components.problems: gr.skip()}


@pytest.mark.parametrize("tab", ["schedule", "reuse", "coalescing", "compiler"])
def test_what_the_compiler_says_is_text_and_no_markup(page, tab):
    failure = Failure("compile", "compile_error", "<script>alert(1)</script> & more")
    compiles_to(page, failure)
    *_, drawn, _ = compiled(page, {"tab": tab})
    claim = named(drawn)[f"{tab}-claim"]
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in claim
    assert "<script" not in claim


def test_what_can_not_be_drawn_once_it_is_compiled_is_said_where_it_was_set(page):
    compiles_to(page, Failure("compile", "timeout", "It took too long."))
    *_, refused, _ = compiled(page, {"tab": "schedule", "num_warps": 16, "programs_per_sm": 32})
    assert "programs_per_sm must be at most" in json.loads(named(refused)["problems"])["programs_per_sm"]


def test_a_timeline_that_was_taken_here_is_drawn_before_the_recorded_one(make_page, monkeypatch):
    page = make_page(GPUS["H200"])
    experiment = records.experiments(TIMELINE.form, "H200")[0]
    flat = {**experiment.to_address(), "gpu": "H200", "tab": "schedule", "seed": 3}
    current = SETTINGS.state(flat, page.session.gpu)

    def drawn():
        return named(page.handlers.drawing.draw(page.handlers.drawing.known(current)))["timeline"]

    recorded = page.session.find_value(current.experiment, "timeline")
    assert recorded.backend == "recorded", "whatever the seed"
    assert "Recorded on H200" in drawn()
    live = replace(recorded, backend="cuda", note="", experiment=current.experiment)
    monkeypatch.setattr(TIMELINE, "measure", lambda *_: live)
    assert page.session.submit(current.experiment, "timeline").result() is live
    assert page.session.find_value(replace(current.experiment, run=experiment.run), "timeline") is live
    assert "Recorded on H200" not in drawn()
    assert 'class="mark measured"' in drawn()


def test_without_a_gpu_a_timeline_is_the_recorded_one_or_a_sentence(page):
    record = button(page, "record-timeline")

    def last_answer(flat):
        return named(answers(record, set_to({**flat, "tab": "schedule"}))[-1])

    recorded = records.experiments(TIMELINE.form, "H200")[0].to_address()
    last = last_answer({**recorded, "gpu": "H200"})
    assert "256 programs" in last["timeline"]
    assert last["gantt-plot"]
    last = last_answer({**recorded, "gpu": "H200", "GROUP_SIZE": 3})
    assert "no timeline of this experiment on H200 was recorded" in last["status"]
    assert set(last) <= {"problems", "status", "cancel"}, "what is drawn stays"


def test_a_run_that_the_browser_has_kept_is_shown_where_the_app_knows_none(page):
    run = records.find(RUN.form, records.experiments(RUN.form, "H200")[0], "H200")
    live = replace(run, backend="cuda", note="", experiment=replace(run.experiment, run=Run(seed=12345)))
    # of a launch that was not recorded, and that this app has not seen
    changed = replace(live.experiment, problem=replace(live.experiment.problem, M=live.experiment.problem.M - 8))
    live = replace(live, experiment=changed)
    query = {**changed.to_address(), "gpu": "H200"}
    assert "Not run yet" in named(page.handlers.on_load(request(**query), ""))["strip"]
    ended = datetime.datetime(2026, 11, 21, 14, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
    kept = kept_run.written(live, "H200", ended)
    strip = named(page.handlers.on_load(request(**query), kept))["strip"]
    assert "passed" in strip
    assert '<time datetime="2026-11-21T13:02:00+00:00">2026-11-21 13:02 UTC</time>' in strip
    query["M"] = "64"
    assert "Not run yet" in named(page.handlers.on_load(request(**query), kept))["strip"]


def test_each_picture_that_waits_for_the_compiler_asks_for_it_anew(page):
    """A browser may put one in place after the answer to an earlier one: then the answer to its own comes later still.

    The compile may end while the picture is drawn: then it waits, and asks, all the same.
    """
    values = set_to({"tab": "coalescing", "gpu": "H200"})

    def wanted():
        return named(page.handlers.on_change(request(), values))["compile-wanted"]

    assert wanted() != wanted()
    compiled = page.session.compile(opened({"gpu": "H200"}).experiment).result()
    assert not isinstance(compiled, Failure)
    assert wanted().startswith("drawn ")
    known = [None, compiled, compiled, compiled]
    page.session.finder = lambda _: known.pop(0) if known else compiled
    assert not wanted().startswith("drawn ")


def test_every_component_that_a_handler_answers_is_one_of_its_outputs(page):
    """Gradio refuses an answer with another one, and only once it happens."""
    outputs = {fn.fn.__name__ if hasattr(fn.fn, "__name__") else "": fn.outputs for fn in page.blocks.fns.values()}
    for tab in SETTINGS.tabs:
        values = set_to({"tab": tab})
        assert set(page.handlers.on_change(request(), values)) <= set(outputs["on_change"])
        assert set(page.handlers.on_select(request(), values)) <= set(outputs["on_select"])
    for measurement in MEASUREMENTS.values():
        recorded = records.experiments(measurement.form, "H200")[0]
        for tab in SETTINGS.tabs:
            values = set_to({**recorded.to_address(), "gpu": "H200", "tab": tab})
            assert set(page.handlers.on_select(request(), values)) <= set(outputs["on_select"]), measurement.name
