"""The picture of a sweep.

A cell carries the index of its row as customdata; the page adds its label and link (`points.js`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tilescope.results import Sweep
from tilescope.search.tune import sweep_unit, varying_names
from visualize.views import theme
from visualize.views.tune.text import knobs_text

# Heatmaps of up to this many cells have numbers in them.
_MAX_NUMBERED_CELLS = 120
# The figure of problems shows at most this many configs. Its color scale ends at this slowdown.
_MAX_COLUMNS = 40
_SLOW = 2.0
# The style of a cell's label.
_MARK = {"showarrow": False, "bgcolor": "#ffffff", "font": {"color": "#111827"}}


@dataclass(frozen=True)
class Cells:
    """The best config for each pair of two knobs' values.

    Attributes:
        across, up: the knobs of the columns and of the rows; `up` is "" if a single knob varies.
        columns, rows: their values.
        best: (rows, columns), the time or, without times, the rank of the best config; NaN without a result.
        numbers: (rows, columns), the index of that config's row in the sweep.
    """

    across: str
    up: str
    columns: tuple[Any, ...]
    rows: tuple[Any, ...]
    best: np.ndarray
    numbers: np.ndarray


def best_cells(sweep: Sweep) -> Cells:
    """Find the best config of each cell. The two knobs with the most values are the axes."""
    varied = dict(sweep.space.varied)
    across, *others = sorted(varied, key=lambda name: -len(varied[name]))
    up = others[0] if others else ""
    columns = varied[across]
    rows = varied[up] if up else ("",)
    configs = [{"": "", **vars(row.experiment.config)} for row in sweep.rows]
    _, scale = sweep_unit(sweep)
    if sweep.has_times:
        values = [sweep.time_ms(row) * scale for row in sweep.rows]
    else:
        values = [sweep.ranks.get(id(row), math.nan) for row in sweep.rows]
    filled = pd.Series(np.nan_to_num(values, nan=np.inf))
    by_cell = filled.groupby([[config[name] for config in configs] for name in (up, across)])
    numbers = by_cell.idxmin().unstack().reindex(rows, columns=columns).to_numpy()
    return Cells(across, up, columns, rows, np.array(values)[numbers], numbers)


def heatmap_figure(sweep: Sweep) -> dict[str, Any]:
    """Draw the fastest time for each pair of two knobs' values, or the best rank if only the expected order is known.

    Cells without a result are empty. The fastest cell and the current config's cell have labels.
    """
    cells = best_cells(sweep)
    title = f"for each {cells.across}{f' and {cells.up}' if cells.up else ''}"
    if sweep.has_times:
        title = f"Fastest time {title}"
        scale_title = f"{sweep_unit(sweep)[0]}, {sweep.source} (yellow: fast)"
        template = "%{z:,.3r}"
    else:
        title = f"Expected order: the best rank {title}"
        scale_title = ""
        template = "%{z}"
    trace = dict(
        type="heatmap",
        z=cells.best,
        x=[str(value) for value in cells.columns],
        y=[str(value) for value in cells.rows],
        customdata=cells.numbers,
        colorscale=theme.SEQUENCE,
        reversescale=True,
        xgap=2,
        ygap=2,
        hovertemplate="%{text}<extra></extra>",
        colorbar=theme.colorbar(scale_title),
        texttemplate=template if cells.best.size <= _MAX_NUMBERED_CELLS else None,
        **_color_limits(cells.best),
    )
    category = {"type": "category", "showgrid": False}
    return theme.figure(
        title,
        [trace],
        xaxis=theme.axis(cells.across, **category),
        yaxis=theme.axis(cells.up, **category, automargin=True),
        annotations=_name_cells(sweep, cells),
    )


def problems_figure(sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """Draw the time of each config on each problem, divided by the problem's best time. The best overall comes first.

    Args:
        sweeps: sweeps of the same configs, one per problem.
    """
    slowdowns = np.array([[sweep.slowdown(row) for row in sweep.rows] for sweep in sweeps])
    order = np.argsort(np.minimum(slowdowns, _SLOW).sum(axis=0), kind="stable")[:_MAX_COLUMNS]
    shown = np.where(np.isfinite(slowdowns), slowdowns, np.nan)[:, order]
    names = varying_names([sweep.space for sweep in sweeps])
    problems = [
        ", ".join(f"{name} {vars(sweep.experiment.problem)[name]}" for name in names)
        for sweep in sweeps
    ]
    configs = [knobs_text(sweeps[0].rows[number].experiment, sweeps[0].space) for number in order]
    trace = dict(
        type="heatmap",
        z=shown,
        x=list(range(1, len(order) + 1)),
        y=problems,
        text=[configs] * len(sweeps),
        colorscale=theme.SEQUENCE,
        reversescale=True,
        zmin=1,
        zmax=_SLOW,
        xgap=1,
        ygap=1,
        hovertemplate="%{y}<br>%{text}<br>%{z:.3f} × the best<extra></extra>",
        colorbar=theme.colorbar("time / problem's best"),
    )
    return theme.figure(
        "Each config on each problem; empty cells have no time",
        [trace],
        xaxis=theme.axis("configs, best overall first", type="category"),
        yaxis=theme.axis("", type="category", autorange="reversed", automargin=True),
    )


def _color_limits(best: np.ndarray) -> dict[str, float]:
    """Return the ends of the colour scale if they are not Plotly's own.

    Times that look alike get one colour. For a single value, Plotly's own scale would reach below zero.
    """
    finite = best[np.isfinite(best)]
    is_alike = finite.size and finite.max() < 1.002 * finite.min()
    return {"zmin": 0, "zmax": float(finite.max())} if is_alike else {}


def _name_cells(sweep: Sweep, cells: Cells) -> list[dict[str, Any]]:
    """Return annotations: the best cell, the cell of the sweep's own config, and why other cells are empty."""
    # Row, column, and pixels from the middle of the cell, where its time is.
    named = {}
    is_empty = ~np.isfinite(cells.best)
    if not is_empty.all():
        first, *ties = np.argwhere(cells.best == np.nanmin(cells.best))
        if sweep.has_times or not ties:
            named["fastest" if sweep.has_times else "expected fastest"] = *first, -20
    config = {"": "", **vars(sweep.space.base.config)}
    if sweep.space.base in sweep.space.experiments:
        row = cells.rows.index(config[cells.up])
        named["includes current"] = row, cells.columns.index(config[cells.across]), 20
    marks = [
        {**_MARK, "text": name, "x": column, "y": row, "yshift": shift}
        for name, (row, column, shift) in named.items()
    ]
    for row, column in np.argwhere(is_empty)[:_MAX_NUMBERED_CELLS]:
        status = sweep.rows[cells.numbers[row, column]].status
        marks.append({"showarrow": False, "text": status, "x": column, "y": row})
    return marks
