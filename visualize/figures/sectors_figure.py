"""One operation over the launch, by textbook, compiler and counters: the bytes that each moves, on one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from visualize.figures.memory_figure import MARGIN, two_line_layout
from visualize.predict.traffic import Cost
from visualize.views import theme

_SOURCES = ("textbook", "compiled", "counted")
_SIGNS = {"equal": " ✓", "at least": " ≥", "undercounted": " ✓", "different": " ≠"}


def sectors_figure(
    tensors: Sequence[str], costs: Mapping[str, Cost], notes: Mapping[str, str], missing: Mapping[str, str]
) -> go.Figure:
    """Bars of the bytes of all sectors that an operation touches: those needed, and the rest.

    Args:
        tensors: names of the tensors that it addresses.
        costs: by source: "textbook", "compiled" and "counted".
        notes: where a cost comes from, by source.
        missing: why a source has no cost.
    """
    known = [costs.get(source) for source in _SOURCES]
    lines = [
        [f"<b>{source}</b>", missing.get(source, "")] if cost is None else _words(source, cost, notes.get(source, ""))
        for source, cost in zip(_SOURCES, known, strict=True)
    ]
    wanted = [_wanted_bytes(cost) if cost else 0 for cost in known]
    wasted = [cost.sector_bytes * cost.sectors - _wanted_bytes(cost) if cost else 0 for cost in known]
    bars = [
        go.Bar(
            x=values,
            y=list(range(len(_SOURCES))),
            orientation="h",
            width=0.3,
            marker={"color": color},
            name=name,
            customdata=[min(1, cost.efficiency) if cost else 0 for cost in known],
            hovertemplate=f"%{{x:,}} bytes {name}; %{{customdata:.3p}} wanted<extra></extra>",
        )
        for name, values, color in (("wanted", wanted, theme.WANTED), ("moved for nothing", wasted, theme.WASTED))
    ]
    said = [
        {
            "text": "<br>".join(words),
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "align": "left",
            "y": place - 0.17,
            "yanchor": "bottom",
            "showarrow": False,
        }
        for place, words in enumerate(lines)
    ]
    most = max(map(sum, zip(wanted, wasted, strict=True)))
    return go.Figure(
        bars,
        two_line_layout(
            f"<b>Whole launch</b><br>all requests for {' and '.join(tensors)}, × sectors of each",
            margin={**MARGIN, "l": 12, "r": 20},
            barmode="stack",
            xaxis={
                "title": {"text": "moved"},
                "range": [0, most or 1],
                "nticks": 4,
                "tickformat": "~s",
                "ticksuffix": "B",
                "tickangle": 0,
            },
            yaxis={"range": [len(_SOURCES) - 0.7, -0.85], "visible": False},
            annotations=said,
        ),
    )


def _wanted_bytes(cost: Cost) -> int:
    return cost.sector_bytes * min(cost.ideal_sectors, cost.sectors)


def _words(source: str, cost: Cost, note: str) -> list[str]:
    """The lines above a bar: whose it is, then its requests, times the sectors of each, and what of them is wanted.

    There is room for two lines on a projector, and for 40 characters in a window of 1280 pixels.
    """
    first = f"<b>{source}</b>{_SIGNS.get(cost.agreement, '')}" + (f" ({note})" if note else "")
    if cost.requests:
        each = f"{cost.sectors / cost.requests:.3g}"
        sectors = f"{cost.requests:,} × {each} sector{'' if each == '1' else 's'}"
    else:
        sectors = f"{cost.sectors:,} sector{'' if cost.sectors == 1 else 's'}"
    return [first, f"{sectors}, {100 * min(1, cost.efficiency):.3g} % wanted"]
