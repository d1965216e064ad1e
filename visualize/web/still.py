"""A figure's maps as SVG: what a browser shows at once, before Plotly has come to draw the same.

Cells, and the names above the maps; both stretch with their place, as Plotly's do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from markupsafe import Markup
from plotly.colors import sample_colorscale

# Units of the drawing along each side.
_SIDE = 1000


def still(picture: Mapping[str, Any]) -> Markup:
    """The heatmaps of `picture`, which have edges and one colour axis: an SVG, and each map's title at its place.

    The drawing is as wide and as high as what it stands in: the plot's area, without its margins.
    """
    layout = picture["layout"]
    paths = "".join(path for trace in picture["data"] for path in _paths(trace, layout))
    titles = [note for note in layout["annotations"] if note["yref"].endswith("domain") and note["y"] == 1]
    drawing = Markup('<svg viewBox="0 0 {0} {0}" preserveAspectRatio="none">{1}</svg>').format(_SIDE, Markup(paths))
    return drawing + Markup("").join(_title(note, layout) for note in titles)


def _title(note: Mapping[str, Any], layout: Mapping[str, Any]) -> Markup:
    left, right = _axis(layout, note["xref"].split()[0])["domain"]
    return Markup('<b style="left: {:.1f}%; width: {:.1f}%">{}</b>').format(
        100 * left, 100 * (right - left), note["text"]
    )


def _axis(layout: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An axis of the layout, by the name that a trace has for it: "x2"."""
    return layout[f"{name[0]}axis{name[1:]}"]


def _paths(trace: Mapping[str, Any], layout: Mapping[str, Any]) -> Iterator[str]:
    """One path for all cells of a colour."""
    across = _along(trace["x"], _axis(layout, trace.get("xaxis", "x")))
    down = _SIDE - _along(trace["y"], _axis(layout, trace.get("yaxis", "y")))
    cells: dict[float, list[str]] = defaultdict(list)
    grid = np.ma.masked_invalid(trace["z"])
    for row, column in np.argwhere(~np.ma.getmaskarray(grid)):
        (left, right), (top, bottom) = across[column : column + 2], down[row : row + 2]
        cells[float(grid[row, column])].append(f"M{left:.0f} {top:.0f}H{right:.0f}V{bottom:.0f}H{left:.0f}z")
    colors = layout["coloraxis"]
    span = colors["cmax"] - colors["cmin"]
    shades = sample_colorscale(colors["colorscale"], [(value - colors["cmin"]) / span for value in cells])
    for shade, drawn in zip(shades, cells.values(), strict=True):
        yield f'<path fill="{shade}" d="{"".join(drawn)}"/>'


def _along(edges: Any, axis: Mapping[str, Any]) -> np.ndarray:
    """Where edges lie, of _SIDE."""
    first, last = axis["range"]
    begin, end = axis.get("domain", (0, 1))
    return _SIDE * (begin + (np.asarray(edges) - first) / (last - first) * (end - begin))
