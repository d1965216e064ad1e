"""The pictures of the Inside view, banks, registers and the pipeline, and their data for any launch."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from tilescope.captures.content import CapturedKernel
from tilescope.evaluate.instructions import CompiledFacts
from tilescope.inside.banks import BANKS, BankAccess, count_wavefronts, serve_words
from tilescope.inside.inspect import Inspection, count_live
from tilescope.inside.pipeline import unroll
from tilescope.inside.report import Inside, Moment, Pipeline, SharedAccess
from tilescope.numbers import count_noun
from tilescope.reports.launch import Launches
from tilescope.results import Compiled, Counters, SharedCounts
from tilescope.sass.instructions import Instruction, parse_sass
from visualize.predict.costs import LaunchCosts
from visualize.views import theme
from visualize.views.prose import picture_caption
from visualize.views.state import Snapshot
from visualize.views.theme import Figure


@dataclass(frozen=True)
class Program:
    """The inside of a launch's programs, with additional data for the pictures.

    Attributes:
        about: the caption of a saved picture.
        accesses: one execution of each instruction that accesses shared memory, by index in the SASS.
        counted: each access's wavefronts as the hardware counted them; empty without counts.
        counted_by: the profiler and its GPU.
    """

    inside: Inside
    facts: CompiledFacts | CapturedKernel
    sass: str
    about: str
    accesses: Mapping[int, BankAccess] = field(default_factory=dict)
    counted: Mapping[SharedAccess, int] = field(default_factory=dict)
    counted_by: str = ""

    @property
    def instructions(self) -> tuple[Instruction, ...]:
        return parse_sass(self.sass)

    def find_worst_access(self) -> tuple[SharedAccess, BankAccess] | None:
        """Return the warp access with the most bank conflicts on the worst line and opcode; None without conflicts."""
        code = self.instructions
        for row in sorted(self.inside.shared, key=lambda row: -(row.conflicts or 0)):
            if not row.conflicts:
                break
            own = row.file, row.line, row.opcode
            accesses = [
                access
                for index, access in self.accesses.items()
                if (*code[index].source, code[index].name) == own
            ]
            warps = [
                BankAccess(access.opcode, access.address[:, [warp]], access.active[:, [warp]])
                for access in accesses
                for warp in np.flatnonzero(access.active.any(axis=(0, 2)))
            ]
            worst = max(warps, key=lambda warp: count_wavefronts(warp).conflicts, default=None)
            if worst and count_wavefronts(worst).conflicts:
                return row, worst
        return None


def captured_program(launches: Launches, number: int) -> Program:
    """Return the inside of the programs of a script's launch."""
    kernel = launches.kernel(number)
    inside, executions = launches.inspections(number)
    return Program(
        inside=inside,
        facts=kernel,
        sass=launches.capture.read_code(launches.content.launches[number].kernel, "sass"),
        about=launches.caption,
        accesses=executions.accesses if executions else {},
    )


class _Placed(Protocol):
    @property
    def file(self) -> str: ...
    @property
    def line(self) -> int: ...


def place(item: _Placed) -> str:
    """Return the source line of an item of the report, or the user's lines that call Triton's library there."""
    lines = item.user_lines if isinstance(item, SharedAccess) else [(item.file, item.line)]
    return " and ".join(f"{file}:{line}" if line else "no source line" for file, line in lines)


def describe(snapshot: Snapshot, compiled: Compiled, inspection: Inspection) -> Program:
    """Return the inside of an experiment's programs, as compiled."""
    inside, executions = inspection
    state = snapshot.state
    counters = snapshot.result(Counters)
    is_counted = LaunchCosts(state.kernel, state.launch, compiled, counters).counted_is_compiled
    return Program(
        inside=inside,
        facts=compiled,
        sass=compiled.sass,
        about=picture_caption(state.experiment, state.gpu.name, "compiled"),
        accesses=executions.accesses if executions else {},
        counted=match_counts(inside.shared, counters.shared) if counters and is_counted else {},
        counted_by=f"{counters.tool}, {counters.device.name}" if counters else "",
    )


def match_counts(
    accesses: Sequence[SharedAccess], counts: Sequence[SharedCounts]
) -> Mapping[SharedAccess, int]:
    """Return the counted wavefronts of each access; {} if other lines and opcodes were counted.

    Lines may have moved since the count, so their order identifies them.
    """
    counted = Counter[tuple[str, int, str]]()
    for row in counts:
        counted[*row.source, row.opcode.partition(".")[0]] += row.wavefronts
    rows = sorted(key for key, wavefronts in counted.items() if wavefronts)
    own = {(each.file, each.line, each.opcode): each for each in accesses if each.wavefronts != 0}
    keys = sorted(key for key in own if key[2] != "ATOMS")  # Nsight Compute does not count them
    if [(file, opcode) for file, _, opcode in keys] != [(file, opcode) for file, _, opcode in rows]:
        return {}
    return {own[key]: counted[row] for key, row in zip(keys, rows, strict=True)}


# This number of wavefronts fills the picture's height.
_FULL_HEIGHT = 8

# Steps of a loop to draw, in addition to the steps that its loads run ahead.
_STEPS = 4
# Colours of the bars of a pipeline.
_PIPELINE = {
    "in flight": theme.NEW,
    "in use": theme.REUSED,
    "load": theme.NEW,
    "read": theme.REUSED,
    "multiplication": theme.HARDWARE,
    "wait": theme.BEFORE,
    "store": theme.OPERATIONS["store"],
}
_WAITS = {"wait": "copies", "multiplication wait": "products"}


def banks_figure(program: Program) -> Figure | None:
    """Draw which lane's word each bank serves in each wavefront of the access with the most conflicts."""
    worst = program.find_worst_access()
    if worst is None:
        return None
    row, access = worst
    actual, ideal = count_wavefronts(access)
    words = serve_words(access)
    lane = words[..., 0]
    number = np.arange(actual)
    cells = {
        "type": "heatmap",
        "z": np.where(lane < 0, np.nan, (number >= ideal)[:, None]),
        "zmin": 0,
        "zmax": 1,
        "colorscale": [[0, theme.USED], [1, theme.WASTED]],
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "customdata": words,
        "text": np.where(lane < 0, "", lane.astype(str)),
        "texttemplate": "%{text}",
        "textfont": {"size": 11},
        "hoverongaps": False,
        "hovertemplate": "bank %{x}: the word at byte %{customdata[1]:,}<br>"
        "lane %{text}; lanes with this word: %{customdata[2]}<extra></extra>",
    }
    labels = [f"{'conflict' if n >= ideal else 'wavefront'} {n + 1}" for n in number.tolist()]
    return theme.figure(
        f"{row.opcode}, {place(row)}: {actual} wavefronts instead of {ideal}. Numbers are lanes.",
        [cells],
        xaxis=theme.axis("bank", range=[-0.5, BANKS - 0.5], tickangle=0),
        yaxis={
            "range": [actual - 0.5, -0.5],
            "domain": [max(0, 1 - actual / _FULL_HEIGHT), 1],
            "tickvals": number,
            "ticktext": labels,
            "automargin": True,
        },
    )


def registers_figure(program: Program) -> Figure | None:
    """Draw the live registers at each instruction, and mark the maximum and the spills."""
    if not program.instructions:
        return None
    instructions = program.instructions
    live = np.array(count_live(program.sass))
    peak = int(live.argmax())
    spills = [n for n, each in enumerate(instructions) if each.traits.lmem]
    spill = f'<span style="color:{theme.WRONG}">●</span> spill: an access to local memory'
    legend = theme.note(spill, 0, 1, xref="paper", yref="paper", xanchor="left", yanchor="top")
    curve = theme.scatter(
        "live",
        np.arange(len(live)),
        live,
        text=[f"{each.opcode}, {_source(each)}" for each in instructions],
        fill="tozeroy",
        line={"shape": "hv", "color": theme.USED, "width": 1.5},
        hovertemplate="instruction %{x}: %{y} live registers<br>%{text}<extra></extra>",
    )
    marks = theme.scatter(
        "peak and spills",
        [*spills, peak],
        live[[*spills, peak]],
        "markers",
        hoverinfo="skip",
        marker={"color": [*[theme.WRONG] * len(spills), theme.NEW], "size": 8},
    )
    highest = {
        "x": peak,
        "y": int(live[peak]),
        "text": f"<b>{live[peak]} at {_source(instructions[peak])}</b>",
        "ay": -26,
        "ax": 60 if peak < len(live) / 2 else -60,
        "arrowcolor": theme.BORDER,
    }
    allocated = program.facts.registers
    return theme.figure(
        f"Live registers per thread ({allocated} allocated)",
        [curve, marks],
        xaxis=theme.axis("SASS instruction", range=[0, len(live)]),
        yaxis=theme.axis("live registers", range=[0, 1.2 * max(allocated, live[peak])]),
        annotations=[highest, legend] if spills else [highest],
        shapes=[theme.horizontal(allocated, theme.EDGE)],
    )


def _source(instruction: Instruction) -> str:
    file, line = instruction.source
    return f"{file}:{line}" if line else "no source line"


def pipeline_figure(program: Program) -> Figure | None:
    """Draw copies, multiplications and waits in the first steps of the loop whose loads run the furthest ahead."""
    if not program.inside.pipelines:
        return None
    pipeline = max(program.inside.pipelines, key=_steps_ahead)
    steps = _STEPS + _steps_ahead(pipeline)
    moments = unroll(pipeline, steps)
    bars = _pipeline_bars(pipeline, moments)
    copies = [_buffer_row(load.line, slot) for load in pipeline.loads for slot in range(load.slots)]
    rows = [*copies, *(bar.row for group in bars.values() for bar in group)]
    most = max(moment.in_flight for moment in moments)
    ticks = ["start", *range(steps), "end"]
    return theme.figure(
        f"First {count_noun(steps, 'step')} of the loop in {place(pipeline)}; maximum copies in flight: {most}",
        [_bar_trace(name, group) for name, group in bars.items() if group],
        xaxis=theme.axis(
            "order of operations, not time",
            range=[-1, steps + 1],
            tickvals=[number - 0.5 for number in range(len(ticks))],
            ticktext=ticks,
            tickangle=0,
        ),
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": list(dict.fromkeys(rows)),
            "dtick": 1,
            "autorange": "reversed",
            "automargin": True,
        },
        bargap=0.15,
        shapes=[theme.vertical(step, theme.EDGE, yref="paper") for step in range(steps + 1)],
        legend=theme.LEGEND,
        margin={"t": 60},
        **theme.OVERLAID_BARS,
    )


def _steps_ahead(pipeline: Pipeline) -> int:
    return max((load.ahead for load in pipeline.loads), default=0)


class _Bar(NamedTuple):
    row: str
    start: float
    end: float
    step: int


def _bar_trace(name: str, bars: Sequence[_Bar]) -> Figure:
    return theme.BARS | {
        "name": name,
        "orientation": "h",
        "textangle": 0,
        "marker": {"color": _PIPELINE[name]},
        "y": [bar.row for bar in bars],
        "base": [bar.start for bar in bars],
        "x": [bar.end - bar.start for bar in bars],
        "text": [f"step {bar.step}" for bar in bars],
        "customdata": [f"{bar.row}<br>{name}, step {bar.step}" for bar in bars],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _pipeline_bars(pipeline: Pipeline, moments: Sequence[Moment]) -> dict[str, list[_Bar]]:
    """Return the bars of each kind. A block is in flight until a wait, and in use until its multiplication."""
    phases = dict[str, list[int]]()
    for event in pipeline.events:
        if event.kind != "commit":
            phases.setdefault(event.phase, []).append(id(event))
    bars = {name: list[_Bar]() for name in _PIPELINE}
    since = dict[tuple[int, int], tuple[str, float]]()
    for moment in moments:
        event = moment.event
        phase = phases[event.phase]
        start = moment.at + phase.index(id(event)) / len(phase)
        end = start + 1 / len(phase)
        if moment.slot is not None:
            since[event.loads[0], moment.step] = _buffer_row(event.line, moment.slot), start
            continue
        if waits_for := _WAITS.get(event.kind):
            bars["wait"].append(_Bar(f"wait for {waits_for}", start, end, moment.step))
        else:
            row = f"line {event.line}, {event.kind}"
            bars[event.kind].append(_Bar(row, start, end, moment.step))
        for copy in moment.arrived:
            row, begun = since[copy]
            bars["in flight"].append(_Bar(row, begun, end, copy[1]))
            since[copy] = row, end
        if event.kind == "multiplication":
            for row, begun in (since[copy] for copy in since if copy[1] == moment.step):
                bars["in use"].append(_Bar(row, begun, end, moment.step))
    return bars


def _buffer_row(line: int, slot: int) -> str:
    return f"line {line}, buffer {slot}"
