"""What the Reuse tab says: how much reaches DRAM, what GROUP_SIZE does to it, and whether that shows in the time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from markupsafe import Markup

from kernels.gpus import GPUS
from kernels.pairs import pair
from kernels.results import GroupSizeRow
from visualize.predict.reuse import DramTraffic, by_group_size, fewest_bytes, recommended
from visualize.predict.schedule import max_programs_per_sm, schedule
from visualize.views.numbers import bytes_of, milliseconds, percent, significant
from visualize.views.prose import Mark, Sentence, Sourced, Strong, headline, say

# Fewer bytes by less than this factor are no difference.
_ALIKE = 1.05

# Fewer bytes that buy more than this share of the time were not hidden.
_HIDDEN = 0.1

# GPUs with less and less bandwidth per FLOP. The first one that DRAM would limit is named.
_NARROWER = ("A100-80GB", "A10G", "L40S", "L4", "RTX4090")

_IN_PARTS = (
    "Its stores write parts of sectors, which the model assumes are read first. That is at most as many bytes again, "
    "fewer where the other parts follow while the sector is still in the L2."
)

_RESOURCES = {"arithmetic": "arithmetic", "L2": "the L2", "load and store": "load and store units"}


def claim(here: DramTraffic, failure: str) -> Markup:
    """What a tab opens with: how often each compulsory byte is read from DRAM, predicted and counted.

    Args:
        failure: why it can't be compiled, where it can't.
    """
    first, counted, *more = sentences(here)
    more_than = here.own.read_bytes / here.own.compulsory_bytes
    number = f"{more_than:.2g} ×" if more_than < 9.95 else f"{more_than:.0f} ×"
    beside = say("the compulsory DRAM reads {}", Mark("predicted"))
    return headline(number, beside, say("{} {}", first, counted) if counted else first, *more, failure)


def sentences(here: DramTraffic) -> tuple[Sentence | str, ...]:
    """The claim: this order, all orders, time, and what to doubt. Empty ones are left out by `html` and `plain`."""
    return (
        *_this_order(here),
        *(_orders(here) if here.sizes else ()),
        *(_time(here) if here.study and here.sizes else ()),
        *_doubt(here),
        here.kernel.note(here.launch),
    )


def _this_order(here: DramTraffic) -> tuple[Sentence | str, ...]:
    own = here.own
    more = own.read_bytes / own.compulsory_bytes
    times = (
        f"{significant(more)} × the compulsory {bytes_of(own.compulsory_bytes)}" if more > _ALIKE else "each input once"
    )
    return (
        say("This launch reads {} from DRAM: {}.", Sourced(Strong(bytes_of(own.read_bytes)), "predicted"), times),
        _counted(here),
        "" if here.schedule.panels is None else _served(here),
    )


def _counted(here: DramTraffic) -> Sentence | str:
    if not (here.row and here.row.dram_read_bytes):
        return ""
    read = Strong(bytes_of(float(np.median(here.row.dram_read_bytes))))
    return say("Nsight Compute counted {}.", Sourced(read, here.source("counted")))


def _served(here: DramTraffic) -> Sentence | str:
    own = here.own
    if own.read_bytes >= own.asked_bytes:  # adding to the output reads it, too
        return ""
    served = percent(1 - own.read_bytes / own.asked_bytes)
    return say("The L2 serves {} of the {} that the programs request.", served, bytes_of(own.asked_bytes))


def _orders(here: DramTraffic) -> tuple[Sentence | str, ...]:
    fewest, best = fewest_bytes(here.sizes), recommended(here.kernel, here.launch, here.sizes)
    worst = max(here.sizes, key=lambda size: here.sizes[size].read_bytes)
    most, least = here.sizes[worst].read_bytes, here.sizes[fewest].read_bytes
    if most < _ALIKE * least:
        why = "all of it fits in the L2" if least < _ALIKE * here.own.compulsory_bytes else "every order shares alike"
        return (f"No GROUP_SIZE makes a difference here: {why}.",)
    return (
        say(
            "GROUP_SIZE {} reads the fewest bytes, {}; {} reads the most, {}.",
            Strong(fewest),
            bytes_of(least),
            worst,
            Sourced(f"{significant(most / least)} × as many", "predicted"),
        ),
        ""
        if best == fewest
        else say(
            "Recommended: {}. The L2 is the limit here, not DRAM, and it looks up less when more consecutive programs "
            "share a panel."
            if best > fewest
            else "Recommended: {}. It reads nearly as few bytes, and smaller groups are often slightly faster.",
            Strong(best),
        ),
    )


def _time(here: DramTraffic) -> tuple[Sentence | str, ...]:
    """Whether the difference in bytes shows in the time, and why not where it doesn't."""
    assert here.study is not None
    rows = [row for row in here.study.rows if row.group_size]
    weight = {row.group_size: _read_bytes(row, here) for row in rows}
    few = min(rows, key=lambda row: weight[row.group_size])
    many = max(rows, key=lambda row: weight[row.group_size])
    times = weight[many.group_size] / weight[few.group_size]
    if times < _ALIKE:
        return ("GROUP_SIZE makes no difference in bytes, so expect none in time.",)
    compared = pair(few.times_ms, many.times_ms)
    noise = percent(compared.noise)
    lead = f"{significant(times)} × fewer bytes (GROUP_SIZE {few.group_size} instead of {many.group_size})"
    if not compared.differs:
        noise_of = Sourced(f"(less than the noise of {noise})", here.source("measured"))
        return (say("{}: {} {}.", lead, Strong("no time difference here"), noise_of),)
    bought = 1 - compared.ratio
    change = Strong(f"{percent(abs(bought))} {'less' if compared.ratio < 1 else 'more'} time")
    return (
        say("{} took {}, ± {}.", lead, change, Sourced(noise, here.source("measured"))),
        *_because(here, weight[many.group_size], bought),
    )


def _read_bytes(row: GroupSizeRow, here: DramTraffic) -> float:
    if row.dram_read_bytes:
        return float(np.median(row.dram_read_bytes))
    return here.sizes[min(row.group_size or 1, here.schedule.extents[0])].read_bytes


def _because(here: DramTraffic, most_bytes: float, bought: float) -> tuple[Sentence | str, ...]:
    """Where even the worst order leaves DRAM idle: what hid it, and a GPU on which it would not be hidden.

    Args:
        bought: the share of the worst order's time that fewer bytes bought.
    """
    gpu = here.launch.gpu
    others = [bound for bound in here.bounds if bound.name in _RESOURCES]
    if not others or not gpu.dram_gbps:
        return ()
    binding = max(others, key=lambda bound: bound.ms)
    name, its_ms = _RESOURCES[binding.name], milliseconds(binding.ms)
    dram_ms = (most_bytes + here.own.write_bytes) / gpu.dram_gbps / 1e6
    alone = f"In the worst order DRAM alone would need {milliseconds(dram_ms)}"
    if dram_ms >= binding.ms:
        return (f"{alone}, and is the limit.",)
    if bought > _HIDDEN:
        return (f"{alone}, and is not hidden behind {name} ({its_ms}).",)
    return (f"DRAM was hidden behind {name}.", f"{alone}, {name} {its_ms}.", _elsewhere(here))


def _elsewhere(here: DramTraffic) -> Sentence | str:
    """The first GPU with less bandwidth per FLOP on which the worst order's bytes would outlast arithmetic."""
    worst = max(here.sizes, key=lambda size: here.sizes[size].read_bytes)
    work, per_sm = here.kernel.family.work(here.launch.problem), here.schedule.resident_programs // here.launch.gpu.sms
    for name in _NARROWER:
        gpu = GPUS[name]
        rate = gpu.matrix_tflops.get(here.launch.problem.dtype, 0.0)
        if name == here.launch.gpu.name or not rate:
            continue
        launch = replace(here.launch, gpu=gpu)
        waves = schedule(here.kernel, launch, min(per_sm, max_programs_per_sm(gpu, launch.config.num_warps)))
        there = by_group_size(waves, 0.0, (worst,))
        dram_ms, arithmetic_ms = there[worst].read_bytes / gpu.dram_gbps / 1e6, work / rate / 1e9
        if dram_ms > arithmetic_ms:
            return say(
                "It would show on a GPU with less bandwidth per FLOP: on {}, GROUP_SIZE {} would need {} of DRAM and "
                "{} of arithmetic.",
                name,
                worst,
                milliseconds(dram_ms),
                Sourced(milliseconds(arithmetic_ms), "predicted"),
            )
    return ""


def _doubt(here: DramTraffic) -> tuple[Sentence | str, ...]:
    own = here.own
    if here.compiled is None:
        return (say("One program per SM is {} until the kernel is compiled.", Mark("assumed")),)
    if here.schedule.panels is None:
        return (_IN_PARTS if own.read_bytes > own.compulsory_bytes else "",)
    if own.is_drift:
        why = "Programs request more than the L2 delivers, so they fall out of lockstep." if own.is_l2_limited else ""
        return (
            why,
            "The bytes depend on how far programs drift out of lockstep.",
            f"This prediction is rough: in lockstep, the launch reads {bytes_of(own.lockstep_bytes)}.",
        )
    if own.is_edge:
        low, high = bytes_of(own.low_bytes), bytes_of(own.high_bytes)
        return (
            "What is reused is about as large as the L2, so the bytes are sensitive to its exact capacity: between "
            f"{low} and {high}.",
        )
    return ()
