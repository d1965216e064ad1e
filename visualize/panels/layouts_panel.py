"""How B is stored, and what that costs: one product in every way, beside the library's call. /layouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from kernels import discover
from kernels.knobs import knob
from kernels.results import LayoutStudy
from visualize.figures.time_figure import layouts_figure
from visualize.panels.endpoint import Api, Endpoint
from visualize.panels.panel import Drawn, Measure, Panel
from visualize.state.known import Known
from visualize.text import caption, layouts_text, tables
from visualize.widgets import assets
from visualize.widgets.folded import folded
from visualize.widgets.link import dated, query
from visualize.widgets.markup import markup
from visualize.widgets.plot import NONE, drawn, plot


@dataclass(frozen=True)
class ResultView:
    """What the Result tab shows first. Links set it, so that it has no control."""

    result_picture: str = knob(
        "run", "", "The picture at the top. layouts: a product with B stored in every way, where that is known.",
        choices=("run", "layouts"),
    )  # fmt: skip


class LayoutsPanel(Panel):
    """A product in every way of storing B, beside the library's call."""

    options = (ResultView,)
    uses_compiler = False

    def build(self) -> None:
        self.claim = markup("layouts-claim", script=assets.text("result.js"))
        with gr.Row(elem_classes="picture", elem_id="layouts-picture"):
            self.plot = plot("layouts-plot", "The time of the product in every way of storing B")
        with folded("What B's layout costs", "layouts-fold"):
            with gr.Row(elem_id="layouts-row"):
                button = gr.Button("Compare how B is stored", size="sm", elem_id="compare-layouts")
            self.table = markup("layouts", script=assets.text("result.js"))
        self.outputs = [self.claim, self.plot, self.table]
        self.actions = [
            Measure(button, "layouts", lambda study, known: self._shown(study, known), self.outputs, is_dated=True)
        ]

    def draw(self, known: Known) -> Drawn:
        study = known.result(LayoutStudy)
        return self._shown(study, known) if study else {self.claim: "", self.plot: NONE, self.table: ""}

    def _shown(self, study: LayoutStudy, known: Known) -> Drawn:
        experiment = study.experiment
        library = discover()[experiment.kernel].family.baseline_name(experiment.problem)
        source = "recorded" if study.backend == "recorded" else "measured"
        about = caption.about(experiment, known.state.gpu.name, source)
        rows = tables.table(layouts_text.rows(study, library), layouts_text.caption(study))
        return {
            self.claim: dated(experiment, layouts_text.claim(study)),
            self.plot: drawn(layouts_figure(study, library), anew=query(experiment.to_address()), about=about),
            self.table: dated(experiment, rows),
        }

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def layouts(experiment: dict[str, Any]) -> dict[str, Any]:
            """Times a matmul three ways: B as given, B stored transposed, and B transposed first by `transpose.tiled`.

            `rows` has a time for each, in ms, with `transposition_ms`, the transposition's own share. Measured on this
            machine's GPU. Without a GPU: a recorded comparison, or a failure.
            """
            return await api.measured(experiment, "layouts")

        return (Endpoint("layouts", layouts, at_once=None, launches=True),)
