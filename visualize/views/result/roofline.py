"""The roofline of a run: recorded roofs and launches, the run itself, and its predicted bound."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
from markupsafe import Markup

from kernels import discover
from kernels.gpus import Gpu
from kernels.knobs import ConfigError
from kernels.measuring.run import RUN
from kernels.results import RunResult, records
from kernels.spec import Kernel, Launch, shape_text
from visualize.predict.bounds import Point, Roof, intensity, predicted_point
from visualize.predict.reuse import asked_bytes
from visualize.predict.schedule import schedule
from visualize.views import prose
from visualize.views.address import tag_experiment
from visualize.views.numbers import source as source_of
from visualize.views.plot import NONE, plot_value
from visualize.views.prose import picture_caption
from visualize.views.result import text
from visualize.views.result.figures import roofline_figure


def draw_roofline(run: RunResult, gpu: Gpu) -> dict[str, Markup | str]:
    """Fill the roofline's slots. Without a roof, there is no picture, and the text gives the reason."""
    experiment, kernel = run.experiment, discover()[run.experiment.kernel]
    launch = Launch(experiment.problem, experiment.config, gpu)
    recorded = roofs(((each.gpu, each.measured) for each in records.shipped(RUN.form)), experiment.problem.dtype)
    if run.backend == "cuda" and run.peak and run.copy_gbps:
        # A device's own roof replaces the recorded one.
        own_roof = Roof(gpu.name, run.copy_gbps, run.peak.rate, "measured")
        recorded = (own_roof, *(roof for roof in recorded if roof.gpu != gpu.name))
    here = next((roof for roof in recorded if roof.gpu == gpu.name), None)
    if here is None or not kernel.family.work(launch.problem):
        reason = text.NO_ROOF if kernel.family.work(launch.problem) else text.NO_WORK
        return {"roofline": tag_experiment(experiment, prose.claim(reason)), "roofline-plot": NONE}
    timed = run if run.timing else run.recorded
    own = points(kernel, timed, gpu.name, source_of(timed.backend)) if timed and run.check.passed else ()
    try:
        received = asked_bytes(schedule(kernel, launch))
        bound = predicted_point(kernel, launch, received, timed.clock_mhz if timed else None)
    except ConfigError:  # too many tiles to lay out
        bound = None
    figure = roofline_figure(recorded, tuple(_recorded_points(run)), own, bound[0] if bound else None, gpu.name)
    sources = dict.fromkeys([here.source, "recorded", *(point.source for point in own)])
    about = picture_caption(experiment, gpu.name, *sources, *(["predicted"] if bound else []))
    sentences = text.describe_roofline(here, own[0] if own else None, bound)
    return {
        "roofline": tag_experiment(experiment, prose.claim(*sentences)),
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
    timings = {"this kernel": run.timing} | {call.name: call.timing for call in run.baselines}
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
                name = f"{kernel.id} {shape_text(problem)}"
                yield Point(name, point.gpu, point.intensity, point.tflops, "recorded")
