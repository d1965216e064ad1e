"""The scoreboard's figure: recorded counts against predictions, and the errors below."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tilescope.declare.gpus import GPUS
from visualize.views import theme
from visualize.views.library.scoreboard import ALLOWED_ERROR, DRAM, Score

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
_OUTLINE = {"color": "rgba(15,23,42,0.5)", "width": 0.7}
_RING = {"color": theme.WRONG, "width": 2}  # of a miss
# Fractions of the height: errors fill the part below _ERRORS_TOP, counts the part above _COUNTS_BOTTOM.
_ERRORS_TOP = 0.19
_COUNTS_BOTTOM = 0.24
_MIN_ERROR_RANGE_PERCENT = 5.0


class _Group(NamedTuple):
    """Points of one colour and symbol. `color` is an operation, or whether DRAM reads are flagged."""

    is_miss: bool
    color: str
    gpu: str


def scoreboard_figure(scores: Sequence[Score], count: str) -> dict[str, Any]:
    """Draw one point per score on logarithmic axes. Exact predictions lie on the diagonal, and at 0 % below.

    Colours show the operation and symbols the GPU; misses have a ring. The customdata of a point is its index in
    `scores`. Scores with a zero are omitted, because a logarithmic axis cannot show it.

    Args:
        scores: scores of `count`, at least one.
        count: one of COUNTS.
    """
    unit = _UNITS[count][2]
    values = np.array(
        [(score.predicted / unit, score.counted / unit, 100 * score.error) for score in scores]
    )
    groups = _group_points(scores, count)
    drawn = [index for indices in groups.values() for index in indices]
    x, y, errors = values[drawn].T if drawn else np.ones((3, 1))
    ends = (min(x.min(), y.min()) / 2, 2 * max(x.max(), y.max()))
    error_range = 1.25 * max(_MIN_ERROR_RANGE_PERCENT, np.abs(errors).max())
    traces = [_allowed_band(ends)] if count == DRAM else []
    in_legend = set[str]()
    for group, indices in groups.items():
        is_listed = group.color not in in_legend
        traces += _group_traces(
            group, values[indices], np.array(indices, dtype=np.uint32), is_listed
        )
        in_legend.add(group.color)
    gpus = sorted({score.experiment.gpu for score in scores})
    traces += [_legend_entry(gpu, _SYMBOLS[gpu], _OUTLINE) for gpu in gpus]
    if any(group.is_miss for group in groups):
        traces.append(_legend_entry("miss", "circle", _RING))
    return {"data": traces, "layout": _layout(count, ends, error_range)}


def _group_points(scores: Sequence[Score], count: str) -> dict[_Group, list[int]]:
    """Group the indices of scores without a zero. Misses come last, so that no other point covers them."""
    groups: dict[_Group, list[int]] = defaultdict(list)
    for index, score in enumerate(scores):
        if score.predicted and score.counted:
            color = list(_FLAGS)[score.is_flagged] if count == DRAM else score.operation
            groups[_Group(score.is_miss, color, score.experiment.gpu)].append(index)
    colors = list(_COLORS)
    order = sorted(groups, key=lambda group: (group.is_miss, colors.index(group.color), group.gpu))
    return {group: groups[group] for group in order}


def _group_traces(
    group: _Group, values: np.ndarray, indices: np.ndarray, is_listed: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw the points of a group, above as counts and below as errors.

    Args:
        values: (points, 3), predicted, counted, and the error in percent.
        is_listed: whether the legend names the colour here.
    """
    x, y, errors = values.T
    marker = {
        "color": _COLORS[group.color],
        "symbol": _SYMBOLS[group.gpu],
        "opacity": 0.9,
        "line": _RING if group.is_miss else _OUTLINE,
    }
    shared: dict[str, Any] = {
        "name": group.color,
        "x": x,
        "mode": "markers",
        "legendgroup": group.color,
        "customdata": indices,
        "hovertemplate": "%{text}<extra></extra>",
    }
    counts = {**marker, "size": 11 if group.is_miss else _SIZES[group.color]}
    return (
        theme.scatter(y=y, marker=counts, showlegend=is_listed, **shared),
        theme.scatter(
            y=errors, yaxis="y2", marker={**marker, "size": 7}, showlegend=False, **shared
        ),
    )


def _allowed_band(ends: tuple[float, float]) -> dict[str, Any]:
    """Draw the area of DRAM reads that are no misses."""
    low, high = np.array(ends) / (1 + ALLOWED_ERROR), np.array(ends) / (1 - ALLOWED_ERROR)
    return theme.scatter(
        f"within {100 * ALLOWED_ERROR:.0f} %",
        [*ends, *ends[::-1]],
        [*low, *high[::-1]],
        line={"width": 0},
        fill="toself",
        fillcolor="rgba(91,108,230,0.14)",
        hoverinfo="skip",
    )


def _legend_entry(name: str, symbol: str, line: dict[str, Any]) -> dict[str, Any]:
    # No points, so a click on the entry does nothing: its points belong to several traces.
    marker = {"symbol": symbol, "size": 9, "color": theme.CATEGORIES[7], "line": line}
    return theme.scatter(name, [None], [None], "markers", marker=marker, legend="legend2")


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
        xaxis={**log, "title": {"text": f"{unit}, predicted"}, "anchor": "y2"},
        yaxis={
            **log,
            "title": {"text": f"{name}, counted"},
            "domain": [_COUNTS_BOTTOM, 1],
            "automargin": True,
        },
        yaxis2={
            "title": {"text": "error, %"},
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
