"""A timeline as a Chrome trace: every program once, where and when it ran, and none over another."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import discover
from kernels.export.chrome_trace import assign_slots, chrome_trace
from kernels.gpus import GPUS
from kernels.measuring.timeline import TIMELINE
from kernels.results import records
from kernels.spec import Launch

RECORDED = records.experiments(TIMELINE.form, "H200")


@pytest.mark.parametrize("experiment", RECORDED, ids=lambda one: f"{one.kernel} {one.problem} {one.config}")
def test_every_program_is_an_event_where_and_when_it_ran(experiment):
    timeline = records.find(TIMELINE.form, experiment, "H200")
    trace = json.loads(json.dumps(chrome_trace(timeline, GPUS["H200"]), allow_nan=False))
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    kernel = discover()[timeline.experiment.kernel]
    launch = Launch(timeline.experiment.problem, timeline.experiment.config, GPUS["H200"])
    assert [event["args"]["program"] for event in events] == list(range(kernel.programs(launch)))
    assert [event["pid"] for event in events] == list(timeline.sm)
    assert [round(event["ts"] * 1000) for event in events] == list(timeline.start_ns)
    assert [round((event["ts"] + event["dur"]) * 1000) for event in events] == list(timeline.end_ns)
    tiles = [(tile["pid_m"], tile["pid_n"], tile["pid_k"]) for event in events for tile in event["args"]["tiles"]]
    extents = kernel.extents(launch)
    assert len(set(tiles)) == len(tiles) == extents["m"] * extents["n"] * extents.get("slice", 1)
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert named == {(event["pid"], event["tid"]) for event in events}
    processes = {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert processes == {sm: f"SM {sm}" for sm in set(timeline.sm)}
    assert trace["otherData"]["source"] == "recorded"
    assert trace["otherData"]["experiment"] == timeline.experiment.to_json()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(0, 20)), max_size=60))
def test_an_sm_has_as_many_slots_as_it_held_programs_at_once(drawn):
    """No more, and none of them holds two at a time."""
    sm = [one[0] for one in drawn]
    start = [one[1] for one in drawn]
    end = [one[1] + one[2] for one in drawn]
    slots = assign_slots(sm, start, end)
    for here in set(sm):
        mine = [place for place, one in enumerate(sm) if one == here]
        for one, other in itertools.combinations(mine, 2):
            if slots[one] == slots[other]:
                assert end[one] <= start[other] or end[other] <= start[one]
        at_once = max(sum(start[a] <= start[b] < max(end[a], start[a] + 1) for a in mine) for b in mine)
        assert max(slots[one] for one in mine) < at_once
