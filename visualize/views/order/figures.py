"""Charts of the Order view, as Plotly data and layout: DRAM reads, time, and the timeline, also as a Chrome trace.

Perfetto and chrome://tracing open such traces. Source of the format: Google's "Trace Event Format", complete events
("X") and metadata events ("M").
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tilescope.declare.experiment import Json, launch_of
from tilescope.declare.gpus import Gpu
from tilescope.numbers import count_noun, source
from tilescope.results import GroupSizeRow, Timeline
from tilescope.results.counters import assign_slots
from visualize.predict.reuse import Reuse
from visualize.predict.schedule import Schedule
from visualize.views import theme
from visualize.views.theme import Figure, note, scatter

# Colours of pids, first to last. Each is one filled shape.
_SHADES = 16

# The arrow to the last wave.
_ARROW = {"showarrow": True, "arrowwidth": 2, "arrowhead": 2, "arrowcolor": theme.WRONG}


def bytes_figure(
    predicted: Mapping[int, Reuse], rows: Sequence[GroupSizeRow], own: int, source: str
) -> Figure:
    """Plot bytes read from DRAM by GROUP_SIZE, on logarithmic axes: a predicted line with a band, and counted points.

    The band covers an L2 that keeps an eighth more or a tenth less, and programs in lockstep. Error bars span the
    smallest to the largest count.

    Args:
        rows: counts.
        own: the launch's GROUP_SIZE.
        source: "counted" or "recorded".
    """
    sizes = list(predicted)
    reuses = list(predicted.values())
    least = [min(each.low_bytes, each.lockstep_bytes) for each in reuses]
    most = [max(each.high_bytes, each.lockstep_bytes) for each in reuses]
    reads = [each.read_bytes for each in reuses]
    counts = {
        row.group_size: np.quantile(row.dram_read_bytes, (0, 0.5, 1))
        for row in rows
        if row.dram_read_bytes
    }
    compulsory = reuses[0].compulsory_bytes
    values = np.concatenate([[compulsory], least, most, *counts.values()])
    hover = "GROUP_SIZE %{x}: %{y:.3s}B predicted<extra></extra>"
    band: Figure = {"line": {"width": 0}, "fill": "toself", "fillcolor": "rgba(91,108,230,0.18)"}
    traces = [
        scatter("uncertainty", sizes + sizes[::-1], least + most[::-1], **band, hoverinfo="skip"),
        scatter("predicted", sizes, reads, line={"color": theme.MODEL}, hovertemplate=hover),
        *([_points(counts, source, "%{y:.4s}B")] if counts else []),
        _least_line(sizes, compulsory),
    ]
    axis = _bytes_axis(float(values.min()), float(values.max()))
    return theme.figure(
        "DRAM reads by GROUP_SIZE", traces, yaxis=axis, **_group_size_layout(sizes[-1], own)
    )


def _least_line(sizes: Sequence[int], compulsory: int) -> Figure:
    text = "each input once"
    return scatter(
        text, [sizes[0], sizes[-1]], [compulsory] * 2, "lines+markers+text",
        line={"dash": "dot", "color": theme.CATEGORIES[7]}, marker={"size": 8, "opacity": 0},
        text=["", text], textposition="bottom left", cliponaxis=False, showlegend=False, hoverinfo="y",
    )  # fmt: skip


def _bytes_axis(low: float, high: float) -> Figure:
    # Of every decade, as a pinned figure may extend the axis.
    steps = (1, 2, 5) if high > 20 * low else (1, 1.5, 2, 3, 5, 7)
    ticks = [step * 10**decade for decade in range(15) for step in steps]
    above = next(tick for tick in ticks if tick >= high)
    # The axis spans at least a factor of three, so that small differences look small.
    ends = min(math.sqrt(low * high / 3), low / 1.6), max(math.sqrt(low * high * 3), above)
    # Of a logarithmic axis, Plotly takes these two as logarithms; of `include`, it would heed the upper end alone.
    limits = dict(zip(("minallowed", "maxallowed"), map(math.log10, ends), strict=True))
    return theme.axis(
        "bytes read from DRAM (log scale)", automargin=True, type="log", tickformat="~s",
        tickvals=ticks, autorangeoptions=limits,
    )  # fmt: skip


def times_figure(
    rows: Sequence[GroupSizeRow], reference: GroupSizeRow, own: int, source: str
) -> Figure:
    """Plot time by GROUP_SIZE relative to a reference: medians, with bars from the 20th to the 80th percentile.

    Args:
        rows: times.
        own: the launch's GROUP_SIZE.
        source: "measured" or "recorded".
    """
    times = {
        row.group_size: np.quantile(np.divide(row.times_ms, reference.times_ms), (0.2, 0.5, 0.8))
        for row in rows
    }
    title = f"time relative to GROUP_SIZE {reference.group_size}, p20 to p80"
    axis = theme.axis(title, automargin=True, rangemode="tozero")
    return theme.figure(
        "Time by GROUP_SIZE",
        [_points(times, source, "%{y:.3f} ×")],
        yaxis=axis,
        **_group_size_layout(rows[-1].group_size or 1, own),
    )


def _points(spread: Mapping[int | None, np.ndarray], name: str, value: str) -> Figure:
    """Draw the low, middle and high value of each GROUP_SIZE as points with error bars."""
    low, middle, high = np.transpose(list(spread.values()))
    bars = {"type": "data", "symmetric": False, "array": high - middle, "arrayminus": middle - low}
    hover = f"GROUP_SIZE %{{x}}: {value} {name}<extra></extra>"
    marker = {"color": theme.HARDWARE, "size": 9}
    return scatter(
        name, list(spread), middle, "markers", error_y=bars, marker=marker, hovertemplate=hover
    )


def _group_size_layout(last: int, own: int) -> Figure:
    powers = [1 << exponent for exponent in range(last.bit_length())]
    # On a logarithmic axis, annotations are positioned by the logarithm, but shapes are not.
    label = note(
        f"GROUP_SIZE {own}", math.log10(own), 0, yref="paper", xanchor="left", yanchor="bottom"
    )
    return {
        "xaxis": theme.axis(
            "GROUP_SIZE (rows of tiles)", type="log", tickvals=powers, ticktext=powers
        ),
        "legend": theme.LEGEND,
        "margin": {"t": 84},
        "shapes": [theme.vertical(own, {"color": theme.WRONG, "width": 1}, yref="paper")],
        "annotations": [label],
    }


def gantt_figure(timeline: Timeline, schedule: Schedule) -> Figure:
    """Plot every program as a bar, coloured by its pid: SMs down, each with a row per program slot.

    All bars of a colour are one filled shape of five points per bar, the last one a gap, which draws thousands of bars
    quickly. `customdata` has a column per bar: see `_bar_values`.
    """
    from plotly.colors import sample_colorscale  # a report in a file draws no timeline

    shade = np.arange(schedule.programs) * _SHADES // schedule.programs
    palette = sample_colorscale(theme.SEQUENCE, _SHADES)
    x, y = _bar_corners(timeline)
    values = _bar_values(schedule)
    traces = []
    for number in np.unique(shade):
        mine = shade == number
        style = {"fill": "toself", "hoverinfo": "skip", "fillcolor": palette[number]}
        about = theme.smallest(values[:, mine])
        traces.append(
            scatter("", x[mine].ravel(), y[mine].ravel(), "none", customdata=about, **style)
        )
    sms = max(schedule.sms, max(timeline.sm) + 1)
    has_tail = schedule.tail_programs and schedule.waves > 1 and schedule.turns == 1
    return theme.figure(
        f"{count_noun(schedule.programs, 'program')}, coloured by pid, blue to yellow",
        traces,
        **(_tail_marks(timeline, schedule, sms) if has_tail else {}),
        meta={"gantt": {"waves": schedule.waves, "slices": schedule.slices}},
        height=470,
        hovermode=False,
        xaxis=theme.axis("time from the first start (µs)", range=[0, timeline.span_ns / 1000]),
        yaxis=theme.axis("SM", range=[sms - 0.5, -0.5], tick0=0, dtick=max(1, -(-sms // 100) * 10)),
    )


def _bar_corners(timeline: Timeline) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners of each program's bar, and a gap: (programs, 5) µs and SMs."""
    sm = np.array(timeline.sm)
    slot = np.array(assign_slots(timeline.sm, timeline.start_ns, timeline.end_ns))
    height = 0.92 / (int(slot.max()) + 1)
    # Multiples of 1/64 have few digits, which halves the bytes to send.
    top, bottom = (sm + np.round(64 * ((slot + edge) * height - 0.46)) / 64 for edge in (0, 1))
    start = np.array(timeline.start_ns) / 1000
    end = np.array(timeline.end_ns) / 1000
    gap = np.full(len(sm), np.nan)
    x = np.stack([start, end, end, start, gap], axis=1).astype(np.float32)
    y = np.stack([top, top, bottom, bottom, gap], axis=1).astype(np.float32)
    return x, y


def _bar_values(schedule: Schedule) -> np.ndarray:
    """Return each program's pid; pid_m, pid_n and slice of its first tile; its wave; its tiles: (6, programs)."""
    pids = np.arange(schedule.programs)
    tiles = schedule.tiles
    first = np.searchsorted(tiles.program, pids)
    wave = pids // schedule.resident_programs
    count = np.bincount(tiles.program, minlength=schedule.programs)
    return np.stack([pids, tiles.pid_m[first], tiles.pid_n[first], tiles.pid_k[first], wave, count])


def _tail_marks(timeline: Timeline, schedule: Schedule, sms: int) -> Figure:
    """Return a band over the time of the last wave, and a note with an arrow to it."""
    tail = slice(schedule.programs - schedule.tail_programs, None)
    start = np.array(timeline.start_ns)[tail] / 1000
    end = np.array(timeline.end_ns)[tail] / 1000
    sm = np.array(timeline.sm)[tail]
    left = float(start.min())
    right = float(end.max())
    row = float(sm.mean())
    late = count_noun(schedule.tail_programs, "program")
    text = f"last wave: {late}<br>{sms - len(np.unique(sm)):,} of {sms:,} SMs are idle"
    arrow = {**_ARROW, "ax": 0, "ay": -60 if row > sms / 2 else 60}
    if right - left < 0.3 * timeline.span_ns / 1000:  # over the bars: no room at its right
        arrow |= {"xanchor": "right", "bgcolor": "#ffffff", "font": {"color": "#111827"}}
    fill = {"fillcolor": theme.WRONG, "opacity": 0.14, "line": {"width": 0}}
    ends = {"xref": "x", "x0": left, "x1": right, "yref": "paper", "y0": 0, "y1": 1}
    shapes: list[Figure] = [{"type": "rect", **ends, **fill}]
    if schedule.tail_programs <= 4:  # their bars may be two pixels high
        line = {"type": "line", "line": {"color": theme.WRONG, "width": 7}}
        shapes += [
            {**line, "x0": first, "x1": last, "y0": at, "y1": at}
            for first, last, at in zip(start, end, sm.astype(float), strict=True)
        ]
    return {"shapes": shapes, "annotations": [note(text, (left + right) / 2, row, **arrow)]}


def chrome_trace(timeline: Timeline, gpu: Gpu) -> Json:
    """Return a trace with one event per program: its SM and slot, start and duration in µs, and tiles.

    The GPU reports only the SM, so slots are assigned: each program takes the lowest free slot when it starts. Programs
    on the same track therefore never overlap.

    Args:
        gpu: the GPU that ran the launch. A persistent kernel's tiles depend on it.
    """
    kernel, launch = launch_of(timeline.experiment, gpu)
    assigned = vars(kernel.tiles(np.arange(len(timeline.sm)), launch))
    tiles: list[list[dict[str, int]]] = [[] for _ in timeline.sm]
    for values in np.transpose([*assigned.values()]).tolist():
        tile = dict(zip(assigned, values, strict=True))
        tiles[tile.pop("program")].append(tile)
    slots = assign_slots(timeline.sm, timeline.start_ns, timeline.end_ns)
    events = list(_name_tracks(timeline.sm, slots))
    programs = zip(timeline.sm, slots, timeline.start_ns, timeline.end_ns, tiles, strict=True)
    for pid, (sm, slot, start, end, computed) in enumerate(programs):
        first = computed[0]
        more = f" +{len(computed) - 1}" if len(computed) > 1 else ""
        name = f"pid {pid} ({first['pid_m']}, {first['pid_n']}){more}"
        where = {"name": name, "cat": "program", "ph": "X", "pid": sm, "tid": slot}
        when = {"ts": start / 1000, "dur": (end - start) / 1000}
        events.append({**where, **when, "args": {"program": pid, "tiles": computed}})
    about = {
        "experiment": timeline.experiment.to_json(),
        "kernel": kernel.title,
        "gpu": gpu.name,
        "source": source(timeline.backend),
        "slots": "counted",
    }
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}


def _name_tracks(sms: Sequence[int], slots: Sequence[int]) -> Iterator[Json]:
    """Yield the names and the order of SMs, and the names of their slots."""

    def describe(kind: str, sm: int, slot: int, **value: object) -> Json:
        return {"name": kind, "ph": "M", "pid": sm, "tid": slot, "args": value}

    for sm in sorted(set(sms)):
        yield describe("process_name", sm, 0, name=f"SM {sm}")
        yield describe("process_sort_index", sm, 0, sort_index=sm)
    for sm, slot in sorted(set(zip(sms, slots, strict=True))):
        yield describe("thread_name", sm, slot, name=f"slot {slot}")
