"""The effect of occupancy: what becomes of waves, tail and idle share when a SM holds fewer or more programs."""

from __future__ import annotations

from kernels.results import Compiled
from kernels.spec import Launch
from visualize.models.occupancy import Residency, occupancy
from visualize.models.schedule import Schedule, held_programs
from visualize.models.steps import with_programs_per_sm
from visualize.text import words


def residents(planned: Schedule, launch: Launch, made: Compiled | None, resident: Residency) -> str:
    """A table of programs a SM against waves, and what limits the compiled kernel."""
    if planned.turns > 1 and planned.programs <= planned.sms:
        said = "The launch has no more programs than SMs: each loops over its tiles, however many more a SM would hold."
        return f'<p class="claim">{said}</p>{_limits(launch, made)}'
    held = held_programs(launch.gpu, launch.config.num_warps)
    shown = sorted({1, resident.programs_per_sm, held, *(count for count in (2, 4, 8, 16) if count < held)})
    rows = [_row(with_programs_per_sm(planned, count), count, resident) for count in shown]
    header = (
        "programs a SM",
        f"waves {words.mark('predicted')}",
        "programs of the last",
        "idle in the last",
        "idle in all",
    )
    return words.table(header, rows, "What the number of programs a SM holds makes of it") + _limits(launch, made)


def _row(planned: Schedule, count: int, resident: Residency) -> tuple[str, ...]:
    source = f" {words.mark(resident.source)}" if count == resident.programs_per_sm else ""
    return (
        f"{count}{source}",
        f"{planned.waves:,}",
        f"{planned.tail_programs or planned.resident_programs:,} of {planned.resident_programs:,}",
        words.percent(planned.tail_idle),
        words.percent(planned.idle),
    )


def _limits(launch: Launch, made: Compiled | None) -> str:
    """How many programs each resource allows, where the compiled kernel is known."""
    if made is None:
        return ""
    held = occupancy(launch.gpu, launch.config.num_warps, made.registers, made.shared_bytes)
    allowed = ", ".join(f"{name} {count}" for name, count in held.limits.items())
    return (
        f'<p class="hint">{made.registers} registers a thread, {made.shared_bytes:,} bytes of shared memory a program '
        f"{words.mark('compiled')}. Programs that a SM of {launch.gpu.name} has room for, by {allowed}.</p>"
    )
