"""A sweep's pictures: time over two knobs, time against its prediction, how fast it converged, and all knobs at once.

Points carry the place of their row in the sweep as customdata; what each says is laid over them by the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kernels.results import Sweep, SweepRow
from visualize.predict.launch_time import expected_best
from visualize.views import theme

_HOVER = "%{text}<extra></extra>"
# Cells of a heatmap up to which each has its number written into it.
_NUMBERED = 120
# Lines by rank: which share of all, from the fastest, has which name and colour.
_GROUPS = ((0.2, "fastest fifth", theme.HARDWARE), (0.4, "second fifth", theme.REUSED), (1.0, "others", theme.BORDER))
_LEGEND = {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "bgcolor": theme.NOTHING}
# Room above for the title and, on a phone, two rows of the legend.
_MARGIN = {"l": 70, "r": 12, "t": 72, "b": 48}
# Times beside the last axis of the parallel picture.
_ENDS = 74
# Points up to which they are large.
_LARGE = 150


def time_ms(row: SweepRow, is_timed: bool) -> float:
    """What a row is ranked by: its measured median, or the predicted time where the sweep has no times; else NaN."""
    if is_timed:
        return row.median_ms if row.status == "timed" and row.median_ms else math.nan
    return row.predicted.ms if row.is_right and row.predicted else math.nan


def _times(sweep: Sweep) -> np.ndarray:
    return np.array([time_ms(row, sweep.is_timed) for row in sweep.rows])


def _ms(sweep: Sweep) -> str:
    return f"ms, {sweep.source}"


def heatmap_figure(sweep: Sweep, across: str, up: str) -> go.Figure:
    """The fastest time of each pair of two knobs' values, whatever the others are. A cell without one is empty.

    Args:
        across, up: varied knobs; the same one twice makes one row of cells.
    """
    columns, rows = _values(sweep, across), _values(sweep, up) if up != across else ("",)
    fastest = np.full((len(rows), len(columns)), np.nan)
    place = np.zeros(fastest.shape, dtype=np.uint32)
    met = np.zeros(fastest.shape, dtype=bool)
    for number, (row, ms) in enumerate(zip(sweep.rows, _times(sweep), strict=True)):
        config = row.experiment.config
        cell = (rows.index(getattr(config, up)) if up != across else 0, columns.index(getattr(config, across)))
        if not met[cell] or (math.isfinite(ms) and not fastest[cell] <= ms):
            met[cell], place[cell] = True, number
        if math.isfinite(ms) and not fastest[cell] <= ms:
            fastest[cell] = ms
    numbers = {"texttemplate": "%{z:.4~g}"} if fastest.size <= _NUMBERED else {}
    trace = go.Heatmap(
        z=fastest, x=[str(one) for one in columns], y=[str(one) for one in rows], customdata=place,
        colorscale=theme.SEQUENCE, reversescale=True, xgap=2, ygap=2, hovertemplate=_HOVER,
        colorbar=theme.colorbar(_ms(sweep)), zmin=0 if _are_equal(fastest) else None,
        zmax=float(np.nanmax(fastest)) if _are_equal(fastest) else None, **numbers,
    )  # fmt: skip
    title = f"Fastest of each {across} and {up}" if up != across else f"Fastest of each {across}"
    category = {"type": "category", "showgrid": False}
    return go.Figure(
        trace,
        theme.layout(
            title,
            xaxis={**category, "title": {"text": across}},
            yaxis={**category, "title": {"text": up if up != across else ""}, "automargin": True},
        ),
    )


def _values(sweep: Sweep, knob: str) -> tuple[int | str, ...]:
    return dict(sweep.space.varied)[knob]


def bound_figure(sweep: Sweep) -> go.Figure:
    """Measured time over predicted time, both logarithmic: on the diagonal the model is right, far above it, wrong.

    Colours say which resource is predicted to take the longest. Needs a sweep with times.
    """
    timed = [(n, row) for n, row in enumerate(sweep.rows) if row.status == "timed" and row.predicted and row.median_ms]
    measured = _reach([row.median_ms for _, row in timed if row.median_ms])
    foreseen = _reach([row.predicted.ms for _, row in timed if row.predicted])
    low, high = min(measured[0], foreseen[0]), max(measured[1], foreseen[1])
    resources = sorted({row.predicted.resource for _, row in timed if row.predicted})
    size = 8 if len(timed) <= _LARGE else 6
    traces = [_points([one for one in timed if one[1].predicted.resource == name], name, place, size)  # type: ignore[union-attr]
              for place, name in enumerate(resources)]  # fmt: skip
    line = {"color": theme.MODEL, "width": 1.5}
    corner = math.log10(min(measured[1], foreseen[1]))
    equal = {"x": corner, "y": corner, "text": "as predicted", "showarrow": False, "xanchor": "right",
             "yanchor": "bottom", "xshift": -18, "yshift": -6}  # fmt: skip
    return go.Figure(
        traces,
        theme.layout(
            "Time of each config against its prediction",
            xaxis={**_log(foreseen), "title": {"text": "ms, predicted"}},
            yaxis={**_log(measured), "title": {"text": _ms(sweep)}},
            shapes=[{"type": "line", "x0": low, "y0": low, "x1": high, "y1": high, "line": line, "layer": "below"}],
            annotations=[equal], showlegend=True, legend=_LEGEND, hovermode="closest", margin=_MARGIN,
        ),
    )  # fmt: skip


def _reach(times_ms: Sequence[float]) -> tuple[float, float]:
    """The range of an axis of times."""
    return (min(times_ms) / 1.1, max(times_ms) * 1.1) if times_ms else (0.1, 1.0)


def _log(reach: tuple[float, float]) -> dict[str, Any]:
    return {"type": "log", "range": [math.log10(one) for one in reach], "automargin": True}


def _points(timed: Sequence[tuple[int, SweepRow]], name: str, place: int, size: int) -> go.Scatter:
    return go.Scatter(
        x=np.array([row.predicted.ms for _, row in timed if row.predicted]),
        y=np.array([row.median_ms for _, row in timed]),
        customdata=np.array([number for number, _ in timed], dtype=np.uint32),
        mode="markers", name=name, hovertemplate=_HOVER,
        marker={"color": theme.CATEGORIES[place % len(theme.CATEGORIES)], "size": size, "opacity": 0.85},
    )  # fmt: skip


def convergence_figure(sweep: Sweep) -> go.Figure:
    """The fastest time so far over configs timed, beside what the same times would give in random order."""
    timed = sorted(
        (row.turn, number, row.median_ms)
        for number, row in enumerate(sweep.rows)
        if row.turn is not None and row.median_ms
    )
    counts = np.arange(1, len(timed) + 1, dtype=np.uint32)
    each = np.array([ms for _, _, ms in timed])
    shared: dict[str, Any] = {"x": counts}
    traces = [
        # Every point is a config: no name for it, which would take the legend a line more.
        go.Scatter(y=each, customdata=np.array([n for _, n, _ in timed], dtype=np.uint32), mode="markers",
                   name="each config", showlegend=False, marker={"color": theme.BEFORE, "size": 5, "opacity": 0.85},
                   hovertemplate=_HOVER, **shared),
        go.Scatter(y=expected_best(each), mode="lines", name="random order",
                   line={"color": theme.CATEGORIES[7], "dash": "dash", "width": 2},
                   hovertemplate="%{y:.4~g} ms after %{x} in random order<extra></extra>", **shared),
        go.Scatter(y=np.minimum.accumulate(each), mode="lines", name="fastest so far",
                   line={"color": theme.HARDWARE, "shape": "hv", "width": 3},
                   hovertemplate="%{y:.4~g} ms after %{x}<extra></extra>", **shared),
    ]  # fmt: skip
    return go.Figure(
        traces,
        theme.layout(
            "Time of each config, and the fastest so far",
            xaxis={"title": {"text": "configs timed"}, "range": [0, len(timed) + 1]},
            yaxis={"title": {"text": _ms(sweep)}, "type": "log", "automargin": True},
            showlegend=True, legend=_LEGEND, margin=_MARGIN,
        ),
    )  # fmt: skip


def parallel_figure(sweep: Sweep, max_points: int = 1500) -> go.Figure:
    """A line per config through its value of each varied knob, to its time at the right; the best is thick.

    Colours say which fifth of the ranking a config is in; the fastest are drawn last.

    Args:
        max_points: up to which each config has a whole line, with a marker at each value. Above it, configs share
            pieces: a browser draws 1,152 configs of six knobs in a third of the time.
    """
    place = {row.experiment: number for number, row in enumerate(sweep.rows)}
    ranked = [place[row.experiment] for row in sweep.ranked]
    axes = sweep.space.varied
    logs = [math.log(time_ms(row, sweep.is_timed)) for row in sweep.ranked]
    low, high = min(logs, default=0.0), max(logs, default=1.0)
    heights = np.array(
        [[*_heights(row, axes), _share(log, low, high)] for row, log in zip(sweep.ranked, logs, strict=True)]
    )
    traces = []
    for first, end, name, color in reversed(_grouped(len(ranked))):
        if heights.size <= max_points:
            traces.append(_lines(heights[first:end], ranked[first:end], color, name))
        else:
            if len(axes) > 1:
                traces.append(_shared(heights[first:end, :-1], color, name))
            traces.append(_last(heights[first:end, -2:], len(axes) - 1, ranked[first:end], color, name))
    if ranked:
        traces.append(_lines(heights[:1], ranked[:1], theme.WRONG, "best", width=4))
    ends = [theme.three_digits(math.exp(one)) for one in (low, high)] if ranked else []
    return go.Figure(
        traces,
        theme.layout(
            f"Knobs and {sweep.source} time of each config",
            xaxis={"tickvals": list(range(len(axes) + 1)), "ticktext": [name for name, _ in axes] + ["time"],
                   "range": [-0.15, len(axes) + 0.04], "showgrid": True, "automargin": True},
            yaxis={"visible": False, "range": [-0.08, 1.1]},
            annotations=_labels(axes, ends),
            showlegend=True, legend=_LEGEND, hovermode="closest", margin={**_MARGIN, "l": 20, "r": _ENDS},
        ),
    )  # fmt: skip


def _grouped(count: int) -> list[tuple[int, int, str, str]]:
    """(first, end, name, colour) of each group of `count` ranked configs; empty ones are left out."""
    ends = [math.ceil(share * count) for share, _, _ in _GROUPS]
    firsts = [0, *ends[:-1]]
    named = zip(firsts, ends, _GROUPS, strict=True)
    return [(first, end, name, color) for first, end, (_, name, color) in named if end > first]


def _heights(row: SweepRow, axes: Sequence[tuple[str, tuple[int | str, ...]]]) -> list[float]:
    return [_share(values.index(getattr(row.experiment.config, name)), 0, len(values) - 1) for name, values in axes]


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def _lines(heights: np.ndarray, places: Sequence[int], color: str, name: str, width: float = 1.2) -> go.Scatter:
    """Some configs' lines as one trace, with a gap after each, and a marker at each value.

    Args:
        places: the configs' rows in the sweep.
    """
    count, axes = heights.shape
    y = np.pad(heights, ((0, 0), (0, 1)), constant_values=np.nan).reshape(-1)
    trace = _trace(np.tile(np.arange(axes + 1), count), y, color, name, width)
    return _pointed(trace, np.repeat(places, axes + 1)).update(
        mode="lines+markers", marker={"size": 2.5 + width, "color": color}
    )


def _shared(heights: np.ndarray, color: str, name: str) -> go.Scatter:
    """The pieces between neighbouring axes that at least one config's line has, each once."""
    pieces = [np.unique(heights[:, axis : axis + 2], axis=0) for axis in range(heights.shape[1] - 1)]
    x = np.concatenate([np.tile([axis, axis + 1, axis + 2], len(some)) for axis, some in enumerate(pieces)])
    y = np.pad(np.concatenate(pieces), ((0, 0), (0, 1)), constant_values=np.nan).reshape(-1)
    return _trace(x, y, color, name).update(mode="lines", hoverinfo="skip", showlegend=False)


def _last(heights: np.ndarray, axis: int, places: Sequence[int], color: str, name: str) -> go.Scatter:
    """The pieces from a knob's axis to the times: to and fro in one line for each value of the knob.

    Args:
        heights: (configs, 2), at the knob's axis and of the time.
    """
    order = np.argsort(heights[:, 0], kind="stable")
    y, found = heights[order], np.array(places)[order]
    # Each gap is another line to Plotly, so there are gaps between the knob's values alone.
    gaps = 2 * (1 + np.flatnonzero(np.diff(y[:, 0])))
    x = np.insert(np.tile([axis, axis + 1], len(y)), gaps, axis + 2)
    trace = _trace(x, np.insert(y.reshape(-1), gaps, np.nan), color, name)
    return _pointed(trace, np.insert(np.repeat(found, 2), gaps, 0))


def _trace(x: np.ndarray, y: np.ndarray, color: str, name: str, width: float = 1.2) -> go.Scatter:
    line, opacity = {"color": color, "width": width}, 0.75 if width < 2 else 1.0
    return go.Scatter(x=x.astype(np.uint32), y=y, name=name, legendgroup=name, mode="lines", line=line, opacity=opacity)


def _pointed(trace: go.Scatter, places: np.ndarray) -> go.Scatter:
    """A trace whose points say, and lead to, a config."""
    return trace.update(customdata=places.astype(np.uint32), hovertemplate=_HOVER)


def _labels(axes: Sequence[tuple[str, tuple[int | str, ...]]], ends: Sequence[str]) -> list[dict[str, Any]]:
    """Each axis' values beside it, and the fastest and the slowest time."""
    placed = [
        (place, _share(number, 0, len(values) - 1), str(value))
        for place, (_, values) in enumerate(axes)
        for number, value in enumerate(values)
    ]
    heights = (0.0, 1.0) if len(set(ends)) > 1 else (0.5,)
    placed += [(len(axes), height, f"{end} ms") for height, end in zip(heights, ends, strict=False)]
    return [
        {"x": x, "y": y, "text": text, "showarrow": False, "xanchor": "left", "xshift": 7, "yshift": 8}
        for x, y, text in placed
    ]


def _are_equal(times_ms: np.ndarray) -> bool:
    """Whether all times are one, of which Plotly would make a scale that reaches below zero."""
    known = times_ms[np.isfinite(times_ms)]
    return bool(len(known)) and bool(known.min() == known.max())
