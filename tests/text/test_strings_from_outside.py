"""Names of devices, notes and messages come from outside: whatever stands in them, the page shows it as text."""

from __future__ import annotations

import html as unescaping
import re
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.measuring.counters import COUNTERS
from kernels.measuring.group_sizes import GROUP_SIZES
from kernels.measuring.run import RUN
from kernels.measuring.timeline import TIMELINE
from kernels.results import Failure, records
from kernels.spec import Launch
from visualize.predict.agreement import Verdicts
from visualize.predict.execution import Execution
from visualize.predict.reuse import DramTraffic
from visualize.predict.schedule import schedule, steps
from visualize.views import status
from visualize.views.memory import tables, whatif
from visualize.views.memory.compiler import compiler_headline, resources_table
from visualize.views.memory.text import launch_sentences
from visualize.views.order import reuse_text
from visualize.views.order import text as order_text
from visualize.views.prose import claim, html, plain
from visualize.views.result import text as result_text
from visualize.views.tabs import SETTINGS

HOSTILE = '<script>alert("{0}")</script> & {gpu}'


def measured(of):
    """The first shipped recording of a kind, with a hostile device, note and tool, its kernel and its launch."""
    one = records.shipped(of.form)[0].measured
    fields = {"note": HOSTILE, "device": replace(one.device, name=HOSTILE)}
    if hasattr(one, "tool"):
        fields["tool"] = HOSTILE
    kernel, gpu = discover()[one.experiment.kernel], replace(GPUS["H200"], name=HOSTILE)
    return replace(one, **fields), kernel, Launch(one.experiment.problem, one.experiment.config, gpu)


def is_text(markup, times=1):
    """Whether the hostile string shows as it is, so many times, and is nowhere markup."""
    shown = unescaping.unescape(re.sub(r"<[^>]*>", "", markup))
    return "<script" not in markup and shown.count(HOSTILE) >= times


def test_a_run():
    result, kernel, launch = measured(RUN)
    hostile = replace(kernel, note=lambda _: HOSTILE, race=lambda _: HOSTILE)
    assert is_text(result_text.render_tables(result, hostile, launch), 2)
    assert is_text(result_text.render_headline(result, hostile, launch), 1)
    untimed = replace(result, recorded=result, timing=None)
    assert "<script" not in result_text.render_card(untimed, hostile, launch)
    assert any(HOSTILE in remark for remark in result_text.remarks(result, hostile, launch))


def test_a_count():
    counters, kernel, launch = measured(COUNTERS)
    found = Verdicts(kernel, launch, counters.compiled, counters)
    assert is_text(tables.traffic_section(found), 2)
    assert is_text(claim(*launch_sentences(found)))
    assert HOSTILE in plain(launch_sentences(found))
    assert "<script" not in tables.operations_table(found)
    with_hostile_instructions = replace(
        counters.compiled, shared=tuple(replace(one, instruction=HOSTILE) for one in counters.compiled.shared)
    )
    assert "<script" not in tables.conversions_table(replace(found, code=with_hostile_instructions))


def test_a_comparison_of_group_sizes():
    study, kernel, launch = measured(GROUP_SIZES)
    here = DramTraffic(replace(kernel, note=lambda _: HOSTILE), launch, None, study)
    assert is_text(html(reuse_text.reuse_sentences(here)))
    assert HOSTILE in plain(reuse_text.reuse_sentences(here))
    assert is_text(reuse_text.study_table(here), 3)
    assert "<script" not in reuse_text.reuse_funnel(here) + reuse_text.model_notes(here)


def test_a_timeline():
    ran, kernel, launch = measured(TIMELINE)
    order = schedule(kernel, launch)
    course = Execution(np.array(ran.sm), np.array(ran.start_ns), np.array(ran.end_ns), launch.gpu.sms)
    assert is_text(claim(*order_text.timeline_sentences(ran, course, order)), 2)
    assert "<script" not in order_text.timeline_table(ran, course, order)
    assert is_text(html([order_text.timeline_hint(HOSTILE, [ran.experiment])]))
    assert is_text(claim(order_text.waves_sentence(order, steps(order))))


def test_a_compiled_kernel():
    counters, _, launch = measured(COUNTERS)
    code = counters.compiled
    hostile = replace(launch, gpu=replace(launch.gpu, caveat=HOSTILE))
    compiled = type("Compiled", (), {**vars(code), "gpu": HOSTILE, "triton": HOSTILE})
    assert is_text(compiler_headline(hostile, compiled), 3)
    assert "<script" not in resources_table(hostile, compiled)


def test_what_if():
    outcome = Future()
    outcome.set_result(Failure("compile", "compile_error", HOSTILE))
    session = SimpleNamespace(gpu=None, compile=lambda *args, **options: outcome)
    *_, (text, _) = whatif.faults(session, SETTINGS.state({"kernel": "transpose.tiled"}, None))
    assert is_text(text, 3)
    assert is_text(claim(whatif.best_changes({"unchanged": 8, HOSTILE: 2})))


@pytest.mark.parametrize("shown", [status.render_failure, status.render_end])
def test_a_failure(shown):
    assert is_text(shown(Failure("compile", 'kind"<script>', HOSTILE)))
    assert is_text(status.render_alert(HOSTILE, "and", HOSTILE), 2)
    assert is_text(status.render_compiling(HOSTILE, 1.0))


def test_an_outcome():
    for kind in (RUN, COUNTERS, GROUP_SIZES, TIMELINE):
        outcome, _, _ = measured(kind)
        assert is_text(status.render_end(outcome))
    counters, _, _ = measured(COUNTERS)
    assert is_text(status.render_end(replace(counters, note="")))


def test_a_bad_argument_is_a_sentence_without_a_stage():
    assert status.render_failure(Failure("config", "no_gpu", "Omit gpu.")).striptags() == "Omit gpu."
    assert status.render_failure(Failure("check", "timeout", "It took 60 s.")).striptags() == "check: It took 60 s."
