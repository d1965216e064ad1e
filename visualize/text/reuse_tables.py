"""The Reuse tab's tables: the way from lanes to DRAM, every GROUP_SIZE beside its prediction, and what is assumed."""

from __future__ import annotations

from typing import Any

import numpy as np
from markupsafe import Markup

from kernels.results import GroupSizeRow
from visualize.predict.reuse import DramTraffic, Reuse
from visualize.predict.traffic import SECTOR_BYTES
from visualize.views.prose import Listed, html, term
from visualize.views.tables import frame, table, traffic_funnel

# What the model's error is against the recorded comparisons (tests/oracle/test_reuse_atlas.py holds bars just below).
ERROR = (
    "on an H200, half of 1,047 orders are within 2.4 % and 93 % within 20 %; all but four of the others are flagged. "
    "On an H100, 93 % of 208 orders are within 20 %"
)


def way(here: DramTraffic) -> Markup:
    """Reads on their way from lanes to DRAM, predicted and counted."""
    stages: list[tuple[Any, int, str]] = []
    if here.operations:
        tensors = here.kernel.family.tensors(here.launch.problem)
        sectors = sum(op.launch.sectors for op in here.operations if tensors[op.access.tensor].is_input)
        stages.append(("sectors that loads (and boxes) request", SECTOR_BYTES * sectors, "predicted"))
    stages.append(("SMs receive", here.own.asked_bytes, "predicted"))
    counted = here.source("counted")
    if here.row and here.row.received_bytes is not None and here.row.l2_read_bytes is not None:
        stages.append(("SMs receive", here.row.received_bytes, counted))
        stages.append(("the L2 looks up", here.row.l2_read_bytes, counted))
    stages.append(("read from DRAM", int(here.own.read_bytes), "predicted"))
    if here.row and here.row.dram_read_bytes:
        stages.append(("read from DRAM", int(np.median(here.row.dram_read_bytes)), counted))
    stages.append((term("compulsory bytes", "each input once"), here.own.compulsory_bytes, "predicted"))
    return traffic_funnel(stages, "Bytes read, from lanes to DRAM")


def comparison(here: DramTraffic) -> Markup | str:
    """Every GROUP_SIZE that was counted, beside its prediction; "" where none was."""
    study = here.study
    if study is None or not here.sizes:
        return ""
    most = here.schedule.extents[0]
    rows = [_row(row, here.sizes.get(min(row.group_size or 1, most))) for row in study.rows]
    header = (term("GROUP_SIZE"), "GB predicted", "GB counted (of five)", "error", "ms, timed in turns", "")
    return table(frame(header, rows), f"{study.tool}, {study.device.name}. {study.note}".strip())


def _row(row: GroupSizeRow, predicted: Reuse | None) -> tuple[Any, ...]:
    reads = row.dram_read_bytes
    counted = float(np.median(reads)) if reads else 0.0
    return (
        row.group_size,
        f"{predicted.read_bytes / 1e9:.3f}" if predicted else "",
        f"{counted / 1e9:.3f} ± {50 * np.ptp(reads) / counted:.1f}\u00a0%" if reads else "not counted",
        f"{100 * (predicted.read_bytes / counted - 1):+.1f} %" if predicted and counted else "",
        f"{np.median(row.times_ms):.4f}",
        flags(predicted) if predicted else "",
    )


def flags(one: Reuse) -> Listed:
    """What to doubt, in a word."""
    named = (("drift", one.is_drift), ("edge of the L2", one.is_edge))
    return Listed(tuple(term(name) for name, is_so in named if is_so))


def small_print(here: DramTraffic) -> Markup:
    """What the model assumes, and why the L2's own hit rate is not shown."""
    if here.schedule.panels is None:
        assumed: tuple[str, ...] = ("Each input is assumed to be read once, and the output to be written once.",)
    else:
        assumed = _with_panels(here)
    hit_rate = (
        "Nsight Compute's L2 hit rate is not shown. On an L2 of two halves, a request from one half to the other is "
        "looked up twice, and a write counts one and a half times.",
        "Counted here are sectors that SMs receive, sectors that the L2 looks up for SMs alone (fewer, because one "
        "answer can serve two SMs), and DRAM's bytes.",
    )
    return Markup('<details class="small-print"><summary>What is assumed</summary><p>{}</p><p>{}</p></details>').format(
        html(assumed), html(hit_rate)
    )


def _with_panels(here: DramTraffic) -> tuple[str, ...]:
    """What is assumed of programs that read panels of their inputs."""
    return (
        f"Programs start in launch order, {here.schedule.resident_programs:,} at a time. Programs that loop over tiles "
        "run in lockstep; others drift apart.",
        "Each half of the L2 keeps what SMs on its side read, and evicts the least recently used lines. It keeps most "
        "panels twice, so about half of its capacity counts.",
        "An SM serves its oldest program first, so its programs drift apart. Where programs request more than the L2 "
        "delivers, 24 of 132 SMs run ahead. Waiting for DRAM holds the other SMs together.",
        "Only reads are modelled: an output is assumed to be written once.",
        f"Against counts: {ERROR}.",
        "The constants come from H200s and an H100; for other GPUs they are assumed to be the same.",
    )
