"""The roofline of a run: recorded roofs and launches, the run itself, and its predicted bound."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go

from kernels import discover
from kernels.knobs import ConfigError
from kernels.measuring.run import RUN
from kernels.results import RunResult, records
from kernels.spec import Kernel, Launch, shape_text
from visualize.predict.bounds import Bound, Point, Roof, intensity, predicted_point
from visualize.predict.reuse import asked_bytes
from visualize.predict.schedule import schedule
from visualize.views import theme
from visualize.views.numbers import percent, significant
from visualize.views.numbers import source as source_of
from visualize.views.panel import Slots
from visualize.views.prose import Sentence, Sourced, Strong, claim, picture_caption, say, tag_experiment
from visualize.views.result.text import THIS_KERNEL, library_calls, timed_run
from visualize.views.slots import NONE, plot_value

NO_WORK = "This kernel does no arithmetic, so it has no roofline. Its bound is a copy of the same bytes."
NO_ROOF = "No peak rates of this GPU are recorded for this dtype, so there is no roof to draw."


def draw_roofline(run: RunResult, launch: Launch) -> Slots:
    """Fill the roofline's slots. Without a roof, there is no picture, and the text gives the reason."""
    experiment, kernel, gpu = run.experiment, discover()[run.experiment.kernel], launch.gpu.name
    recorded = roofs(((each.gpu, each.measured) for each in records.shipped(RUN.form)), launch.problem.dtype)
    if run.backend == "cuda" and run.peak and run.copy_gbps:
        # A device's own roof replaces the recorded one.
        own_roof = Roof(gpu, run.copy_gbps, run.peak.rate, "measured")
        recorded = (own_roof, *(roof for roof in recorded if roof.gpu != gpu))
    roof = next((roof for roof in recorded if roof.gpu == gpu), None)
    if roof is None or not kernel.family.work(launch.problem):
        reason = NO_ROOF if kernel.family.work(launch.problem) else NO_WORK
        return {"roofline": tag_experiment(experiment, claim(reason)), "roofline-plot": NONE}
    timed = timed_run(run)
    own = points(kernel, timed, gpu, source_of(timed.backend)) if timed and run.check.passed else ()
    try:
        received = asked_bytes(schedule(kernel, launch))
        bound = predicted_point(kernel, launch, received, timed.clock_mhz if timed else None)
    except ConfigError:  # too many tiles to lay out
        bound = None
    figure = roofline_figure(recorded, tuple(_recorded_points(run)), own, bound[0] if bound else None, gpu)
    sources = [roof.source, "recorded", *(point.source for point in own), *(["predicted"] if bound else [])]
    about = picture_caption(experiment, gpu, *sources)
    return {
        "roofline": tag_experiment(experiment, claim(*describe_roofline(roof, own[0] if own else None, bound))),
        "roofline-plot": plot_value(figure, revision=kernel.family.id, about=about),
    }


def roofs(runs: Iterable[tuple[str, RunResult]], dtype: str) -> tuple[Roof, ...]:
    """Return the roof of each GPU: the median of the peaks measured in its runs.

    Args:
        runs: pairs of GPU name and run.
        dtype: the element type whose matrix rate is the roof.
    """
    copies, products = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
    for gpu, run in runs:
        if run.peak and run.peak.unit == "GB/s":
            copies[gpu].append(run.peak.rate)
        elif run.peak and run.experiment.problem.dtype == dtype:
            products[gpu].append(run.peak.rate)
    return tuple(
        Roof(gpu, float(np.median(copies[gpu])), float(np.median(rates)), "recorded")
        for gpu, rates in products.items()
        if gpu in copies
    )


def points(kernel: Kernel, run: RunResult, gpu: str, source: str) -> tuple[Point, ...]:
    """Return the points of a timed run and of the library calls timed with it; () without arithmetic."""
    if run.timing is None or not run.timing.tflops:
        return ()
    at = intensity(kernel, run.experiment.problem)
    timings = {THIS_KERNEL: run.timing} | {call.name: call.timing for call in library_calls(run)}
    return tuple(Point(name, gpu, at, timing.tflops or 0.0, source) for name, timing in timings.items())


def _recorded_points(run: RunResult) -> Iterator[Point]:
    # Launches of the same family and dtype, on every GPU.
    kernels = discover()
    family, dtype = kernels[run.experiment.kernel].family, run.experiment.problem.dtype
    for recording in records.shipped(RUN.form):
        recorded = recording.measured
        kernel, problem = kernels[recorded.experiment.kernel], recorded.experiment.problem
        if kernel.family.id == family.id and problem.dtype == dtype and recorded.check.passed:
            for point in points(kernel, recorded, recording.gpu, "recorded")[:1]:
                yield replace(point, name=f"{kernel.id} {shape_text(problem)}")


def describe_roofline(roof: Roof, own: Point | None, bound: tuple[Point, Bound] | None) -> Iterator[Sentence]:
    """Describe a launch's share of its roof, its side of the ridge, and its predicted bottleneck."""
    if own:
        top = Sourced(f"{significant(roof.at(own.intensity))} TFLOP/s", roof.source)
        share = Strong(percent(own.tflops / roof.at(own.intensity)))
        yield say("This kernel reaches {} of its roof of {}.", share, top)
    if at := own or (bound and bound[0]):
        limit = "arithmetic" if at.intensity >= roof.ridge else "DRAM"
        numbers = significant(at.intensity), limit, roof.gpu, significant(roof.ridge)
        yield say("At {} FLOP per byte, {} is the roof of the {}; its ridge is at {}.", *numbers)
    if bound:
        point, slowest = bound
        rate = Sourced(f"{significant(point.tflops)} TFLOP/s", "predicted")
        yield say("The slowest resource alone is {}: {}; {}.", slowest.name, rate, slowest.why)


def roofline_figure(
    roofs: Sequence[Roof], recorded: Sequence[Point], own: Sequence[Point], bound: Point | None, gpu: str
) -> go.Figure:
    """Draw a line per GPU's roof, recorded launches as dots, and this launch, the library's calls and the prediction.

    Args:
        roofs: of `gpu` and of other GPUs.
        recorded: launches of the same kind; those of other GPUs are paler.
        own: this kernel first, then the library's calls; () for a run without times.
        bound: the predicted upper limit.
    """
    bounds = [bound] if bound else []
    ends = [roof.ridge for roof in roofs] + [point.intensity for point in (*recorded, *own, *bounds)]
    low, high = min(ends) / 2, max(ends) * 2
    figure = go.Figure(
        layout=theme.layout(
            "Roofline: rate over arithmetic intensity",
            showlegend=True,
            height=480,
            legend={"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
            margin={"l": 70, "r": 10, "t": 34, "b": 140},
            xaxis={"title": {"text": "FLOP per byte, each tensor moved once"}, "type": "log", "dtick": 1},
            yaxis={"title": {"text": "TFLOP/s"}, "type": "log", "dtick": 1},
        )
    )
    for roof in roofs:
        color, dash = (theme.HARDWARE, "solid") if roof.gpu == gpu else (theme.BEFORE, "dash")
        intensities = sorted({low, min(max(low, roof.ridge), high), high})
        figure.add_scatter(
            x=intensities,
            y=[roof.at(intensity) for intensity in intensities],
            name=f"{roof.gpu}: {roof.gbps:,.0f} GB/s, {roof.tflops:,.0f} TFLOP/s ({roof.source})",
            mode="lines",
            line={"color": color, "dash": dash},
            hoverinfo="skip",
        )
    elsewhere = [point for point in recorded if point.gpu != gpu]
    here = [point for point in recorded if point.gpu == gpu]
    others = f"recorded on {', '.join(dict.fromkeys(point.gpu for point in elsewhere))}"
    for group, name, color, symbol, size, opacity in (
        (elsewhere, others, theme.BEFORE, "circle", 6, 0.6),
        (here, f"recorded on {gpu}", theme.HARDWARE, "circle", 6, 0.8),
        (bounds, "predicted bound", theme.MODEL, "line-ew-open", 26, 1),
        (own[1:], "library", theme.CATEGORIES[7], "diamond", 12, 1),
        (own[:1], THIS_KERNEL, theme.NEW, "star", 17, 1),
    ):
        if group:
            line = {"width": 0 if symbol == "circle" else 2, "color": color}
            figure.add_scatter(
                x=[point.intensity for point in group],
                y=[point.tflops for point in group],
                name=name,
                mode="markers",
                marker={"symbol": symbol, "size": size, "color": color, "opacity": opacity, "line": line},
                customdata=[f"{point.name}, {point.gpu}, {point.source}" for point in group],
                hovertemplate="%{customdata}<br>%{y:.4g} TFLOP/s at %{x:.3g} FLOP per byte<extra></extra>",
            )
    return figure
