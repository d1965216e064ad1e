"""Sentences and tables of the Order view: loaded blocks, waves, the recorded timeline, and bytes read from DRAM."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup

from kernels.gpus import GPUS
from kernels.measuring.timeline import TIMELINE
from kernels.pairs import pair
from kernels.results import Compiled, GroupSizeRow, Timeline
from kernels.sectors import SECTOR_BYTES
from visualize import numbers
from visualize.numbers import (
    bytes_of,
    count_noun,
    format_number,
    join_names,
    milliseconds,
    percent,
    significant,
)
from visualize.predict.execution import Execution
from visualize.predict.reuse import DramTraffic, by_group_size, fewest_bytes, recommended
from visualize.predict.schedule import (
    FirstLoads,
    Schedule,
    Steps,
    max_programs_per_sm,
    occupancy_of,
    schedule,
    steps,
)
from visualize.views import prose
from visualize.views.prose import (
    Link,
    Mark,
    Sentence,
    Sourced,
    Strong,
    headline,
    html,
    join,
    say,
    term,
)
from visualize.views.state import State
from visualize.views.status import link_nearest
from visualize.views.tables import table, traffic_funnel

NOT_COMPILED_YET = "Not compiled yet, so one program per SM is assumed. Ask again for the compiled kernel's occupancy."
_THIRD_AXIS = (
    "Slices are the grid's third axis, so the first slices of all tiles start before any second slice. During "
    "playback, a small map shows how many slices of each tile have started."
)
TIMING_NOTE = (
    "Each program reads the GPU's timer first, and again after all its warps have issued their last store. "
    "The launch itself, and writes still on their way to memory when a program ends, count for no program."
)

# Number of waves whose spread of starts is listed.
_LISTED_WAVES = 4

# Numbers of bytes within this factor count as equal.
_EQUAL = 1.05

# If the best order saves more than this share of the time, DRAM was not hidden behind another resource.
_HIDDEN = 0.1

# GPUs by falling bandwidth per FLOP.
_LESS_BANDWIDTH = ("A100-80GB", "A10G", "L40S", "L4", "RTX4090")

_RESOURCES = {"arithmetic": "arithmetic", "L2": "the L2", "load and store": "load and store units"}


def loads_headline(
    loads: FirstLoads,
    unit: str,
    traffic: DramTraffic,
    link: Link,
    more: Sequence[Any],
    larger: Link | str = "",
) -> Markup:
    """Compare the blocks that the first programs load in this order and in row-major order.

    Args:
        unit: "program" or "tile".
        traffic: the DRAM reads and times of both orders, if its study has them.
        link: a link to all values of GROUP_SIZE.
        more: further sentences.
        larger: a link to a launch in which the orders differ; "" if there is none.
    """
    (rows, columns), (other_rows, other_columns) = loads.regions
    inputs = traffic.kernel.family.panels or ("", "")
    first = count_noun(loads.first, unit)
    need = f"{count_noun(rows, 'row')} of {inputs[0]} and {count_noun(columns, 'column')} of {inputs[1]}"
    other_need = Sourced(
        f"{count_noun(other_rows, 'row')} and {count_noun(other_columns, 'column')}", "predicted"
    )
    blocks = term("block", "blocks")
    beside = say("{} instead of {:,} for {}", blocks, loads.row_major_blocks, first)
    reasons: list[Any] = [
        say("The first {} need {}; row-major order needs {}.", first, need, other_need)
    ]
    if loads.blocks == loads.row_major_blocks:
        beside = say("{} in either order", blocks)
        reasons = [say("{} {}", _equal_loads(loads, unit), larger)]
    elif loads.blocks > loads.row_major_blocks:
        narrow = f"C is only {other_columns} tiles wide, so grouping loads more."
        reasons.insert(0, f"{narrow} “DRAM reads” shows whether the L2 makes up for it.")
    elif traffic.schedule.waves == traffic.schedule.turns == 1:
        reasons = [say("All {:,} {}s run at once here. {}", loads.tiles, unit, larger), *reasons]
    elif gain := _grouping_gain(traffic, first):
        reasons = [gain, *reasons, link]
    if loads.wave_blocks is not None:
        reasons.append(
            say(
                "All waves together load {:,} blocks; in row-major order, {:,}.", *loads.wave_blocks
            )
        )
    return headline(f"{loads.blocks:,}", beside, *reasons, *more)


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
    times = f"{milliseconds(before.ms)} to {milliseconds(row.ms)}"
    return say(
        "The first {} share more blocks: DRAM reads fall from {}; the time goes from {}.",
        first,
        reads,
        times,
    )


def _equal_loads(loads: FirstLoads, unit: str) -> str:
    if loads.is_same_order:
        return "This order is row-major, so both load the same blocks."
    if loads.first == loads.tiles:
        return f"Together, all {loads.tiles:,} {unit}s need every block of both inputs."
    return f"Both orders need equally many rows and columns of tiles for {count_noun(loads.first, unit)}."


def split_k_sentence(schedule: Schedule) -> Sentence | str:
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
    run = f"loop over {len(schedule.place):,} {unit}s" if schedule.turns > 1 else "run"
    resident = Sourced(
        f"{count_noun(schedule.programs_per_sm, 'program')} per SM", schedule.resident_source
    )
    sms = f"{schedule.sms} SMs of {schedule.launch.gpu.name}"
    text = say("{} {} in {} of {:,} ({}, {}).", programs, run, waves, steps.slots, sms, resident)
    if not steps.tail_idle:
        return say("{} The last {} is full.", text, steps.name)
    tail = count_noun(int(steps.tiles[-1]), unit)
    idle = Strong(percent(steps.tail_idle))
    of_launch = f", {percent(steps.idle)} of the launch" if len(steps.tiles) > 1 else ""
    return say(
        "{} The last {} has {}: {} of it is idle{}.", text, steps.name, tail, idle, of_launch
    )


def occupancy_table(schedule: Schedule, compiled: Compiled | None) -> Markup:
    """Render waves and idle shares by programs per SM, and the limits of the compiled kernel."""
    limits = Markup("")
    launch = schedule.launch
    if compiled:
        limited_by = Sourced(join_names(occupancy_of(launch, compiled).limited_by), "compiled")
        needs = f"{compiled.registers} registers per thread, {compiled.shared_bytes:,} shared bytes per program."
        limits = prose.hint(
            say("The number of programs per SM is limited by {}.", limited_by), needs
        )
    if schedule.turns > 1 and schedule.programs <= schedule.sms:
        return limits + prose.lead(
            "An SM gets at most one program, which loops over its tiles, at any occupancy."
        )
    own = schedule.programs_per_sm
    most = max_programs_per_sm(launch.gpu, launch.config.num_warps)
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
    return table(header, rows, "Effect of programs per SM on waves") + limits


def timeline_hint(state: State) -> Markup:
    """Say that there is no timeline, and link to the most similar one that was recorded on this GPU."""
    nearest = link_nearest(TIMELINE.form, state, "schedule") or "Recording a timeline needs a GPU."
    return prose.hint(
        say("No timeline of this experiment was recorded on {}. {}", state.gpu.name, nearest)
    )


def timeline_sentences(
    timeline: Timeline, execution: Execution, schedule: Schedule
) -> tuple[Sentence | str, ...]:
    """State how long the launch took, the cost of the instrumentation, and the assumptions."""
    ms = timeline.plain.median_ms
    instrumented_ms = timeline.instrumented.median_ms
    programs = Strong(count_noun(len(execution.sm), "program"))
    sms = len(np.unique(execution.sm))
    span = Sourced(Strong(format_number(execution.span_ns, "ns")), numbers.source(timeline.backend))
    overhead = Strong(f"{100 * (instrumented_ms / ms - 1):+.1f} %".replace("-", "−"))
    times = f"{milliseconds(instrumented_ms)} against {milliseconds(ms)}, timed in turns"
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


def timeline_table(timeline: Timeline, execution: Execution, schedule: Schedule) -> Markup:
    """Compare the timeline with ideal waves."""
    ideal = steps(schedule)
    per_sm = schedule.programs_per_sm
    most = min(per_sm, -(-schedule.programs // schedule.sms))
    room = f", with room for {per_sm}" if most < per_sm else ""
    spread_ns = execution.start_spread_ns(
        np.arange(schedule.programs) // schedule.resident_programs
    )
    spread = ", ".join(format_number(int(ns), "ns") for ns in spread_ns[:_LISTED_WAVES])
    if len(spread_ns) > 1:
        share = percent(int(spread_ns.max()) / max(execution.median_ns, 1))
        spread += f"{', …' if len(spread_ns) > _LISTED_WAVES else ''}; at most {share} of a program's time"
    ideal_most = Sourced(f"{most}{room}", schedule.resident_source)
    ideal_idle = percent(ideal.tail_idle if schedule.turns == 1 else ideal.idle)
    return table(
        (
            "",
            Sourced("as run", numbers.source(timeline.backend)),
            Sourced("ideal waves", "predicted"),
        ),
        (
            ("most programs on one SM at once", str(execution.max_concurrency.max()), ideal_most),
            ("median time of a program", format_number(execution.median_ns, "ns"), ""),
            ("spread of starts within a wave", spread, "0"),
            (
                f"programs on SM pid mod {execution.sms}",
                percent(execution.round_robin_share(schedule)),
                "100 %",
            ),
            ("share of SM time without a program", percent(1 - execution.busy), ""),
            (
                "idle program slots after the last start",
                percent(execution.tail_idle(ideal.slots)),
                ideal_idle,
            ),
        ),
        "Recorded timeline and ideal waves",
    )


def reuse_headline(traffic: DramTraffic, failure: str, larger: Link | str = "") -> Markup:
    """State how often each input byte is read from DRAM.

    Args:
        failure: why the kernel can't be compiled, or "".
        larger: a link to a size at which GROUP_SIZE makes a difference, for a launch in which it makes none.
    """
    ratio = traffic.own.read_bytes / traffic.own.compulsory_bytes
    sentences = reuse_sentences(traffic)
    alone = _time_alone(traffic)
    lead: list[Any] = [sentences[1] or alone or sentences[0]]
    if no_gain := _no_gain(traffic):
        lead = [larger, no_gain]
    number = f"{significant(ratio, 2)} ×" if ratio > _EQUAL else ""
    beside = (
        "the input bytes read from DRAM {}"
        if ratio > _EQUAL
        else "Each input is read from DRAM once {}"
    )
    rest = (sentence for sentence in (alone, *sentences) if sentence not in lead)
    return headline(number, say(beside, Mark("predicted")), html(lead), *rest, failure)


def _time_alone(traffic: DramTraffic) -> Sentence | str:
    """Compare the time that DRAM would take alone with the slowest resource's."""
    times = {
        bound.name: bound.ms for bound in traffic.bounds if bound.name in ("DRAM", *_RESOURCES)
    }
    slowest = max(times, key=times.__getitem__, default="DRAM")
    if slowest == "DRAM" or "DRAM" not in times:
        return ""
    alone = (
        milliseconds(times["DRAM"]),
        _RESOURCES[slowest],
        milliseconds(times[slowest]),
        Mark("predicted"),
    )
    return say("DRAM alone would take {}, {} {} {}, so DRAM is not the bottleneck.", *alone)


def reuse_sentences(traffic: DramTraffic) -> tuple[Sentence | str, ...]:
    """Describe this launch, all values of GROUP_SIZE, the time, and the uncertainty. Empty strings may occur."""
    own = traffic.own
    row = traffic.row
    ratio = own.read_bytes / own.compulsory_bytes
    times = (
        f"{significant(ratio)} × the size of its inputs" if ratio > _EQUAL else "each input once"
    )
    count: Sentence | str = ""
    if row and row.read_bytes:
        count = say(
            "Nsight Compute counted {}.",
            Sourced(Strong(bytes_of(row.read_bytes)), traffic.source("counted")),
        )
    served = ""
    if (
        traffic.schedule.panels is not None and own.read_bytes < own.requested_bytes
    ):  # an output that is added to is read
        share = percent(1 - own.read_bytes / own.requested_bytes)
        served = f"The L2 serves {share} of the {bytes_of(own.requested_bytes)} that the programs request."
    return (
        say(
            "This launch reads {} from DRAM: {}.",
            Sourced(Strong(bytes_of(own.read_bytes)), "predicted"),
            times,
        ),
        count,
        served,
        *(_orders(traffic) if traffic.sizes else ()),
        *(_time(traffic) if traffic.study and traffic.sizes else ()),
        *_uncertainty(traffic),
        traffic.kernel.note(traffic.launch),
    )


def _no_gain(traffic: DramTraffic) -> str:
    """Say why GROUP_SIZE makes no difference; "" if it makes one, or if the kernel has none."""
    reads = [each.read_bytes for each in traffic.sizes.values()]
    if not reads or max(reads) >= _EQUAL * min(reads):
        return ""
    fits = min(reads) < _EQUAL * traffic.own.compulsory_bytes
    reason = "the L2 holds all inputs" if fits else "all orders reuse panels equally well"
    return (
        f"Nothing to gain at this size: {reason}, so every GROUP_SIZE reads {bytes_of(min(reads))}."
    )


def _orders(traffic: DramTraffic) -> tuple[Sentence | str, ...]:
    sizes = traffic.sizes
    if no_gain := _no_gain(traffic):
        return (no_gain,)
    fewest = fewest_bytes(sizes)
    best = recommended(traffic.kernel, traffic.launch, sizes)
    worst = max(sizes, key=lambda size: sizes[size].read_bytes)
    most = sizes[worst].read_bytes
    least = sizes[fewest].read_bytes
    times = Sourced(f"{significant(most / least)} × as many", "predicted")
    extremes = "GROUP_SIZE {} reads the fewest bytes, {}; {} reads the most, {}."
    reason = "It reads nearly as few bytes, and smaller groups are often slightly faster."
    if best > fewest:
        reason = "The L2, not DRAM, is the limit here. It has less work if more consecutive programs share a panel."
    return (
        say(extremes, Strong(fewest), bytes_of(least), worst, times),
        say("Recommended: {}. {}", Strong(best), reason) if best != fewest else "",
    )


def _time(traffic: DramTraffic) -> tuple[Sentence | str, ...]:
    """Say whether the difference in bytes shows in the time and, if not, why."""
    assert traffic.study is not None

    def read_bytes(row: GroupSizeRow) -> float:
        return (
            row.read_bytes
            or traffic.sizes[min(row.group_size or 1, traffic.schedule.extents[0])].read_bytes
        )

    few = min(traffic.study.rows, key=read_bytes)
    many = max(traffic.study.rows, key=read_bytes)
    times = read_bytes(many) / read_bytes(few)
    if times < _EQUAL:
        return ("GROUP_SIZE does not change the bytes, so expect no change in time.",)
    compared = pair(few.times_ms, many.times_ms)
    timed = traffic.source("measured")
    noise = percent(compared.noise)
    lead = f"{significant(times)} × fewer bytes (GROUP_SIZE {few.group_size} instead of {many.group_size})"
    if not compared.differs:
        below = Sourced(f"(less than the noise of {noise})", timed)
        return (say("{}: {} {}.", lead, Strong("no time difference here"), below),)
    saved = 1 - compared.ratio
    change = Strong(f"{percent(abs(saved))} {'less' if saved > 0 else 'more'} time")
    return say("{} took {}, ± {}.", lead, change, Sourced(noise, timed)), *_bottleneck(
        traffic, read_bytes(many), saved
    )


def _bottleneck(
    traffic: DramTraffic, most_bytes: float, saved: float
) -> tuple[Sentence | str, ...]:
    """Compare DRAM's time in the worst order with the slowest other resource.

    Args:
        saved: the share of the worst order's time that the best order saves.
    """
    if not traffic.launch.gpu.dram_gbps:
        return ()
    slowest = max(
        (bound for bound in traffic.bounds if bound.name in _RESOURCES), key=lambda bound: bound.ms
    )
    name = _RESOURCES[slowest.name]
    ms = milliseconds(slowest.ms)
    dram_ms = (most_bytes + traffic.own.write_bytes) / traffic.launch.gpu.dram_gbps / 1e6
    alone = f"In the worst order, DRAM alone would take {milliseconds(dram_ms)}"
    if dram_ms >= slowest.ms:
        return (f"{alone} and is the bottleneck.",)
    if saved > _HIDDEN:
        return (f"{alone} and is not hidden behind {name} ({ms}).",)
    return f"DRAM was hidden behind {name}.", f"{alone}, {name} {ms}.", _other_gpu(traffic)


def _other_gpu(traffic: DramTraffic) -> Sentence | str:
    """Name a GPU with less bandwidth per FLOP on which DRAM would take longer than arithmetic in the worst order."""
    launch = traffic.launch
    family = traffic.kernel.family
    worst = max(traffic.sizes, key=lambda size: traffic.sizes[size].read_bytes)
    for name in _LESS_BANDWIDTH:
        gpu = GPUS[name]
        tflops = gpu.matrix_tflops.get(launch.problem.dtype, 0.0)
        if name == launch.gpu.name or not tflops:
            continue
        per_sm = min(
            traffic.schedule.programs_per_sm, max_programs_per_sm(gpu, launch.config.num_warps)
        )
        there = by_group_size(
            schedule(traffic.kernel, replace(launch, gpu=gpu), per_sm), 0.0, (worst,)
        )[worst]
        dram_ms = there.read_bytes / gpu.dram_gbps / 1e6
        arithmetic_ms = family.work(launch.problem) / tflops / 1e9
        if dram_ms > arithmetic_ms:
            needs = f"GROUP_SIZE {worst} would need {milliseconds(dram_ms)} of DRAM time and {{}} of arithmetic"
            lead = f"The difference would show on a GPU with less bandwidth per FLOP: on {name}, {needs}."
            return say(lead, Sourced(milliseconds(arithmetic_ms), "predicted"))
    return ""


def _uncertainty(traffic: DramTraffic) -> tuple[Sentence | str, ...]:
    own = traffic.own
    if traffic.compiled is None:
        return (say("One program per SM is {} until the kernel is compiled.", Mark("assumed")),)
    if traffic.schedule.panels is None:
        in_parts = (
            "Its stores write partial sectors, and the model assumes that each of them is first read from DRAM. The "
            "true number is lower if the other parts arrive while the sector is still in the L2."
        )
        return (in_parts if own.read_bytes > own.compulsory_bytes else "",)
    if own.is_drift:
        return (
            "Programs request more than the L2 delivers, so they fall out of lockstep."
            if own.is_l2_limited
            else "",
            "The bytes depend on how far programs drift out of lockstep.",
            f"This prediction is rough: in lockstep, the launch reads {bytes_of(own.lockstep_bytes)}.",
        )
    if own.is_edge:
        low, high = bytes_of(own.low_bytes), bytes_of(own.high_bytes)
        reused = (
            "The reused data is about as large as the L2, so the bytes depend on its exact capacity"
        )
        return (f"{reused}: between {low} and {high}.",)
    return ()


def reuse_funnel(traffic: DramTraffic) -> Markup:
    """Render the bytes read at each level from lanes to DRAM, predicted and counted."""
    stages: list[tuple[Any, int, str]] = []
    if traffic.operations:
        tensors = traffic.kernel.family.tensors(traffic.launch.problem)
        sectors = sum(
            op.launch.sectors for op in traffic.operations if tensors[op.access.tensor].is_input
        )
        stages.append(
            ("sectors requested by loads (and TMA boxes)", SECTOR_BYTES * sectors, "predicted")
        )
    stages.append(("SMs receive", traffic.own.requested_bytes, "predicted"))
    row = traffic.row
    counted = traffic.source("counted")
    if row and row.received_bytes is not None and row.l2_read_bytes is not None:
        stages += [
            ("SMs receive", row.received_bytes, counted),
            ("the L2 looks up", row.l2_read_bytes, counted),
        ]
    stages.append(("read from DRAM", int(traffic.own.read_bytes), "predicted"))
    if row and row.read_bytes:
        stages.append(("read from DRAM", int(row.read_bytes), counted))
    stages.append(
        (term("compulsory bytes", "each input once"), traffic.own.compulsory_bytes, "predicted")
    )
    return traffic_funnel(stages, "Bytes read, from lanes to DRAM")


def study_table(traffic: DramTraffic) -> Markup | str:
    """Compare counted and predicted bytes of each GROUP_SIZE; "" without a study."""
    study = traffic.study
    if study is None or not traffic.sizes:
        return ""
    rows = []
    for row in study.rows:
        predicted = traffic.sizes.get(min(row.group_size or 1, traffic.schedule.extents[0]))
        count = "not counted"
        gigabytes = ""
        error = ""
        flags = []
        if predicted:
            gigabytes = f"{predicted.read_bytes / 1e9:.3f}"
            flags = [*["drift"] * predicted.is_drift, *["edge of the L2"] * predicted.is_edge]
        if row.read_bytes:
            count = f"{row.read_bytes / 1e9:.3f} ± {50 * np.ptp(row.dram_read_bytes) / row.read_bytes:.1f}\u00a0%"
            error = (
                f"{100 * (predicted.read_bytes / row.read_bytes - 1):+.1f} %" if predicted else ""
            )
        rows.append(
            (row.group_size, gigabytes, count, error, f"{row.ms:.4f}", join(map(term, flags)))
        )
    header = (
        term("GROUP_SIZE"),
        "GB predicted",
        "GB counted (median of five)",
        "error",
        "ms, timed in turns",
        "",
    )
    return table(header, rows, f"{study.tool}, {study.device.name}. {study.note}".strip())


def model_notes(traffic: DramTraffic) -> Markup:
    """Render the assumptions of the model, and the reason that no L2 hit rate is shown."""
    assumptions = "Each input is assumed to be read once, and the output to be written once."
    if traffic.schedule.panels:
        # tests/oracle/test_reuse_atlas.py requires slightly smaller errors.
        assumptions = (
            f"Programs start in launch order, {traffic.schedule.resident_programs:,} at a time. Programs that loop "
            "over tiles run in lockstep. Others drift apart, because an SM serves its oldest program first. If "
            "programs request more than the L2 delivers, 24 of 132 SMs run ahead. The others stay in step because "
            "they wait for DRAM. Each half of the L2 keeps the data that SMs on its side read, and evicts the least "
            "recently used lines. Both halves keep most panels, so about half of the capacity counts. Only reads are "
            "modelled: an output is assumed to be written once. Error against counts: on an H200, half of 1,047 "
            "orders are within 2.4 % and 93 % within 20 %; all but four of the others are flagged. On an H100, 93 % "
            "of 208 orders are within 20 %. The constants come from H200s and an H100, and are assumed for other "
            "GPUs."
        )
    hit_rate = (
        "Nsight Compute's L2 hit rate is not shown. On an L2 of two halves, a request from one half to the other is "
        "looked up twice, and a write counts one and a half times. Three quantities are counted instead: the sectors "
        "that SMs receive, the sectors that the L2 looks up for SMs (fewer, because one reply can serve two SMs), and "
        "DRAM's bytes."
    )
    notes = Markup(
        '<details class="small-print"><summary>Assumptions</summary><p>{}</p><p>{}</p></details>'
    )
    return notes.format(assumptions, hit_rate)
