"""How B is stored, and what that costs: one product in every way, beside the library's call. /layouts."""

from __future__ import annotations

import html
from typing import Any

import gradio as gr

from kernels import discover
from kernels.results import LayoutRow, LayoutStudy
from visualize.panels.endpoint import Api, Endpoint
from visualize.panels.panel import Measure, Panel
from visualize.text import words
from visualize.widgets import assets
from visualize.widgets.link import query
from visualize.widgets.markup import markup

# A difference of less than this is called none.
_SAME = 0.05


class LayoutsPanel(Panel):
    """A product in every way of storing B, beside the library's call."""

    uses_compiler = False

    def build(self) -> None:
        with gr.Row(elem_id="layouts-row"):
            button = gr.Button("Compare how B is stored", size="sm", elem_id="compare-layouts")
        self.table = markup("layouts", script=assets.text("result.js"))
        self.actions = [
            Measure(button, "layouts", lambda study, _: {self.table: drawn_study(study)}, [self.table], is_dated=True)
        ]

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def layouts(experiment: dict[str, Any]) -> dict[str, Any]:
            """One product with B as given, stored the other way, and turned first; without a GPU as it was recorded."""
            return await api.measured(experiment, "layouts")

        return (Endpoint("layouts", layouts, at_once=None),)


def drawn_study(study: LayoutStudy) -> str:
    """The claim and the table."""
    address = html.escape(query(study.experiment.to_address()))
    family = discover()[study.experiment.kernel].family
    given, turned, turned_first = study.rows
    source = words.mark("recorded" if study.backend == "recorded" else "measured")
    rows = [
        _row("this kernel, B as given", given),
        _row("this kernel, B stored the other way", turned),
        _row("transpose.tiled turns B, then this kernel", turned_first),
    ]
    name = html.escape(family.baseline_name(study.experiment.problem))
    for row in (given, turned):
        if row.baseline:
            times = row.baseline
            rows.append(
                (
                    name,
                    row.layout,
                    words.milliseconds(times.median_ms),
                    "",
                    words.significant(times.tflops or 0),
                    "",
                    "",
                )
            )
    run = study.experiment.run
    clock = f", SM clock {study.clock_mhz} MHz" if study.clock_mhz else ""
    caption = f"In turns on {study.device.name}, L2 {run.l2}, {run.timer}, {run.distribution} inputs{clock}"
    header = (source, "layout", "median", "of which turning", "TFLOP/s", "speed / library", "relative RMS error")
    table = words.table(header, rows, caption)
    return f'<div data-experiment="{address}"><p class="claim">{claim(study)}</p>{table}</div>'


def _row(name: str, row: LayoutRow) -> tuple[str, ...]:
    turning = words.milliseconds(row.turning_ms) if row.turning_ms is not None else ""
    ratio = f"{row.baseline.median_ms / row.timing.median_ms:.2f}" if row.baseline else ""
    error = words.significant(row.relative_rms) + ("" if row.passed else " <b>wrong</b>")
    return (
        name,
        row.layout,
        words.milliseconds(row.timing.median_ms),
        turning,
        words.significant(row.timing.tflops or 0),
        ratio,
        error,
    )


def claim(study: LayoutStudy) -> str:
    """What the table shows, in a sentence or two."""
    given, turned, turned_first = (row.timing.median_ms for row in study.rows)
    if abs(given / turned - 1) <= _SAME:
        return "How B is stored makes no difference here: less than 5 %."
    if given < turned:
        return f"B is better as it is given: stored the other way, this kernel takes {turned / given:.2f} × the time."
    pays = given / turned_first
    turning = words.milliseconds(study.rows[2].turning_ms or 0)
    how = (
        f"turning it first takes {turning} and still leaves it <b>{pays:.2f} ×</b> as fast"
        if pays > 1 + _SAME
        else f"turning it first takes {turning}, which eats up what is won"
    )
    return (
        f"With B stored the other way ({study.rows[1].layout}) this kernel is <b>{given / turned:.2f} ×</b> as fast; "
        f"{how}. Kernel and config are the same in all three, so it is the layout that counts."
    )
