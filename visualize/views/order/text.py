"""Sentences and tables of the Order view: loaded blocks, waves, and the recorded timeline."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from tilescope import numbers
from tilescope.measure.timeline import TIMELINE
from tilescope.numbers import (
    bytes_of,
    count_noun,
    format_number,
    milliseconds,
    percent,
)
from tilescope.results import Timeline
from visualize.predict.reuse import DramTraffic
from visualize.predict.schedule import (
    KernelSchedule,
    Schedule,
    Steps,
    loads,
    max_programs_per_sm,
)
from visualize.views import prose
from visualize.views.order.dram_reads import describe_change
from visualize.views.order.map_figure import Order
from visualize.views.prose import (
    Link,
    Mark,
    Sentence,
    Sourced,
    Strong,
    headline,
    link_nearest,
    say,
    table,
    term,
)
from visualize.views.state import State

NOT_COMPILED_YET = "Not compiled yet, so one program per SM is assumed. Call again for the compiled kernel's occupancy."
_THIRD_AXIS = (
    "Slices are the grid's third axis, so the first slices of all tiles start before any second slice. During "
    "playback, a small map shows how many slices of each tile have started."
)
# Maximum number of tiles for which the blocks of all waves are added up. More would make a slider lag.
_MAX_TILES_ADDED = 1 << 15
TIMING_NOTE = (
    "Each program reads the GPU's timer first, and again after all its warps have issued their last store. "
    "The launch itself, and writes still in flight when a program ends, are not attributed to any program."
)


def loads_headline(
    own: Order,
    row_major: Order,
    first: int,
    traffic: DramTraffic,
    link: Link,
    more: Sequence[Any],
    larger: Link | str = "",
) -> Markup:
    """Compare the blocks that the first programs (or tiles of a loop) load in this order and in row-major order.

    Args:
        traffic: the DRAM reads and times of both orders, if its study has them.
        link: a link to all values of GROUP_SIZE.
        more: further sentences.
        larger: a link to a launch in which the orders differ; "" if there is none.
    """
    unit = own.unit
    launches = own.steps.timed, row_major.steps.timed
    tiles = len(own.steps.entries)
    blocks, other_blocks = (int(loads(launch, np.array([first]))[0]) for launch in launches)
    (rows, columns), (other_rows, other_columns) = (
        [len(np.unique(side[:first])) for side in (launch.tiles.pid_m, launch.tiles.pid_n)]
        for launch in launches
    )
    inputs = traffic.kernel.family.panels or ("", "")
    programs = f"the first {count_noun(first, unit) if first > 1 else unit}"
    need = f"{count_noun(rows, 'row')} of {inputs[0]} and {count_noun(columns, 'column')} of {inputs[1]}"
    other_need = Sourced(
        f"{count_noun(other_rows, 'row')} and {count_noun(other_columns, 'column')}", "predicted"
    )
    noun = term("block", "blocks")
    beside = say("{} instead of {:,} for {}", noun, other_blocks, programs)
    reasons: list[Any] = [
        say("These {}s need {}; row-major order needs {}.", unit, need, other_need)
    ]
    is_at_once = traffic.schedule.waves == traffic.schedule.turns == 1
    if blocks == other_blocks:
        beside = say("{} in either order", noun)
        reason = f"Both orders need the same number of blocks for {programs}."
        if np.array_equal(launches[0].place, launches[1].place):
            reason = "This order is row-major, so both load the same blocks."
        elif first == tiles:
            reason = f"Together, all {tiles:,} {unit}s need every block of both inputs."
        reasons = [say("{} {}", reason, larger if is_at_once else "")]
    elif blocks > other_blocks:
        narrow = f"C is only {other_columns} tiles wide, so grouping loads more."
        reasons.insert(0, f"{narrow} “DRAM reads” shows whether the L2 makes up for it.")
    elif is_at_once:
        reasons.append(say("All {:,} {}s run at once here. {}", tiles, unit, larger))
    elif gain := _grouping_gain(traffic, count_noun(first, unit)):
        reasons = [gain, *reasons, link]
    if not own.steps.is_single and tiles <= _MAX_TILES_ADDED:
        sums = (int(order.steps.blocks.sum()) for order in (own, row_major))
        reasons.append(say("All waves together load {:,} blocks; in row-major order, {:,}.", *sums))
    return headline(f"{blocks:,}", beside, *reasons, *more)


def _grouping_gain(traffic: DramTraffic, first: str) -> Sentence | str:
    """Compare DRAM reads and time with GROUP_SIZE 1, which is row-major order; "" unless both were counted."""
    rows = (
        {row.group_size: row for row in traffic.study.rows if row.read_bytes}
        if traffic.study
        else {}
    )
    before = rows.get(1)
    row = rows.get(traffic.group_size)
    if before is None or row is None or row is before:
        return ""
    reads = say(
        "{} to {}",
        bytes_of(before.read_bytes),
        Sourced(bytes_of(row.read_bytes), traffic.source("counted")),
    )
    return say(
        "The first {} share more blocks: DRAM reads fall from {}. Timed in alternation: {}.",
        first,
        reads,
        describe_change(row, before),
    )


def split_k_sentence(schedule: KernelSchedule) -> Sentence | str:
    """Describe how programs share a tile; "" if each tile has one program."""
    if schedule.slices == 1:
        return ""
    programs = Strong(count_noun(schedule.slices, "program"))
    program = schedule.tiles.program[schedule.entry]
    shared = int((program != program[0]).any(axis=0).sum())
    if len(schedule.kernel.grid(schedule.launch)) == 3:
        return say("Each tile of C is summed by {}, one per slice of K. {}", programs, _THIRD_AXIS)
    return say(
        "Tiles of C summed by {}, one per slice of K: {:,}. Each step computes a slice.",
        programs,
        shared,
    )


def waves_sentence(schedule: Schedule, steps: Steps) -> Sentence:
    """Count the waves (or the turns of a loop) of a launch, and the idle share of the last one."""
    programs = count_noun(schedule.programs, "program")
    waves = Strong(count_noun(len(steps.tiles), steps.name))
    unit = "program" if schedule.turns == 1 else "tile" if schedule.slices == 1 else "slice"
    run = (
        f"loop over {len(schedule.place):,} {unit}s"
        if schedule.turns > 1
        else "runs"
        if schedule.programs == 1
        else "run"
    )
    resident = Sourced(
        f"{count_noun(schedule.programs_per_sm, 'program')} per SM", schedule.resident_source
    )
    sms = f"{schedule.sms} SMs of {schedule.gpu.name}"
    text = say("{} {} in {} of {:,} ({}, {}).", programs, run, waves, steps.slots, sms, resident)
    if not steps.tail_idle:
        return say("{} The last {} is full.", text, steps.name)
    tail = count_noun(int(steps.tiles[-1]), unit)
    idle = Strong(percent(steps.tail_idle))
    if len(steps.tiles) == 1:
        return say(
            "{} It fills {} of the {}.", text, Strong(percent(1 - steps.tail_idle)), steps.name
        )
    return say(
        "{} The last {} has {}: {} of it is idle, {} of the launch.",
        text, steps.name, tail, idle, percent(steps.idle),
    )  # fmt: skip


def occupancy_table(schedule: Schedule) -> Markup:
    """Render waves and idle shares by programs per SM."""
    if schedule.turns > 1 and schedule.programs <= schedule.sms:
        return prose.lead(
            "An SM gets at most one program, which loops over its tiles, at any occupancy."
        )
    own = schedule.programs_per_sm
    most = max_programs_per_sm(schedule.gpu, schedule.num_warps)
    rows = []
    for per_sm in sorted({1, own, most, *(count for count in (2, 4, 8, 16) if count < most)}):
        slots = schedule.sms * per_sm
        waves = -(-schedule.programs // slots)
        tail = (schedule.programs - 1) % slots + 1
        idle = 1 - tail / slots
        label = Sourced(per_sm, schedule.resident_source) if per_sm == own else per_sm
        rows.append(
            (label, f"{waves:,}", f"{tail:,} of {slots:,}", percent(idle), percent(idle / waves))
        )
    predicted = Sourced(term("wave", "waves"), "predicted")
    header = (
        term("programs per SM"),
        predicted,
        "programs in the last",
        "idle in the last",
        "idle in all",
    )
    return table(header, rows, "Effect of programs per SM on waves")


def timeline_hint(state: State) -> Markup:
    """Say that there is no timeline, and link to the most similar one that was recorded on this GPU."""
    nearest = (
        link_nearest(TIMELINE.form, state, "program-order") or "Recording a timeline needs a GPU."
    )
    return prose.hint(
        say("No timeline of this experiment was recorded on {}. {}", state.gpu.name, nearest)
    )


def timeline_sentences(timeline: Timeline, schedule: Schedule) -> tuple[Sentence | str, ...]:
    """State how long the launch took, the cost of the instrumentation, and the assumptions."""
    ms = timeline.plain.median_ms
    instrumented_ms = timeline.instrumented.median_ms
    programs = Strong(count_noun(len(timeline.sm), "program"))
    sms = len(set(timeline.sm))
    span = Sourced(Strong(format_number(timeline.span_ns, "ns")), numbers.source(timeline.backend))
    overhead = Strong(f"{100 * (instrumented_ms / ms - 1):+.1f} %".replace("-", "−"))
    times = f"{milliseconds(instrumented_ms)} against {milliseconds(ms)}, timed alternately"
    registers = "{1} against {0} registers per thread".format(*timeline.registers)
    events = milliseconds(timeline.kernel_ms)
    loop = "Each program loops over up to {} tiles; their equal times are {}."
    return (
        say(
            "On {}, {} ran on {} SMs in {} from first start to last end.",
            timeline.device.name,
            programs,
            sms,
            span,
        ),
        say("CUDA events around that launch: {} (L2 {}).", events, timeline.experiment.run.l2),
        say("Instrumentation overhead: {} ({}; {}).", overhead, times, registers),
        say("The timer ticks every {}.", Strong(f"{timeline.tick_ns} ns")),
        say(loop, schedule.turns, Mark("assumed")) if schedule.turns > 1 else "",
        ""
        if timeline.passed
        else say("{}", Strong("The instrumented build's result failed the kernel's check.")),
        timeline.note,
    )
