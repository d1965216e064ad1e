"""Sentences and tables of the DRAM reads picture."""

from typing import Any

import numpy as np
from markupsafe import Markup

from tilescope.evaluate.sectors import SECTOR_BYTES
from tilescope.measure.timing import pair
from tilescope.numbers import (
    bytes_of,
    percent,
    significant,
)
from tilescope.results import GroupSizeRow
from tilescope.timing.l2 import writes_in_parts
from visualize.predict.reuse import DramTraffic, fewest_bytes, recommended
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
    table,
    term,
)

# Numbers of bytes within this factor count as equal.
_EQUAL = 1.05

# If the best order saves more than this share of the time, DRAM was not hidden behind another resource.
_HIDDEN = 0.1


def dram_reads_headline(
    traffic: DramTraffic, failure: str, result: Link, larger: Link | str = ""
) -> Markup:
    """State how often each input byte is read from DRAM.

    Args:
        failure: why the kernel can't be compiled, or "".
        result: a link to the predicted time.
        larger: a link to a size at which GROUP_SIZE makes a difference, for a launch in which it makes none.
    """
    ratio = traffic.own.read_bytes / traffic.own.compulsory_bytes
    sentences = reuse_sentences(traffic)
    lead: list[Any] = [sentences[1] or sentences[0]]
    if no_gain := _no_gain(traffic):
        lead = [larger, no_gain]
    number = f"{significant(ratio, 2)} ×" if ratio > _EQUAL else ""
    # Only compiled code shows whether stores cover whole sectors. If not, the L2 reads as many bytes again.
    least = "at least " if traffic.compiled is None and traffic.schedule.panels is None else ""
    beside = (
        "the input bytes read from DRAM {}"
        if ratio > _EQUAL
        else f"Each input is read from DRAM {least}once {{}}"
    )
    rest = (sentence for sentence in sentences if sentence not in lead)
    times = say("{} shows the time that each resource would take.", result)
    return headline(number, say(beside, Mark("predicted")), html(lead), *rest, times, failure)


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
        reason = "The L2 has less work if more consecutive programs share a panel."
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
    lead = f"{significant(times)} × fewer bytes (GROUP_SIZE {few.group_size} instead of {many.group_size})"
    change = Sourced(Strong(describe_change(few, many)), traffic.source("measured"))
    compared = pair(few.times_ms, many.times_ms)
    is_hidden = compared.differs and 1 - compared.ratio <= _HIDDEN
    return (
        say("{}: {}.", lead, change),
        "The launch was not bound by DRAM." if is_hidden else "",
    )


def describe_change(row: GroupSizeRow, before: GroupSizeRow) -> str:
    """Compare the times of two rows of a study.

    Only the ratio is shown: in alternation with other launches, the GPU's clock and thus each time differ from those
    of the launch alone.
    """
    compared = pair(row.times_ms, before.times_ms)
    noise = percent(compared.noise)
    if not compared.differs:
        return f"no measurable time difference (noise: {noise})"
    return f"{1 / compared.ratio:.3f} × as fast, ± {noise}"


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


def stages_table(traffic: DramTraffic) -> Markup:
    """Render the bytes read at each level from lanes to DRAM, predicted and counted."""
    stages: list[tuple[Any, int, str]] = []
    if traffic.operations:
        tensors = traffic.kernel.tensors(traffic.launch)
        sectors = sum(
            op.launch.sectors
            for op in traffic.operations
            if op.counter in ("ld", "tma_ld") and tensors[op.access.tensor].is_input
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
    rows = ((Sourced(name, source), f"{count:,}") for name, count, source in stages)
    return table(("", "bytes"), rows, "Bytes read, from lanes to DRAM")


def study_table(traffic: DramTraffic) -> Markup | str:
    """Compare counted and predicted bytes of each GROUP_SIZE; "" without a study."""
    study = traffic.study
    if study is None or not traffic.sizes:
        return ""
    reference = traffic.reference
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
            (
                row.group_size,
                gigabytes,
                count,
                error,
                f"{pair(row.times_ms, reference.times_ms).ratio:.3f}",
                join(map(term, flags)),
            )
        )
    header = (
        term("GROUP_SIZE"),
        "GB predicted",
        "GB counted (median of five)",
        "error",
        f"time relative to GROUP_SIZE {reference.group_size}, timed in alternation",
        "",
    )
    return table(header, rows, f"{study.tool}, {study.device.name}. {study.note}".strip())


def model_notes(traffic: DramTraffic) -> Markup:
    """Render the assumptions of the model, and the reason that no L2 hit rate is shown."""
    assumptions = "Each input is assumed to be read once, and the output to be written once."
    if any(map(writes_in_parts, traffic.operations)):
        assumptions += (
            " Stores cover only parts of sectors, so the L2 also reads the output from DRAM once."
        )
    if traffic.schedule.panels:
        # tests/tilescope/oracle/test_reuse_atlas.py requires slightly smaller errors.
        assumptions = (
            f"Programs start in launch order, {traffic.schedule.resident_programs:,} at a time. Programs that loop "
            "over tiles run in lockstep. Others drift apart, because an SM serves its oldest program first. If "
            "programs request more than the L2 delivers, about a fifth of the SMs run ahead. The others stay in step "
            "because they wait for DRAM. Each half of the L2 keeps the data that SMs on its side read, and evicts the"
            " least recently used lines. Both halves keep most panels, so about half of the capacity counts. Only "
            "reads are modelled: an output is assumed to be written once. Error against counts: on an H200, half of "
            "1,047 orders are within 2.4 % and 93 % within 20 %; all but four of the others are flagged. On an H100, "
            "93 % of 208 orders are within 20 %. The constants come from H200s and an H100, and are assumed for other"
            " GPUs."
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
