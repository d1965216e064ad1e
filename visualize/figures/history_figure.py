"""The runs of one Experiment over time: each a median with its interval, by device and versions, and the changes."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from markupsafe import escape

from visualize.predict.history import Change, PastRuns
from visualize.views import theme

_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "triangle-down", "cross")
# Names of days that have room on a phone.
_MOST_DAYS = 5
# Devices whose medians are further apart than this factor share a logarithmic axis: a change of one of them would be
# lost on another.
_APART = 2.0


def history_figure(
    series: Sequence[PastRuns], points: Sequence[Sequence[str]], marked: Sequence[tuple[PastRuns, Change, str]]
) -> go.Figure:
    """One point per run, from the oldest to the newest, evenly spaced; whiskers from p20 to p80.

    Colours are devices, symbols the versions of torch and triton. A line goes through the runs between two changes, at
    the median of their medians. In µs where all of it is below a tenth of a millisecond.

    Args:
        series: by device; at least one.
        points: what each run says, by device.
        marked: changes to be named, with the words.
    """
    slowest = max(float(one.p80_ms.max()) for one in series)
    unit, scale = ("µs", 1000.0) if slowest < 0.1 else ("ms", 1.0)
    colors = (theme.HARDWARE,) if len(series) == 1 else theme.CATEGORIES
    symbols = dict(zip(dict.fromkeys(v for one in series for v in one.versions), itertools.cycle(_SYMBOLS)))
    traces: list[go.Scatter] = []
    for one, said, color in zip(series, points, itertools.cycle(colors)):
        traces += [_level(one.places[[start, end]], ms * scale, color) for start, end, ms in one.levels]
        traces += [_points(one, of, said, scale, color, symbols[of]) for of in dict.fromkeys(one.versions)]
    return go.Figure(traces, {**_layout(series, unit), **_marked(marked, sum(map(len, series)))})


def _points(
    series: PastRuns, versions: tuple[str, str], said: Sequence[str], scale: float, color: str, symbol: str
) -> go.Scatter:
    mine = np.array([own == versions for own in series.versions])
    median, low, high = (values[mine] * scale for values in (series.median_ms, series.p20_ms, series.p80_ms))
    whiskers = {"type": "data", "symmetric": False, "array": high - median, "arrayminus": median - low}
    return go.Scatter(
        x=series.places[mine],
        y=median,
        error_y={**whiskers, "color": theme.BORDER, "thickness": 1.5, "width": 3},
        mode="markers",
        marker={"color": color, "symbol": symbol, "size": 9, "line": {"width": 0.7, "color": theme.BORDER}},
        name=str(escape(f"{series.device}, torch {versions[0]}, triton {versions[1]}")),
        text=[text for text, is_mine in zip(said, mine, strict=True) if is_mine],
        hovertemplate="%{text}<extra></extra>",
    )


def _level(places: np.ndarray, level: float, color: str) -> go.Scatter:
    """The line through the runs between two changes."""
    ends = [float(places[0]) - 0.4, float(places[1]) + 0.4]
    line = {"color": color, "width": 2, "dash": "dot"}
    return go.Scatter(x=ends, y=[level, level], mode="lines", line=line, showlegend=False, hoverinfo="skip")


def _marked(marked: Sequence[tuple[PastRuns, Change, str]], count: int) -> dict[str, Any]:
    """A line between the last run before each change and the first one after it, with its words.

    Args:
        count: of all runs.
    """
    shapes, annotations = [], []
    for series, change, words in marked:
        between = float(series.places[change.place - 1] + series.places[change.place]) / 2
        color = theme.WRONG if change.is_slower else theme.HARDWARE
        ends = {"x0": between, "x1": between, "y0": 0, "y1": 1, "yref": "paper"}
        shapes.append({"type": "line", **ends, "line": {"color": color, "width": 2}})
        is_late = between >= count / 2
        side, aside = ("right", -6) if is_late else ("left", 6)
        # Where this series has no points: above what came before a slower time, or below the slower time itself.
        is_above = is_late == change.is_slower
        place = {"x": between, "xanchor": side, "xshift": aside, "align": side, "y": float(is_above), "yref": "paper"}
        upright = {"yanchor": "top" if is_above else "bottom", "showarrow": False}
        annotations.append({"text": f"<b>{words}</b>", **place, **upright})
    return {"shapes": shapes, "annotations": annotations}


def _layout(series: Sequence[PastRuns], unit: str) -> dict[str, Any]:
    ended = {int(place): day for one in series for place, day in zip(one.places, one.ended, strict=True)}
    medians = [float(np.median(one.median_ms)) for one in series]
    apart = max(medians) > _APART * min(medians)
    days = [ended[place].date() for place in sorted(ended)]
    years = " to ".join(dict.fromkeys(f"{day.year}" for day in (days[0], days[-1])))
    axis = {"title": {"text": f"runs, oldest first, {years}"}, "range": [-0.7, len(days) - 0.3], "automargin": True}
    return theme.layout(
        "Time of each stored run",
        xaxis={**axis, **_ticks(days)},
        yaxis={
            "title": {"text": f"{unit}, median; whiskers p20 to p80"},
            "type": "log" if apart else "linear",
            "automargin": True,
        },
        showlegend=True,
        legend={"orientation": "h", "x": 0, "yref": "container", "y": 0.01, "yanchor": "bottom"},
        margin={"l": 70, "r": 12, "t": 36, "b": 100},
        hovermode="closest",
    )


def _ticks(days: Sequence[datetime.date]) -> dict[str, Any]:
    """The first run of a day is named, where the names have room."""
    shown: list[int] = []
    for place, day in enumerate(days):
        has_room = not shown or place - shown[-1] >= len(days) / _MOST_DAYS
        if has_room and (place == 0 or day != days[place - 1]):
            shown.append(place)
    words = [f"{days[place]:%b} {days[place].day}" for place in shown]
    return {"tickmode": "array", "tickvals": shown, "ticktext": words, "tickangle": 0}
