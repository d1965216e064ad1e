"""Charts of the Order view, as Plotly data and layout: loaded blocks, DRAM reads, time, and the timeline."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilescope.numbers import count_noun, join_names
from tilescope.results import GroupSizeRow
from visualize.predict.execution import Execution
from visualize.predict.reuse import Reuse
from visualize.predict.schedule import Schedule, loads
from visualize.views import theme
from visualize.views.order.map_figure import MOST_CELLS, Order

# Maximum number of points of the curve of loads: a screen cannot resolve more.
_CURVE_POINTS = 400

# Colour, dash and the position of the label, of this order and of the one to compare.
_ORDER_STYLES = (
    (theme.CATEGORIES[0], "solid", "bottom right"),
    (theme.CATEGORIES[1], "dash", "top left"),
)

# Colours of pids, first to last. Each is one filled shape.
_SHADES = 16

_BAR = {"fill": "toself", "hoverinfo": "skip"}
_COLORED_BY = {"order": "pid, blue to yellow", "group": "group", "wave": "ideal wave"}

Figure = dict[str, Any]
Times = tuple[np.ndarray, np.ndarray]


def loads_figure(orders: Sequence[Order], first: int) -> Figure:
    """Plot the distinct blocks of panels that the first n programs (or tiles of a loop) of each order load.

    Args:
        orders: this order and the one to compare, with panels.
        first: the marked n.
    """
    unit = f"{orders[0].unit}s"
    panels = orders[0].schedule.panels or ()
    programs = orders[0].steps.timed.programs
    counts = np.arange(1, programs + 1)
    if programs > _CURVE_POINTS:
        counts = np.unique(
            np.append(np.geomspace(1, programs, _CURVE_POINTS).round().astype(np.int64), first)
        )
    traces = []
    curves = [loads(order.steps.timed, counts) for order in orders]
    for order, blocks, (color, dash, place) in zip(orders, curves, _ORDER_STYLES, strict=True):
        line = {"color": color, "width": 2.5, "dash": dash}
        marker = {"size": np.where(counts == first, 9, 0)}
        text = [
            f"{value:,}" if count == first else ""
            for count, value in zip(counts, blocks, strict=True)
        ]
        hover = {"hovertemplate": f"{order.name}: %{{y:,}} blocks<extra></extra>"}
        labels = {"line": line, "marker": marker, "text": text, "textposition": place, **hover}
        traces.append(_scatter(order.name, counts, blocks, "lines+markers+text", **labels))
    log = {"type": "log", "tickformat": ",d", "exponentformat": "none"}
    title = {"text": f"distinct blocks of {join_names(panels)}"}
    dtick = 1 if np.max(curves) > 300 * np.min(curves) else "D2"
    layout = theme.layout(
        f"Distinct blocks that the first n {unit} load",
        height=330,
        showlegend=True,
        legend={
            "x": 0.99,
            "xanchor": "right",
            "y": 0.03,
            "yanchor": "bottom",
            "bgcolor": theme.NOTHING,
        },
        hovermode="x unified",
        margin={"l": 70, "r": 10, "t": 34, "b": 44},
        xaxis={"title": {"text": f"n ({unit}, in start order)"}, **log, "dtick": 1},
        yaxis={"title": title, "automargin": True, **log, "dtick": dtick},
    )
    return {"data": traces, "layout": layout}


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
    counts = {
        row.group_size: np.quantile(row.dram_read_bytes, (0, 0.5, 1))
        for row in rows
        if row.dram_read_bytes
    }
    compulsory = reuses[0].compulsory_bytes
    reads = [each.read_bytes for each in reuses]
    values = np.concatenate([[compulsory], least, most, *counts.values()])
    low, high = float(values.min()), float(values.max())
    band: Figure = {
        "line": {"width": 0},
        "fill": "toself",
        "fillcolor": "rgba(91,108,230,0.18)",
        "hoverinfo": "skip",
    }
    hover = "GROUP_SIZE %{x}: %{y:.3s}B predicted<extra></extra>"
    dots = {"dash": "dot", "color": theme.CATEGORIES[7]}
    apart = {
        "marker": {"size": 8, "opacity": 0},
        "textposition": "bottom left",
        "cliponaxis": False,
    }
    once = {"text": ["", "each input once"], **apart, "showlegend": False, "hoverinfo": "y"}
    traces = [
        _scatter("uncertainty", sizes + sizes[::-1], least + most[::-1], **band),
        _scatter("predicted", sizes, reads, line={"color": theme.MODEL}, hovertemplate=hover),
        *([_points(counts, source, "%{y:.4s}B")] if counts else []),
        _scatter(
            "each input once",
            [sizes[0], sizes[-1]],
            [compulsory] * 2,
            "lines+markers+text",
            line=dots,
            **once,
        ),
    ]
    # Of every decade, as a pinned figure may extend the axis.
    steps = (1, 2, 5) if high > 20 * low else (1, 1.5, 2, 3, 5, 7)
    ticks = [step * 10**decade for decade in range(15) for step in steps]
    above = next(tick for tick in ticks if tick >= high)
    # The axis spans at least a factor of three, so that small differences look small.
    span = {
        "include": [
            min(math.sqrt(low * high / 3), low / 1.6),
            max(math.sqrt(low * high * 3), above),
        ]
    }
    axis = {"type": "log", "tickformat": "~s", "tickvals": ticks, "autorangeoptions": span}
    layout = _group_size_layout(
        "DRAM reads by GROUP_SIZE", "bytes read from DRAM (log scale)", axis, sizes[-1], own
    )
    return {"data": traces, "layout": layout}


def times_figure(rows: Sequence[GroupSizeRow], own: int, source: str) -> Figure:
    """Plot milliseconds by GROUP_SIZE: medians, with bars from the 20th to the 80th percentile.

    Args:
        rows: times.
        own: the launch's GROUP_SIZE.
        source: "measured" or "recorded".
    """
    times = {row.group_size: np.quantile(row.times_ms, (0.2, 0.5, 0.8)) for row in rows}
    axis = {"rangemode": "tozero"}
    unit = "ms, median and p20 to p80"
    layout = _group_size_layout("Time by GROUP_SIZE", unit, axis, rows[-1].group_size or 1, own)
    return {"data": [_points(times, source, "%{y:.3f} ms")], "layout": layout}


def _scatter(name: str, x: Any, y: Any, mode: str = "lines", **style: Any) -> dict[str, Any]:
    return {"type": "scatter", "mode": mode, "name": name, "x": x, "y": y, **style}


def _points(spread: Mapping[int | None, np.ndarray], name: str, value: str) -> dict[str, Any]:
    """Draw the low, middle and high value of each GROUP_SIZE as points with error bars."""
    low, middle, high = np.transpose(list(spread.values()))
    bars = {"type": "data", "symmetric": False, "array": high - middle, "arrayminus": middle - low}
    hover = f"GROUP_SIZE %{{x}}: {value} {name}<extra></extra>"
    marker = {"color": theme.HARDWARE, "size": 9}
    return _scatter(
        name, list(spread), middle, "markers", error_y=bars, marker=marker, hovertemplate=hover
    )


def _group_size_layout(
    title: str, unit: str, axis: dict[str, Any], last: int, own: int
) -> dict[str, Any]:
    powers = [1 << exponent for exponent in range(last.bit_length())]
    line = {"type": "line", "x0": own, "x1": own, "y0": 0, "y1": 1, "yref": "paper"}
    # On a logarithmic axis, annotations are positioned by the logarithm, but shapes are not.
    label = {
        "text": f"GROUP_SIZE {own}",
        "x": math.log10(own),
        "y": 0.12,
        "yref": "paper",
        "xanchor": "left",
    }
    return theme.layout(
        title,
        xaxis={
            "title": {"text": "GROUP_SIZE (rows of tiles)"},
            "type": "log",
            "tickvals": powers,
            "ticktext": powers,
        },
        yaxis={"title": {"text": unit}, "automargin": True, **axis},
        showlegend=True,
        legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0.5, "xanchor": "center"},
        margin={"l": 60, "r": 10, "t": 84, "b": 48},
        shapes=[{**line, "line": {"color": theme.WRONG, "width": 1}}],
        annotations=[{**label, "showarrow": False}],
    )


def gantt_figure(execution: Execution, schedule: Schedule, color: str) -> Figure:
    """Plot every program as a bar: SMs down, each with a row per program slot.

    All bars of a colour are one filled shape of five points per bar, the last one a gap, which draws thousands of bars
    quickly. `customdata` has a column per bar: pid; pid_m, pid_n and slice of its first tile; its wave; its tiles.

    Args:
        color: "order", "group" or "wave"; "sm", which the rows show, is replaced by "wave".
    """
    color = color if color in _COLORED_BY else "wave"
    pids = np.arange(schedule.programs)
    tiles = schedule.tiles
    shades = len(theme.CATEGORIES)
    first = np.searchsorted(tiles.program, pids)
    wave = pids // schedule.resident_programs
    count = np.bincount(tiles.program, minlength=schedule.programs)
    hover = np.stack(
        [pids, tiles.pid_m[first], tiles.pid_n[first], tiles.pid_k[first], wave, count]
    )
    if color == "order":
        shade = pids * _SHADES // schedule.programs
        from plotly.colors import sample_colorscale  # a report in a file draws no timeline

        palette = sample_colorscale(theme.SEQUENCE, _SHADES)
    else:
        shade = (tiles.group[first] if color == "group" else wave) % shades
        palette = theme.CATEGORIES
    gap = np.full(schedule.programs, np.nan)
    height = 0.92 / int(execution.max_concurrency.max())
    # Multiples of 1/64 have few digits, which halves the bytes to send.
    top, bottom = (
        execution.sm + np.round(64 * ((execution.slot + edge) * height - 0.46)) / 64
        for edge in (0, 1)
    )
    start = execution.start_ns / 1000
    end = execution.end_ns / 1000
    x = np.stack([start, end, end, start, gap], axis=1).astype(np.float32)
    y = np.stack([top, top, bottom, bottom, gap], axis=1).astype(np.float32)
    traces = [
        _scatter(
            "",
            x[mine].ravel(),
            y[mine].ravel(),
            "none",
            customdata=theme.smallest(hover[:, mine]),
            **style,
        )
        for mine, style in (
            (shade == value, {**_BAR, "fillcolor": palette[value]}) for value in np.unique(shade)
        )
    ]
    sms = len(execution.max_concurrency)
    marks: Figure = {}
    if schedule.tail_programs and schedule.waves > 1 and schedule.turns == 1:
        tail = wave == wave[-1]
        left, right = float(start[tail].min()), float(end[tail].max())
        late = count_noun(schedule.tail_programs, "program")
        free = sms - len(np.unique(execution.sm[tail]))
        text = f"last wave: {late}<br>{free:,} of {sms:,} SMs are idle"
        band = {
            "type": "rect",
            "xref": "x",
            "x0": left,
            "x1": right,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
        }
        row = float(execution.sm[tail].mean())
        pointer = {"x": (left + right) / 2, "y": row, "text": text, "ax": 0}
        if (
            right - left < 0.3 * execution.span_ns / 1000
        ):  # over the bars, as there is no room at its right
            pointer |= {"xanchor": "right", "bgcolor": "#ffffff", "font": {"color": "#111827"}}
        above = -60 if row > sms / 2 else 60
        style = {"showarrow": True, "arrowwidth": 2, "arrowhead": 2, "arrowcolor": theme.WRONG}
        marks["shapes"] = [
            {**band, "fillcolor": theme.WRONG, "opacity": 0.14, "line": {"width": 0}}
        ]
        if schedule.tail_programs <= 4:  # their bars may be two pixels high
            bar = {"type": "line", "line": {"color": theme.WRONG, "width": 7}}
            ends = np.stack([start, end, execution.sm, execution.sm], axis=1)[tail]
            marks["shapes"] += [
                bar | dict(zip(("x0", "x1", "y0", "y1"), each, strict=True)) for each in ends
            ]
        marks["annotations"] = [{**pointer, "ay": above, **style}]
    layout = theme.layout(
        f"{count_noun(schedule.programs, 'program')}, coloured by {_COLORED_BY[color]}",
        **marks,
        meta={
            "gantt": {
                "span_ns": execution.span_ns,
                "waves": schedule.waves,
                "slices": schedule.slices,
            }
        },
        height=470,
        hovermode=False,
        xaxis={
            "title": {"text": "time from the first start (µs)"},
            "range": [0, execution.span_ns / 1000],
        },
        yaxis={
            "title": {"text": "SM"},
            "range": [sms - 0.5, -0.5],
            "tick0": 0,
            "dtick": max(1, -(-sms // 100) * 10),
        },
    )
    return {"data": traces, "layout": layout}


def moment_figure(
    schedule: Schedule, title: str, times_ns: Times, ideal: tuple[str, np.ndarray] | None = None
) -> Figure:
    """Return a map of tiles, pid_m down and pid_n across, which the page draws at any time.

    Its `meta` has the cell, start and end of every tile.

    Args:
        times_ns: start and end of each entry of the schedule's tiles.
        ideal: for ideal times, the unit of a step, and the start of each step and the last end: (steps + 1,).
    """
    (begun_ns, done_ns) = times_ns
    (down, across) = (-(-extent // MOST_CELLS) for extent in schedule.extents)
    rows, columns = -(-schedule.extents[0] // down), -(-schedule.extents[1] // across)
    moments: Figure = {
        "cell": theme.smallest(
            schedule.tiles.pid_m // down * columns + schedule.tiles.pid_n // across
        ),
        "columns": columns,
        "unit": "program" if schedule.turns == 1 else "tile",
        "begun_ns": begun_ns.astype(np.uint32),
        "done_ns": done_ns.astype(np.uint32),
        "span_ns": int(done_ns.max()),
    }
    if ideal:
        moments |= {"name": ideal[0], "clock": ideal[1].astype(np.uint32)}
    cells = {
        "type": "heatmap", "z": np.zeros((rows, columns), dtype=np.uint8), "zmin": 0, "zmax": 2, "showscale": False,
        "dx": across, "dy": down, "xgap": int(columns <= 64), "ygap": int(rows <= 64), "colorscale": theme.STEP_SCALE,
        "hovertemplate": "pid_m %{y}, pid_n %{x}<extra></extra>",
    }  # fmt: skip
    axes = theme.matrix_axes("pid_m (tile rows)", "pid_n (tile columns)", (0, 0), schedule.extents)
    above = {
        "x": 0.5,
        "xref": "paper",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "yshift": 1,
        "showarrow": False,
    }
    layout = theme.layout(
        title,
        height=350,
        margin={"l": 72, "r": 10, "t": 52, "b": 44},
        annotations=[{"text": "", "font": {"size": 13}, **above}],
        meta={"moments": moments},
        **axes,
    )
    return {"data": [cells], "layout": layout}
