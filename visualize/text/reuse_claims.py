"""What the Reuse panel says: how much reaches DRAM, what GROUP_SIZE does to it, and whether that shows in the time."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kernels.gpus import GPUS
from kernels.results import GroupSizeRow
from visualize.models.dispatch import AHEAD_SMS, OF_SMS
from visualize.models.pairs import pair
from visualize.models.reuse import Reuse, by_group_size, fewest_bytes, recommended
from visualize.models.schedule import held_programs, schedule
from visualize.text import words

if TYPE_CHECKING:
    from visualize.models.dram_traffic import DramTraffic

# Fewer bytes by less than this factor are no difference.
_ALIKE = 1.05

# Fewer bytes that buy more than this share of the time were not hidden.
_HIDDEN = 0.1

# What the model's error is against the recorded comparisons (tests/oracle/test_reuse_atlas.py holds bars just below).
ERROR = (
    "half of 571 orders within 1.5 %, 92 % within 20 %, and of those without a flag all but one; 91 % where each shape "
    "is predicted by constants that were fitted to all others"
)

# GPUs with less and less bandwidth a FLOP, of which the first that DRAM would limit is named.
_NARROWER = ("A100-80GB", "A10G", "L40S", "L4", "RTX4090")

_IN_PARTS = (
    "Its stores write parts of sectors, which are taken to be read before: as many bytes again at most, fewer where "
    "the other parts come while the sector is still in the L2."
)


def sentences(here: DramTraffic) -> list[str]:
    """The claim: this order, all orders, time, and what to doubt. HTML."""
    said = [_this_order(here)]
    if here.sizes:
        said += _orders(here)
    if here.study and here.sizes:
        said.append(_time(here))
    said += [_doubt(here), here.kernel.note(here.launch)]
    return [sentence for sentence in said if sentence]


def plain(said: Sequence[str]) -> str:
    """Without markup: what /reuse gives as a note."""
    return html.unescape(re.sub(r"<[^>]+>", "", " ".join(re.sub(r'<span class="mark.*?</span>', "", s) for s in said)))


def flags(one: Reuse) -> str:
    """What to doubt, in a word."""
    return ", ".join(name for name, is_so in (("drift", one.is_drift), ("edge of the L2", one.is_edge)) if is_so)


def small_print(here: DramTraffic) -> str:
    """What the model assumes, and what the L2's own hit rate would say."""
    return (
        '<details class="small-print"><summary>What is assumed</summary><p>Programs start in launch order, '
        f"{here.planned.resident_programs:,} at a time, and go along K together; the L2 drops what was least recently "
        "used, most of it from half of its capacity on, as what both of its halves read is kept twice. Where the L2 "
        f"has more to deliver than it can, {AHEAD_SMS} of {OF_SMS} SMs run ahead, as timelines show, and waves "
        "dissolve. Of reads alone: an output is taken to be written once. Against counts on an H200: "
        f"{ERROR}. The constants were fitted there; for other GPUs they are assumed.</p><p>Nsight Compute's L2 hit "
        "rate is not shown: on an L2 of two halves, what one half asks of the other is looked up twice and a write "
        "counts one and a half times. Counted here are sectors that SMs receive, "
        "sectors that the L2 looks up for SMs alone (fewer, as one answer can go to two SMs), and DRAM's bytes.</p>"
        "</details>"
    )


def _this_order(here: DramTraffic) -> str:
    own, counted = here.own, ""
    if here.row and here.row.dram_read_bytes:
        gigabytes = np.median(here.row.dram_read_bytes) / 1e9
        counted = f"; Nsight Compute counted <b>{gigabytes:,.3f} GB</b> {words.mark(here.source('counted'))}"
    more = own.read_bytes / own.compulsory_bytes
    times = f"{words.significant(more)} × what each input once would take" if more > _ALIKE else "each input once"
    predicted = f"<b>{own.read_bytes / 1e9:,.3f} GB</b> from DRAM {words.mark('predicted')}"
    lead = f"This launch reads {predicted}{counted}: {times}."
    if here.planned.panels is None:
        return lead
    served = words.percent(1 - own.read_bytes / own.asked_bytes)
    return f"{lead} Of the {own.asked_bytes / 1e9:,.3g} GB that its programs ask for, the L2 serves {served}."


def _orders(here: DramTraffic) -> list[str]:
    fewest, best = fewest_bytes(here.sizes), recommended(here.sizes, here.launch)
    worst = max(here.sizes, key=lambda size: here.sizes[size].read_bytes)
    most, least = here.sizes[worst].read_bytes, here.sizes[fewest].read_bytes
    if most < _ALIKE * least:
        why = "all of it fits in the L2" if least < _ALIKE * here.own.compulsory_bytes else "every order shares alike"
        return [f"No GROUP_SIZE makes a difference here: {why}."]
    said = [
        f"GROUP_SIZE <b>{fewest}</b> reads the fewest bytes, {least / 1e9:,.3f} GB; {worst} reads the most, "
        f"{words.significant(most / least)} × as many {words.mark('predicted')}."
    ]
    if best != fewest:
        said.append(
            f"Recommended is <b>{best}</b>: here the L2 is the limit, not DRAM, and it has less to look up the more "
            "consecutive programs share a panel."
        )
    return said


def _time(here: DramTraffic) -> str:
    """Whether the difference in bytes shows in the time, and why not where it doesn't."""
    assert here.study is not None
    rows = [row for row in here.study.rows if row.group_size]
    weight = {row.group_size: _read_bytes(row, here) for row in rows}
    few = min(rows, key=lambda row: weight[row.group_size])
    many = max(rows, key=lambda row: weight[row.group_size])
    times = weight[many.group_size] / weight[few.group_size]
    if times < _ALIKE:
        return "GROUP_SIZE makes no difference in bytes, so none in time is to be expected."
    compared = pair(few.times_ms, many.times_ms)
    mark = words.mark(here.source("measured"))
    lead = f"{words.significant(times)} × fewer bytes (GROUP_SIZE {few.group_size} instead of {many.group_size})"
    if not compared.differs:
        return (
            f"{lead}: <b>no time difference here</b> (less than the noise of {words.percent(compared.noise)}) {mark}."
        )
    change = "less" if compared.ratio < 1 else "more"
    return (
        f"{lead} took <b>{words.percent(abs(1 - compared.ratio))} {change} time</b>, ± {words.percent(compared.noise)} "
        f"{mark}{_because(here, weight[many.group_size], 1 - compared.ratio)}"
    )


def _read_bytes(row: GroupSizeRow, here: DramTraffic) -> float:
    if row.dram_read_bytes:
        return float(np.median(row.dram_read_bytes))
    return here.sizes[min(row.group_size or 1, here.planned.extents[0])].read_bytes


def _because(here: DramTraffic, most_bytes: float, bought: float) -> str:
    """Where even the worst order leaves DRAM idle: what hid it, and a GPU on which it would not be hidden.

    Args:
        bought: the share of the worst order's time that fewer bytes bought.
    """
    gpu = here.launch.gpu
    others = [bound for bound in here.bounds if bound.name in ("L2", "load and store", "arithmetic")]
    if not others or not gpu.dram_gbps:
        return "."
    binding = max(others, key=lambda bound: bound.ms)
    dram_ms = (most_bytes + here.own.write_bytes) / gpu.dram_gbps / 1e6
    if dram_ms >= binding.ms:
        return f": in the worst order DRAM would need {words.milliseconds(dram_ms)} by itself, and limits."
    name = {"arithmetic": "the arithmetic", "L2": "the L2", "load and store": "load and store units"}[binding.name]
    if bought > _HIDDEN:
        return (
            f": in the worst order DRAM would need {words.milliseconds(dram_ms)} by itself, and is not hidden behind "
            f"{name}, {words.milliseconds(binding.ms)}."
        )
    return (
        f": DRAM was hidden behind {name}. By itself it would need {words.milliseconds(dram_ms)} even in the worst "
        f"order, and {name} {words.milliseconds(binding.ms)}.{_elsewhere(here)}"
    )


def _elsewhere(here: DramTraffic) -> str:
    """The first GPU with less bandwidth a FLOP on which the worst order's bytes would take longer than arithmetic."""
    worst = max(here.sizes, key=lambda size: here.sizes[size].read_bytes)
    work, per_sm = here.kernel.family.work(here.launch.problem), here.planned.resident_programs // here.launch.gpu.sms
    for name in _NARROWER:
        gpu = GPUS[name]
        rate = gpu.matrix_tflops.get(here.launch.problem.dtype, 0.0)
        if name == here.launch.gpu.name or not rate:
            continue
        launch = replace(here.launch, gpu=gpu)
        planned = schedule(here.kernel, launch, min(per_sm, held_programs(gpu, launch.config.num_warps)))
        there = by_group_size(here.kernel, launch, planned, 0.0, (worst,))
        if not there:
            continue  # too many waves on so few SMs
        dram_ms, arithmetic_ms = there[worst].read_bytes / gpu.dram_gbps / 1e6, work / rate / 1e9
        if dram_ms > arithmetic_ms:
            return (
                f" With less bandwidth a FLOP it would show: on {name}, GROUP_SIZE {worst} would need "
                f"{words.milliseconds(dram_ms)} of DRAM and {words.milliseconds(arithmetic_ms)} of arithmetic "
                f"{words.mark('predicted')}."
            )
    return ""


def _doubt(here: DramTraffic) -> str:
    own = here.own
    if here.made is None:
        return f"One program a SM is {words.mark('assumed')} as long as the kernel is not compiled."
    if here.planned.panels is None:
        return _IN_PARTS if own.read_bytes > own.compulsory_bytes else ""
    if own.is_drift:
        why = ", and the L2, which has more to deliver than it can, drives them apart" if own.ahead else ""
        return (
            f"Much hangs here on whether programs go along together{why}: take the prediction as a rough one "
            f"({own.otherwise_bytes / 1e9:,.3g} GB otherwise)."
        )
    if own.is_edge:
        return (
            "What is reused is about as large as the L2, so much hangs on its exact capacity: between "
            f"{own.low_bytes / 1e9:,.3g} and {own.high_bytes / 1e9:,.3g} GB."
        )
    return ""
