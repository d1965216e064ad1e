"""The scoreboard's figure: counts against predictions, and the errors below."""

import math
from collections.abc import Sequence

import numpy as np

from tilescope.numbers import percent
from tilescope.results.scores import Score
from visualize.views import theme
from visualize.views.library.scoreboard import Model
from visualize.views.theme import Figure

# Points of recorded sectors and requests are coloured by operation, others by whether the model flags them.
_COLORS = theme.OPERATIONS | {"prediction": theme.MODEL, "flagged": theme.CATEGORIES[7]}
_OUTLINE = {"color": "rgba(15,23,42,0.5)", "width": 0.7}
# Fractions of the height: errors fill the part below _ERRORS_TOP, counts the part above _COUNTS_BOTTOM.
_ERRORS_TOP = 0.19
_COUNTS_BOTTOM = 0.24
_MIN_ERROR_RANGE_PERCENT = 5.0


def scoreboard_figure(scores: Sequence[Score], model: Model) -> Figure:
    """Draw one point per score on logarithmic axes. Exact predictions lie on the diagonal, and at 0 % below.

    The customdata of a point is its index in `scores`. Scores with a zero are omitted, because a logarithmic axis
    cannot show it.
    """
    values = np.array(
        [(score.predicted or 0, score.counted, 100 * score.error) for score in scores]
    )
    names = np.array([_name_color(score) for score in scores])
    is_drawn = (values[:, :2] > 0).all(axis=1)
    counts = values[is_drawn, :2] if is_drawn.any() else np.ones((1, 2))
    ends = counts.min() / 2, 2 * counts.max()
    error_range = 1.25 * max(_MIN_ERROR_RANGE_PERCENT, np.abs(values[is_drawn, 2]).max(initial=0))
    traces = [_allowed_band(ends, model.allowed)] if model.allowed else []
    for place, (name, color) in enumerate(_COLORS.items()):
        (indices,) = np.nonzero(is_drawn & (names == name))
        if len(indices):
            x, y, errors = values[indices].T
            # Later traces have smaller points, so that a point stays visible under another operation's.
            marker = {"color": color, "size": 12 - place, "opacity": 0.9, "line": _OUTLINE}
            shared = {
                "marker": marker,
                "customdata": indices,
                "legendgroup": name,
                "hovertemplate": "%{text}<extra></extra>",
            }
            below = {"marker": {**marker, "size": 7}, "yaxis": "y2", "showlegend": False}
            traces.append(theme.scatter(name, x, y, "markers", **shared))
            traces.append(theme.scatter(name, x, errors, "markers", **shared | below))
    return theme.figure(
        f"{model.noun[0].upper()}{model.noun[1:]}: predicted against {model.verb}",
        traces,
        hovermode="closest",
        margin={"l": 70},
        **_axes(model, ends, error_range),
        **theme.diagonal(*ends, f"predicted = {model.verb}", theme.HARDWARE),
        # Where no point can be: far above the diagonal.
        legend={
            "yref": "paper",
            "bgcolor": theme.NOTHING,
            "itemsizing": "constant",
            "tracegroupgap": 0,
            "x": 0.005,
            "y": 1,
            "yanchor": "top",
        },
    )


def _name_color(score: Score) -> str:
    if score.is_flagged:
        return "flagged"
    return score.part if score.part in theme.OPERATIONS else "prediction"


def _allowed_band(ends: tuple[float, float], allowed: float) -> Figure:
    """Draw the area of predictions that are no misses."""
    low, high = np.array(ends) / (1 + allowed), np.array(ends) / (1 - allowed)
    return theme.scatter(
        f"within {percent(allowed)}",
        [*ends, *ends[::-1]],
        [*low, *high[::-1]],
        line={"width": 0},
        fill="toself",
        fillcolor="rgba(91,108,230,0.14)",
        hoverinfo="skip",
    )


def _axes(model: Model, ends: tuple[float, float], error_range: float) -> Figure:
    log = {
        "type": "log",
        "range": [math.log10(end) for end in ends],
        "dtick": 1,
        "tickformat": "~s",
    }
    return dict(
        xaxis=theme.axis(f"{model.axis}, predicted", **log, anchor="y2", automargin=True),
        yaxis=theme.axis(
            f"{model.axis}, {model.verb}", **log, domain=[_COUNTS_BOTTOM, 1], automargin=True
        ),
        yaxis2=theme.axis(
            "error, %",
            range=[-error_range, error_range],
            domain=[0, _ERRORS_TOP],
            nticks=5,
            zeroline=True,
            zerolinecolor=theme.BORDER,
            automargin=True,
        ),
    )
