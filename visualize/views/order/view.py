"""The Order view: the program → tile map step by step, the launch as it ran, and the DRAM reads of each GROUP_SIZE.

Endpoints: /schedule, /timeline, /trace and /reuse.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Json
from tilescope.declare.spec import Kernel
from tilescope.measure.session import Session
from tilescope.numbers import Number, count_noun, source
from tilescope.results import GroupSizeStudy, Timeline
from tilescope.results.codec import to_json
from visualize.predict.reuse import DramTraffic, fewest_bytes, recommended, reuse_seconds
from visualize.predict.schedule import (
    MAX_TILES,
    count_tiles,
    first_programs,
    loads,
    player_steps,
    programs_per_sm,
    row_major,
    steps,
)
from visualize.views import prose, slots
from visualize.views.order import dram_reads, figures, text
from visualize.views.order.map_figure import Order, map_figure, player_data
from visualize.views.panel import (
    Action,
    Api,
    Panel,
    Slots,
    reply_endpoint,
    select_fields,
)
from visualize.views.prose import Link, Sentence, picture_caption
from visualize.views.slots import DISABLED, ENABLED, NONE, plot_value
from visualize.views.state import PlayerView, ProgramOrderView, Snapshot, State, query

_MOST_LISTED_PROGRAMS = 8192
_MOST_LISTED_TILES = 1 << 18
_COMPARED_PROGRAMS = 1024

# CPU seconds to draw a tile in both orders, measured with a million tiles.
_TILE_S = 5e-7

# Seconds that /schedule waits for the compiler. Everything except the occupancy is known without it.
_COMPILE_WAIT_S = 0.15


def orders_of(snapshot: Snapshot) -> list[Order]:
    """Return this kernel's order, and the row-major order if they load different blocks."""
    state = snapshot.state
    launch = snapshot.schedule
    size = getattr(state.experiment.config, "GROUP_SIZE", None)
    schedules = {f"{state.kernel.title}, GROUP_SIZE {size}" if size else state.kernel.title: launch}
    if launch.panels:
        schedules["row-major order"] = row_major(launch)
    return [Order(name, order, player_steps(order)) for name, order in schedules.items()]


def _headline(snapshot: Snapshot, orders: list[Order], first: int) -> Markup:
    state = snapshot.state
    launch = snapshot.schedule
    own = orders[0].steps
    more: tuple[Sentence | str, ...] = (
        text.split_k_sentence(launch),
        text.waves_sentence(launch, steps(launch) if own.is_single else own),
        state.kernel.note(state.launch),
        snapshot.failure.message if snapshot.failure else "",
    )
    if launch.panels is None:
        reason = "Each input is read once in any order. The order decides which tiles are in flight together."
        return prose.headline(*count_noun(launch.programs, "program").split(), reason, *more)
    larger = larger_preset(state.kernel, "program-order", "The order matters in a larger launch.")
    link = Link(
        "DRAM reads of every GROUP_SIZE.", query({**state.to_address(), "tab": "dram-reads"})
    )
    traffic = dram_traffic(snapshot)
    return text.loads_headline(orders[0], orders[1], first, traffic, link, more, larger)


def larger_preset(kernel: Kernel, tab: str, label: str) -> Link | str:
    """Link to the largest preset of the family that compares orders; "" if there is none."""
    relatives = [each for each in discover().values() if each.family.root is kernel.family.root]
    comparing = [
        (each, preset) for each in relatives for preset in each.presets if "first" in preset.view
    ]
    if not comparing:
        return ""
    relative, preset = comparing[-1]
    address = {"kernel": relative.id, **preset.problem, **preset.config, **preset.view, "tab": tab}
    return Link(label, query(address))


def schedule_json(snapshot: Snapshot) -> Json:
    """Predicts which program computes which tile, and in which wave.

    Returns the programs of the launch, how many are resident at once on all SMs, waves (rounded up), and the
    programs of the last, partial wave. `tiles` lists, per pid in order, the [pid_m, pid_n, pid_k] it computes;
    8,192 programs at most. `loads` counts the distinct blocks of A and B that the first n programs load;
    null without a reduction. Needs no GPU. `resident_source` is "assumed" if the compiler needs longer than a
    moment: call again for the compiled value.
    """
    kernel = snapshot.state.kernel
    launch = snapshot.launch
    predicted = snapshot.schedule
    tiles = predicted.tiles
    # Only programs whose last tile fits.
    ends = np.searchsorted(
        tiles.program, np.arange(min(predicted.programs, _MOST_LISTED_PROGRAMS)), side="right"
    )
    ends = ends[ends <= _MOST_LISTED_TILES]
    part = slice(int(ends[-1]) if len(ends) else 0)
    listed = np.stack([tiles.pid_m[part], tiles.pid_n[part], tiles.pid_k[part]], axis=1)
    counts = np.arange(1, min(predicted.programs, _COMPARED_PROGRAMS) + 1)
    notes = ("" if snapshot.compiled else text.NOT_COMPILED_YET, kernel.note(launch))
    return {
        "programs": predicted.programs,
        "grid": list(kernel.grid(launch)),
        "tile_grid": list(predicted.extents),
        **select_fields(
            predicted, "resident_programs", "resident_source", "waves", "tail_programs"
        ),
        "tiles": [listed[start:end] for start, end in pairwise([0, *ends.tolist()])],
        "loads": None if predicted.panels is None else loads(predicted, counts).tolist(),
        "note": snapshot.failure.message if snapshot.failure else " ".join(filter(None, notes)),
    }


def timeline_json(timeline: Timeline, _: Snapshot) -> Json:
    """Returns when each program of a launch ran, and on which SM.

    `programs` has each program's SM, start and end in ns, measured on this machine's GPU by an instrumented
    build of the kernel. `instrumented_ms` beside `plain_ms` says what instrumentation costs. Without a GPU: a
    recorded timeline, or a failure.
    """
    fields = to_json(timeline)
    columns = {name: fields.pop(name) for name in ("sm", "start_ns", "end_ns")}
    return {
        **fields,
        "programs": [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ],
        **select_fields(timeline, "span_ns", "tick_ns", "step_ns"),
        "plain_ms": timeline.plain.median_ms,
        "instrumented_ms": timeline.instrumented.median_ms,
        "note": f"{timeline.note} {text.TIMING_NOTE}".strip(),
    }


def trace_reply(outcome: Timeline, snapshot: Snapshot) -> Json:
    """Measures when each program of a launch ran and on which SM, as a Chrome trace, which Perfetto opens.

    Needs a GPU; without one, a recorded timeline is returned, if there is one. A process of the trace is an
    SM; times are in µs. `filename` is a name for it.
    """
    name = f"{outcome.experiment.kernel.replace('.', '_')}_{snapshot.state.gpu.name}_timeline.json"
    return {"trace": figures.chrome_trace(outcome, snapshot.state.gpu), "filename": name}


def _save_trace(session: Session, state: State) -> Iterator[Slots]:
    if timeline := session.find_value(state.experiment, "timeline"):
        reply = trace_reply(timeline, Snapshot(state))
        yield slots.save_file(reply["filename"], json.dumps(reply["trace"]))


def dram_traffic(snapshot: Snapshot) -> DramTraffic:
    """Return the launch's DRAM traffic."""
    return DramTraffic(
        snapshot.state.kernel, snapshot.launch, snapshot.compiled, snapshot.result(GroupSizeStudy)
    )


def _predict_seconds(snapshot: Snapshot) -> float:
    launch = snapshot.launch
    resident = programs_per_sm(launch.gpu, launch.config.num_warps, snapshot.compiled)
    return reuse_seconds(snapshot.state.kernel, launch, resident)


_PEAK = "at the resource's peak rate"


def reuse_json(snapshot: Snapshot) -> Json:
    """Predicts the bytes a launch reads from DRAM, in its own order and for every GROUP_SIZE.

    Finds a better GROUP_SIZE without a GPU. `dram_read_bytes` is this launch's, between `low_bytes` and
    `high_bytes`; `compulsory_bytes` is the least possible. `by_group_size` has the bytes for each GROUP_SIZE,
    `recommended_group_size` the value to use. `measured` is a recorded comparison, or null.
    """
    traffic = dram_traffic(snapshot)
    failure = snapshot.failure
    own = traffic.own
    sizes = traffic.sizes
    dram_ms = (own.read_bytes + own.write_bytes) / traffic.launch.gpu.dram_gbps / 1e6
    times_ms = {"DRAM": dram_ms} | traffic.times_ms
    return {
        "dram_read_bytes": round(own.read_bytes),
        "low_bytes": round(own.low_bytes),
        "high_bytes": round(own.high_bytes),
        "dram_write_bytes": own.write_bytes,
        "compulsory_bytes": own.compulsory_bytes,
        "asked_bytes": own.requested_bytes,
        "by_group_size": {str(size): round(reuse.read_bytes) for size, reuse in sizes.items()},
        "fewest_bytes_group_size": fewest_bytes(sizes) if sizes else None,
        "recommended_group_size": recommended(traffic.kernel, traffic.launch, sizes)
        if sizes
        else None,
        "ahead": own.ahead,
        "flags": ["drift"] * own.is_drift + ["edge"] * own.is_edge,
        **select_fields(traffic.schedule, "resident_programs", "resident_source"),
        "bounds": [{"name": name, "ms": ms, "why": _PEAK} for name, ms in times_ms.items()],
        "measured": traffic.study and to_json(traffic.study),
        "note": prose.plain(
            [*dram_reads.reuse_sentences(traffic), failure.message if failure else ""]
        ),
    }


class ProgramOrderPanel(Panel):
    """This order and row-major order, step by step."""

    # `player.js` finds the map by the data that its figure carries (`player_data`). The current step is a knob of the
    # view, so that an address contains it; the player sets it when playing or scrubbing ends.
    layout = """
{{ slot("program-order-headline") }}
{% call slot("player", "player") %}
<div class="player" role="group" aria-label="Player of the launch">
<button type="button" class="control play">▶ Play</button>
<button type="button" class="control back" aria-label="One step back">←</button>
<button type="button" class="control forward" aria-label="One step on">→</button>
<input type="range" min="0" max="0" value="0" aria-label="Step" title="0: the whole launch">
<output>whole launch</output>
<div class="legend quiet"><span class="steps">
<span title="Used in this step, and loaded for the first time"><i style="background:var(--new)"></i>new</span>
<span title="Used in this step, and loaded before"><i style="background:var(--reused)"></i>reused</span>
<span title="Used only in earlier steps"><i style="background:var(--before)"></i>earlier</span>
<span title="Not used yet"><i style="background:var(--to-come)"></i>to come</span></span>
<span class="whole"><i style="background:#3a62a8"></i><i style="background:#66738c"></i><i
style="background:#8f8d83"></i><i style="background:#bbab70"></i><i style="background:#e8d157"></i><i
style="background:#ffe945"></i>first to last program</span>
<span class="first" hidden><i><b></b></i><span class="outlined"></span></span></div></div>
{% endcall %}
<div id="program-order-picture" class="row picture">
{{ plot(
    "program-order-plot", "Which program computes which tile, and which blocks it loads", "player", has_steps=true
) }}
</div>
{% call fold("waves", "Waves and occupancy") %}{{ slot("program-order-occupancy") }}{% endcall %}
"""
    options = (ProgramOrderView, PlayerView)
    endpoints = (
        reply_endpoint(
            "schedule", Api.reply_compiled, schedule_json,
            allow_failure=True, within_s=_COMPILE_WAIT_S,
        ),
    )  # fmt: skip

    def seconds(self, snapshot: Snapshot) -> float:
        tiles = count_tiles(snapshot.state.kernel, snapshot.launch)
        return tiles * _TILE_S if tiles <= MAX_TILES else 0.0  # larger launches are refused

    def draw(self, snapshot: Snapshot) -> Slots:
        state = snapshot.state
        launch = snapshot.schedule
        orders = orders_of(snapshot)
        view = state.view.of(ProgramOrderView)
        own = orders[0].steps
        first = first_programs(launch, own, view.first)
        outlined = bound = 0
        if first < len(own.timed.place):
            outlined = first
            bound = int(np.searchsorted(np.cumsum(own.tiles), first)) + 1 if view.first else 0
        data = player_data(orders, state.view.of(PlayerView).step, outlined, bound)
        about = picture_caption(state.experiment, state.gpu.name, "predicted")
        picture = plot_value(
            map_figure(orders), f"{launch.extents} {state.kernel.id}", data, about=about
        )
        return {
            "program-order-headline": _headline(snapshot, orders, first),
            "program-order-plot": picture,
            "program-order-occupancy": text.occupancy_table(launch),
        }

    def summary(self, snapshot: Snapshot) -> tuple[Number, ...]:
        launch = snapshot.schedule
        first = snapshot.state.view.of(ProgramOrderView).first
        counts = {"programs": launch.programs, "waves": launch.waves}
        if launch.panels:
            programs = np.array([min(launch.programs, first or launch.resident_programs)])
            counts[f"blocks for the first {first} programs" if first else "blocks, first wave"] = (
                int(loads(launch, programs)[0])
            )
        return tuple(Number(name, count, "", "predicted") for name, count in counts.items())


class TimelinePanel(Panel):
    """The launch in measured time: a Gantt chart by SM."""

    layout = """
<div id="timeline-row" class="row">{{ button("record-timeline", "Record a timeline") }}</div>
{{ slot("timeline") }}
<div id="timeline-picture" class="row picture">
{{ plot("gantt-plot", "When and on which SM each program ran", headline="timeline") }}
</div>
<div class="row">{{ button("save-trace", "Save for Perfetto", is_enabled=false) }}</div>
"""
    actions: Mapping[str, Action] = {"record-timeline": "timeline", "save-trace": _save_trace}
    endpoints = (
        reply_endpoint("timeline", Api.reply_measured, timeline_json, measurement="timeline"),
        reply_endpoint("trace", Api.reply_measured, trace_reply, measurement="timeline"),
    )

    def draw(self, snapshot: Snapshot) -> Slots:
        timeline = snapshot.result(Timeline)
        state = snapshot.state
        if timeline is None:
            hint = text.timeline_hint(state)
            return {"timeline": hint, "gantt-plot": NONE, "save-trace": DISABLED}
        schedule = snapshot.schedule
        lead, *rest = text.timeline_sentences(timeline, schedule)
        revision = f"{query(state.experiment.to_address())} {timeline.backend} {timeline.span_ns}"
        about = picture_caption(state.experiment, state.gpu.name, source(timeline.backend))
        chart = figures.gantt_figure(timeline, schedule)
        return {
            "timeline": prose.lead(lead) + prose.lead(*rest),
            "gantt-plot": plot_value(chart, revision, about=about),
            "save-trace": ENABLED,
        }


class DramReadsPanel(Panel):
    """DRAM traffic, and the effect of GROUP_SIZE on it."""

    # "dram-reads-instead" replaces the plots of a launch with one value of GROUP_SIZE, or none.
    layout = """
{{ slot("dram-reads-headline") }}
<div class="row picture">
{{ plot("dram-reads-plot", "Bytes read from DRAM by GROUP_SIZE, predicted and counted") }}
{{ plot("times-plot", "Time by GROUP_SIZE", headline="dram-reads-headline") }}
{{ slot("dram-reads-instead") }}
</div>
<div class="row">{{ button("compare-sizes", "Count and time every GROUP_SIZE") }}</div>
{% call fold("dram-reads-numbers", "Predicted and counted in numbers, and what is assumed") %}
{{ slot("dram-reads-stages") }}{{ slot("dram-reads-tables") }}
{% endcall %}
"""
    actions: Mapping[str, Action] = {"compare-sizes": "reuse"}
    endpoints = (
        reply_endpoint(
            "reuse", Api.reply_compiled, reuse_json, allow_failure=True, seconds=_predict_seconds
        ),
    )

    def seconds(self, snapshot: Snapshot) -> float:
        return _predict_seconds(snapshot)

    def draw(self, snapshot: Snapshot) -> Slots:
        state = snapshot.state
        traffic = dram_traffic(snapshot)
        counted = traffic.source("counted")
        timed = traffic.source("measured")

        def value(figure: Json, *sources: str) -> str:
            about = picture_caption(state.experiment, state.gpu.name, *sources)
            return plot_value(figure, f"{state.kernel.id} {traffic.schedule.extents}", about=about)

        reads = times = NONE
        if traffic.group_size and len(traffic.sizes) > 1:
            own = min(traffic.group_size, traffic.schedule.extents[0])
            rows = traffic.study.rows if traffic.study else ()
            sources = ("predicted", counted) if rows else ("predicted",)
            reads = value(figures.bytes_figure(traffic.sizes, rows, own, counted), *sources)
            if rows:
                times = value(figures.times_figure(rows, traffic.reference, own, timed), timed)
        stages = dram_reads.stages_table(traffic)
        failure = snapshot.failure.message if snapshot.failure else ""
        larger = larger_preset(
            state.kernel, "dram-reads", "Open a size at which GROUP_SIZE matters."
        )
        tables = Markup('<div class="row">{}{}</div>').format(
            dram_reads.study_table(traffic), dram_reads.model_notes(traffic)
        )
        return {
            "dram-reads-headline": dram_reads.dram_reads_headline(
                traffic, failure, Link("Result", state.link(tab="result")), larger
            ),
            "dram-reads-plot": reads,
            "times-plot": times,
            "dram-reads-instead": stages if reads == NONE else "",
            "dram-reads-stages": stages if reads != NONE else "",
            "dram-reads-tables": tables,
        }

    def summary(self, snapshot: Snapshot) -> tuple[Number, ...]:
        traffic = dram_traffic(snapshot)
        numbers = [Number("DRAM reads", traffic.own.read_bytes, "bytes", "predicted")]
        if traffic.row and (counted := traffic.row.read_bytes):
            numbers.append(
                Number("DRAM reads, counted", counted, "bytes", traffic.source("counted"))
            )
        return tuple(numbers)
