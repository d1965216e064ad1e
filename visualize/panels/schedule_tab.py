"""The Schedule panel: which program computes which tile, in this order and in row-major order. /schedule."""

from __future__ import annotations

from typing import Any

import gradio as gr
import numpy as np

from visualize.figures.schedule_figure import loads_figure, player_data, schedule_figure
from visualize.models.schedule import Schedule, loads, loads_at, row_major
from visualize.models.steps import panels, steps
from visualize.panels.endpoint import Api, Endpoint
from visualize.panels.panel import Drawn, Panel
from visualize.state.known import Known
from visualize.state.view import ScheduleView
from visualize.text import caption, prose, schedule_text
from visualize.text.prose import Sentence
from visualize.text.residency import residents
from visualize.widgets import form
from visualize.widgets.markup import markup
from visualize.widgets.player import player
from visualize.widgets.plot import drawn, plot

MOST_LISTED_PROGRAMS = 8192
MOST_LISTED_TILES = 1 << 18

# Points of the curve of loads at most: as many as a screen tells apart.
CURVE_POINTS = 400


class SchedulePanel(Panel):
    """This order and row-major order, step by step, and what the first programs load in each."""

    options = (ScheduleView,)

    def build(self) -> None:
        self.claim = markup("schedule-claim")
        player()
        with gr.Row(elem_classes="plots"):
            self.ours = plot("schedule-plot", "Which program computes which tile, in this kernel's launch order")
            self.row_major = plot("row-major-plot", "Which program computes which tile, in row-major order")
        self.forms[ScheduleView] = form.form("schedule-view", "Options of the schedule")
        with gr.Row(elem_classes="plots"):
            self.occupancy = markup("schedule-occupancy")
            self.loads = plot("loads-plot", "Distinct blocks of A and B that the first n programs load, in both orders")
        self.outputs = [self.claim, self.ours, self.row_major, self.loads, self.occupancy]

    def draw(self, known: Known) -> Drawn:
        state, view, ours = known.state, known.state.view.of(ScheduleView), known.schedule
        title = state.kernel.title
        if hasattr(state.experiment.config, "GROUP_SIZE"):
            title += f", GROUP_SIZE {state.experiment.config.GROUP_SIZE}"
        named = {title: ours, "row-major order": row_major(ours)}
        touched = panels(state.kernel, state.launch, ours)
        cuts = [steps(order, touched) for order in named.values()]
        anew = f"{ours.extents} {state.kernel.id}"
        about = caption.about(state.experiment, state.gpu.name, "predicted")
        maps = [
            drawn(schedule_figure(order, cut, name, view.color), anew, player_data(order, cut, view.step), about=about)
            for (name, order), cut in zip(named.items(), cuts, strict=True)
        ]
        # All tiles of a program that loops say nothing of what is loaded when.
        timed = {name: cut.timed for name, cut in zip(named, cuts, strict=True)}
        claim, curve = _loads(timed, view.first, "programs" if ours.turns == 1 else "tiles", about)
        said = prose.claim(
            claim,
            schedule_text.sharing(ours),
            schedule_text.timing(ours, cuts[0], state.gpu, known.residency.programs_per_sm),
            state.kernel.note(state.launch),
            known.failure.message if known.failure else "",
        )
        return {
            self.claim: said,
            self.ours: maps[0],
            self.row_major: maps[1],
            self.loads: curve,
            self.occupancy: residents(ours, state.launch, known.compiled, known.residency),
        }

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def schedule_of(experiment: dict[str, Any]) -> dict[str, Any]:
            """Which program computes which tile, waves, and the blocks that the first n programs load."""
            return await api.compiled(experiment, reply, or_not=True)

        return (Endpoint("schedule", schedule_of),)


def _loads(named: dict[str, Schedule], first: int, what: str, about: str) -> tuple[Sentence | str, str]:
    """What the first programs of each order load: a sentence, and the curve; both "" without a reduction."""
    programs = min(order.programs for order in named.values())
    first = min(first, programs)
    counts = np.arange(1, programs + 1)
    if programs > CURVE_POINTS:
        counts = np.unique(np.append(np.geomspace(1, programs, CURVE_POINTS).round().astype(np.int64), first))
    curves = {name: at for name, order in named.items() if (at := loads_at(order, counts)) is not None}
    if not curves:
        return "", ""
    ours, reference = (int(curve[np.searchsorted(counts, first)]) for curve in curves.values())
    panels = next(iter(named.values())).panels or ("", "")
    sentence = schedule_text.loads_claim(first, what, panels, ours, reference)
    return sentence, drawn(loads_figure(counts, curves, first, what, panels), f"{programs}", about=about)


def reply(known: Known) -> dict[str, Any]:
    """The body of /schedule. Where nothing can be compiled, one program per SM is assumed, and the note says why."""
    kernel, launch, predicted = known.state.kernel, known.launch, known.schedule
    tiles = predicted.tiles
    # Whole programs only: those whose last tile still fits.
    ends = np.searchsorted(tiles.program, np.arange(min(predicted.programs, MOST_LISTED_PROGRAMS)), side="right")
    ends = ends[ends <= MOST_LISTED_TILES]
    listed = np.stack([tiles.pid_m, tiles.pid_n, tiles.pid_k], axis=1)[: ends[-1] if len(ends) else 0]
    counted = loads(predicted)
    return {
        "programs": predicted.programs,
        "grid": list(kernel.grid(launch)),
        "tile_grid": list(predicted.extents),
        "resident_programs": predicted.resident_programs,
        "resident_source": predicted.resident_source,
        "waves": predicted.waves,
        "tail_programs": predicted.tail_programs,
        "tiles": [part.tolist() for part in np.split(listed, ends)[:-1]],
        "loads": None if counted is None else counted.tolist(),
        "note": known.failure.message if known.failure else kernel.note(launch),
    }
