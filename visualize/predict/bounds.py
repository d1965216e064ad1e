"""The time for which a launch needs the L2 and the SMs' units, and the roofline that follows from measured peaks.

A launch takes at least as long as each resource needs at its peak rate.
Omitted: latency, interference between resources, and shared memory's own traffic except loads staged through registers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilescope.declare.gpus import Gpu
from tilescope.declare.spec import Kernel, Launch
from tilescope.evaluate.declared import DeclaredCounts
from tilescope.timing.constants import RESULTS
from tilescope.timing.l2 import l2_gbps, l2_pressure, load_store_cycles


def time_resources(
    kernel: Kernel,
    launch: Launch,
    operations: Sequence[DeclaredCounts],
    received_bytes: float,
    clock_mhz: float | None = None,
) -> dict[str, float]:
    """Return the milliseconds that a launch needs each resource whose rate is known.

    Args:
        operations: the launch's memory operations; () if unknown, which omits the load and store units.
        received_bytes: bytes that SMs receive from the L2.
        clock_mhz: the measured SM clock; defaults to the clock of the table's matrix rate.
    """
    clock = clock_mhz or launch.gpu.clock_mhz
    times = {"L2": received_bytes / l2_gbps(launch.gpu) / 1e6}
    if operations:
        times["load and store"] = _time_load_store(kernel, launch.gpu, operations, clock)
    if arithmetic := _time_arithmetic(kernel, launch, clock):
        times["arithmetic"] = arithmetic
    return times


def pressure(times_ms: Mapping[str, float], operations: Sequence[DeclaredCounts]) -> float:
    """Return the L2 pressure of a launch: see `l2_pressure`. It is 0 if unknown.

    It is also 0 for operands that are staged through registers. Each step then waits for its loads, so the L2 idles.
    """
    if any(op.pattern.instruction.op == "load" for op in operations):
        return 0.0
    arithmetic_ms = times_ms.get("arithmetic", 0.0)
    return l2_pressure(times_ms["L2"], arithmetic_ms, times_ms.get("load and store", 0.0))


def _time_load_store(
    kernel: Kernel, gpu: Gpu, operations: Sequence[DeclaredCounts], clock_mhz: float
) -> float:
    """Assume one request per cycle and SM, or 128 bytes per cycle if that takes longer.

    A synchronous load of a panel counts twice, because its data is then stored to shared memory.
    """
    cycles = 0.0
    for op in operations:
        if op.is_box:
            continue
        is_load = op.pattern.instruction.op == "load"
        staged = is_load and op.access.tensor in (kernel.family.panels or ())
        cycles += load_store_cycles(op) * (2 if staged else 1)
    return cycles / gpu.sms / clock_mhz / 1e3


def _time_arithmetic(kernel: Kernel, launch: Launch, clock_mhz: float) -> float:
    """Return the time of the arithmetic at the full rate of its units; 0 without work or a known rate."""
    gpu = launch.gpu
    passes = kernel.family.matrix_passes(launch.problem)
    if gpu.compute_capability < (8, 0) or not passes:
        single, _ = RESULTS[gpu.compute_capability]
        tflops = 2 * single * gpu.sms * gpu.clock_mhz / 1e6
    else:
        tflops = gpu.matrix_rate(launch.problem.dtype) / passes
    if not tflops:
        return 0.0
    return kernel.family.work(launch.problem) / (tflops * clock_mhz / gpu.clock_mhz) / 1e9


@dataclass(frozen=True)
class Roof:
    """A GPU's measured peaks: the bandwidth of a copy, and the rate of the library's large product.

    Attributes:
        gpu: the GPU's name.
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


@dataclass(frozen=True)
class Point:
    """A launch in the roofline: its intensity in FLOP per byte and its rate in TFLOP/s.

    The intensity counts each tensor once. A launch that rereads panels moves more bytes, which `reuse` predicts, so its
    true intensity is lower.

    Attributes:
        name: the point's label.
        source: "measured" or "recorded".
    """

    name: str
    gpu: str
    intensity: float
    tflops: float
    source: str


def intensity(kernel: Kernel, problem: object) -> float:
    """Return the intensity in FLOP per byte if each tensor is moved once; 0 without arithmetic."""
    return kernel.family.work(problem) / kernel.family.minimal_bytes(problem)
