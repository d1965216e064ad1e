"""The one theme: colours and fonts of every figure, in light and in dark.

Figures carry data and layout, no colours of text or paper: the page's plot component lays one of THEMES over
them, so that switching between light and dark needs no new figure.
"""

from __future__ import annotations

from typing import Any

# Okabe and Ito's colours (2008), which the common kinds of colour blindness tell apart; black left out for dark paper.
CATEGORIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
SEQUENCE = "Cividis"  # perceptually even, made for colour-blind readers
WRONG = "#D55E00"


def _template(text: str, line: str, hover: str) -> dict[str, Any]:
    axis = {
        "color": text,
        "gridcolor": line,
        "linecolor": line,
        "zeroline": False,
        "showgrid": False,
        "ticks": "outside",
        "tickcolor": line,
        "title": {"standoff": 6},
    }
    return {
        "layout": {
            "font": {"family": "system-ui, sans-serif", "size": 14, "color": text},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "hoverlabel": {"bgcolor": hover, "font": {"color": text}, "align": "left"},
            "xaxis": axis,
            "yaxis": axis,
            "annotationdefaults": {"font": {"color": text}},
        }
    }


THEMES = {
    "light": _template(text="#1f2937", line="#cbd5e1", hover="#ffffff"),
    "dark": _template(text="#e5e7eb", line="#475569", hover="#1f2937"),
}


def repeated(count: int) -> list[list[float | str]]:
    """A discrete colour scale of the first `count` CATEGORIES, for values 0 … count − 1."""
    steps: list[list[float | str]] = []
    for place, colour in enumerate(CATEGORIES[:count]):
        steps += [[place / count, colour], [(place + 1) / count, colour]]
    return steps


def heading(text: str, x: float) -> dict[str, Any]:
    """A subplot's title, centred at `x` (0 to 1 across the figure)."""
    return {
        "text": text,
        "x": x,
        "y": 1,
        "xref": "paper",
        "yref": "paper",
        "xanchor": "center",
        "yanchor": "bottom",
        "yshift": 6,
        "showarrow": False,
        "font": {"size": 15},
    }


def smallest(values: Any) -> Any:
    """The same integers in the smallest unsigned type that holds them: a browser takes them in faster."""
    import numpy as np

    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
