"""The pictures of a sweep.

A sweep's points carry the index of their row as customdata; the page adds their labels and links (`points.js`).
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tilescope.results import Sweep
from tilescope.search.text import sweep_unit, time_ms
from visualize.views import theme
from visualize.views.tune.text import ratio_text

_LABEL = "%{text}<extra></extra>"
# Heatmaps of up to this many cells have numbers in them.
_MAX_NUMBERED_CELLS = 120
# A legend above the picture. At the top is space for the title and, on a phone, two rows of the legend.
_WITH_LEGEND: dict[str, Any] = {
    "showlegend": True, "hovermode": "closest", "margin": {"l": 70, "r": 12, "t": 72, "b": 48},
    "legend": {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "bgcolor": theme.NOTHING},
}  # fmt: skip
_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "triangle-down", "cross")
# The name of a cell.
_MARK = {"showarrow": False, "bgcolor": "#ffffff", "font": {"color": "#111827"}}


def heatmap_figure(sweep: Sweep, across: str, up: str) -> go.Figure:
    """Draw the fastest time for each pair of two knobs' values, or the best rank if only the order is expected.

    Cells without a result are empty. The fastest cell and that of the sweep's own config are named.

    Args:
        across, up: varied knobs; one row of cells if they are the same.
    """
    unit, scale = sweep_unit(sweep)
    values = dict(sweep.space.varied)
    is_flat = up == across
    columns = values[across]
    rows = ("",) if is_flat else values[up]
    axes = [list(values).index(name) for name in dict.fromkeys((up, across))]

    def by_cell(of_rows: np.ndarray) -> np.ndarray:
        grid = of_rows.reshape([len(choices) for choices in values.values()])
        return np.moveaxis(grid, axes, range(len(axes))).reshape(len(rows), len(columns), -1)

    if sweep.has_times:
        values_of_rows = [time_ms(row, sweep.is_timed) * scale for row in sweep.rows]
        fast = "fastest"
        title = "Fastest time"
        scale_title = f"{unit}, {sweep.source} (yellow: fast)"
        template = "%{z:,.3r}"
    else:
        values_of_rows = [sweep.ranks.get(id(row), math.nan) for row in sweep.rows]
        fast = "expected fastest"
        title = "Expected order: the best rank"
        scale_title = "rank (1: expected fastest)"
        template = "%{z}"
    times = by_cell(np.array(values_of_rows))
    best = np.nan_to_num(times, nan=np.inf).argmin(axis=2, keepdims=True)
    fastest = np.take_along_axis(times, best, axis=2)[..., 0]
    numbers = np.take_along_axis(by_cell(np.arange(len(sweep.rows))), best, axis=2)[..., 0]
    distinct = np.unique(fastest[np.isfinite(fastest)])
    # Times that look alike get one colour. For a single value, Plotly's own scale would reach below zero.
    limits = (
        {"zmin": 0, "zmax": distinct[-1]}
        if distinct.size and distinct[-1] < 1.002 * distinct[0]
        else {}
    )
    trace = go.Heatmap(
        z=fastest, x=[str(value) for value in columns], y=[str(value) for value in rows], customdata=numbers,
        colorscale=theme.SEQUENCE, reversescale=True, xgap=2, ygap=2, hovertemplate=_LABEL, **limits,
        colorbar=theme.colorbar(scale_title),
        texttemplate=template if fastest.size <= _MAX_NUMBERED_CELLS else None,
    )  # fmt: skip
    # Row, column, and pixels from the middle of the cell, where its time is.
    cells = {}
    if distinct.size:
        cells[fast] = *divmod(int(np.nanargmin(fastest)), len(columns)), -20
    config = vars(sweep.space.base.config)
    if config[across] in columns and (is_flat or config[up] in rows):
        row = 0 if is_flat else rows.index(config[up])
        cells["includes current"] = row, columns.index(config[across]), 20
    marks = [
        {**_MARK, "text": name, "x": x, "y": y, "yshift": shift}
        for name, (y, x, shift) in cells.items()
    ]
    title += f" for each {across}{'' if is_flat else f' and {up}'}"
    for y, x in np.argwhere(~np.isfinite(fastest))[:_MAX_NUMBERED_CELLS]:
        status = sweep.rows[numbers[y, x]].status
        marks.append({"showarrow": False, "text": status, "x": x, "y": y})
    category = {"type": "category", "showgrid": False}
    vertical = {**category, "title": "" if is_flat else up, "automargin": True}
    return go.Figure(
        trace,
        theme.layout(title, xaxis={**category, "title": across}, yaxis=vertical, annotations=marks),
    )


def convergence_figure(sweep: Sweep) -> go.Figure:
    """Draw the fastest time after each timed config, and the expectation for the same times in random order."""
    unit, scale = sweep_unit(sweep)
    timed = sorted(
        (row.turn, number, row.median_ms * scale)
        for number, row in enumerate(sweep.rows)
        if row.turn is not None and row.median_ms
    )
    _, numbers, each = map(np.array, zip(*timed, strict=True))
    shared: dict[str, Any] = {"x": np.arange(1, len(timed) + 1, dtype=np.uint32)}
    after = f"%{{y:,.3r}} {unit} after %{{x}}"
    traces = [
        # Without a legend entry, which would take another line.
        go.Scatter(y=each, customdata=numbers, mode="markers", name="each config", showlegend=False,
                   marker={"color": theme.BEFORE, "size": 5, "opacity": 0.85}, hovertemplate=_LABEL, **shared),
        go.Scatter(y=expected_best(each), mode="lines", name="random order",
                   line={"color": theme.CATEGORIES[7], "dash": "dash", "width": 2},
                   hovertemplate=f"{after} in random order<extra></extra>", **shared),
        go.Scatter(y=np.minimum.accumulate(each), mode="lines", name="fastest so far",
                   line={"color": theme.HARDWARE, "shape": "hv", "width": 3},
                   hovertemplate=f"{after}<extra></extra>", **shared),
    ]  # fmt: skip
    layout = theme.layout(
        "Time of each config, and the fastest so far",
        xaxis={"title": "configs timed", "range": [0, len(timed) + 1]},
        yaxis={"title": f"{unit}, {sweep.source}", "type": "log", "automargin": True},
        **_WITH_LEGEND,
    )
    return go.Figure(traces, layout)


def expected_best(times_ms: np.ndarray) -> np.ndarray:
    """Return the expected fastest of the first 1, 2, 3 … configs of a random search over the same times.

    Of n times in ascending order, the i-th is the fastest of k draws with probability C(n − i, k − 1) / C(n, k).
    Omitted: configs that were never timed, such as configs predicted to be slow when a search ended early.

    Args:
        times_ms: (n,), in any order.

    Returns:
        (n,), in ms; the last one is the fastest of all.

    >>> expected_best(np.array([3.0, 1.0])).tolist()
    [2.0, 1.0]
    """
    count = len(times_ms)
    draws = np.arange(1, count + 1)
    chance = draws / max(count, 1)
    expected = np.zeros(count)
    for rest, fastest_ms in zip(range(count - 1, -1, -1), np.sort(times_ms), strict=True):
        expected += chance * fastest_ms
        chance = chance * np.maximum(rest + 1 - draws, 0) / max(rest, 1)
    return expected


def _whiskers(low: np.ndarray, middle: np.ndarray, high: np.ndarray, color: str) -> dict[str, Any]:
    style = {"type": "data", "symmetric": False, "color": color, "thickness": 2, "width": 4}
    return {**style, "array": high - middle, "arrayminus": middle - low}


def baselines_figure(dimension: str, sweeps: Sequence[tuple[int, Sweep]]) -> go.Figure:
    """Draw each library call's time divided by the best config's, with its 95 % interval, by problem size.

    Args:
        sweeps: size and sweep, sizes ascending; at least one, each with library calls.
    """
    sizes = [str(size) for size, _ in sweeps]
    layout = theme.layout(
        "The library's time / the best config's",
        xaxis={
            "type": "category",
            "title": dimension,
            "categoryorder": "array",
            "categoryarray": sizes,
        },
        yaxis={"title": f"ratio, {sweeps[0][1].source}", "automargin": True},
        **_WITH_LEGEND,
    )
    figure = go.Figure(layout=layout)
    names = dict.fromkeys(ratio.name for _, sweep in sweeps for ratio in sweep.baselines)
    for name, color, symbol in zip(
        names, itertools.cycle(theme.CATEGORIES), itertools.cycle(_SYMBOLS)
    ):
        points = [
            (str(size), ratio)
            for size, sweep in sweeps
            for ratio in sweep.baselines
            if ratio.name == name
        ]
        low, middle, high = np.array(
            [(ratio.low, ratio.ratio, ratio.high) for _, ratio in points]
        ).T
        figure.add_scatter(
            x=[size for size, _ in points], y=middle, mode="lines+markers", name=name, hovertemplate=_LABEL,
            error_y=_whiskers(low, middle, high, color), text=[ratio_text(ratio) for _, ratio in points],
            line={"color": color, "width": 1.5}, marker={"color": color, "size": 9, "symbol": symbol},
        )  # fmt: skip
    figure.add_hline(1, layer="below", line={"color": theme.BORDER, "width": 1.5, "dash": "dot"})
    return figure
