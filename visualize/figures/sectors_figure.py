"""One operation over the launch, by textbook, compiler and counters: the bytes that each moves, on one scale."""

from __future__ import annotations

import plotly.graph_objects as go

from visualize.figures import theme
from visualize.figures.memory_figure import MARGIN, two_line_layout
from visualize.predict.side_by_side import Cost, SideBySide

_SOURCES = ("textbook", "compiled", "counted")
_SIGNS = {"equal": " ✓", "at least": " ≥", "undercounted": " ✓", "different": " ≠"}


def sectors_figure(found: SideBySide, missing: dict[str, str]) -> go.Figure:
    """Bars of the bytes of all sectors that an operation touches: of those that would do, and of the rest.

    Args:
        missing: why one of the sources has no number, by the source's name.
    """
    costs = [found.of(source) for source in _SOURCES]
    lines = [
        [f"<b>{source}</b>", missing.get(source, "")] if cost is None else _words(cost)
        for source, cost in zip(_SOURCES, costs, strict=True)
    ]
    wanted = [cost.wanted_bytes if cost else 0 for cost in costs]
    wasted = [cost.wasted_bytes if cost else 0 for cost in costs]
    bars = [
        go.Bar(
            x=values,
            y=list(range(len(_SOURCES))),
            orientation="h",
            width=0.3,
            marker={"color": color},
            name=name,
            customdata=[cost.efficiency if cost else 0 for cost in costs],
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
            f"<b>Whole launch</b><br>all requests for {' and '.join(found.tensors)}, × sectors of each",
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


def _words(cost: Cost) -> list[str]:
    """The lines above a bar: whose it is, then its requests, times the sectors of each, and what of them is wanted.

    There is room for two lines on a projector, and for 40 characters in a window of 1280 pixels.
    """
    where = ", ".join(filter(None, [cost.mark if cost.mark != cost.source else "", cost.note]))
    first = f"<b>{cost.source}</b>{_SIGNS.get(cost.agreement, '')}" + (f" ({where})" if where else "")
    if cost.requests:
        each = f"{cost.sectors / cost.requests:.3g}"
        sectors = f"{cost.requests:,} × {each} sector{'' if each == '1' else 's'}"
    else:
        sectors = f"{cost.sectors:,} sector{'' if cost.sectors == 1 else 's'}"
    return [first, f"{sectors}, {100 * cost.efficiency:.3g} % wanted"]
