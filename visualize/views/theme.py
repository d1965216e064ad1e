"""Colours and fonts of all figures, light and dark.

Figures contain no text or paper colours. The plot component applies one of THEMES in the browser, so switching between
light and dark needs no new figure.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

# Okabe and Ito's colours (2008), distinguishable with the common kinds of colour blindness; no black, for dark paper.
CATEGORIES = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#999999",
)
# From blue to yellow with rising luminance, like Cividis; its first colours would vanish on dark paper.
SEQUENCE = [
    [0, "#3a62a8"],
    [0.2, "#66738c"],
    [0.4, "#8f8d83"],
    [0.6, "#bbab70"],
    [0.8, "#e8d157"],
    [1, "#ffe945"],
]
WRONG = "#D55E00"
BORDER = "#94a3b8"  # of a sector
EDGE = {"color": BORDER, "width": 1, "dash": "dot"}  # between the steps of a program
NOTHING = "rgba(0,0,0,0)"

# Each colour has one meaning on all tabs. Style sheets use them as CSS variables (`variables`).
NEW = "#F5A300"
REUSED = "#56B4E9"
TO_COME = "rgba(128,140,160,0.22)"
USED = "#0072B2"
WASTED = "#D55E00"
MODEL = "#5B6CE6"  # predicted, compiled, textbook
HARDWARE = "#009E73"  # counted, measured, recorded
# The operations that hardware counters distinguish: reads in blue, writes in yellow.
OPERATIONS = {
    "load": CATEGORIES[0], "TMA load": CATEGORIES[4], "store": CATEGORIES[1], "TMA store": CATEGORIES[6],
    "atomic": CATEGORIES[3],
}  # fmt: skip

# Tiles and blocks at a step, from 0 (not loaded yet) to 1 (finished, or loaded earlier); 2 for reused blocks, 3 for
# blocks that are loaded now.
BEFORE = "#5F7089"
# Opaque variants of TO_COME for cells with numbers: Plotly picks a number's colour as if its cell were opaque.
OPAQUE_TO_COME = {"light": "#E4E7EC", "dark": "#232A38"}
LOAD_SCALE = (
    (0, TO_COME),
    (1 / 3, BEFORE),
    (0.5, BEFORE),
    (0.5, REUSED),
    (5 / 6, REUSED),
    (5 / 6, NEW),
    (1, NEW),
)

BARS = {"type": "bar", "textposition": "inside", "insidetextanchor": "middle"}
# Text that does not fit in its bar is hidden.
OVERLAID_BARS = {"barmode": "overlay", "uniformtext": {"minsize": 9, "mode": "hide"}}

# A legend between the title and the plot.
LEGEND = {"orientation": "h", "x": 0.5, "xanchor": "center", "y": 1, "yanchor": "bottom"}

# A figure, or a part of one, as Plotly's data and layout.
Figure = dict[str, Any]

# The page's typeface, served by Gradio.
FONT = "IBM Plex Sans, system-ui, sans-serif"


# The page itself. Style sheets use these as CSS variables, too.
PAGE = {
    "light": {
        "ink": "#1f2937", "paper": "#ffffff", "surface": "#f6f8fb", "grid": "#cbd5e1", "quiet": "#566072",
        "accent": "#3b4fd1", "good": "#00694d", "wrong": "#b93a0a", "right-tile": "#a7dcc8", "wrong-tile": "#e8590c",
    },
    "dark": {
        "ink": "#e5e7eb", "paper": "#0a0f1e", "surface": "#182030", "grid": "#475569", "quiet": "#a8b1bf",
        "accent": "#a1acfb", "good": "#6ee7b7", "wrong": "#fb923c", "right-tile": "#1d6b54", "wrong-tile": "#fb923c",
    },
}  # fmt: skip


def variables() -> str:
    """Return the colours as CSS variables."""
    shared = {
        "new": NEW,
        "reused": REUSED,
        "before": BEFORE,
        "to-come": TO_COME,
        "used": USED,
        "wasted": WASTED,
        "model": MODEL,
        "hardware": HARDWARE,
        "button": PAGE["light"]["accent"],
    }

    def rule(selector: str, named: Mapping[str, str]) -> str:
        return (
            f"{selector} {{{''.join(f' --{name}: {color};' for name, color in named.items())} }}\n"
        )

    return rule(":root", shared | PAGE["light"]) + rule(".dark", PAGE["dark"])


def _template(page: Mapping[str, str], hover: str) -> Figure:
    text = page["ink"]
    line = page["grid"]
    axis = {
        "color": text,
        "gridcolor": line,
        "linecolor": line,
        "zeroline": False,
        "showgrid": False,
        "ticks": "outside",
        "tickcolor": line,
        "ticklabeloverflow": "allow",  # otherwise Plotly measures each label again: a tenth of a redraw
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
    "light": _template(PAGE["light"], hover="#ffffff"),
    "dark": _template(PAGE["dark"], hover="#1f2937"),
}

# What the page's scripts need of this module.
FOR_SCRIPTS = {"themes": THEMES, "scale": LOAD_SCALE, "to_come": OPAQUE_TO_COME}


def figure(
    title: str,
    traces: Sequence[Figure],
    margin: Mapping[str, int] = MappingProxyType({}),
    **more: Any,
) -> Figure:
    """Return a figure with a title, without Plotly's default template.

    Args:
        margin: the margins in pixels that differ from the default ones.
        more: further fields of the layout.
    """
    layout = {
        "template": {},
        "title": {
            "text": title,
            "font": {"size": 15},
            "x": 0.5,
            "xanchor": "center",
            "y": 0.985,
            "yanchor": "top",
        },
        "height": 410,
        "margin": {"l": 60, "r": 10, "t": 34, "b": 48, **margin},
        "showlegend": "legend" in more,
        **more,
    }
    return {"data": [*traces], "layout": layout}


def axis(title: str, **more: Any) -> Figure:
    return {"title": {"text": title}, **more}


def scatter(name: str, x: Any, y: Any, mode: str = "lines", **style: Any) -> Figure:
    return {"type": "scatter", "mode": mode, "name": name, "x": x, "y": y, **style}


def note(text: str, x: float, y: float, **more: Any) -> Figure:
    """Return an annotation without an arrow."""
    return {"text": text, "x": x, "y": y, "showarrow": False, **more}


def vertical(x: float, line: Figure, **more: Any) -> Figure:
    """Return a line through the whole height of the plot."""
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "line": line, **more}


def horizontal(y: float, line: Figure, **more: Any) -> Figure:
    """Return a line through the whole width of the figure's plots."""
    ends = {"xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y}
    return {"type": "line", "line": line, **ends, **more}


def colorbar(title: str, **more: Any) -> Figure:
    # Above the bar the title would cover the number at the bar's end.
    return {
        "title": {"text": title, "side": "right"},
        "thickness": 12,
        "outlinewidth": 0,
        "xpad": 8,
        **more,
    }


def bar_figure(
    title: str, along: str, bars: Figure, labels: Sequence[str], ends: Sequence[float], **more: Any
) -> Figure:
    """Return a figure of horizontal bars with labels at their right: Plotly shrinks and rotates a bar's own labels.

    Args:
        along: the title of the axis along the bars.
        bars: fields of their trace.
        ends: where the labels start. There is room for them beside the longest bar.
        more: further fields of the layout.
    """
    beside = scatter(
        "labels", ends, bars["y"], "text",
        text=labels, textposition="middle right", cliponaxis=False, hoverinfo="skip",
    )  # fmt: skip
    room = {"include": [1.75 * max(ends)]}
    return figure(
        title,
        [{"type": "bar", "orientation": "h", **bars}, beside],
        xaxis=axis(along, rangemode="tozero", autorangeoptions=room),
        yaxis={"automargin": True, "autorange": "reversed"},
        **more,
    )


def diagonal(low: float, high: float, label: str, color: str) -> Figure:
    """Return the layout of a labelled line on which x equals y, from `low` to `high` on logarithmic axes."""
    ends = {"x0": low, "y0": low, "x1": high, "y1": high}
    # An annotation on a logarithmic axis is placed at the logarithm. Further up, it would meet a legend on a phone.
    at = math.log10(low) + math.log10(high / low) / 4
    arrow = {"x": at, "y": at, "ax": 44, "ay": 38, "arrowhead": 2, "arrowcolor": BORDER}
    return {
        "shapes": [
            {"type": "line", **ends, "line": {"color": color, "width": 1.5}, "layer": "below"}
        ],
        "annotations": [{"text": f"<b>{label}</b>", **arrow}],
    }


def matrix_axes(rows: str, columns: str, shape: tuple[int, int]) -> Figure:
    """Return the axes of a picture of a matrix, with rows downwards and columns to the right.

    Cells are square, unless the matrix is more than four times as long as wide.

    Args:
        shape: numbers of rows and columns.
    """

    def side(title: str, count: int) -> Figure:
        whole = {"dtick": 1, "tick0": 0} if count <= 10 else {}
        return axis(title, constrain="domain", tickangle=0, range=[-0.5, count - 0.5], **whole)

    x, y = side(columns, shape[1]), side(rows, shape[0])
    y |= {"range": y["range"][::-1], "automargin": True}
    if 1 / 4 <= shape[0] / shape[1] <= 4:
        y["scaleanchor"] = "x"
    return {"xaxis": x, "yaxis": y}


def smallest(values: np.ndarray) -> np.ndarray:
    """Convert non-negative integers to the smallest unsigned type, which the browser parses faster."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
