"""A launch in true time: a Gantt chart by SM and the tiles at any moment, beside the ideal waves. /timeline."""

from __future__ import annotations

import html
from dataclasses import dataclass

import gradio as gr
import numpy as np

from kernels import records
from kernels.experiment import Experiment
from kernels.results import Compiled, Timeline
from kernels.runner.measurements.timeline_measurement import TIMELINE
from visualize.figures import theme
from visualize.figures.timeline_figure import gantt_figure, moment_data, moment_figure
from visualize.models.execution import Course, as_dealt, ideal_clock, spread_ns, tile_times
from visualize.models.occupancy import Residency, residency
from visualize.models.schedule import Schedule, schedule
from visualize.models.steps import steps
from visualize.state.state import State
from visualize.text import words
from visualize.widgets import assets
from visualize.widgets.link import query
from visualize.widgets.markup import markup
from visualize.widgets.plot import drawn, plot

_LEGEND = ((theme.NOW, "running"), (theme.DONE, "done"), (theme.TO_COME, "to come"))
_SECONDS = (5, 10, 30)


@dataclass(frozen=True)
class Parts:
    button: gr.Button
    claim: gr.HTML
    measured: gr.HTML
    ideal: gr.HTML
    gantt: gr.HTML

    @property
    def drawn(self) -> list[gr.HTML]:
        """What `draw` fills, in its order."""
        return [self.claim, self.measured, self.ideal, self.gantt]


def build() -> Parts:
    with gr.Row(elem_id="timeline-row"):
        button = gr.Button("Record a timeline", size="sm", elem_id="record-timeline")
    claim = markup("timeline")
    _clock()
    with gr.Row(elem_classes="plots"):
        measured = plot("moment-plot", "Which tiles are done, running and to come at the time that is shown")
        ideal = plot("ideal-plot", "The ideal waves, when as many tiles have been begun")
    gantt = plot("gantt-plot", "When and on which SM each program ran")
    return Parts(button, claim, measured, ideal, gantt)


def _clock() -> gr.HTML:
    """The controls of the time that is shown. They find the live plots by themselves."""
    paces = "".join(f'<option value="{seconds}">launch in {seconds} s</option>' for seconds in _SECONDS)
    legend = "".join(f'<span><i style="background:{color}"></i>{name}</span>' for color, name in _LEGEND)
    return gr.HTML(
        value="",
        html_template=(
            '<div class="player clock" role="group" aria-label="Replay of the launch in true time">'
            '<button type="button" class="play">▶ Replay</button>'
            '<input type="range" min="0" max="0" value="0" aria-label="Time from the first start">'
            f'<output></output><select aria-label="Pace of the replay">{paces}</select>'
            f'<span class="legend">{legend}</span></div>'
        ),
        js_on_load=assets.script("timeline.js"),
        apply_default_css=False,
        elem_id="clock",
    )


def draw(state: State, made: Compiled | None, ran: Timeline | None) -> tuple[str, ...]:
    """The claim, the tiles in true time and in ideal waves, and the Gantt chart.

    Args:
        made: the compiled kernel; None while it is not known.
        ran: the timeline; None where there is none of what is set.
    """
    if ran is None:
        return _hint(state.gpu.name), "", "", ""
    resident = residency(state.launch, made, state.view.schedule.programs_per_sm)
    planned = schedule(state.kernel, state.launch, resident.programs_per_sm, resident.source)
    course = Course(np.array(ran.sm), np.array(ran.start_ns), np.array(ran.end_ns), state.gpu.sms)
    begun_ns, done_ns = tile_times(course, planned)
    real = "True time" if planned.turns == 1 else "True time, tiles spread evenly (assumed)"
    clock, step = ideal_clock(begun_ns, planned.step, course.span_ns), planned.step
    name = steps(planned, None).name
    moments = {
        real: moment_data(planned, begun_ns, done_ns),
        f"Ideal {name}s, as many tiles begun": moment_data(planned, clock[step], clock[step + 1], name, clock),
    }
    anew = f"{query(state.experiment.to_address())} {ran.backend} {course.span_ns}"
    maps = [drawn(moment_figure(planned, title), anew, moment) for title, moment in moments.items()]
    gantt = gantt_figure(course, planned, state.view.schedule.color, f"{len(course.sm):,} programs")
    told = {"span_ns": course.span_ns, "waves": planned.waves, "slices": planned.slices}
    return _said(ran, course, planned, resident), *maps, drawn(gantt, anew, {"gantt": told})


def _hint(gpu: str) -> str:
    """That there is none, and what has one."""
    known = records.experiments(TIMELINE.form, gpu)
    if not known:
        return f'<p class="hint">No timeline was recorded on {gpu}; <i>Record a timeline</i> takes a GPU.</p>'
    links = "; ".join(_link(experiment, gpu) for experiment in known)
    return f'<p class="hint">No timeline of this experiment on {gpu} was recorded. There is one of: {links}.</p>'


def _link(experiment: Experiment, gpu: str) -> str:
    address = query({**experiment.to_address(), "gpu": gpu, "tab": "schedule"})
    problem, config = experiment.problem, experiment.config
    shape = " × ".join(str(getattr(problem, name)) for name in ("M", "N", "K") if hasattr(problem, name))
    more = f", GROUP_SIZE {config.GROUP_SIZE}" if hasattr(config, "GROUP_SIZE") else ""
    return f'<a href="?{html.escape(address)}">{experiment.kernel} {shape}{more}</a>'


def _said(ran: Timeline, course: Course, planned: Schedule, resident: Residency) -> str:
    """What was measured in a sentence or two, and a table that sets it against the ideal waves."""
    source = words.mark("recorded" if ran.backend == "recorded" else "measured")
    used = len(np.unique(course.sm))
    cost = ran.instrumented.median_ms / ran.plain.median_ms - 1
    registers, more = ran.registers
    sentences = (
        f"On {ran.device.name}, <b>{len(course.sm):,} programs</b> ran on {used} SMs within "
        f"<b>{words.milliseconds(course.span_ns / 1e6)}</b>, from the first start to the last end {source}; CUDA "
        f"events around that launch say {words.milliseconds(ran.kernel_ms)} (L2 {ran.experiment.run.l2}).",
        f"The build that writes its times down costs <b>{f'{100 * cost:+.1f}'.replace('-', '−')} %</b>: "
        f"{words.milliseconds(ran.instrumented.median_ms)} against {words.milliseconds(ran.plain.median_ms)}, taken in "
        f"turns, with {more} registers a thread against {registers}. The timer ticks every <b>{ran.tick_ns} ns</b>.",
        _loop(planned),
        "" if ran.passed else "<b>This build's result failed the kernel's check.</b>",
        html.escape(ran.note),
    )
    claim = f'<p class="claim">{" ".join(filter(None, sentences))}</p>'
    header = ("", f"as it ran {source}", f"ideal waves {words.mark('predicted')}")
    return claim + words.table(header, _rows(course, planned, resident), "What ran, beside the ideal waves")


def _loop(planned: Schedule) -> str:
    if planned.turns == 1:
        return ""
    return (
        f"A program loops over up to {planned.turns} tiles, and only its own start and end are recorded: in the map, "
        f"its tiles are spread evenly over its time {words.mark('assumed')}."
    )


def _rows(course: Course, planned: Schedule, resident: Residency) -> list[tuple[str, ...]]:
    cut = steps(planned, None)
    spread = spread_ns(course, np.arange(planned.programs) // planned.resident_programs)
    widest = int(spread.argmax())
    apart = ", ".join(_time(int(ns)) for ns in spread[:4]) + (", …" if len(spread) > 4 else "")
    if len(spread) > 1:
        apart += f"; the widest is {words.percent(spread[widest] / max(course.median_ns, 1))} of a program's time"
    return [
        (
            "most programs on a SM at once",
            str(course.at_once.max()),
            _held(planned, resident),
        ),
        ("a program's median time", _time(course.median_ns), ""),
        ("starts within a wave lie apart by", apart, "0"),
        (f"programs on SM pid mod {course.sms}", words.percent(as_dealt(course, planned)), "100 %"),
        ("SMs without a program, over the launch", words.percent(1 - course.busy), ""),
        (
            "places empty after the last start",
            words.percent(course.tail_idle(cut.slots)),
            words.percent(cut.tail_idle if planned.turns == 1 else cut.idle),
        ),
    ]


def _held(planned: Schedule, resident: Residency) -> str:
    """Most programs of this launch on one ideal SM, and how many it has room for where that is more."""
    most = min(resident.programs_per_sm, -(-planned.programs // planned.sms))
    room = f", with room for {resident.programs_per_sm}" if most < resident.programs_per_sm else ""
    return f"{most}{room} {words.mark(resident.source)}"


def _time(ns: float) -> str:
    return words.milliseconds(ns / 1e6)
