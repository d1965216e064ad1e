"""The effect of occupancy: waves, tail and idle share when an SM holds fewer or more programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from markupsafe import Markup

from kernels.results import Compiled
from kernels.spec import Launch
from visualize.predict.schedule import Schedule, max_programs_per_sm, occupancy
from visualize.views.numbers import percent
from visualize.views.prose import Sentence, Sourced, claim, hint, say, term
from visualize.views.tables import frame, table


def residents(schedule: Schedule, launch: Launch, compiled: Compiled | None) -> Markup:
    """A table of programs per SM against waves, and what limits the compiled kernel."""
    limits = hint(*_limits(launch, compiled)) if compiled else Markup("")
    if schedule.turns > 1 and schedule.programs <= schedule.sms:
        said = "The launch has no more programs than SMs. Each loops over its tiles, even if an SM could hold more."
        return claim(said) + limits
    held = max_programs_per_sm(launch.gpu, launch.config.num_warps)
    shown = sorted({1, schedule.programs_per_sm, held, *(count for count in (2, 4, 8, 16) if count < held)})
    rows = [_row(replace(schedule, resident_programs=schedule.sms * count), schedule) for count in shown]
    header = (
        term("programs per SM"),
        Sourced(term("wave", "waves"), "predicted"),
        "programs in the last",
        "idle in the last",
        "idle in all",
    )
    return table(frame(header, rows), "Effect of programs per SM on waves") + limits


def _row(schedule: Schedule, current: Schedule) -> tuple[Any, ...]:
    count = schedule.programs_per_sm
    idle = -schedule.programs % schedule.resident_programs / schedule.resident_programs
    return (
        Sourced(count, current.resident_source) if count == current.programs_per_sm else count,
        f"{schedule.waves:,}",
        f"{schedule.tail_programs or schedule.resident_programs:,} of {schedule.resident_programs:,}",
        percent(idle),
        percent(idle / schedule.waves),
    )


def _limits(launch: Launch, compiled: Compiled) -> tuple[Sentence, ...]:
    """How many programs each resource allows."""
    held = occupancy(launch.gpu, launch.config.num_warps, compiled.registers, compiled.shared_bytes)
    allowed = ", ".join(f"{name} {count}" for name, count in held.limits.items())
    shared = Sourced(f"{compiled.shared_bytes:,} bytes of shared memory per program", "compiled")
    return (
        say("{} registers per thread, {}.", compiled.registers, shared),
        say("Programs that fit on an SM of {}, by resource: {}.", launch.gpu.name, allowed),
    )
