"""Names of devices, notes and messages come from outside: a panel shows them as text and never as markup."""

from __future__ import annotations

import html
import re
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kernels.gpus import GPUS
from kernels.measuring.counters import COUNTERS
from kernels.measuring.group_sizes import GROUP_SIZES
from kernels.measuring.run import RUN
from kernels.measuring.timeline import TIMELINE
from kernels.results import Failure, records
from visualize.views import status
from visualize.views.memory import whatif
from visualize.views.result.view import ResultPanel
from visualize.views.state import Snapshot
from visualize.views.tabs import SETTINGS, TABS

HOSTILE = '<script>alert("{0}")</script> & {gpu}'


def count_as_text(*markups):
    """Return how often the hostile string is visible as text. Fail if it is markup."""
    for markup in markups:
        assert "<script" not in markup
    return sum(html.unescape(re.sub(r"<[^>]*>", "", markup)).count(HOSTILE) for markup in markups)


def draw(snapshot):
    """Return the HTML of all panels, drawn from a snapshot. The browser shows other values as text."""
    slots = ResultPanel().draw_run(snapshot)
    for tab in TABS:
        for panel in tab.panels:
            slots |= panel().draw(snapshot)
    return [value for value in slots.values() if value.startswith("<")]


@pytest.mark.parametrize(("measurement", "times"), [(RUN, 6), (COUNTERS, 6), (GROUP_SIZES, 5), (TIMELINE, 3)])
def test_a_recording_is_text_on_every_panel(measurement, times):
    recorded = records.shipped(measurement.form)[0].measured
    fields = {"note": HOSTILE, "device": replace(recorded.device, name=HOSTILE)}
    if hasattr(recorded, "tool"):
        fields["tool"] = HOSTILE
    if measurement is COUNTERS:
        shared = tuple(replace(conversion, instruction=HOSTILE) for conversion in recorded.compiled.shared)
        fields["compiled"] = replace(recorded.compiled, shared=shared)
    hostile = replace(recorded, **fields)
    state = SETTINGS.state({**recorded.experiment.to_address(), "gpu": "H200"}, None)
    state = replace(state, gpu=replace(GPUS["H200"], name=HOSTILE, caveat=HOSTILE))
    assert count_as_text(*draw(Snapshot(state, measured={measurement.name: hostile}))) >= times
    assert count_as_text(status.render_end(hostile)) == 1


def test_a_failure_is_text_and_a_bad_argument_a_sentence_without_a_stage():
    failure = Failure("compile", 'kind"<script>', HOSTILE)
    snapshot = Snapshot(SETTINGS.state({"kernel": "matmul.grouped"}, None), failure=failure)
    assert count_as_text(*draw(snapshot)) >= 2
    outcome = Future()
    outcome.set_result(failure)
    session = SimpleNamespace(gpu=None, compile=lambda *args, **options: outcome)
    *_, (faults, _) = whatif.faults(session, SETTINGS.state({"kernel": "transpose.tiled"}, None))
    assert count_as_text(faults) >= 3
    lines = status.render_end(failure), status.render_alert(HOSTILE), status.render_compiling(HOSTILE)
    assert count_as_text(*lines) == 3
    assert status.render_failure(Failure("config", "no_gpu", "Omit gpu.")).striptags() == "Omit gpu."
    assert status.render_failure(Failure("check", "timeout", "It took 60 s.")).striptags() == "check: It took 60 s."
