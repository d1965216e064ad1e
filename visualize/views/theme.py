"""The one theme: colours and fonts of every figure, in light and in dark.

Figures carry data and layout, no colours of text or paper: the page's plot component lays one of THEMES over
them, so that switching between light and dark needs no new figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# Okabe and Ito's colours (2008), which the common kinds of colour blindness tell apart; black left out for dark paper.
CATEGORIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
SEQUENCE = "Cividis"  # perceptually even, made for colour-blind readers
WRONG = "#D55E00"
BORDER = "#94a3b8"  # of a sector
NOTHING = "rgba(0,0,0,0)"

# One colour for one meaning, on all tabs; the page's styles have them as CSS variables (`variables`).
NEW, REUSED, TO_COME = "#F5A300", "#56B4E9", "rgba(128,140,160,0.22)"
WANTED, WASTED = "#0072B2", "#D55E00"
MODEL, HARDWARE = "#5B6CE6", "#009E73"  # predicted, compiled, textbook; counted, measured, recorded
TENSORS = {"A": "#8250DF", "B": "#C2588A", "C": "#64748B"}
# What the hardware's counters tell apart: reads in blues, writes in yellows.
OPERATIONS = {
    "load": CATEGORIES[0], "TMA load": CATEGORIES[4], "store": CATEGORIES[1], "TMA store": CATEGORIES[6],
    "atomic": CATEGORIES[3],
}  # fmt: skip

# What a step finds: a share from 0 (to come) to 1 (done), and 2 for what is under way.
DONE, NOW = REUSED, NEW
STEP_SCALE = ((0, TO_COME), (0.5, DONE), (0.75, DONE), (0.75, NOW), (1, NOW))

# What a step does to tiles and blocks: a share from 0 (to come) to 1 (done, or loaded before), 2 for what is used
# again, 3 for what is new.
BEFORE = "#5F7089"
# What is to come, where numbers stand in it: Plotly chooses their colour for what it takes to be an opaque one.
OPAQUE_TO_COME = {"light": "#E4E7EC", "dark": "#232A38"}
LOAD_SCALE = ((0, TO_COME), (1 / 3, BEFORE), (0.5, BEFORE), (0.5, REUSED), (5 / 6, REUSED), (5 / 6, NEW), (1, NEW))


# The page's own typeface, which Gradio serves.
FONT = "IBM Plex Sans, system-ui, sans-serif"


def variables() -> str:
    """The colours as CSS variables of the page."""
    named = {"new": NEW, "reused": REUSED, "before": BEFORE, "to-come": TO_COME, "wanted": WANTED, "wasted": WASTED}
    named |= {"model": MODEL, "hardware": HARDWARE, **{name.lower(): color for name, color in TENSORS.items()}}
    return ":root {" + "".join(f" --{name}: {color};" for name, color in named.items()) + " }\n"


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
            "font": {"family": FONT, "size": 14, "color": text},
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
    return discrete(CATEGORIES[:count])


def discrete(colors: Sequence[str]) -> list[list[float | str]]:
    """A colour scale of some colours, in steps of equal width."""
    steps: list[list[float | str]] = []
    for place, color in enumerate(colors):
        steps += [[place / len(colors), color], [(place + 1) / len(colors), color]]
    return steps


def layout(title: str, **more: Any) -> dict[str, Any]:
    """What every figure's layout has: a title, a height, margins, and no template of its own."""
    return {
        "template": {},
        "title": {"text": title, "font": {"size": 15}, "x": 0.5, "xanchor": "center", "y": 0.985, "yanchor": "top"},
        "height": 410,
        "margin": {"l": 60, "r": 10, "t": 34, "b": 48},
        "showlegend": False,
        **more,
    }


def colorbar(title: str, **more: Any) -> dict[str, Any]:
    # Above the bar it would cover the number at the bar's end.
    heading = {"text": title, "side": "right"}
    return {"title": heading, "thickness": 12, "outlinewidth": 0, "xpad": 8, **more}


def matrix_axes(rows: str, columns: str, first: tuple[int, int], shape: tuple[int, int]) -> dict[str, Any]:
    """Axes of a picture of a matrix: rows down, columns to the right, from element `first`, `shape` of them.

    Cells are square, unless the matrix is so long that it would become a thread.
    """

    def axis(title: str, count: int) -> dict[str, Any]:
        whole = {"dtick": 1, "tick0": 0} if count <= 10 else {}
        return {"title": {"text": title}, "constrain": "domain", "tickangle": 0, **whole}

    square = {"scaleanchor": "x"} if 1 / 4 <= shape[0] / shape[1] <= 4 else {}
    return {
        "xaxis": {**axis(columns, shape[1]), "range": [first[1] - 0.5, first[1] + shape[1] - 0.5]},
        "yaxis": {
            **axis(rows, shape[0]),
            "range": [first[0] + shape[0] - 0.5, first[0] - 0.5],
            **square,
            "automargin": True,
        },
    }


def three_digits(value: float) -> str:
    """A time as a figure writes it: three significant digits, zeros included.

    >>> three_digits(0.185), three_digits(0.18), three_digits(27.04), three_digits(193.2), three_digits(1234.0)
    ('0.185', '0.180', '27.0', '193', '1,234')
    """
    return f"{value:#.3g}".rstrip(".") if value < 999.5 else f"{value:,.0f}"


def smallest(values: np.ndarray) -> np.ndarray:
    """The same integers in the smallest unsigned type that holds them: a browser takes them in faster."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
