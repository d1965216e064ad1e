"""The scoreboard's figure: recorded counts against predictions, and the errors below."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tilescope.declare.gpus import GPUS
from visualize.predict.scores import ALLOWED_ERROR, DRAM, Score
from visualize.views import theme

# Short name, axis title with unit, and the divisor that gives this unit.
_UNITS = {
    "sectors": ("sectors", "32-byte sectors", 1.0),
    "requests": ("requests", "warp requests", 1.0),
    DRAM: ("DRAM reads", "GB read from DRAM", 1e9),
}
# Each GPU keeps its symbol whichever GPUs are selected; neighbours in the GPU table have different symbols.
_SYMBOLS = dict(zip(GPUS, itertools.cycle(("square", "circle", "diamond", "triangle-up"))))
# Points are coloured by operation. DRAM reads are one operation, so their colour shows whether the model flags them.
_FLAGS = {"no flag": theme.MODEL, "flagged": theme.CATEGORIES[7]}
_COLORS = theme.OPERATIONS | _FLAGS
# Later traces have smaller points, so that a point stays visible under one of another operation.
_SIZES = dict(zip(_COLORS, (12, 11, 9, 8, 7, 9, 9), strict=True))
_OUTLINE = "rgba(15,23,42,0.5)"
# Fractions of the height: errors fill the part below _ERRORS_TOP, counts the part above _COUNTS_BOTTOM.
_ERRORS_TOP = 0.19
_COUNTS_BOTTOM = 0.24
_MIN_ERROR_RANGE_PERCENT = 5.0


def scoreboard_figure(scores: Sequence[Score], count: str) -> go.Figure:
    """Draw one point per score on logarithmic axes. Exact predictions lie on the diagonal, and at 0 % below.

    Colours show the operation and symbols the GPU; misses have a ring. The customdata of a point is its index in
    `scores`. Scores with a zero are omitted, because a logarithmic axis cannot show it.

    Args:
        scores: scores of `count`, at least one.
        count: one of `scores.COUNTS`.
    """
    unit = _UNITS[count][2]
    colors = list(_COLORS)
    values = np.array(
        [(score.predicted / unit, score.counted / unit, 100 * score.error) for score in scores]
    )
    groups: dict[tuple[bool, int, str], list[int]] = defaultdict(list)
    for index, score in enumerate(scores):
        if score.predicted and score.counted:
            color = list(_FLAGS)[score.is_flagged] if count == DRAM else score.operation
            groups[score.is_miss, colors.index(color), score.experiment.gpu].append(index)
    drawn = (
        values[[index for group in groups.values() for index in group]]
        if groups
        else np.ones((1, 3))
    )
    ends = (drawn[:, :2].min() / 2, 2 * drawn[:, :2].max())
    error_range = 1.25 * max(_MIN_ERROR_RANGE_PERCENT, np.abs(drawn[:, 2]).max())
    figure = go.Figure(layout=_layout(count, ends, error_range))
    if count == DRAM:
        low, high = np.array(ends) / (1 + ALLOWED_ERROR), np.array(ends) / (1 - ALLOWED_ERROR)
        figure.add_scatter(
            x=[*ends, *ends[::-1]], y=[*low, *high[::-1]], mode="lines", line={"width": 0}, fill="toself",
            fillcolor="rgba(91,108,230,0.14)", name=f"within {100 * ALLOWED_ERROR:.0f} %", hoverinfo="skip",
        )  # fmt: skip
    ring = {"color": theme.WRONG, "width": 2}
    outline = {"color": _OUTLINE, "width": 0.7}
    in_legend = set()
    for (is_miss, place, gpu), indices in sorted(
        groups.items()
    ):  # misses last, so that no other point covers them
        color = colors[place]
        x, y, errors = values[indices].T
        line, size = (ring, 11) if is_miss else (outline, _SIZES[color])
        marker = {"color": _COLORS[color], "symbol": _SYMBOLS[gpu], "opacity": 0.9, "line": line}
        style = {
            "mode": "markers",
            "name": color,
            "legendgroup": color,
            "hovertemplate": "%{text}<extra></extra>",
        }
        shared: dict[str, Any] = {"x": x, "customdata": np.array(indices, dtype=np.uint32), **style}
        figure.add_scatter(
            y=y, marker={**marker, "size": size}, showlegend=color not in in_legend, **shared
        )
        figure.add_scatter(
            y=errors, yaxis="y2", marker={**marker, "size": 7}, showlegend=False, **shared
        )
        in_legend.add(color)
    legend = [
        (gpu, _SYMBOLS[gpu], outline) for gpu in sorted({score.experiment.gpu for score in scores})
    ]
    if any(is_miss for is_miss, _, _ in groups):
        legend.append(("miss", "circle", ring))
    for name, symbol, line in legend:
        # No points, so a click on the entry does nothing: its points belong to several traces.
        marker = {"symbol": symbol, "size": 9, "color": theme.CATEGORIES[7], "line": line}
        figure.add_scatter(
            x=[None], y=[None], mode="markers", marker=marker, name=name, legend="legend2"
        )
    return figure


def _layout(count: str, ends: tuple[float, float], error_range: float) -> dict[str, Any]:
    name, unit, _ = _UNITS[count]
    ticks = {"dtick": 1, "tickformat": "~g" if count == DRAM else "~s"}
    log = {"type": "log", "range": [math.log10(end) for end in ends], **ticks}
    # Both legends lie where no point can be: far above and far below the diagonal.
    legend = {
        "yref": "paper",
        "bgcolor": theme.NOTHING,
        "itemsizing": "constant",
        "tracegroupgap": 0,
    }
    return theme.layout(
        f"{name[0].upper()}{name[1:]} of a launch: predicted against counted",
        xaxis={**log, "title": f"{unit}, predicted", "anchor": "y2"},
        yaxis={
            **log,
            "title": f"{name}, counted",
            "domain": [_COUNTS_BOTTOM, 1],
            "automargin": True,
        },
        yaxis2={
            "title": "error, %",
            "range": [-error_range, error_range],
            "domain": [0, _ERRORS_TOP],
            "nticks": 5,
            "zeroline": True,
            "zerolinecolor": theme.BORDER,
            "automargin": True,
        },
        **theme.diagonal(*ends, "predicted = counted", theme.HARDWARE),
        showlegend=True,
        legend={**legend, "x": 0.005, "y": 1, "yanchor": "top"},
        legend2={
            **legend,
            "x": 0.995,
            "xanchor": "right",
            "y": _COUNTS_BOTTOM,
            "yanchor": "bottom",
            "itemclick": False,
            "itemdoubleclick": False,
        },
        hovermode="closest",
        margin={"l": 70, "r": 12, "t": 36, "b": 48},
    )
