"""The Reuse panel: what reaches DRAM by GROUP_SIZE, the way from lanes there, and what each resource needs. /reuse."""

from __future__ import annotations

from typing import Any

import gradio as gr
import numpy as np

from kernels.results import GroupSizeStudy
from visualize.figures.bounds_figure import bounds_figure
from visualize.figures.reuse_figure import Measured, bytes_figure, times_figure
from visualize.models.dram_traffic import DramTraffic, dram_traffic
from visualize.models.reuse import fewest_bytes, recommended
from visualize.models.traffic import SECTOR_BYTES
from visualize.panels.endpoint import Api, Endpoint
from visualize.panels.panel import Drawn, Measure, Panel
from visualize.state.known import Known
from visualize.text import prose, reuse_claims, words
from visualize.text.funnel import Stage, funnel
from visualize.widgets.markup import markup
from visualize.widgets.plot import drawn, plot


class ReusePanel(Panel):
    """What reaches DRAM, and what GROUP_SIZE does to it."""

    def build(self) -> None:
        self.claim = markup("reuse-claim")
        with gr.Row(elem_id="compare-row"):
            compare = gr.Button("Count and time every GROUP_SIZE", size="sm", elem_id="compare-sizes")
        with gr.Row(elem_classes="plots"):
            self.reads = plot("reuse-plot", "Bytes read from DRAM by GROUP_SIZE, predicted and counted")
            self.times = plot("times-plot", "Time by GROUP_SIZE")
        with gr.Row(elem_classes="plots"):
            self.bounds = plot("bounds-plot", "What each resource needs by itself, and the time that was measured")
            self.way = markup("reuse-way")
        self.tables = markup("reuse-tables")
        self.outputs = [self.claim, self.reads, self.times, self.bounds, self.way, self.tables]
        self.actions = [Measure(compare, "reuse", lambda _, known: self.draw(known), self.outputs)]

    def draw(self, known: Known) -> Drawn:
        here = traffic(known)
        anew = f"{known.state.kernel.id} {here.planned.extents}"
        reads = times = ""
        if here.sizes and here.group_size:
            own, measured = min(here.group_size, here.planned.extents[0]), _measured(here.study)
            reads = drawn(bytes_figure(here.sizes, measured, own, here.source("counted")), anew)
            times = drawn(times_figure(measured, own, here.source("measured")), anew) if measured else ""
        resources = drawn(bounds_figure(here.bounds, here.measured_ms, here.source("measured")), anew)
        why = known.failure.message if known.failure else ""
        return {
            self.claim: prose.claim(*reuse_claims.sentences(here), why),
            self.reads: reads,
            self.times: times,
            self.bounds: resources,
            self.way: _way(here),
            self.tables: _tables(here),
        }

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def reuse_of(experiment: dict[str, Any]) -> dict[str, Any]:
            """Bytes that reach DRAM, in this order and for every GROUP_SIZE, and what each resource needs by itself."""
            return await api.compiled(experiment, reply, or_not=True)

        return (Endpoint("reuse", reuse_of),)


def traffic(known: Known) -> DramTraffic:
    """The launch's way to DRAM."""
    return dram_traffic(known.state.kernel, known.launch, known.compiled, known.result(GroupSizeStudy))


def _measured(study: GroupSizeStudy | None) -> list[Measured]:
    rows = study.rows if study else ()
    return [Measured(row.group_size, row.dram_read_bytes, row.times_ms) for row in rows if row.group_size]


def _tables(here: DramTraffic) -> str:
    return f'<div class="tables">{_comparison(here)}{reuse_claims.small_print(here)}</div>'


def _way(here: DramTraffic) -> str:
    """Reads on their way from lanes to DRAM, predicted and counted."""
    stages: list[Stage] = []
    if here.operations:
        tensors = here.kernel.family.tensors(here.launch.problem)
        sectors = sum(op.launch.sectors for op in here.operations if tensors[op.access.tensor].is_input)
        stages.append(("loads (and boxes) ask for sectors", SECTOR_BYTES * sectors, "predicted"))
    stages.append(("SMs receive", here.own.asked_bytes, "predicted"))
    if here.row and here.row.received_bytes is not None and here.row.l2_read_bytes is not None:
        stages.append(("SMs receive", here.row.received_bytes, here.source("counted")))
        stages.append(("the L2 looks up", here.row.l2_read_bytes, here.source("counted")))
    stages.append(("read from DRAM", int(here.own.read_bytes), "predicted"))
    if here.row and here.row.dram_read_bytes:
        stages.append(("read from DRAM", int(np.median(here.row.dram_read_bytes)), here.source("counted")))
    stages.append(("each input once", here.own.compulsory_bytes, "predicted"))
    return funnel(stages, "Bytes read, from lanes to DRAM")


def _comparison(here: DramTraffic) -> str:
    """Every GROUP_SIZE that was counted, beside its prediction."""
    study = here.study
    if study is None or not here.sizes:
        return ""
    rows = []
    for row in study.rows:
        predicted = here.sizes.get(min(row.group_size or 1, here.planned.extents[0]))
        reads = row.dram_read_bytes
        counted = float(np.median(reads)) if reads else 0.0
        rows.append(
            (
                str(row.group_size),
                f"{predicted.read_bytes / 1e9:.3f}" if predicted else "",
                f"{counted / 1e9:.3f} ± {50 * np.ptp(reads) / counted:.1f}\u00a0%" if reads else "not counted",
                f"{100 * (predicted.read_bytes / counted - 1):+.1f} %" if predicted and counted else "",
                f"{np.median(row.times_ms):.4f}",
                reuse_claims.flags(predicted) if predicted else "",
            )
        )
    header = ("GROUP_SIZE", "GB predicted", "GB counted (of five)", "error", "ms, in turns", "")
    return words.table(header, rows, f"{study.tool}, {study.device.name}. {study.note}".strip())


def reply(known: Known) -> dict[str, Any]:
    """The body of /reuse. Where nothing can be compiled, one program per SM is assumed, and the note says why."""
    here, launch = traffic(known), known.launch
    why = f" {known.failure.message}" if known.failure else ""
    return {
        "dram_read_bytes": round(here.own.read_bytes),
        "low_bytes": round(here.own.low_bytes),
        "high_bytes": round(here.own.high_bytes),
        "dram_write_bytes": here.own.write_bytes,
        "compulsory_bytes": here.own.compulsory_bytes,
        "asked_bytes": here.own.asked_bytes,
        "by_group_size": {str(size): round(one.read_bytes) for size, one in here.sizes.items()},
        "fewest_bytes_group_size": fewest_bytes(here.sizes) if here.sizes else None,
        "recommended_group_size": recommended(here.sizes, launch) if here.sizes else None,
        "ahead": here.own.ahead,
        "flags": [name for name, is_so in (("drift", here.own.is_drift), ("edge", here.own.is_edge)) if is_so],
        "resident_programs": here.planned.resident_programs,
        "resident_source": here.planned.resident_source,
        "bounds": [{"name": one.name, "ms": one.ms, "why": one.why} for one in here.bounds],
        "measured": here.study and here.study.to_json(),
        "note": reuse_claims.plain(reuse_claims.sentences(here)) + why,
    }
