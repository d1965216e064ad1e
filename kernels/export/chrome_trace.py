"""A timeline as a Chrome trace: a process per SM, a track per slot on it. Perfetto and chrome://tracing open it.

The format: "Trace Event Format", Google, complete events ("X") and metadata events ("M").
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kernels import discover
from kernels.gpus import Gpu
from kernels.results import Timeline
from kernels.spec import Launch


def chrome_trace(timeline: Timeline, gpu: Gpu) -> dict[str, Any]:
    """Every program as an event: which SM and slot, from when, for how long (µs), and what it computed.

    Slots are counted, not measured: the GPU tells the SM alone. A program takes the lowest slot that is free when it
    starts, so programs of one track never overlap.

    Args:
        gpu: the one that it ran on, which tiles of persistent kernels follow from.
    """
    kernel, experiment = discover()[timeline.experiment.kernel], timeline.experiment
    slots = packed(timeline.sm, timeline.start_ns, timeline.end_ns)
    tiles = _tiles(timeline, gpu)
    events = list(_names(timeline, slots))
    for pid, (sm, slot, start, end) in enumerate(
        zip(timeline.sm, slots, timeline.start_ns, timeline.end_ns, strict=True)
    ):
        first, count = tiles[pid][0], len(tiles[pid])
        name = f"pid {pid} ({first['pid_m']}, {first['pid_n']})" + (f" +{count - 1}" if count > 1 else "")
        events.append(
            {
                **{"name": name, "cat": "program", "ph": "X", "pid": sm, "tid": slot},
                **{"ts": start / 1000, "dur": (end - start) / 1000},
                "args": {"program": pid, "tiles": tiles[pid]},
            }
        )
    about = {
        **{"experiment": experiment.to_json(), "kernel": kernel.title, "gpu": gpu.name},
        **{"source": "recorded" if timeline.backend == "recorded" else "measured", "slots": "counted"},
    }
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}


def packed(sm: Sequence[int], start_ns: Sequence[int], end_ns: Sequence[int]) -> list[int]:
    """The slot of each program on its SM: the lowest that is free when it starts.

    >>> packed((0, 0, 0, 1), (0, 0, 10, 0), (10, 30, 20, 5))
    [0, 1, 0, 0]
    """
    slots = [0] * len(sm)
    free: dict[int, list[int]] = {}
    busy: dict[int, list[tuple[int, int]]] = {}
    opened: dict[int, int] = {}
    for program in sorted(range(len(sm)), key=lambda one: (start_ns[one], end_ns[one], one)):
        here = sm[program]
        vacant, running = free.setdefault(here, []), busy.setdefault(here, [])
        while running and running[0][0] <= start_ns[program]:
            heapq.heappush(vacant, heapq.heappop(running)[1])
        if vacant:
            slots[program] = heapq.heappop(vacant)
        else:
            slots[program] = opened.get(here, 0)
            opened[here] = slots[program] + 1
        heapq.heappush(running, (end_ns[program], slots[program]))
    return slots


def _tiles(timeline: Timeline, gpu: Gpu) -> list[list[dict[str, int]]]:
    """The tiles of each program, in the order in which it computes them."""
    experiment = timeline.experiment
    launch = Launch(experiment.problem, experiment.config, gpu)
    found = discover()[experiment.kernel].tiles(np.arange(len(timeline.sm)), launch)
    tiles: list[list[dict[str, int]]] = [[] for _ in timeline.sm]
    columns = (found.program, found.pid_m, found.pid_n, found.pid_k, found.group)
    for program, m, n, k, group in zip(*(column.tolist() for column in columns), strict=True):
        tiles[program].append({"pid_m": m, "pid_n": n, "pid_k": k, "group": group})
    return tiles


def _names(timeline: Timeline, slots: Sequence[int]) -> Iterator[dict[str, Any]]:
    """What a viewer calls the processes and tracks, and in which order it shows them."""
    for sm in sorted(set(timeline.sm)):
        yield {"name": "process_name", "ph": "M", "pid": sm, "tid": 0, "args": {"name": f"SM {sm}"}}
        yield {"name": "process_sort_index", "ph": "M", "pid": sm, "tid": 0, "args": {"sort_index": sm}}
    for sm, slot in sorted(set(zip(timeline.sm, slots, strict=True))):
        yield {"name": "thread_name", "ph": "M", "pid": sm, "tid": slot, "args": {"name": f"slot {slot}"}}
