"""Figures of one run: the map of its error, its times as bars, its roofline, and its predicted time."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tilescope.inside.report import Inside
from tilescope.numbers import milliseconds, percent, significant, source, time_unit
from tilescope.reports.text import name_resource
from tilescope.results.run import (
    Check,
    Diff,
    RunResult,
)
from visualize.views import theme
from visualize.views.prose import (
    Sentence,
    Sourced,
    Strong,
    say,
)
from visualize.views.result.text import THIS_KERNEL, rate, timings
from visualize.views.slots import NONE, plot_value
from visualize.views.theme import Figure

# Borders of more tiles than this along a side would hide the picture.
_MAX_BORDERS = 64

# Colours of errors within the limit, and beyond it, from the smallest to the largest.
_WITHIN = ("#0b2a5b", "#cfe0f3")
_BEYOND = ("#fcd29f", "#e2691b", "#6d1602")

# log10 of the smallest error / limit that has a colour.
_SMALLEST = -2.0

_KERNEL = theme.HARDWARE
_LIBRARY = theme.CATEGORIES[7]


def error_figure(diff: Diff, check: Check, tensor: str) -> Figure:
    """Draw a map of the error in units of each element's limit, with a ring around the worst element.

    The logarithmic colour scale ends at the largest error. For a kernel that only moves data, any difference is wrong.
    There is no ring without an error, and there are no borders between too many tiles.
    """
    rows, columns = diff.cell
    low, high, ticks = _color_range(diff)
    cells = diff.cells
    if diff.exact:
        # However small its error, a wrong cell has the colour of wrong cells.
        z = np.where(np.isnan(cells) | (cells > 0), high, low)
    else:
        z = np.log10(np.where(np.isfinite(cells), np.maximum(cells, 10**low), 10**high))
    error = (
        "|error|: %{customdata:.3g}"
        if diff.exact
        else "error: %{customdata:.3g} × the rounding limit"
    )
    heatmap = dict(
        type="heatmap",
        z=z.astype(np.float32),
        customdata=cells.astype(np.float32),
        x0=(columns - 1) / 2,
        dx=columns,
        y0=(rows - 1) / 2,
        dy=rows,
        zmin=low,
        zmax=high,
        colorscale=_color_scale(low, high),
        colorbar=theme.colorbar("", tickvals=list(ticks), ticktext=list(ticks.values())),
        hovertemplate=f"around row %{{y:.0f}}, column %{{x:.0f}}<br>largest {error}<extra></extra>",
    )
    traces = [heatmap]
    if diff.tile:
        traces.append(_borders(diff.shape, diff.tile))
    if not check.passed or (not diff.exact and cells.any()):
        traces.append(_ring(check))
    # Beside the colour bar, Plotly would write the unit over the numbers.
    unit = "" if diff.exact else " ÷ its rounding limit"
    largest = "" if diff.cell == (1, 1) else f" (max of each {rows} × {columns})"
    axes = theme.matrix_axes(f"row of {tensor}", f"column of {tensor}", diff.shape)
    return theme.figure(f"Error of {tensor}{unit}{largest}", traces, **axes)


def _color_range(diff: Diff) -> tuple[float, float, dict[float, str]]:
    """Return log10 of error / limit at both ends of the colour scale, and the colour bar's labels.

    The scale ends at the largest error, and if no element is right, starts at the smallest one: with fixed ends, a lost
    race would have one colour everywhere.
    """
    if diff.exact:
        return _SMALLEST, -_SMALLEST, {_SMALLEST: "0", -_SMALLEST: "wrong"}
    cells = diff.cells.ravel().astype(float)
    finite = np.log10(np.maximum(cells[np.isfinite(cells)], 10**_SMALLEST))
    low = float(finite.min(initial=np.inf))
    low = low if 0 < low < math.inf else _SMALLEST
    # The scale spans at least a factor of two, so that small differences look small.
    has_nonfinite = len(finite) < len(cells)
    high = max(float(finite.max(initial=0)), low + math.log10(2)) + 0.5 * has_nonfinite
    decades = range(math.ceil(low), math.floor(high) + 1)
    digits = (1, 1.5, 2, 3, 5) if len(decades) < 3 else (1,)
    places = [
        decade + math.log10(digit)
        for decade in range(math.floor(low), math.ceil(high) + 1)
        for digit in digits
    ]
    ticks = {place: f"{float(f'{10**place:.2g}'):,g}" for place in places if low <= place <= high}
    if 0.0 in ticks:
        ticks[0.0] = "limit"
    if low == _SMALLEST:
        ticks[low] = f"≤ {10**low:g}"
    if has_nonfinite:
        ticks = {place: text for place, text in ticks.items() if place < high - 0.2} | {
            high: "not finite"
        }
    return low, high, ticks


def _color_scale(low: float, high: float) -> list[list[float | str]]:
    """Return Plotly's colour scale, which jumps at the limit."""
    limit = min(max(-low / (high - low), 0.0), 1.0)
    within: list[list[float | str]] = [
        [limit * place, color] for place, color in enumerate(_WITHIN)
    ]
    beyond: list[list[float | str]] = [
        [limit + (1 - limit) * i / 2, color] for i, color in enumerate(_BEYOND)
    ]
    return (within if limit > 0 else []) + (beyond if limit < 1 else [])


def _borders(shape: tuple[int, int], tile: tuple[int, int]) -> Figure:
    x, y = list[float | None](), list[float | None]()
    for axis, (along, across) in enumerate(((y, x), (x, y))):
        if shape[axis] > _MAX_BORDERS * tile[axis]:
            continue
        for place in range(0, shape[axis], tile[axis]):
            along += [place - 0.5, place - 0.5, None]
            across += [-0.5, shape[1 - axis] - 0.5, None]
    line = {"color": "rgba(148, 163, 184, 0.7)", "width": 1}
    return theme.scatter("borders", x, y, line=line, hoverinfo="skip")


def _ring(check: Check) -> Figure:
    """Draw a white ring in a black one around the worst element: it is visible on every colour."""
    row, column = check.worst_index
    values = f"got {check.worst_got:.6g}, expected {check.worst_expected:.6g}"
    return theme.scatter(
        "worst element",
        [column, column],
        [row, row],
        "markers",
        marker={
            "symbol": "circle-open",
            "size": 17,
            "color": ["#000000", "#ffffff"],
            "line": {"width": [6, 2.5]},
        },
        hovertemplate=f"worst element: row {row}, column {column}<br>{values}<extra></extra>",
    )


def time_figure(result: RunResult) -> Figure:
    """Draw the median times of the kernel and of the library's call as bars, in µs below a tenth of a ms.

    Whiskers reach from the 20th to the 80th percentile.
    """
    times = dict(list(timings(result).items())[:2])
    own = times[THIS_KERNEL]
    unit, scale = time_unit(own.median_ms)
    names = list(times)
    parts = [(time.p20_ms, time.median_ms, time.p80_ms) for time in times.values()]
    p20, median, p80 = scale * np.array(parts).T
    whiskers = {"array": p80 - median, "arrayminus": median - p20}
    bars = dict(
        width=0.5,
        y=names,
        x=median,
        error_x={"symmetric": False, "color": theme.BORDER, **whiskers},
        marker={"color": [_KERNEL, _LIBRARY][: len(names)]},
        hovertemplate=f"%{{y}}: %{{x:.4g}} {unit}<extra></extra>",
    )
    texts = [f" <b>{milliseconds(time.median_ms)}</b><br> {rate(time)}" for time in times.values()]
    # The axis title has two lines, because one would be too long for a phone.
    title = f"{unit}, median of {own.samples}<br>whiskers: p20 to p80"
    l2 = result.experiment.run.l2
    about = f"Time on {result.device.name}, {l2} L2, {source(result.backend)}"
    return theme.bar_figure(about, title, bars, texts, p80, margin={"b": 66})


@dataclass(frozen=True)
class Roof:
    """A GPU's measured peaks: the bandwidth of a copy, and the rate of the library's large product.

    Attributes:
        source: "measured" or "recorded".
    """

    gpu: str
    gbps: float
    tflops: float
    source: str

    @property
    def ridge(self) -> float:
        """The intensity in FLOP per byte above which launches are compute-bound."""
        return self.tflops * 1000 / self.gbps

    def at(self, intensity: float) -> float:
        """Return the roof's TFLOP/s at an intensity."""
        return min(self.tflops, self.gbps * intensity / 1000)


def roofline_figure(roof: Roof, intensity: float, rates: Mapping[str, float]) -> Figure:
    """Draw the roof, this launch, and the library's calls.

    Args:
        intensity: FLOP per byte if each tensor is moved once. A launch that rereads panels moves more bytes, which
            `reuse` predicts, so its true intensity is lower.
        rates: TFLOP/s by name: this kernel first, then the library's calls; {} for a run without times.
    """
    ends = [end for at in (roof.ridge, intensity) for end in (at / 4, at * 4)]
    low, high = min(ends), max(ends)
    name = f"{roof.gpu}: {roof.gbps:,.0f} GB/s, {roof.tflops:,.0f} TFLOP/s ({roof.source})"
    x = [low, roof.ridge, high]
    y = [roof.at(at) for at in x]
    traces = [theme.scatter(name, x, y, line={"color": theme.HARDWARE}, hoverinfo="skip")]
    star = {"symbol": "star", "size": 17, "color": theme.NEW}
    diamond = {"symbol": "diamond", "size": 12, "color": _LIBRARY}
    hover = "%{y:.4g} TFLOP/s at %{x:.3g} FLOP per byte"
    for call, tflops in rates.items():
        marker = star if call == THIS_KERNEL else diamond
        point = theme.scatter(call, [intensity], [tflops], "markers", marker=marker)
        traces.append(point | {"hovertemplate": hover})
    return theme.figure(
        "Roofline: rate over arithmetic intensity",
        traces,
        legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        margin={"l": 70, "b": 110},
        xaxis=theme.axis("FLOP per byte, each tensor moved once", type="log"),
        yaxis=theme.axis("TFLOP/s", type="log"),
    )


# Shorter times than this part of the total have no bar.
_LEAST_SHARE = 0.01


def plot_predicted(inside: Inside, about: str) -> str:
    """Plot the time that each resource would take alone."""
    if inside.predicted_us is None:
        return NONE
    shares = inside.resource_shares
    least = min(_LEAST_SHARE, max(shares.values()))
    times_ms = {
        name_resource(name): inside.by_resource_us[name] / 1e3
        for name, share in shares.items()
        if share >= least
    }
    is_bound = inside.bound_by != "latency"
    figure = resources_figure(times_ms, inside.predicted_us / 1e3, is_bound)
    return plot_value(figure, about=about)


def resources_figure(times_ms: Mapping[str, float], total_ms: float, is_bound: bool) -> Figure:
    """Draw the time that each resource would take alone and, below, the launch's predicted time.

    Args:
        times_ms: by resource.
        is_bound: whether a resource, and not latency, bounds the launch.
    """
    names = [*times_ms, "predicted"]
    all_ms = [*times_ms.values(), total_ms]
    unit, scale = time_unit(max(all_ms))
    times = [scale * ms for ms in all_ms]
    texts = [f" {significant(time)} {unit}" for time in times]
    colors = [*[theme.MODEL] * len(times_ms), theme.CATEGORIES[1]]
    if is_bound:
        busiest = times.index(max(times[:-1]))
        texts[busiest] += "<br> the bound"
        colors[busiest] = theme.NEW
    bars = dict(
        y=names,
        x=times,
        marker={"color": colors},
        hovertemplate=f"%{{y}}: %{{x:.4g}} {unit}<extra></extra>",
    )
    return theme.bar_figure("Time each resource would take alone", unit, bars, texts, times)


def describe_roofline(roof: Roof, intensity: float, tflops: float | None) -> Iterator[Sentence]:
    """Describe a launch's share of its roof, and its side of the ridge.

    Args:
        tflops: the kernel's own rate; None if it is unknown.
    """
    if tflops:
        top = Sourced(f"{significant(roof.at(intensity))} TFLOP/s", roof.source)
        share = Strong(percent(tflops / roof.at(intensity)))
        yield say("This kernel reaches {} of its roof of {}.", share, top)
    limit = "arithmetic" if intensity >= roof.ridge else "DRAM"
    numbers = significant(intensity), roof.gpu, limit, significant(roof.ridge)
    yield say("At {} FLOP per byte, the {} is bound by {}; its ridge is at {}.", *numbers)
