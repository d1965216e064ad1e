"""The time of a run beside the library's."""

from __future__ import annotations

import plotly.graph_objects as go

from kernels.results import RunResult, Timing
from visualize.figures import theme


def time_figure(result: RunResult) -> go.Figure:
    """Medians as bars, with whiskers from the 20th to the 80th percentile, in µs below a tenth of a millisecond.

    Args:
        result: a run that was timed.

    Raises:
        ValueError: for one that was not.
    """
    if result.timing is None:
        raise ValueError("Only a run that was timed has a picture of its time.")
    named: list[tuple[str, Timing]] = [("this kernel", result.timing)]
    if result.baseline:
        named.append((result.baseline.name, result.baseline.timing))
    slowest = max(timing.median_ms for _, timing in named)
    unit, scale = ("µs", 1000.0) if slowest < 0.1 else ("ms", 1.0)
    timings = [timing for _, timing in named]
    rates = [
        f"{timing.tflops:,.0f} TFLOP/s" if timing.tflops is not None else f"{timing.gbps or 0:,.0f} GB/s"
        for timing in timings
    ]
    bars = go.Bar(
        orientation="h",
        width=0.5,
        y=[name for name, _ in named],
        x=[timing.median_ms * scale for timing in timings],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [(timing.p80_ms - timing.median_ms) * scale for timing in timings],
            "arrayminus": [(timing.median_ms - timing.p20_ms) * scale for timing in timings],
        },
        marker={"color": [theme.HARDWARE, theme.CATEGORIES[7]][: len(named)]},
        text=[
            f"<b>{timing.median_ms * scale:.4g} {unit}</b>  {rate}" for timing, rate in zip(timings, rates, strict=True)
        ],
        textposition="inside",
        insidetextanchor="start",
        textfont={"color": "#ffffff"},
        hovertemplate=f"%{{y}}: %{{x:.4g}} {unit}<extra></extra>",
    )
    source = "recorded" if result.backend == "recorded" else "measured"
    return go.Figure(
        bars,
        theme.layout(
            f"Time on {result.device.name}, {source}",
            xaxis={
                "title": {"text": f"{unit}, median of {result.timing.samples}; whiskers p20 to p80"},
                "rangemode": "tozero",
            },
            yaxis={"automargin": True, "autorange": "reversed"},
        ),
    )
