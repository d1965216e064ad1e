"""The Schedule panel: which program computes which tile, in this order and in row-major order. /schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np

from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.results import Compiled, Failure
from kernels.spec import Kernel, Launch
from visualize.figures.schedule_figure import loads_figure, player_data, schedule_figure
from visualize.models.occupancy import residency
from visualize.models.schedule import Schedule, loads, loads_at, row_major, schedule
from visualize.models.steps import Steps, panels, steps
from visualize.state.state import State
from visualize.text import words
from visualize.text.residency import residents
from visualize.widgets import form
from visualize.widgets.markup import markup
from visualize.widgets.player import player
from visualize.widgets.plot import drawn, plot

MOST_LISTED_PROGRAMS = 8192
MOST_LISTED_TILES = 1 << 18

# Points of the curve of loads at most: as many as a screen tells apart.
CURVE_POINTS = 400


@dataclass(frozen=True)
class Parts:
    options: gr.HTML
    claim: gr.HTML
    ours: gr.HTML
    row_major: gr.HTML
    loads: gr.HTML
    occupancy: gr.HTML

    @property
    def drawn(self) -> list[gr.HTML]:
        """What `draw` fills, in its order."""
        return [self.claim, self.ours, self.row_major, self.loads, self.occupancy]


def build() -> Parts:
    claim = markup("schedule-claim")
    player()
    with gr.Row(elem_classes="plots"):
        ours = plot("schedule-plot", "Which program computes which tile, in this kernel's launch order")
        reference = plot("row-major-plot", "Which program computes which tile, in row-major order")
    options = form.form("schedule-view", "Options of the schedule")
    with gr.Row(elem_classes="plots"):
        occupancy_table = markup("schedule-occupancy")
        loaded = plot("loads-plot", "Distinct blocks of A and B that the first n programs load, in both orders")
    return Parts(options, claim, ours, reference, loaded, occupancy_table)


def draw(state: State, made: Compiled | None, failure: Failure | None = None) -> tuple[str, ...]:
    """The claim, this order, row-major order, what the first programs load, and the effect of occupancy.

    Args:
        made: the compiled kernel; None while it is not known.
        failure: why it can't be compiled, where it can't.
    """
    view = state.view.schedule
    resident = residency(state.launch, made, view.programs_per_sm)
    ours = schedule(state.kernel, state.launch, resident.programs_per_sm, resident.source)
    title = state.kernel.title
    if hasattr(state.experiment.config, "GROUP_SIZE"):
        title += f", GROUP_SIZE {state.experiment.config.GROUP_SIZE}"
    named = {title: ours, "row-major order": row_major(ours)}
    touched = panels(state.kernel, state.launch, ours)
    cuts = [steps(order, touched) for order in named.values()]
    anew = f"{ours.extents} {state.kernel.id}"
    maps = [
        drawn(schedule_figure(order, cut, name, view.color), anew, player_data(order, cut, view.step))
        for (name, order), cut in zip(named.items(), cuts, strict=True)
    ]
    # All tiles of a program that loops say nothing of what is loaded when.
    timed = {name: cut.timed for name, cut in zip(named, cuts, strict=True)}
    claim, curve = _loads(timed, view.first, "programs" if ours.turns == 1 else "tiles")
    sentences = (
        claim,
        _sharing(ours),
        _timing(ours, cuts[0], state.gpu, resident.programs_per_sm),
        state.kernel.note(state.launch),
        failure.message if failure else "",
    )
    said = f'<p class="claim">{" ".join(filter(None, sentences))}</p>'
    return said, *maps, curve, residents(ours, state.launch, made, resident)


def _loads(named: dict[str, Schedule], first: int, what: str) -> tuple[str, str]:
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
    sentence = (
        f"The first {first:,} {what} load <b>{ours:,}</b> blocks of {' and '.join(panels)} in this order, "
        f"<b>{reference:,}</b> in row-major order {words.mark('predicted')}."
    )
    return sentence, drawn(loads_figure(counts, curves, first, what, panels), f"{programs}")


def _sharing(planned: Schedule) -> str:
    """What split-K does, in a sentence."""
    if planned.slices == 1:
        return ""
    return (
        f"Each tile of C is summed by <b>{planned.slices} programs</b>, one a slice of K (the grid's third axis): all "
        "tiles' first slices start before any second one. In a step, a tile of a small map says how many of its slices "
        "have started."
    )


def _timing(planned: Schedule, cut: Steps, gpu: Gpu, per_sm: int) -> str:
    """How long a launch is, in waves or turns, and how much of it is idle."""
    held, mark = _count(per_sm, "program"), words.mark(planned.resident_source)
    if cut.name == "turn":
        turns = f"<b>{_count(len(cut.tiles), 'turn')}</b> of at most {planned.programs:,}"
        said = (
            f"{_count(planned.programs, 'program')} on {gpu.sms} SMs of {gpu.name} (a SM holds {held} {mark}) loop "
            f"over {_count(cut.tiles.sum(), 'tile')} in {turns}; "
        )
        last = f"the last turn computes {_count(int(cut.tiles[-1]), 'tile')}"
    else:
        loop = f" of {planned.turns:,} tiles each, one after the other," if planned.turns > 1 else ""
        said = (
            f"{_count(planned.programs, 'program')}{loop} run in <b>{_count(planned.waves, 'wave')}</b> of "
            f"{planned.resident_programs:,} ({gpu.sms} SMs of {gpu.name}, {held} a SM {mark}); "
        )
        last = f"the last wave holds {planned.tail_programs:,}"
    if not cut.tail_idle:
        return f"{said}the last {'turn' if cut.name == 'turn' else 'wave'} is full."
    whole = f", {words.percent(cut.idle)} of the launch" if len(cut.tiles) > 1 else ""
    return f"{said}{last}, so <b>{words.percent(cut.tail_idle)}</b> of it stays idle{whole}."


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def reply(kernel: Kernel, experiment: Experiment, gpu: Gpu, made: Compiled | Failure) -> dict[str, Any]:
    """The body of /schedule. Where nothing can be compiled, one program a SM is assumed, and the note says why."""
    launch = Launch(experiment.problem, experiment.config, gpu)
    resident = residency(launch, made if isinstance(made, Compiled) else None)
    predicted = schedule(kernel, launch, resident.programs_per_sm, resident.source)
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
        "note": made.message if isinstance(made, Failure) else kernel.note(launch),
    }
