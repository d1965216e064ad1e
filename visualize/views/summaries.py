"""The numbers of each tab that are compared where an Experiment is pinned."""

from __future__ import annotations

import numpy as np

from kernels.results import Counters
from visualize.predict import coalescing
from visualize.predict.agreement import sum_costs
from visualize.predict.reuse import DramTraffic
from visualize.predict.schedule import loads, occupancy
from visualize.views.numbers import Number, key_numbers
from visualize.views.snapshot import Known


def schedule_numbers(known: Known) -> tuple[Number, ...]:
    """Waves, and what the first of them loads."""
    ideal = known.schedule
    first = min(ideal.programs, ideal.resident_programs)
    loaded = loads(ideal, np.array([first]))
    return (
        Number("programs", ideal.programs, "", "predicted"),
        Number("waves", ideal.waves, "", "predicted"),
        *([Number("blocks, first wave", int(loaded[0]), "", "predicted")] if loaded is not None else []),
    )


def reuse_numbers(here: DramTraffic) -> tuple[Number, ...]:
    """What reaches DRAM."""
    counted = here.row.dram_read_bytes if here.row else ()
    of = here.source("counted")
    return (
        Number("DRAM reads", here.own.read_bytes, "bytes", "predicted"),
        *([Number("DRAM reads, counted", float(np.median(counted)), "bytes", of)] if counted else []),
    )


def request_numbers(known: Known) -> tuple[Number, ...]:
    """Requests and sectors of the launch as compiled, and what was counted."""
    made, found = known.compiled, []
    if made is not None and not made.unreadable:
        cost = sum_costs(coalescing.operations(known.state.kernel, known.launch, made.operations))
        found = [Number(name, getattr(cost, name), "", "compiled") for name in ("requests", "sectors")]
        found.append(Number("bytes used per byte fetched", cost.efficiency, "share", "compiled"))
    counters = known.result(Counters)
    counted = key_numbers(counters) if counters else ()
    return (*found, *(Number(f"{one.name}, counted", one.value, one.unit, one.source) for one in counted))


def compiled_numbers(known: Known) -> tuple[Number, ...]:
    """What a program takes of an SM; nothing while it is not compiled."""
    made, launch = known.compiled, known.launch
    if made is None:
        return ()
    held = occupancy(launch.gpu, launch.config.num_warps, made.registers, made.shared_bytes)
    return (
        Number("registers per thread", made.registers, "", "compiled"),
        Number("shared memory", made.shared_bytes, "bytes", "compiled"),
        Number("programs per SM", held.programs_per_sm, "", "compiled"),
    )
