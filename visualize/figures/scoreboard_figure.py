"""Predicted against counted: every recorded count as a point, and below it how far off each prediction is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from kernels.gpus import GPUS
from visualize.predict.scores import ALLOWED_ERROR, DRAM, Score
from visualize.views import theme

# What is counted, in short and with its unit, and by how much its numbers are divided.
_UNITS = {
    "sectors": ("sectors", "32-byte sectors", 1.0),
    "requests": ("requests", "warp requests", 1.0),
    DRAM: ("DRAM reads", "GB read from DRAM", 1e9),
}
# A GPU has the same symbol whichever others are shown, and neighbours in the table have different ones.
_SYMBOLS = dict(zip(GPUS, itertools.cycle(("square", "circle", "diamond", "triangle-up"))))
# DRAM's bytes are of one operation: colours say whether the model, which does not know the counts, doubts them.
_FLAGS = {"no flag": theme.MODEL, "flagged": theme.CATEGORIES[7]}
_COLORS = theme.OPERATIONS | _FLAGS
_OUTLINE = "rgba(15,23,42,0.5)"
_BAND = "rgba(91,108,230,0.14)"
# What is drawn later is smaller, so that a point shows around those of other operations that lie on it.
_SIZES = dict(zip(_COLORS, (12, 11, 9, 8, 7, 9, 9), strict=True))
# The errors take this share of the height; their axis shows at least so many percent each way.
_ERRORS_HEIGHT, _LEAST_PERCENT = 0.19, 5.0
# Where the upper part begins.
_FLOOR = 0.24


def scoreboard_figure(scores: Sequence[Score], count: str) -> go.Figure:
    """One point per count, both axes logarithmic: what is exact lies on the diagonal, and on 0 % below.

    Colours say which operation was counted, symbols on which GPU. A miss has a ring. Points carry the place of their
    score in `scores` as customdata. A zero has no place on these axes: its score is left out.

    Args:
        scores: of one count; at least one.
        count: one of `models.scores.COUNTS`.
    """
    placed = [(place, one) for place, one in enumerate(scores) if one.predicted and one.counted]
    gpus = sorted({one.experiment.gpu for one in scores})
    most = max([_LEAST_PERCENT, *(abs(100 * one.error) for _, one in placed)])
    ends = _ends([one for _, one in placed], _UNITS[count][2])
    figure = go.Figure(layout=_layout(count, ends, 1.25 * most))
    if count == DRAM:
        figure.add_trace(_allowed(ends))
    met = set()
    for missed, name, gpu in itertools.product((False, True), _COLORS, gpus):
        wanted = (missed, name, gpu)
        mine = [(place, one) for place, one in placed if (one.is_miss, _name(one), one.experiment.gpu) == wanted]
        if mine:
            figure.add_traces(_points(mine, name, _SYMBOLS[gpu], missed, showlegend=name not in met))
            met.add(name)
    figure.add_traces([_entry(gpu, _SYMBOLS[gpu], _OUTLINE) for gpu in gpus])
    if any(one.is_miss for _, one in placed):
        figure.add_trace(_entry("miss", "circle", theme.WRONG))
    return figure


def _name(one: Score) -> str:
    """What a score is coloured by."""
    return list(_FLAGS)[one.is_flagged] if one.count == DRAM else one.operation


def _ends(scores: Sequence[Score], unit: float) -> tuple[float, float]:
    """Where both axes begin and end."""
    numbers = [number / unit for one in scores for number in (one.predicted, one.counted)] or [1.0]
    return min(numbers) / 2, 2 * max(numbers)


def _points(
    mine: Sequence[tuple[int, Score]], name: str, symbol: str, missed: bool, showlegend: bool
) -> tuple[go.Scatter, go.Scatter]:
    """Points of one operation on one GPU, and their errors below."""
    unit = _UNITS[mine[0][1].count][2]
    outline = {"color": theme.WRONG, "width": 2} if missed else {"color": _OUTLINE, "width": 0.7}
    marker = {"color": _COLORS[name], "symbol": symbol, "opacity": 0.9, "line": outline}
    shared: dict[str, Any] = {
        "x": np.array([one.predicted / unit for _, one in mine]),
        "customdata": np.array([place for place, _ in mine], dtype=np.uint32),
        "mode": "markers",
        "name": name,
        "legendgroup": name,
        "hovertemplate": "%{text}<extra></extra>",
    }
    counted = np.array([one.counted / unit for _, one in mine])
    errors = np.array([100 * one.error for _, one in mine])
    return (
        go.Scatter(
            y=counted, marker={**marker, "size": 11 if missed else _SIZES[name]}, showlegend=showlegend, **shared
        ),
        go.Scatter(y=errors, yaxis="y2", marker={**marker, "size": 7}, showlegend=False, **shared),
    )


def _allowed(ends: tuple[float, float]) -> go.Scatter:
    """The band of what is no miss."""
    low, high = np.array(ends) / (1 + ALLOWED_ERROR), np.array(ends) / (1 - ALLOWED_ERROR)
    return go.Scatter(
        x=[*ends, *ends[::-1]], y=[*low, *high[::-1]], mode="lines", line={"width": 0}, fill="toself", fillcolor=_BAND,
        name=f"within {ALLOWED_ERROR:.0%}".replace("%", " %"), hoverinfo="skip",
    )  # fmt: skip


def _entry(name: str, symbol: str, outline: str) -> go.Scatter:
    """An entry of the legend that no click changes: of what points of all colours can have."""
    line = {"color": outline, "width": 2 if outline == theme.WRONG else 0.7}
    marker = {"symbol": symbol, "size": 9, "color": theme.CATEGORIES[7], "line": line}
    return go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=name, legend="legend2")


def _layout(count: str, ends: tuple[float, float], most_percent: float) -> dict[str, Any]:
    name, unit, _ = _UNITS[count]
    tickformat = "~g" if count == DRAM else "~s"
    log = {"type": "log", "range": [math.log10(end) for end in ends], "dtick": 1, "tickformat": tickformat}
    # Both legends stand where no point is: far above and far below the diagonal.
    legend = {"yref": "paper", "bgcolor": theme.NOTHING, "itemsizing": "constant", "tracegroupgap": 0}
    unclickable = {"itemclick": False, "itemdoubleclick": False}
    percent = {
        "title": {"text": "error, %"}, "range": [-most_percent, most_percent], "domain": [0, _ERRORS_HEIGHT],
        "nticks": 5, "zeroline": True, "zerolinecolor": theme.BORDER, "automargin": True,
    }  # fmt: skip
    return theme.layout(
        f"{name[0].upper()}{name[1:]} of a launch: predicted against counted",
        xaxis={**log, "title": {"text": f"{unit}, predicted"}, "anchor": "y2"},
        yaxis={**log, "title": {"text": f"{name}, counted"}, "domain": [_FLOOR, 1], "automargin": True},
        yaxis2=percent,
        shapes=[_diagonal(ends)],
        annotations=[_word(ends)],
        showlegend=True,
        legend={**legend, "x": 0.005, "y": 1, "yanchor": "top"},
        legend2={**legend, **unclickable, "x": 0.995, "xanchor": "right", "y": _FLOOR, "yanchor": "bottom"},
        hovermode="closest",
        margin={"l": 70, "r": 12, "t": 36, "b": 48},
    )


def _diagonal(ends: tuple[float, float]) -> dict[str, Any]:
    line = {"color": theme.HARDWARE, "width": 1.5}
    return {"type": "line", "x0": ends[0], "y0": ends[0], "x1": ends[1], "y1": ends[1], "line": line, "layer": "below"}


def _word(ends: tuple[float, float]) -> dict[str, Any]:
    """What the diagonal is. On a logarithmic axis an annotation stands at the logarithm."""
    # Low on the diagonal: further up it would meet the legend of the GPUs on a phone.
    low, high = map(math.log10, ends)
    place = low + (high - low) / 4
    return {
        "x": place,
        "y": place,
        "text": "<b>predicted = counted</b>",
        "ax": 44,
        "ay": 38,
        "arrowhead": 2,
        "arrowcolor": theme.BORDER,
    }
