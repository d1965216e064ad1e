"""The curve of what the first programs of each order load."""

from __future__ import annotations

from typing import Any

import numpy as np

from visualize.views import theme


def loads_figure(
    counts: np.ndarray, orders: dict[str, np.ndarray], first: int, what: str, panels: tuple[str, str]
) -> dict[str, Any]:
    """Distinct blocks of panels that the first n programs, or tiles, of each order load: a figure's data and layout.

    Args:
        counts: n, ascending.
        orders: (len(counts),) blocks, by the order's name.
        first: the n that is marked; one of `counts`.
        what: "programs" or "tiles".
        panels: the inputs that they are panels of.
    """
    marked = int(np.searchsorted(counts, first))
    lines = [
        dict(
            type="scatter",
            x=counts,
            y=blocks,
            name=name,
            mode="lines",
            line={"color": theme.CATEGORIES[place], "width": 2.5, "dash": ("solid", "dash")[place]},
            hovertemplate=f"{name}: %{{y:,}} blocks<extra></extra>",
        )
        for place, (name, blocks) in enumerate(orders.items())
    ]
    marks = dict(
        type="scatter",
        x=[first] * len(orders),
        y=[int(blocks[marked]) for blocks in orders.values()],
        text=[f"{blocks[marked]:,}" for blocks in orders.values()],
        textposition=["bottom right", "top left"],
        mode="markers+text",
        marker={"size": 9, "color": list(theme.CATEGORIES[: len(orders)])},
        hoverinfo="skip",
        showlegend=False,
    )
    n = {"title": {"text": f"n ({what}, in the order of time)"}}
    most, fewest = (extreme(list(map(extreme, orders.values()))) for extreme in (max, min))
    log = {"type": "log", "tickformat": ",d", "exponentformat": "none"}
    return {
        "data": [*lines, marks],
        "layout": theme.layout(
            f"Distinct blocks that the first n {what} load",
            height=330,
            showlegend=True,
            legend={"x": 0.99, "xanchor": "right", "y": 0.03, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
            hovermode="x unified",
            margin={"l": 70, "r": 10, "t": 34, "b": 44},
            xaxis={**n, **log, "dtick": 1},
            yaxis={
                "title": {"text": f"distinct blocks of {panels[0]} and {panels[1]}"},
                "automargin": True,
                **log,
                "dtick": 1 if most > 300 * fewest else "D2",
            },
        ),
    }
