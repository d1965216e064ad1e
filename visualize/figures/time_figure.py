"""Times as bars: of a run beside the library's calls and what a call from Python costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from kernels.results import RunResult, Timing
from visualize.views import theme

OURS, ENQUEUED, WAITED = "this kernel", "launch from Python", "launch and wait"

# A bar that is shorter than this share of the longest has its text beside it.
_ROOM = 0.45

_KERNEL, _LIBRARY, _PYTHON = theme.HARDWARE, theme.CATEGORIES[7], theme.CATEGORIES[3]

# The colour of text on a bar, for contrast.
_ON = {_KERNEL: "#ffffff", _LIBRARY: "#111827", _PYTHON: "#111827"}


@dataclass(frozen=True)
class _Bar:
    """One bar: p20 and p80 are None where there is no spread to show."""

    name: str
    color: str
    median_ms: float
    p20_ms: float | None = None
    p80_ms: float | None = None
    rate: str = ""


def time_figure(result: RunResult) -> go.Figure:
    """Medians as bars, with whiskers from the 20th to the 80th percentile, in µs below a tenth of a millisecond.

    The kernel and the library's calls are times on the GPU; in another colour, what one call takes on the host.

    Args:
        result: a run that was timed.

    Raises:
        ValueError: for one that was not.
    """
    if result.timing is None:
        raise ValueError("Only a run that was timed has a picture of its time.")
    return _figure(_bars(result, result.timing), result.device.name, result.backend, result.timing.samples)


def _figure(bars: Sequence[_Bar], device: str, backend: str, samples: int) -> go.Figure:
    slowest = max(bar.median_ms for bar in bars)
    # The unit that the first bar's time has wherever else it is written.
    unit, scale = ("µs", 1000.0) if bars[0].median_ms < 0.1 else ("ms", 1.0)
    drawn = go.Bar(
        orientation="h",
        width=0.5,
        y=[bar.name for bar in bars],
        x=[bar.median_ms * scale for bar in bars],
        error_x={
            "type": "data",
            "symmetric": False,
            "color": theme.BORDER,
            "array": [bar.p80_ms and (bar.p80_ms - bar.median_ms) * scale for bar in bars],
            "arrayminus": [bar.p20_ms and (bar.median_ms - bar.p20_ms) * scale for bar in bars],
        },
        marker={"color": [bar.color for bar in bars]},
        # The blanks in front keep a text beside its bar clear of the whisker.
        text=[f"\u2002<b>{theme.three_digits(bar.median_ms * scale)} {unit}</b>\u2002{bar.rate}" for bar in bars],
        textposition=["inside" if bar.median_ms > _ROOM * slowest else "outside" for bar in bars],
        insidetextanchor="start",
        insidetextfont={"color": [_ON[bar.color] for bar in bars]},
        hovertemplate=f"%{{y}}: %{{x:.4g}} {unit}<extra></extra>",
    )
    source = "recorded" if backend == "recorded" else "measured"
    return go.Figure(
        drawn,
        theme.layout(
            f"Time on {device}, {source}",
            xaxis={
                # Two lines, as there is no room for one on a phone.
                "title": {"text": f"{unit}, median of {samples}<br>whiskers: p20 to p80"},
                "rangemode": "tozero",
            },
            margin={"l": 60, "r": 10, "t": 34, "b": 66},
            yaxis={"automargin": True, "autorange": "reversed"},
        ),
    )


def _bars(result: RunResult, ours: Timing) -> list[_Bar]:
    """The kernel, the library's calls, and what a call costs on the host."""
    library = result.baselines or ((result.baseline,) if result.baseline else ())
    bars = [_timed(OURS, _KERNEL, ours), *(_timed(one.name, _LIBRARY, one.timing) for one in library)]
    if cost := result.launch_overhead:
        bars.append(_Bar(ENQUEUED, _PYTHON, cost.enqueue_ms, rate="call returns"))
        bars.append(_Bar(WAITED, _PYTHON, cost.synchronized_ms, rate="kernel included"))
    return bars


def _timed(name: str, color: str, timing: Timing) -> _Bar:
    rate = f"{timing.tflops:,.0f} TFLOP/s" if timing.tflops is not None else f"{timing.gbps or 0:,.0f} GB/s"
    return _Bar(name, color, timing.median_ms, timing.p20_ms, timing.p80_ms, rate)
