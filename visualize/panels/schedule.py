"""The Schedule panel: which program computes which tile, in this order and in row-major order. /schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np

from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.runner.results import Compiled, Failure
from kernels.spec import Kernel, Launch
from visualize.figures.schedule import schedule_figure
from visualize.models.occupancy import residency
from visualize.models.schedule import Schedule, loads, row_major, schedule
from visualize.panels import form, words
from visualize.panels.markup import markup
from visualize.panels.plot import drawn, plot
from visualize.panels.state import State

MOST_LISTED_PROGRAMS = 8192
MOST_LISTED_TILES = 1 << 18


@dataclass(frozen=True)
class Parts:
    options: gr.HTML
    claim: gr.HTML
    ours: gr.HTML
    row_major: gr.HTML


def build() -> Parts:
    claim = markup("schedule-claim")
    with gr.Row(elem_classes="plots"):
        ours = plot("schedule-plot", "Which program computes which tile, in this kernel's launch order")
        reference = plot("row-major-plot", "Which program computes which tile, in row-major order")
    return Parts(form.form("schedule-view", "Options of the schedule"), claim, ours, reference)


def draw(state: State, made: Compiled | None, failure: Failure | None = None) -> tuple[str, str, str]:
    """The claim, this order, and row-major order.

    Args:
        made: the compiled kernel; None while it is not known.
        failure: why it can't be compiled, where it can't.
    """
    view = state.view.schedule
    experiment = state.experiment
    resident = residency(state.launch, made, view.programs_per_sm)
    ours = schedule(state.kernel, state.launch, resident.programs_per_sm, resident.source)
    reference = row_major(ours)
    n = min(view.first, ours.programs, reference.programs)
    title = state.kernel.title
    if hasattr(experiment.config, "GROUP_SIZE"):
        title += f", GROUP_SIZE {experiment.config.GROUP_SIZE}"
    sentence = _waves_sentence(ours, state.gpu, resident.programs_per_sm)
    our_loads, reference_loads = loads(ours), loads(reference)
    if our_loads is not None and reference_loads is not None:
        sentence = (
            f"The first {n} programs load <b>{our_loads[n - 1]:,}</b> blocks of A and B in this order, "
            f"<b>{reference_loads[n - 1]:,}</b> in row-major order {words.mark('predicted')}. " + sentence
        )
    if note := state.kernel.note(state.launch):
        sentence += f" {note}"
    if failure:
        sentence += f" {failure.message}"
    maps = [
        drawn(schedule_figure(order, name, view.color), anew=f"{ours.extents} {state.kernel.id}")
        for order, name in ((ours, title), (reference, "row-major order"))
    ]
    return f'<p class="claim">{sentence}</p>', maps[0], maps[1]


def _waves_sentence(schedule: Schedule, gpu: Gpu, per_sm: int) -> str:
    waves = f"{schedule.waves:,} wave" + ("s" if schedule.waves != 1 else "")
    tail = schedule.tail_programs
    last = (
        f"the last wave holds {tail:,}, so {words.percent(1 - tail / schedule.resident_programs)} of it stays idle"
        if tail
        else "the last wave is full"
    )
    return (
        f"{schedule.programs:,} programs run in <b>{waves}</b> of {schedule.resident_programs:,} "
        f"({gpu.sms} SMs of {gpu.name}, {per_sm} program{'s' if per_sm > 1 else ''} a SM "
        f"{words.mark(schedule.resident_source)}); {last}."
    )


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
