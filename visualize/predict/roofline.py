"""The roofline: what memory and arithmetic allow at each arithmetic intensity, and where launches are below it.

The intensity is work over the bytes that must move if each tensor is read or written once. A launch that reads panels
again moves more and is further left than it is drawn: what DRAM really moves is another model's, `reuse`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kernels.results import RunResult
from kernels.spec import Kernel, Launch
from visualize.predict.bounds import Bound, bounds
from visualize.predict.reuse import asked_bytes
from visualize.predict.schedule import Schedule


@dataclass(frozen=True)
class Roof:
    """What a GPU was measured to do: a copy's bandwidth, and the rate of the library's large product.

    Attributes:
        gpu: its name.
        source: "measured" or "recorded".
    """

    gpu: str
    gbps: float
    tflops: float
    source: str

    @property
    def ridge(self) -> float:
        """The intensity, in FLOP per byte, from which on arithmetic is the limit."""
        return self.tflops * 1000 / self.gbps

    def at(self, intensity: float) -> float:
        """The most TFLOP/s at an intensity."""
        return min(self.tflops, self.gbps * intensity / 1000)


@dataclass(frozen=True)
class Point:
    """A launch: its intensity in FLOP per byte, its rate in TFLOP/s, and where they are from.

    Attributes:
        name: what stands beside it, or in its hover text.
        source: "measured", "recorded" or "predicted".
    """

    name: str
    gpu: str
    intensity: float
    tflops: float
    source: str


def intensity(kernel: Kernel, problem: object) -> float:
    """FLOP per byte where each tensor moves once; 0 for what computes nothing."""
    return kernel.family.work(problem) / kernel.family.minimal_bytes(problem)


def roofs(runs: Iterable[tuple[str, RunResult]], dtype: str) -> tuple[Roof, ...]:
    """The roof of each GPU, from the peaks that its runs found: medians over runs.

    Args:
        runs: with the name of the GPU that each is of.
        dtype: whose matrix rate is the roof.
    """
    gbps: dict[str, list[float]] = {}
    tflops: dict[str, list[float]] = {}
    for gpu, run in runs:
        if run.peak is None:
            continue
        if run.peak.unit == "GB/s":
            gbps.setdefault(gpu, []).append(run.peak.rate)
        elif run.experiment.problem.dtype == dtype:
            tflops.setdefault(gpu, []).append(run.peak.rate)
    return tuple(
        Roof(gpu, float(np.median(gbps[gpu])), float(np.median(tflops[gpu])), "recorded")
        for gpu in tflops
        if gpu in gbps
    )


def points(kernel: Kernel, run: RunResult, gpu: str, source: str) -> tuple[Point, ...]:
    """A run that was timed, and the library's calls beside it; none for one that computes nothing."""
    if run.timing is None or not run.timing.tflops:
        return ()
    at = intensity(kernel, run.experiment.problem)
    library = run.baselines or ((run.baseline,) if run.baseline else ())
    return (
        Point("this kernel", gpu, at, run.timing.tflops, source),
        *(Point(one.name, gpu, at, one.timing.tflops or 0.0, source) for one in library),
    )


def predicted(
    kernel: Kernel, launch: Launch, schedule: Schedule, clock_mhz: float | None
) -> tuple[Point, Bound] | None:
    """The launch at the rate that its slowest resource allows by itself, and that resource; None without arithmetic.

    Each input is taken to be read from DRAM once.

    Args:
        clock_mhz: the SM clock that was measured.
    """
    work = kernel.family.work(launch.problem)
    if not work:
        return None
    least, asked = kernel.family.minimal_bytes(launch.problem), asked_bytes(kernel, launch, schedule)
    slowest = max(bounds(kernel, launch, schedule, (), least, asked, clock_mhz), key=lambda bound: bound.ms)
    at = intensity(kernel, launch.problem)
    return Point("predicted bound", launch.gpu.name, at, work / slowest.ms / 1e9, "predicted"), slowest
