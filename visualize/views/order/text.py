"""Sentences and tables of the Order view: blocks that the first programs load, waves, and the recorded timeline."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import numpy as np
from markupsafe import Markup

from kernels.experiment import Experiment
from kernels.results import Compiled, Timeline
from kernels.spec import Launch, shape_text
from visualize.predict.execution import Execution
from visualize.predict.reuse import DramTraffic
from visualize.predict.schedule import FirstLoads, Schedule, Steps, max_programs_per_sm, occupancy, steps
from visualize.views import prose
from visualize.views.numbers import count_noun, format_number, join_names, milliseconds, percent, source
from visualize.views.prose import Link, Listed, Mark, Sentence, Sourced, Strong, headline, say, term
from visualize.views.tables import table

NOT_COMPILED_YET = "Not compiled yet, so one program per SM is assumed. Ask again for the compiled kernel's occupancy."
TIMING_NOTE = (
    "Each program reads the GPU's timer first, and again after all its warps have issued their last store. "
    "The launch itself, and writes still on their way to memory when a program ends, count for no program."
)
# Number of waves whose spread of starts is listed.
_LISTED_WAVES = 4


def loads_headline(
    loads: FirstLoads, unit: str, inputs: Sequence[str], traffic: DramTraffic, link: Link, more: Sequence[Any]
) -> Markup:
    """Compare the blocks that the first programs load in this order and in row-major order.

    Args:
        unit: "program" or "tile".
        inputs: the tensors whose blocks are counted.
        traffic: the DRAM reads and times of both orders, if its study has them.
        link: a link to all values of GROUP_SIZE.
        more: further sentences.
    """
    (rows, columns), (other_rows, other_columns) = loads.regions
    first, details = count_noun(loads.first, unit), list[Any]()
    need = f"{count_noun(rows, 'row')} of {inputs[0]} and {count_noun(columns, 'column')} of {inputs[1]}"
    other_need = Sourced(f"{count_noun(other_rows, 'row')} and {count_noun(other_columns, 'column')}", "predicted")
    region = say("The first {} need {}; row-major order needs {}.", first, need, other_need)
    beside, reason = f"blocks of {join_names(inputs)} instead of {loads.row_major_blocks:,}", region
    if loads.blocks == loads.row_major_blocks:
        beside, reason = "blocks in either order", _equal_loads(loads, unit)
    elif loads.blocks > loads.row_major_blocks:
        beside, details = f"blocks for the first {first}; row-major order needs {loads.row_major_blocks:,}", [region]
        wide = count_noun(other_columns, "tile")
        reason = say("C is only {} wide, so grouping saves no blocks. Reuse shows the bytes read from DRAM.", wide)
    elif gain := _grouping_gain(traffic, first):
        reason, *details = gain[0], region, *gain[1:], link
    if loads.wave_blocks is not None:
        details.append(say("All waves together load {:,} blocks; in row-major order, {:,}.", *loads.wave_blocks))
    return headline(f"{loads.blocks:,}", beside, reason, *details, *more)


def _grouping_gain(traffic: DramTraffic, first: str) -> tuple[Sentence, ...]:
    """Compare DRAM reads and time with GROUP_SIZE 1, which is row-major order; () unless both were counted."""
    rows = {row.group_size: row for row in (traffic.study.rows if traffic.study else ()) if row.dram_read_bytes}
    size = traffic.group_size
    if size in (None, 1) or not {1, size} <= rows.keys():
        return ()
    (before_bytes, before_ms), (read_bytes, ms) = (
        (float(np.median(rows[each].dram_read_bytes)), float(np.median(rows[each].times_ms))) for each in (1, size)
    )
    before_gb, gb = (f"{each.read_bytes / 1e9:.2f}" for each in traffic.by_group_size((1, size)).values())
    change, recorded = ms / before_ms - 1, traffic.source("counted")
    effect = f"{'falls' if change < 0 else 'grows'} by {percent(abs(change))}"
    reads = say(
        "DRAM reads fall from {:.1f} to {}", before_bytes / 1e9, Sourced(f"{read_bytes / 1e9:.1f} GB", recorded)
    )
    effect = effect if abs(change) >= 0.05 else "hardly changes"
    return (
        say("The first {} share more blocks: {}; the time {}.", first, reads, effect),
        say("Predicted: {} and {} GB.", before_gb, Sourced(gb, "predicted")),
        say("Time: {} in row-major order, {} here.", milliseconds(before_ms), Sourced(milliseconds(ms), recorded)),
    )


def _equal_loads(loads: FirstLoads, unit: str) -> Sentence:
    if loads.tiles == 1:
        return say("The only {} loads every block, so the order makes no difference.", unit)
    if loads.is_same_order:
        return say("This order is row-major, so both load the same blocks.")
    if loads.first == loads.tiles:
        all_units = count_noun(loads.tiles, unit)
        return say("Together, all {} load every block in any order. Larger launches show a difference.", all_units)
    first = count_noun(loads.first, unit) if loads.first > 1 else unit
    return say("Both orders give the first {} equally many rows and columns of tiles.", first)


def read_once_headline(schedule: Schedule, more: Sequence[Any]) -> Markup:
    """State the number of programs of a kernel that reads each input once."""
    number, unit = count_noun(schedule.programs, "program").split()
    reason = "Each input is read once in any order. The order decides which tiles are in flight together."
    return headline(number, unit, reason, *more)


def split_k_sentence(schedule: Schedule) -> Sentence | str:
    """Describe how programs share a tile; "" if each tile has one program."""
    if schedule.slices == 1:
        return ""
    return say(
        "Each tile of C is summed by {}, one per slice of K. Slices are the grid's third axis, so every first slice "
        "starts before any second slice. During playback, a small map shows how many slices of each tile have started.",
        Strong(count_noun(schedule.slices, "program")),
    )


def waves_sentence(schedule: Schedule, steps: Steps) -> Sentence:
    """Count the waves (or the turns of a loop) of a launch, and the idle share of the last one."""
    resident = Sourced(f"{count_noun(schedule.programs_per_sm, 'program')} per SM", schedule.resident_source)
    programs, sms = count_noun(schedule.programs, "program"), f"{schedule.sms} SMs of {schedule.launch.gpu.name}"
    if steps.name == "turn":
        tiles, turns = count_noun(int(steps.tiles.sum()), "tile"), Strong(count_noun(len(steps.tiles), "turn"))
        template = "{} on {} ({}) loop over {} in {} of at most {:,}."
        text = say(template, programs, sms, resident, tiles, turns, schedule.programs)
        last, tail = "turn computes", count_noun(int(steps.tiles[-1]), "tile")
    else:
        loop = f" of {schedule.turns:,} tiles each, one after the other," if schedule.turns > 1 else ""
        waves = Strong(count_noun(schedule.waves, "wave"))
        template = "{}{} run in {} of {:,} ({}, {})."
        text = say(template, programs, loop, waves, schedule.resident_programs, sms, resident)
        last, tail = "wave holds", count_noun(schedule.tail_programs, "program")
    if not steps.tail_idle:
        return say("{} The last {} is full.", text, last.split()[0])
    idle = [say("{} of it is idle", Strong(percent(steps.tail_idle)))]
    if len(steps.tiles) > 1:
        idle.append(say("{} of the launch", percent(steps.idle)))
    return say("{} The last {} {}: {}.", text, last, tail, Listed(tuple(idle)))


def occupancy_table(schedule: Schedule, launch: Launch, compiled: Compiled | None) -> Markup:
    """Render waves and idle shares by programs per SM, and the limits of the compiled kernel."""
    limits = Markup("")
    if compiled:
        limit = occupancy(launch.gpu, launch.config.num_warps, compiled.registers, compiled.shared_bytes)
        limits = prose.hint(
            say("The number of programs per SM is limited by {}.", Sourced(join_names(limit.limited_by), "compiled")),
            f"{compiled.registers} registers per thread, {compiled.shared_bytes:,} bytes of shared memory per program.",
        )
    if schedule.turns > 1 and schedule.programs <= schedule.sms:
        return limits + prose.claim("An SM gets at most one program, which loops over its tiles, at any occupancy.")
    own, most = schedule.programs_per_sm, max_programs_per_sm(launch.gpu, launch.config.num_warps)
    rows = []
    for per_sm in sorted({1, own, most, *(count for count in (2, 4, 8, 16) if count < most)}):
        other = replace(schedule, resident_programs=schedule.sms * per_sm)
        slots, tail = other.resident_programs, other.tail_programs or other.resident_programs
        idle = 1 - tail / slots
        label = Sourced(per_sm, schedule.resident_source) if per_sm == own else per_sm
        rows.append((label, f"{other.waves:,}", f"{tail:,} of {slots:,}", percent(idle), percent(idle / other.waves)))
    waves = Sourced(term("wave", "waves"), "predicted")
    header = (term("programs per SM"), waves, "programs in the last", "idle in the last", "idle in all")
    return table(header, rows, "Effect of programs per SM on waves") + limits


def timeline_hint(gpu: str, experiments: Sequence[Experiment]) -> Sentence:
    """Say that there is no timeline.

    Args:
        experiments: experiments with a recorded timeline on this GPU.
    """
    if not experiments:
        return say("No timeline was recorded on {}. Recording a timeline needs a GPU.", gpu)
    links = []
    for experiment in experiments:
        group_size = getattr(experiment.config, "GROUP_SIZE", None)
        label = f"{experiment.kernel} {shape_text(experiment.problem)}"
        label += f", GROUP_SIZE {group_size}" if group_size else ""
        links.append(Link(label, urlencode({**experiment.to_address(), "gpu": gpu, "tab": "schedule"})))
    recorded = Listed(tuple(links), "; ")
    return say("No timeline of this experiment was recorded on {}. Recorded: {}.", gpu, recorded)


def timeline_sentences(timeline: Timeline, execution: Execution, schedule: Schedule) -> tuple[Sentence | str, ...]:
    """State how long the launch took, the cost of the instrumentation, and the assumptions."""
    ms, instrumented_ms = timeline.plain.median_ms, timeline.instrumented.median_ms
    programs, sms = Strong(f"{len(execution.sm):,} programs"), len(np.unique(execution.sm))
    span = Sourced(Strong(format_number(execution.span_ns, "ns")), source(timeline.backend))
    overhead = Strong(f"{100 * (instrumented_ms / ms - 1):+.1f} %".replace("-", "−"))
    times = f"{milliseconds(instrumented_ms)} against {milliseconds(ms)}, timed in turns"
    registers = "{1} against {0} registers per thread".format(*timeline.registers)
    events, loop = milliseconds(timeline.kernel_ms), "Each program loops over up to {} tiles; their equal times are {}."
    return (
        say("On {}, {} ran on {} SMs within {}, first start to last end.", timeline.device.name, programs, sms, span),
        say("CUDA events around that launch: {} (L2 {}).", events, timeline.experiment.run.l2),
        say("Instrumentation overhead: {} ({}; {}).", overhead, times, registers),
        say("The timer ticks every {}.", Strong(f"{timeline.tick_ns} ns")),
        say(loop, schedule.turns, Mark("assumed")) if schedule.turns > 1 else "",
        "" if timeline.passed else say("{}", Strong("The instrumented build's result failed the kernel's check.")),
        timeline.note,
    )


def timeline_table(timeline: Timeline, execution: Execution, schedule: Schedule) -> Markup:
    """Compare the timeline with ideal waves."""
    ideal, per_sm = steps(schedule), schedule.programs_per_sm
    most = min(per_sm, -(-schedule.programs // schedule.sms))
    room = f", with room for {per_sm}" if most < per_sm else ""
    spread_ns = execution.start_spread_ns(np.arange(schedule.programs) // schedule.resident_programs)
    spread = ", ".join(format_number(int(ns), "ns") for ns in spread_ns[:_LISTED_WAVES])
    if len(spread_ns) > 1:
        share = percent(int(spread_ns.max()) / max(execution.median_ns, 1))
        spread += f"{', …' if len(spread_ns) > _LISTED_WAVES else ''}; at most {share} of a program's time"
    ideal_most = Sourced(f"{most}{room}", schedule.resident_source)
    ideal_idle = percent(ideal.tail_idle if schedule.turns == 1 else ideal.idle)
    return table(
        ("", Sourced("as run", source(timeline.backend)), Sourced("ideal waves", "predicted")),
        (
            ("most programs on one SM at once", str(execution.max_concurrency.max()), ideal_most),
            ("median time of a program", format_number(execution.median_ns, "ns"), ""),
            ("spread of starts within a wave", spread, "0"),
            (f"programs on SM pid mod {execution.sms}", percent(execution.round_robin_share(schedule)), "100 %"),
            ("share of SM time without a program", percent(1 - execution.busy), ""),
            ("idle program slots after the last start", percent(execution.tail_idle(ideal.slots)), ideal_idle),
        ),
        "Recorded timeline and ideal waves",
    )
