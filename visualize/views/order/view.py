"""The Order view: the program → tile map, step by step, and the launch as it ran. /schedule and /timeline."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from kernels import discover
from kernels.measuring.timeline import TIMELINE
from kernels.results import GroupSizeStudy, Timeline, records
from kernels.results.codec import to_json
from kernels.spec import Kernel
from visualize.predict.execution import Execution, ideal_clock
from visualize.predict.reuse import DramTraffic
from visualize.predict.schedule import FirstLoads, first_loads, first_programs, loads, row_major, steps
from visualize.views import prose, slots, theme
from visualize.views.address import query
from visualize.views.endpoint import Api, Endpoint, Reply
from visualize.views.numbers import Number
from visualize.views.order import text
from visualize.views.order.figures import gantt_figure, loads_figure, moment_data, moment_figure
from visualize.views.order.map_figure import Order, map_figure, player_data
from visualize.views.plot import NONE, plot_value
from visualize.views.prose import Link, Sentence, picture_caption
from visualize.views.slots import button, fold, plot, slot
from visualize.views.state import PlayerView, ScheduleView, Snapshot
from visualize.views.summaries import schedule_numbers
from visualize.views.view import Panel, RunAction, Slots

_MOST_LISTED_PROGRAMS, _MOST_LISTED_TILES, _COMPARED_PROGRAMS = 8192, 1 << 18, 1024

# Seconds that /schedule waits for the compiler. Everything except the occupancy is known without it.
_COMPILE_WAIT_S = 0.15

# Maximum number of points of the curve of loads: a screen tells no more apart.
_CURVE_POINTS = 400

# (label, value): steps per second, 0 for the whole launch in eight seconds; seconds for a replay of the launch.
_SPEEDS = (("all in 8 s", 0), ("1 step/s", 1), ("4 steps/s", 4), ("20 steps/s", 20))
_PACES = (("launch in 5 s", 5), ("launch in 10 s", 10), ("launch in 30 s", 30))

# (colour, name, meaning)
_LEGEND = (
    (theme.NEW, "new", "Used in this step, and loaded for the first time"),
    (theme.REUSED, "reused", "Used in this step, and loaded before"),
    (theme.BEFORE, "earlier", "Used only in earlier steps"),
    (theme.TO_COME, "to come", "Not used yet"),
)
_REPLAY_LEGEND = ((theme.NOW, "running", ""), (theme.DONE, "done", ""), (theme.TO_COME, "to come", ""))


class SchedulePanel(Panel):
    """This order and row-major order, step by step, and the blocks that the first programs load in each."""

    options = (ScheduleView, PlayerView)
    forms = (("schedule-view", ScheduleView),)

    def layout(self) -> Markup:
        picture = plot("schedule-plot", "Which program computes which tile, and which blocks it loads")
        curve = plot("loads-plot", "Distinct blocks that the first n programs load, in both orders")
        options = slots.form("schedule-view", "Options of the schedule")
        return Markup("").join(
            [
                slot("schedule-claim"),
                player(),
                slots.picture(picture, name="schedule-picture"),
                fold("schedule-options", "Colours, steps and comparison", options),
                fold("loads", "Blocks that the first n programs load", curve),
                fold("waves", "Waves and occupancy", slot("schedule-occupancy")),
            ]
        )

    def draw(self, known: Snapshot) -> Slots:
        state, launch = known.state, known.schedule
        view, orders = state.view.of(ScheduleView), orders_of(known)
        own = orders[0].steps
        first = first_programs(launch, own, view.first)
        outlined = bound = 0
        if first < len(own.timed.place):
            outlined, bound = first, int(np.searchsorted(np.cumsum(own.tiles), first)) + 1 if view.first else 0
        data = player_data(orders, view.color, state.view.of(PlayerView).step, outlined, bound)
        about = picture_caption(state.experiment, state.gpu.name, "predicted")
        figure = plot_value(map_figure(orders, view.color), f"{launch.extents} {state.kernel.id}", data, about=about)
        compared = first_loads(own, orders[1].steps, first) if len(orders) > 1 else None
        return {
            "schedule-claim": _headline(known, orders[0], compared),
            "schedule-plot": figure,
            "loads-plot": _loads_curve(orders, first, about) if compared else "",
            "schedule-occupancy": text.occupancy_table(launch, state.launch, known.compiled),
        }

    def fill(self, known: Snapshot) -> Slots:
        hidden = ("first",) if known.state.kernel.family.panels is None else ()
        return {"schedule-view": slots.form_of(known.state.view.of(ScheduleView), hidden=hidden)}

    def summary(self, known: Snapshot) -> tuple[Number, ...]:
        return schedule_numbers(known)

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def schedule_of(experiment: dict[str, Any]) -> Reply:
            """Predicts which program computes which tile, and in which wave.

            Returns the programs of the launch, how many are resident at once on all SMs, waves (rounded up), and the
            programs of the last, partial wave. `tiles` lists, per pid in order, the [pid_m, pid_n, pid_k] it computes;
            8,192 programs at most. `loads` counts the distinct blocks of A and B that the first n programs load;
            null without a reduction. Needs no GPU. `resident_source` is "assumed" where the compiler needs longer than
            a moment: ask again for what it says.
            """
            return await api.reply_compiled(experiment, schedule_json, or_not=True, within_s=_COMPILE_WAIT_S)

        return (Endpoint("schedule", schedule_of, max_concurrency=None),)


def orders_of(known: Snapshot) -> list[Order]:
    """Return this kernel's order, and the row-major order if they load different blocks."""
    state, launch = known.state, known.schedule
    name, size = state.kernel.title, getattr(state.experiment.config, "GROUP_SIZE", None)
    named = {f"{name}, GROUP_SIZE {size}" if size else name: launch}
    if launch.panels is not None:
        named["row-major order"] = row_major(launch)
    by = state.view.of(ScheduleView).by
    return [Order(name, order, steps(order, by)) for name, order in named.items()]


def _headline(known: Snapshot, order: Order, compared: FirstLoads | None) -> Markup:
    state, launch = known.state, known.schedule
    waves = steps(launch) if order.steps.is_single else order.steps
    more: tuple[Sentence | str, ...] = (
        text.split_k_sentence(launch),
        text.waves_sentence(launch, waves),
        state.kernel.note(state.launch),
        known.failure.message if known.failure else "",
    )
    if compared is None:
        return text.read_once_headline(launch, more)
    where = larger_preset(state.kernel) if compared.blocks >= compared.row_major_blocks else ()
    traffic = DramTraffic(state.kernel, known.launch, known.compiled, known.result(GroupSizeStudy))
    link = Link("DRAM reads of every GROUP_SIZE.", query({**state.to_address(), "tab": "reuse"}))
    return text.loads_headline(compared, order.unit, launch.panels or ("", ""), traffic, link, (*where, *more))


def larger_preset(kernel: Kernel, tab: str = "schedule", label: str = "") -> tuple[Link, ...]:
    """Link to the largest preset of the family that compares orders, if there is one."""
    relatives = (each for each in discover().values() if each.family.root is kernel.family.root)
    comparing = [(each, preset) for each in relatives for preset in each.presets if "first" in preset.view]
    links = [
        Link(
            label or f"{preset.title}.",
            query({"kernel": each.id, **preset.problem, **preset.config, **preset.view, "tab": tab}),
        )
        for each, preset in comparing
    ]
    return tuple(links[-1:])


def _loads_curve(orders: list[Order], first: int, about: str) -> str:
    # Each tile of a looping program counts as a program that starts when the tile is computed.
    timed = {order.name: order.steps.timed for order in orders}
    programs, launch = min(order.programs for order in timed.values()), orders[0].schedule
    counts = np.arange(1, programs + 1)
    if programs > _CURVE_POINTS:
        counts = np.unique(np.append(np.geomspace(1, programs, _CURVE_POINTS).round().astype(np.int64), first))
    curves = {name: loads(order, counts) for name, order in timed.items()}
    figure = loads_figure(counts, curves, first, f"{orders[0].unit}s", launch.panels or ("", ""))
    return plot_value(figure, f"{programs}", about=about)


def schedule_json(known: Snapshot) -> dict[str, Any]:
    """Return the body of /schedule. If the kernel can't be compiled, one program per SM is assumed; `note` says why."""
    kernel, launch, predicted = known.state.kernel, known.launch, known.schedule
    tiles = predicted.tiles
    # Only programs whose last tile fits.
    ends = np.searchsorted(tiles.program, np.arange(min(predicted.programs, _MOST_LISTED_PROGRAMS)), side="right")
    ends = ends[ends <= _MOST_LISTED_TILES]
    part = slice(int(ends[-1]) if len(ends) else 0)
    listed = np.stack([tiles.pid_m[part], tiles.pid_n[part], tiles.pid_k[part]], axis=1)
    counts = np.arange(1, min(predicted.programs, _COMPARED_PROGRAMS) + 1)
    notes = ("" if known.compiled else text.NOT_COMPILED_YET, kernel.note(launch))
    return {
        "programs": predicted.programs,
        "grid": list(kernel.grid(launch)),
        "tile_grid": list(predicted.extents),
        "resident_programs": predicted.resident_programs,
        "resident_source": predicted.resident_source,
        "waves": predicted.waves,
        "tail_programs": predicted.tail_programs,
        "tiles": np.split(listed, ends)[:-1],
        "loads": None if predicted.panels is None else loads(predicted, counts).tolist(),
        "note": known.failure.message if known.failure else " ".join(filter(None, notes)),
    }


class TimelinePanel(Panel):
    """The launch in measured time: a Gantt chart by SM, and the tiles at any moment, beside the ideal waves."""

    def layout(self) -> Markup:
        measured = plot("moment-plot", "Tiles that are done, running and to come at the current time")
        ideal = plot("ideal-plot", "The ideal waves, when as many tiles have started")
        return Markup("").join(
            [
                slots.row(button("record-timeline", "Record a timeline"), name="timeline-row"),
                slot("timeline"),
                _replay(),
                slots.row(measured, ideal, classes="row plots"),
                slots.picture(plot("gantt-plot", "When and on which SM each program ran"), name="timeline-picture"),
                slot("timeline-table"),
            ]
        )

    def actions(self) -> Mapping[str, RunAction]:
        return {"record-timeline": RunAction("timeline")}

    def draw(self, known: Snapshot) -> Slots:
        timeline, state, schedule = known.result(Timeline), known.state, known.schedule
        if timeline is None:
            plots: Slots = dict.fromkeys(("moment-plot", "ideal-plot", "gantt-plot"), NONE)
            return {"timeline": _timeline_hint(state.gpu.name), **plots, "timeline-table": ""}
        sm, start_ns, end_ns = map(np.array, (timeline.sm, timeline.start_ns, timeline.end_ns))
        execution = Execution(sm, start_ns, end_ns, state.gpu.sms)
        begun_ns, done_ns = execution.tile_times(schedule)
        clock, step, name = ideal_clock(begun_ns, schedule.step, execution.span_ns), schedule.step, steps(schedule).name
        title = "True time" if schedule.turns == 1 else "True time, tiles spread evenly (assumed)"
        ideal_title = f"Ideal {name}s, as many tiles begun"
        ideal_data = moment_data(schedule, clock[step], clock[step + 1], name, clock)
        revision = f"{query(state.experiment.to_address())} {timeline.backend} {execution.span_ns}"
        about, about_ideal = (
            picture_caption(state.experiment, state.gpu.name, source)
            for source in ("recorded" if timeline.backend == "recorded" else "measured", "predicted")
        )
        color = state.view.of(ScheduleView).color
        gantt = gantt_figure(execution, schedule, color, f"{len(execution.sm):,} programs")
        chart = {"span_ns": execution.span_ns, "waves": schedule.waves, "slices": schedule.slices}
        lead, *rest = text.timeline_sentences(timeline, execution, schedule)
        moment = plot_value(
            moment_figure(schedule, title), revision, moment_data(schedule, begun_ns, done_ns), about=about
        )
        return {
            "timeline": prose.claim(lead) + prose.claim(*rest),
            "moment-plot": moment,
            "ideal-plot": plot_value(moment_figure(schedule, ideal_title), revision, ideal_data, about=about_ideal),
            "gantt-plot": plot_value(gantt, revision, {"gantt": chart}, about=about),
            "timeline-table": text.timeline_table(timeline, execution, schedule),
        }

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def timeline(experiment: dict[str, Any]) -> Reply:
            """Tells when each program of a launch ran, and on which SM.

            `programs` has each program's SM, start and end in ns, measured on this machine's GPU by an instrumented
            build of the kernel. `instrumented_ms` beside `plain_ms` says what instrumentation costs. Without a GPU: a
            recorded timeline, or a failure.
            """
            return await api.reply_measured(experiment, "timeline", lambda timeline, _: timeline_json(timeline))

        return (Endpoint("timeline", timeline, max_concurrency=None, launches=True),)


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """Return the body of /timeline: one object per program, and the values derived from all of them."""
    fields = to_json(timeline)
    columns = {name: fields.pop(name) for name in ("sm", "start_ns", "end_ns")}
    return {
        **fields,
        "programs": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
        **{name: getattr(timeline, name) for name in ("span_ns", "tick_ns", "step_ns")},
        "plain_ms": timeline.plain.median_ms,
        "instrumented_ms": timeline.instrumented.median_ms,
        "note": f"{timeline.note} {text.TIMING_NOTE}".strip(),
    }


# The hint is the same for all experiments without a timeline, and is drawn at each move of a slider.
@functools.cache
def _timeline_hint(gpu: str) -> Markup:
    return prose.hint(text.timeline_hint(gpu, records.experiments(TIMELINE.form, gpu)))


def player() -> Markup:
    """Return the player's controls.

    `script.js` finds the map by the data that its figure carries (`player_data`). The current step is a knob of the
    view, so that an address contains it; the player sets it when playing or scrubbing ends. The document's events
    `tilescope:play`, and `tilescope:step` with detail {by: 1 or -1}, do what its buttons do.
    """
    return slot(
        "player",
        "player",
        f'<div class="player" role="group" aria-label="Player of the launch">{_play_button("Play")}'
        '<button type="button" class="back" aria-label="One step back">←</button>'
        '<button type="button" class="forward" aria-label="One step on">→</button>'
        '<input type="range" min="0" max="0" value="0" aria-label="Step" title="0: the whole launch">'
        f"<output>whole launch</output>{_menu('Speed', _SPEEDS)}"
        f'<span class="legend steps">{_colors(_LEGEND)}</span>'
        '<span class="legend whole"><span class="ramp"><i></i>first to last</span>'
        '<span class="repeated">colours repeat every eight</span></span>'
        '<span class="legend first" hidden><span><i></i><span class="outlined"></span></span></span></div>',
    )


def _replay() -> Markup:
    """Return the controls of a replay in measured time."""
    return slot(
        "clock",
        "replay",
        '<div class="player clock" hidden role="group" aria-label="Replay of the launch in true time">'
        f'{_play_button("Replay")}<input type="range" min="0" max="0" value="0" aria-label="Time from the first start">'
        f"<output></output>{_menu('Pace of the replay', _PACES)}"
        f'<span class="legend">{_colors(_REPLAY_LEGEND)}</span></div>',
    )


def _play_button(name: str) -> str:
    return f'<button type="button" class="play">▶ {name}</button>'


def _menu(name: str, choices: tuple[tuple[str, int], ...]) -> str:
    options = "".join(f'<option value="{value}">{label}</option>' for label, value in choices)
    return f'<select aria-label="{name}" title="{name}">{options}</select>'


def _colors(legend: tuple[tuple[str, str, str], ...]) -> str:
    return "".join(
        f'<span title="{meaning or name}"><i style="background:{color}"></i>{name}</span>'
        for color, name, meaning in legend
    )
