"""A timeline as a Chrome trace: one process per SM, one track per slot. Perfetto and chrome://tracing can open it.

Source of the format: Google's "Trace Event Format", complete events ("X") and metadata events ("M").
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from tilescope.declare.experiment import Json, launch_of
from tilescope.declare.gpus import Gpu
from tilescope.results import Timeline
from tilescope.results.counters import assign_slots


def chrome_trace(timeline: Timeline, gpu: Gpu) -> Json:
    """Return a trace with one event per program: its SM and slot, start and duration in µs, and tiles.

    The GPU reports only the SM, so slots are assigned: each program takes the lowest free slot when it starts. Programs
    on the same track therefore never overlap.

    Args:
        gpu: the GPU that ran the launch. A persistent kernel's tiles depend on it.
    """
    kernel, launch = launch_of(timeline.experiment, gpu)
    assigned = kernel.tiles(np.arange(len(timeline.sm)), launch)
    tiles: list[list[dict[str, int]]] = [[] for _ in timeline.sm]
    for tile in pd.DataFrame(vars(assigned)).to_dict("records"):
        tiles[tile.pop("program")].append(tile)
    slots = assign_slots(timeline.sm, timeline.start_ns, timeline.end_ns)
    events = list(_name_tracks(timeline.sm, slots))
    programs = zip(timeline.sm, slots, timeline.start_ns, timeline.end_ns, tiles, strict=True)
    for pid, (sm, slot, start, end, computed) in enumerate(programs):
        first = computed[0]
        more = f" +{len(computed) - 1}" if len(computed) > 1 else ""
        name = f"pid {pid} ({first['pid_m']}, {first['pid_n']}){more}"
        where = {"name": name, "cat": "program", "ph": "X", "pid": sm, "tid": slot}
        when = {"ts": start / 1000, "dur": (end - start) / 1000}
        events.append({**where, **when, "args": {"program": pid, "tiles": computed}})
    source = "recorded" if timeline.backend == "recorded" else "measured"
    about = {
        "experiment": timeline.experiment.to_json(),
        "kernel": kernel.title,
        "gpu": gpu.name,
        "source": source,
        "slots": "counted",
    }
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}


def _name_tracks(sms: Sequence[int], slots: Sequence[int]) -> Iterator[Json]:
    """Yield the names and the order of SMs, and the names of their slots."""

    def describe(kind: str, sm: int, slot: int, **value: object) -> Json:
        return {"name": kind, "ph": "M", "pid": sm, "tid": slot, "args": value}

    for sm in sorted(set(sms)):
        yield describe("process_name", sm, 0, name=f"SM {sm}")
        yield describe("process_sort_index", sm, 0, sort_index=sm)
    for sm, slot in sorted(set(zip(sms, slots, strict=True))):
        yield describe("thread_name", sm, slot, name=f"slot {slot}")
