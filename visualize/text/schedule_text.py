"""What the Schedule tab says: what the first programs load, how split-K shares a tile, and how full the waves are."""

from __future__ import annotations

from collections.abc import Sequence

from kernels.gpus import Gpu
from visualize.models.schedule import Schedule
from visualize.models.steps import Steps
from visualize.text.prose import Listed, Sentence, Sourced, Strong, say
from visualize.text.words import counted, enumerated, percent


def loads_claim(first: int, what: str, inputs: Sequence[str], ours: int, reference: int) -> Sentence:
    """What the first programs (or tiles) load in this order and in row-major order.

    Args:
        what: "programs" or "tiles".
        inputs: the tensors whose blocks are counted.
        ours, reference: distinct blocks of A and B.
    """
    return say(
        "The first {:,} {} load {} blocks of {} in this order, {} {}.",
        first,
        what,
        Strong(f"{ours:,}"),
        enumerated(inputs),
        Strong(f"{reference:,}"),
        Sourced("in row-major order", "predicted"),
    )


def sharing(schedule: Schedule) -> Sentence | str:
    """How split-K shares a tile; "" where each tile has one program."""
    if schedule.slices == 1:
        return ""
    return say(
        "Each tile of C is summed by {}, one per slice of K (the grid's third axis). All first slices start before "
        "any second one. At each step, a tile of a small map shows how many of its slices have started.",
        Strong(counted(schedule.slices, "program")),
    )


def timing(schedule: Schedule, steps: Steps, gpu: Gpu, per_sm: int) -> Sentence:
    """How many waves or turns a launch takes, and how much of the last one is idle."""
    held = Sourced(f"{counted(per_sm, 'program')} per SM", schedule.resident_source)
    programs, sms = counted(schedule.programs, "program"), f"{gpu.sms} SMs of {gpu.name}"
    if steps.name == "turn":
        tiles, turns = counted(int(steps.tiles.sum()), "tile"), Strong(counted(len(steps.tiles), "turn"))
        said = say(
            "{} on {} ({}) loop over {} in {} of at most {:,}.", programs, sms, held, tiles, turns, schedule.programs
        )
        return say("{} {}", said, _last("turn", steps, counted(int(steps.tiles[-1]), "tile")))
    loop = f" of {schedule.turns:,} tiles each, one after the other," if schedule.turns > 1 else ""
    waves = Strong(counted(schedule.waves, "wave"))
    said = say("{}{} run in {} of {:,} ({}, {}).", programs, loop, waves, schedule.resident_programs, sms, held)
    return say("{} {}", said, _last("wave", steps, counted(schedule.tail_programs, "program")))


def _last(step: str, steps: Steps, held: str) -> Sentence:
    """How full the last wave or turn is."""
    if not steps.tail_idle:
        return say("The last {} is full.", step)
    shares = [say("{} of it is idle", Strong(percent(steps.tail_idle)))]
    if len(steps.tiles) > 1:
        shares.append(say("{} of the launch", percent(steps.idle)))
    verb = "computes" if step == "turn" else "holds"
    return say("The last {} {} {}: {}.", step, verb, held, Listed(tuple(shares)))
