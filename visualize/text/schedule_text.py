"""What the Schedule tab says: what the first programs load, how split-K shares a tile, and how full the waves are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kernels.gpus import Gpu
from visualize.predict.schedule import FirstLoads, Schedule, Steps
from visualize.views.numbers import counted, enumerated, milliseconds, percent
from visualize.views.prose import Link, Listed, Sentence, Sourced, Strong, headline, say

NOT_COMPILED_YET = "Not compiled yet, so one program per SM is assumed. Ask again for what the compiler allows."


def loads_headline(
    found: FirstLoads, what: str, inputs: Sequence[str], bought: Bought | None, more: Sequence[Any]
) -> Markup:
    """What the first programs (or tiles) load in this order and in row-major order.

    Args:
        what: "program" or "tile".
        inputs: the tensors whose blocks are counted.
        bought: what fewer blocks bought, where that was recorded.
        more: what else there is to say.
    """
    if found.blocks == found.row_major_blocks:
        return headline(
            f"{found.blocks:,}", "blocks in either order", _no_difference(found, what), *_waves(found), *more
        )
    beside = f"blocks of {enumerated(inputs)} instead of {found.row_major_blocks:,}"
    if found.blocks > found.row_major_blocks:
        beside = f"blocks for the first {counted(found.first, what)}; row-major order needs {found.row_major_blocks:,}"
        wide = counted(found.regions[1][1], "tile")
        why = say("C is only {} wide, so grouping saves no blocks. Reuse shows what reaches DRAM.", wide)
        return headline(f"{found.blocks:,}", beside, why, _region(found, what, inputs), *_waves(found), *more)
    if bought is None:
        return headline(f"{found.blocks:,}", beside, _region(found, what, inputs), *_waves(found), *more)
    details = (_region(found, what, inputs), *_details(bought), *_waves(found))
    return headline(f"{found.blocks:,}", beside, _buys(found, what, bought), *details, *more)


def _no_difference(found: FirstLoads, what: str) -> Sentence:
    if found.is_same_order:
        return say("No difference: this is row-major order.")
    if found.first == found.tiles:
        said = "No difference: all {} run at once, so each block is loaded whatever the order. Choose a larger shape."
        return say(said, counted(found.tiles, what))
    said = "No difference for the first {}: both orders need equally many rows and columns of tiles."
    return say(said, counted(found.first, what))


def _region(found: FirstLoads, what: str, inputs: Sequence[str]) -> Sentence:
    """The rows and columns of tiles that make the counts."""
    (rows, columns), (other_rows, other_columns) = found.regions
    return say(
        "The first {} need {} of {} and {} of {}; row-major order needs {:,} and {}.",
        counted(found.first, what),
        counted(rows, "row"),
        inputs[0],
        counted(columns, "column"),
        inputs[1],
        other_rows,
        Sourced(f"{other_columns:,}", "predicted"),
    )


def _waves(found: FirstLoads) -> tuple[Sentence | str, ...]:
    """The blocks of all waves."""
    if found.wave_blocks is None:
        return ()
    return (say("Added up over all waves: {:,} blocks; in row-major order {:,}.", *found.wave_blocks),)


@dataclass(frozen=True)
class Bought:
    """What fewer blocks bought: bytes read from DRAM and time, in row-major order and in this one.

    Attributes:
        counted_bytes, times_ms: medians; recorded, or of this machine, as `source` says.
        predicted_bytes: by the model of reuse.
        link: to all orders.
    """

    counted_bytes: tuple[float, float]
    predicted_bytes: tuple[float, float]
    times_ms: tuple[float, float]
    source: str
    link: Link


def _buys(found: FirstLoads, what: str, bought: Bought) -> Sentence:
    """The claim where it is known what fewer blocks buy."""
    most, fewest = bought.counted_bytes
    change = bought.times_ms[1] / bought.times_ms[0] - 1
    time = "hardly changes" if abs(change) < 0.05 else f"{'falls' if change < 0 else 'grows'} by {percent(abs(change))}"
    return say(
        "The first {} share more blocks: DRAM reads fall from {:.1f} to {}; the time {}.",
        counted(found.first, what),
        most / 1e9,
        Sourced(f"{fewest / 1e9:.1f} GB", bought.source),
        time,
    )


def _details(bought: Bought) -> tuple[Sentence | Link | str, ...]:
    most, fewest = (f"{count / 1e9:.2f}" for count in bought.predicted_bytes)
    predicted = say("Predicted: {} and {} GB.", most, Sourced(fewest, "predicted"))
    before, after = map(milliseconds, bought.times_ms)
    times = say("Time: {} in row-major order, {} in this one.", before, Sourced(after, bought.source))
    return predicted, times, bought.link


def once_headline(schedule: Schedule, more: Sequence[Any]) -> Markup:
    """The claim of a kernel that reads each input once."""
    said = "Each input is read once in any order. The order decides which tiles are in flight together."
    return headline(f"{schedule.programs:,}", "programs" if schedule.programs != 1 else "program", said, *more)


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
