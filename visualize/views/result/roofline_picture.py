"""The roofline below a run: roofs and launches from recordings, this run, and what is predicted for it."""

from __future__ import annotations

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
from visualize.predict.bounds import Bound, Point, Roof, intensity, predicted_point
from visualize.predict.reuse import asked_bytes
from visualize.predict.schedule import schedule
from visualize.views import prose
from visualize.views.address import dated
from visualize.views.numbers import source as source_of
from visualize.views.plot import NONE, drawn
from visualize.views.prose import picture_caption
from visualize.views.result import text as result_text
from visualize.views.result.figures import roofline_figure


def drawn_roofline(run: RunResult, gpu: Gpu) -> tuple[Markup | str, str]:
    """What is said, and the picture; NONE where there is no roof.

    Args:
        run: timed or not.
        gpu: that it was for.
    """
    experiment, kernel = run.experiment, discover()[run.experiment.kernel]
    launch = Launch(experiment.problem, experiment.config, gpu)
    if not kernel.family.work(launch.problem):
        return dated(experiment, prose.claim(result_text.NO_WORK)), NONE
    measured = _roofs(run, gpu.name)
    here = next((roof for roof in measured if roof.gpu == gpu.name), None)
    if here is None:
        return dated(experiment, prose.claim(result_text.NO_ROOF)), NONE
    timed = run if run.timing else run.recorded
    own = points(kernel, timed, gpu.name, source_of(timed.backend)) if timed and run.check.passed else ()
    bound = _bound(kernel, launch, timed.clock_mhz if timed else None)
    figure = roofline_figure(measured, tuple(_recorded(run)), own, bound[0] if bound else None, gpu.name)
    sources = dict.fromkeys([here.source, "recorded", *(point.source for point in own)])
    about = picture_caption(experiment, gpu.name, *sources, *(["predicted"] if bound else []))
    said = result_text.describe_roofline(here, own[0] if own else None, bound)
    return dated(experiment, prose.claim(*said)), drawn(figure, anew=kernel.family.id, about=about)


def _bound(kernel: Kernel, launch: Launch, clock_mhz: int | None) -> tuple[Point, Bound] | None:
    """What is predicted for the launch; None where it has too many tiles to lay out."""
    try:
        return predicted_point(kernel, launch, asked_bytes(schedule(kernel, launch)), clock_mhz)
    except ConfigError:
        return None


def _roofs(run: RunResult, gpu: str) -> tuple[Roof, ...]:
    """Those that were recorded, and this run's own in place of its GPU's."""
    shipped = ((one.gpu, one.measured) for one in records.shipped(RUN.form))
    recorded = roofs(shipped, run.experiment.problem.dtype)
    if run.backend != "cuda" or not (run.peak and run.copy_gbps):
        return recorded
    own = Roof(gpu, run.copy_gbps, run.peak.rate, "measured")
    return (own, *(roof for roof in recorded if roof.gpu != gpu))


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


def _recorded(run: RunResult) -> Iterator[Point]:
    """Recorded launches of kernels of the same family in the same type, on every GPU."""
    kernels = discover()
    family, dtype = kernels[run.experiment.kernel].family, run.experiment.problem.dtype
    for one in records.shipped(RUN.form):
        experiment = one.measured.experiment
        kernel = kernels[experiment.kernel]
        if kernel.family.id != family.id or experiment.problem.dtype != dtype or not one.measured.check.passed:
            continue
        sizes = shape_text(experiment.problem)
        for point in points(kernel, one.measured, one.gpu, "recorded")[:1]:
            yield Point(f"{kernel.id} {sizes}", one.gpu, point.intensity, point.tflops, "recorded")
