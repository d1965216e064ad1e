"""What GROUP_SIZE does: bytes that are read from DRAM, and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from visualize.predict.reuse import Reuse
from visualize.views import theme

_PREDICTED, _MEASURED, _OWN = theme.MODEL, theme.HARDWARE, theme.WRONG


# What a logarithmic axis names, in full: Plotly writes what is between powers of ten as one small digit.
_TICKS = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 1.5, 2, 3, 5, 7)]
_FEWER_TICKS = [digit * 10.0**power for power in range(-6, 7) for digit in (1, 2, 5)]


def _written(gigabytes: float) -> str:
    """Bytes in the unit that suits them, as the text beside the picture writes them."""
    for size, unit in ((1.0, "GB"), (1e-3, "MB"), (1e-6, "kB")):
        # A tick such as 0.007 GB is a little less than 7 MB in binary.
        if gigabytes >= size * (1 - 1e-9):
            return f"{gigabytes / size:,.3g} {unit}"
    return f"{gigabytes * 1e9:.0f} bytes"


@dataclass(frozen=True)
class Measured:
    """One GROUP_SIZE as it was counted and timed: bytes of each count, milliseconds of each turn."""

    group_size: int
    read_bytes: tuple[int, ...]
    times_ms: tuple[float, ...]


def bytes_figure(predicted: Mapping[int, Reuse], measured: Sequence[Measured], own: int, source: str) -> go.Figure:
    """Bytes read by GROUP_SIZE, both axes logarithmic: predicted as a line with a band, counted as points.

    Values are gigabytes, and ticks have the unit that suits them: so has the text.

    The band covers an L2 that keeps an eighth more or a tenth less, and programs in lockstep. Bars on points go
    from the least to the most counted.

    Args:
        source: of the points: "counted" or "recorded".
    """
    sizes = list(predicted)
    several = [predicted[size] for size in sizes]
    least = [min(one.low_bytes, one.lockstep_bytes) / 1e9 for one in several]
    most = [max(one.high_bytes, one.lockstep_bytes) / 1e9 for one in several]
    figure = go.Figure(layout=_layout("DRAM reads by GROUP_SIZE", "read from DRAM (log scale)", sizes[-1]))
    figure.add_scatter(
        x=sizes + sizes[::-1], y=least + most[::-1], mode="lines", line={"width": 0}, fill="toself",
        fillcolor="rgba(91,108,230,0.18)", hoverinfo="skip", name="uncertainty",
    )  # fmt: skip
    figure.add_scatter(
        x=sizes, y=[one.read_bytes / 1e9 for one in several], mode="lines", line={"color": _PREDICTED},
        name="predicted", hovertemplate="GROUP_SIZE %{x}: %{y:.3g} GB predicted<extra></extra>",
    )  # fmt: skip
    counted = [one for one in measured if one.read_bytes]
    if counted:
        figure.add_scatter(**_points(counted, [np.array(one.read_bytes) / 1e9 for one in counted], source, "GB"))
    compulsory = several[0].compulsory_bytes / 1e9
    figure.add_scatter(
        x=[sizes[0], sizes[-1]], y=[compulsory, compulsory], mode="lines", name="each input once", hoverinfo="y",
        line={"dash": "dot", "color": theme.CATEGORIES[7]},
    )  # fmt: skip
    # What hardly differs looks alike: the axis spans a factor of three at least.
    drawn = [compulsory, *least, *most, *(one / 1e9 for row in counted for one in row.read_bytes)]
    if max(drawn) > 10 * min(drawn):
        figure.update_yaxes(tickvals=_FEWER_TICKS, ticktext=[*map(_written, _FEWER_TICKS)])
    middle = math.sqrt(min(drawn) * max(drawn))
    figure.add_scatter(
        x=[sizes[0]] * 2, y=[middle / math.sqrt(3), middle * math.sqrt(3)], mode="markers", marker={"opacity": 0},
        name="least span", showlegend=False, hoverinfo="skip",
    )  # fmt: skip
    return _with_own(figure, own)


def times_figure(measured: Sequence[Measured], own: int, source: str) -> go.Figure:
    """Milliseconds by GROUP_SIZE, timed in turns: medians, with bars from the 20th to the 80th percentile.

    Args:
        source: of the points: "measured" or "recorded".
    """
    figure = go.Figure(
        layout=_layout(
            "Time by GROUP_SIZE, in one study", "milliseconds, p20 to p80", max(one.group_size for one in measured)
        )
    )
    figure.update_yaxes(type="linear", rangemode="tozero", tickvals=None, ticktext=None)
    spread = [np.percentile(one.times_ms, (20, 50, 80)) for one in measured]
    figure.add_scatter(**_points(measured, spread, source, "ms"))
    return _with_own(figure, own)


def _points(measured: Sequence[Measured], values: Sequence[np.ndarray], name: str, unit: str) -> dict[str, object]:
    """Medians with bars to the least and the most of `values`."""
    middle = np.array([np.median(one) for one in values])
    return {
        "x": [one.group_size for one in measured],
        "y": middle.tolist(),
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [float(one.max() - mid) for one, mid in zip(values, middle, strict=True)],
            "arrayminus": [float(mid - one.min()) for one, mid in zip(values, middle, strict=True)],
        },
        "mode": "markers",
        "marker": {"color": _MEASURED, "size": 9},
        "name": name,
        "hovertemplate": f"GROUP_SIZE %{{x}}: %{{y:.3f}} {unit} {name}<extra></extra>",
    }


def _layout(title: str, unit: str, most: int) -> dict[str, object]:
    powers = [1 << exponent for exponent in range(most.bit_length())]
    axis = {"title": {"text": "GROUP_SIZE (rows of tiles)"}, "type": "log", "tickvals": powers, "ticktext": powers}
    legend = {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0.5, "xanchor": "center"}
    margin = {"l": 60, "r": 10, "t": 84, "b": 48}
    scale = {
        "title": {"text": unit},
        "type": "log",
        "automargin": True,
        "tickvals": _TICKS,
        "ticktext": [*map(_written, _TICKS)],
    }
    return theme.layout(title, xaxis=axis, yaxis=scale, showlegend=True, legend=legend, margin=margin)


def _with_own(figure: go.Figure, own: int) -> go.Figure:
    """Mark the GROUP_SIZE that is set. On a logarithmic axis an annotation stands at the logarithm."""
    line = {"color": _OWN, "width": 1}
    figure.add_shape(type="line", x0=own, x1=own, y0=0, y1=1, yref="paper", line=line)
    figure.add_annotation(x=math.log10(own), y=0.12, yref="paper", text=f"this: {own}", showarrow=False, xanchor="left")
    return figure
