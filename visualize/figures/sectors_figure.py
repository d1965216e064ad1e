"""One operation over the launch, by textbook, compiler and counters: a bar of sectors each, on one scale."""

from __future__ import annotations

import plotly.graph_objects as go

from visualize.figures import theme
from visualize.models.side_by_side import Cost, SideBySide

_SOURCES = ("textbook", "compiled", "counted")
_SIGNS = {"equal": " ✓", "at least": " ≥", "undercounted": " ✓", "different": " ≠"}


def sectors_figure(found: SideBySide, missing: dict[str, str]) -> go.Figure:
    """Bars of the sectors that an operation touches: those that its bytes would fill, and the rest.

    Args:
        missing: why one of the sources has no number, by the source's name.
    """
    costs = [found.of(source) for source in _SOURCES]
    lines = [
        (f"<b>{source}</b>", missing.get(source, "")) if cost is None else _words(cost)
        for source, cost in zip(_SOURCES, costs, strict=True)
    ]
    needed = [min(cost.ideal_sectors, cost.sectors) if cost else 0 for cost in costs]
    wasted = [cost.wasted_sectors if cost else 0 for cost in costs]
    bars = [
        go.Bar(
            x=values,
            y=list(range(len(_SOURCES))),
            orientation="h",
            width=0.3,
            marker={"color": color},
            name=name,
            customdata=[cost.efficiency if cost else 0 for cost in costs],
            hovertemplate=f"%{{x:,}} sectors {name}; %{{customdata:.0%}} used<extra></extra>",
        )
        for name, values, color in (("needed", needed, theme.WANTED), ("moved for nothing", wasted, theme.WASTED))
    ]
    said = [
        {
            "text": f"{first}<br>{second}",
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "align": "left",
            "y": place - 0.17,
            "yanchor": "bottom",
            "showarrow": False,
        }
        for place, (first, second) in enumerate(lines)
    ]
    most = max((cost.sectors for cost in costs if cost), default=0)
    return go.Figure(
        bars,
        theme.layout(
            f"<b>Whole launch</b><br>sectors of {' and '.join(found.tensors)}",
            margin={"l": 12, "r": 16, "t": 52, "b": 44},
            barmode="stack",
            xaxis={"title": {"text": "sectors of 32 bytes"}, "range": [0, most or 1], "nticks": 4, "tickangle": 0},
            yaxis={"range": [len(_SOURCES) - 0.7, -0.85], "visible": False},
            annotations=said,
        ),
    )


def _words(cost: Cost) -> tuple[str, str]:
    """What stands above a bar: whose it is, and its numbers."""
    where = ", ".join(filter(None, [cost.mark if cost.mark != cost.source else "", cost.note]))
    first = f"<b>{cost.source}</b>{_SIGNS.get(cost.agreement, '')}" + (f" ({where})" if where else "")
    if cost.requests:
        each = f"{cost.requests:,} requests × {cost.sectors / cost.requests:.3g} sectors"
    else:
        each = f"{cost.sectors:,} sectors" + (", no requests" if cost.requests == 0 else "")
    return first, f"{each}, {100 * cost.efficiency:.3g} % used"
