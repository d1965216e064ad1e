"""The page's handlers, without a browser: an answer that comes too late changes nothing."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import gradio as gr
import pytest

from kernels import records
from kernels.gpus import GPUS
from kernels.results import Failure
from kernels.runner.measurements.timeline_measurement import TIMELINE
from kernels.runner.session import Session
from visualize.page.page import Page
from visualize.panels import schedule_tab
from visualize.panels.controls import experiment_form, view_form
from visualize.state.state import state
from visualize.widgets import form


@pytest.fixture
def page(tmp_path):
    session = Session(None, tmp_path)
    with gr.Blocks() as blocks:
        built = Page(blocks, session)
    yield built
    session.close()


def set_to(flat):
    """What the forms send: the tab, then each form's value."""
    current = state(flat, None)
    view = current.view
    return [
        view.tab,
        experiment_form(current, None),
        *(view_form(v) for v in (view.schedule, view.board, view.lanes, view.whatif)),
    ]


def answers(handler, *values):
    """All that a handler yields for the page."""

    async def collected():
        return [answer async for answer in handler(SimpleNamespace(session_hash="page"), *values)]

    # In a thread of its own: where a browser's tests ran before, this one has a running loop already.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(collected())).result(20)


def test_a_slow_answer_to_a_slider_does_not_undo_a_preset(page, monkeypatch):
    request = SimpleNamespace(session_hash="page")
    started, go_on = threading.Event(), threading.Event()
    draw = schedule_tab.draw

    def slow(current, *known):
        if current.experiment.problem.M == 640:
            started.set()
            assert go_on.wait(20)
        return draw(current, *known)

    monkeypatch.setattr(schedule_tab, "draw", slow)
    late = []
    slider = threading.Thread(target=lambda: late.append(page.on_change(request, *set_to({"M": 640}))))
    slider.start()
    assert started.wait(20)
    values = set_to({})
    values[1] = values[1].replace('"presets"', '"preset": 0, "presets"')
    assert form.settings(values[1])["preset"] == 0
    chosen = page.on_select(request, *values)
    go_on.set()
    slider.join(20)
    assert any("M=576" in str(value) for value in chosen), "the preset's own shape"
    assert late[0] == tuple(gr.skip() for _ in late[0])


def test_a_run_right_after_a_preset_was_clicked_runs_the_preset(page):
    values = set_to({})
    values[1] = values[1].replace('"presets"', '"preset": 0, "presets"')
    assert page._state(*values).experiment.problem.M == 576


def test_an_answer_in_time_draws(page):
    answer = page.on_change(SimpleNamespace(session_hash="page"), *set_to({"M": 640}))
    assert any("M=640" in str(value) for value in answer)


def test_what_is_drawn_of_the_compiled_kernel_is_sent_once(page, monkeypatch):
    """Gradio sends the last answer twice: that one must be empty."""
    monkeypatch.setattr(page.session, "compiled", lambda *_, **__: Failure("compile", "timeout", "It took too long."))
    *_, drawn, nothing = answers(page.jobs.on_compile, "schedule ?", *set_to({"tab": "schedule"}))
    assert "It took too long." in str(drawn)
    assert nothing == (gr.skip(),) * len(page.compiled)


def test_a_timeline_that_was_taken_here_is_drawn_before_the_recorded_one(page, monkeypatch):
    experiment = records.experiments(TIMELINE.form, "H200")[0]
    monkeypatch.setattr(page.session, "gpu", GPUS["H200"])
    current = state({**experiment.to_address(), "gpu": "H200", "tab": "schedule", "seed": 3}, page.session.gpu)
    recorded = page.session.known(current.experiment, "timeline")
    assert recorded.backend == "recorded", "whatever the seed"
    assert "Recorded on H200" in str(page.jobs.draw(current))
    live = replace(recorded, backend="cuda", note="", experiment=current.experiment)
    monkeypatch.setattr(TIMELINE, "measure", lambda *_: live)
    assert page.session.submit(current.experiment, "timeline").result() is live
    assert page.session.known(replace(current.experiment, run=experiment.run), "timeline") is live
    drawn = str(page.jobs.draw(current))
    assert "Recorded on H200" not in drawn
    assert 'class="mark measured"' in drawn


def test_without_a_gpu_a_timeline_is_the_recorded_one_or_a_sentence(page):
    def last_answer(flat):
        return answers(page.jobs.on_timeline, *set_to({**flat, "tab": "schedule"}))[-1]

    recorded = records.experiments(TIMELINE.form, "H200")[0].to_address()
    last = last_answer({**recorded, "gpu": "H200"})
    assert len(last) == len(page.recorded)
    assert "256 programs" in last[3]
    last = last_answer({**recorded, "gpu": "H200", "GROUP_SIZE": 3})
    assert "none of this experiment on H200 was recorded" in str(last[1])
    assert last[3:] == (gr.skip(),) * 4


def test_each_picture_that_waits_for_the_compiler_asks_for_it_anew(page, monkeypatch):
    """A browser may put one in place after the answer to an earlier one: then the answer to its own comes later still.

    The compile may end while the picture is drawn: then it waits, and asks, all the same.
    """
    request = SimpleNamespace(session_hash="page")
    values = set_to({"tab": "coalescing", "gpu": "H200"})
    wanted = page.pictures.index(page.compiler.wanted)
    first, second = (page.on_change(request, *values)[wanted] for _ in range(2))
    assert first != second
    made = page.session.compiled(state({"gpu": "H200"}, None).experiment)
    assert not isinstance(made, Failure)
    assert page.on_change(request, *values)[wanted].startswith("drawn ")
    known = [None, made, made, made]
    monkeypatch.setattr(page.session, "compiled_before", lambda _: known.pop(0) if known else made)
    assert not page.on_change(request, *values)[wanted].startswith("drawn ")
