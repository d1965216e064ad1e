"""How B is stored, and what that costs: one product in every way, beside the library's call. /layouts."""

from __future__ import annotations

from typing import Any

import gradio as gr
from markupsafe import Markup

from kernels import discover
from kernels.results import LayoutStudy
from visualize.panels.endpoint import Api, Endpoint
from visualize.panels.panel import Drawn, Measure, Panel
from visualize.state.known import Known
from visualize.text import layouts_text, prose, tables
from visualize.widgets import assets
from visualize.widgets.folded import folded
from visualize.widgets.link import dated
from visualize.widgets.markup import markup

# A difference of less than this is called none.
_SAME = 0.05


class LayoutsPanel(Panel):
    """A product in every way of storing B, beside the library's call."""

    uses_compiler = False

    def build(self) -> None:
        with folded("What B's layout costs", "layouts-fold"):
            with gr.Row(elem_id="layouts-row"):
                button = gr.Button("Compare how B is stored", size="sm", elem_id="compare-layouts")
            self.table = markup("layouts", script=assets.text("result.js"))
        self.outputs = [self.table]
        self.actions = [
            Measure(button, "layouts", lambda study, _: {self.table: drawn_study(study)}, self.outputs, is_dated=True)
        ]

    def draw(self, known: Known) -> Drawn:
        study = known.result(LayoutStudy)
        return {self.table: drawn_study(study)} if study else {}

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def layouts(experiment: dict[str, Any]) -> dict[str, Any]:
            """Times a matmul three ways: B as given, B stored transposed, and B transposed first by `transpose.tiled`.

            `rows` has a time for each, in ms, with `transposition_ms`, the transposition's own share. Measured on this
            machine's GPU. Without a GPU: a recorded comparison, or a failure.
            """
            return await api.measured(experiment, "layouts")

        return (Endpoint("layouts", layouts, at_once=None, launches=True),)


def drawn_study(study: LayoutStudy) -> Markup:
    """The claim and the table."""
    problem, family = study.experiment.problem, discover()[study.experiment.kernel].family
    rows = layouts_text.rows(study, family.baseline_name(problem))
    claim = prose.claim(*layouts_text.claim(study))
    return dated(study.experiment, claim + tables.table(rows, layouts_text.caption(study)))
