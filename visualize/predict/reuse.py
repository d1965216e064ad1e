"""Predict how many bytes of its inputs a launch reads from DRAM, depending on the order of its programs.

Each program of a matmul reads a panel of A (its rows, all of K) and a panel of B. Programs that run at the same time
share one fetch of a panel, and later programs hit it if the L2 still holds it (`timing/l2.py`). A family without panels
reads each input once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tilescope.declare.gpus import Gpu
from tilescope.declare.spec import Kernel, Launch
from tilescope.evaluate.declared import DeclaredCounts, count_accesses
from tilescope.evaluate.instructions import CompiledFacts
from tilescope.results import GroupSizeRow, GroupSizeStudy
from tilescope.timing.constants import RESULTS
from tilescope.timing.l2 import (
    CONSTANTS,
    ExpectedTimeline,
    L2Constants,
    Uses,
    ahead,
    evicted_share,
    expected_timeline,
    is_staggered,
    l2_gbps,
    l2_pressure,
    load_store_cycles,
    missed_shares,
    sides,
    writes_in_parts,
)
from visualize.predict.schedule import (
    MAX_TILES,
    KernelSchedule,
    Panels,
    count_tiles,
    panels,
    schedule,
)

# CPU seconds per order and per tile, fitted on one x86 server core.
_ORDER_S = 1e-3
_TILE_S = 2.5e-7

# Fractions of the L2's capacity that the band covers, and ratios from which a prediction counts as sensitive.
_CAPACITIES = (1.0, 1.12, 0.9)
_SENSITIVE_TO_DRIFT = 1.3
_SENSITIVE_TO_CAPACITY = 1.14

# The L2 limits a launch if its fast SMs lead by _L2_LIMITED tile times. DRAM then has time to spare for reads that take
# at most _SPARE_TIME of the L2's time and total at most _SPARE_BYTES × the fewest bytes × B's share of all requests.
_L2_LIMITED = 0.1
_SPARE_TIME = 0.3
_SPARE_BYTES = 4.2

# In other launches, a smaller group may read this many times the fewest bytes. This changes the recommendation for 11
# launches: 10 became faster, two of them by 3 to 4 %, and one took 0.1 % longer.
_NEARLY_FEWEST = 1.16

# Maximum number of panel uses counted per order. If there are more, some panels represent their neighbours.
_MAX_USES = 1 << 12
_MIN_PANELS = 16

# Limit on compared GROUP_SIZEs × tiles × waves: a few hundred milliseconds.
_MAX_WORK = 1 << 25


@dataclass(frozen=True)
class Reuse:
    """The DRAM traffic of one launch, in bytes.

    Attributes:
        read_bytes: bytes read from DRAM.
        low_bytes, high_bytes: bytes read with an L2 that keeps an eighth more, or a tenth less.
        lockstep_bytes: bytes read if programs stay in lockstep.
        compulsory_bytes: bytes of all inputs, each read once.
        requested_bytes: bytes that all programs request in total, which is the traffic without any reuse.
        write_bytes: bytes of the output, written once.
        ahead: lead of the fast SMs, in tile times; 0 if no SM runs ahead.
    """

    read_bytes: float
    low_bytes: float
    high_bytes: float
    lockstep_bytes: float
    compulsory_bytes: int
    requested_bytes: int
    write_bytes: int
    ahead: float = 0.0

    @property
    def is_drift(self) -> bool:
        """Whether the reads depend on how far programs drift out of lockstep."""
        return self._ratio(self.lockstep_bytes) > _SENSITIVE_TO_DRIFT

    @property
    def is_edge(self) -> bool:
        """Whether the reads depend on the L2's exact capacity."""
        return max(map(self._ratio, (self.low_bytes, self.high_bytes))) > _SENSITIVE_TO_CAPACITY

    @property
    def is_l2_limited(self) -> bool:
        """Whether programs request clearly more than the L2 delivers."""
        return self.ahead >= _L2_LIMITED

    def _ratio(self, read_bytes: float) -> float:
        return max(read_bytes, self.read_bytes) / max(min(read_bytes, self.read_bytes), 1)


@dataclass(frozen=True)
class DramTraffic:
    """A launch's predicted DRAM traffic, and the counts and times of a study.

    Reading a prediction raises ConfigError if the problem has too many tiles to schedule.

    Attributes:
        compiled: the compiled kernel; None before a compile, which assumes one program per SM.
        study: counts and times of several GROUP_SIZEs, or None.
    """

    kernel: Kernel
    launch: Launch
    compiled: CompiledFacts | None
    study: GroupSizeStudy | None = None

    @cached_property
    def schedule(self) -> KernelSchedule:
        return schedule(self.kernel, self.launch, compiled=self.compiled)

    @cached_property
    def operations(self) -> tuple[DeclaredCounts, ...]:
        """Memory operations of the compiled kernel; () if unknown."""
        compiled = self.compiled.operations if self.compiled else ()
        return count_accesses(self.kernel, self.launch, compiled)

    @cached_property
    def times_ms(self) -> dict[str, float]:
        """The time that the launch needs each resource of the GPU except DRAM."""
        received = requested_bytes(self.schedule)
        return time_resources(self.kernel, self.launch, self.operations, received)

    @cached_property
    def l2_pressure(self) -> float:
        return pressure(self.times_ms, self.operations)

    @cached_property
    def own(self) -> Reuse:
        """The prediction for the launch's own order."""
        in_parts = any(map(writes_in_parts, self.operations))
        return reuse(self.schedule, self.l2_pressure, in_parts)

    @cached_property
    def sizes(self) -> dict[int, Reuse]:
        """The prediction for each GROUP_SIZE; {} for a kernel without GROUP_SIZE."""
        if not self.group_size:
            return {}
        return by_group_size(self.schedule, self.l2_pressure, group_sizes(self.schedule))

    @property
    def group_size(self) -> int | None:
        return getattr(self.launch.config, "GROUP_SIZE", None)

    @property
    def row(self) -> GroupSizeRow | None:
        """The study's row for the launch's own order, or None."""
        rows = self.study.rows if self.study else ()
        return next((row for row in rows if row.group_size == self.group_size), None)

    @property
    def reference(self) -> GroupSizeRow:
        """The study's row with whose time the others are compared: the launch's own or, without it, the first."""
        assert self.study is not None
        return self.row or self.study.rows[0]

    def source(self, live: str) -> str:
        """Return "recorded" for a shipped study, otherwise `live`."""
        return "recorded" if self.study and self.study.backend == "recorded" else live


def reuse(
    schedule: KernelSchedule,
    l2_pressure: float,
    in_parts: bool = False,
    constants: L2Constants = CONSTANTS,
) -> Reuse:
    """Predict one launch's DRAM traffic.

    Args:
        l2_pressure: the L2's time divided by that of the next slowest resource; 0 if unknown.
        in_parts: whether the kernel writes partial sectors of the output. For a family without panels, the model
            assumes that such sectors are first read from DRAM.
    """
    if schedule.panels is not None:
        return _predict([schedule], l2_pressure, constants)[0]
    read, written = _bytes_once(schedule)
    filled = read + (written if in_parts else 0)
    return Reuse(filled, read, filled, filled, read, read, written)


def by_group_size(
    schedule: KernelSchedule,
    l2_pressure: float,
    sizes: Sequence[int],
    constants: L2Constants = CONSTANTS,
) -> dict[int, Reuse]:
    """Predict the traffic with each GROUP_SIZE. The other arguments are those of `reuse`."""
    pids = np.arange(schedule.programs, dtype=np.int32)  # int32 divides faster than int64
    launch = schedule.launch
    launches = [replace(launch, config=replace(launch.config, GROUP_SIZE=size)) for size in sizes]
    orders = [replace(schedule, tiles=schedule.kernel.tiles(pids, each)) for each in launches]
    return dict(zip(sizes, _predict(orders, l2_pressure, constants), strict=True))


def _predict(
    orders: Sequence[KernelSchedule], l2_pressure: float, constants: L2Constants
) -> list[Reuse]:
    """Predict the traffic of several orders of the same programs. Requires panels."""
    schedule = orders[0]
    read = panels(schedule)
    assert read is not None, "a launch without panels reads each input once"
    kernel = schedule.kernel
    launch = schedule.launch
    once, written = _bytes_once(schedule)
    besides = once + _added_bytes(schedule, read, constants)
    pieces = [order.pieces for order in orders]
    written_bytes = bytes_per_tile(kernel, launch) * count_tiles(kernel, launch)
    resident = schedule.programs_per_sm
    is_half = launch.element_bytes == 2
    staggered = is_staggered(is_half, resident, launch.config.num_warps, constants)

    programs = schedule.tiles.program, schedule.programs, schedule.sms, resident

    def fetch(pressure: float, is_staggered: bool, shares: tuple[float, ...]) -> np.ndarray:
        start, duration, sm = expected_timeline(*programs, pressure, is_staggered, constants)
        timeline = ExpectedTimeline(start * schedule.turns + schedule.turn, duration, sm)
        capacities = [launch.gpu.l2_bytes * share for share in shares]
        fetched = fetched_bytes(read, written_bytes, timeline, pieces, capacities, constants.ways)
        return fetched + besides

    expected = fetch(l2_pressure, staggered, _CAPACITIES).tolist()
    in_lockstep = fetch(0.0, False, _CAPACITIES[:1])[:, 0].tolist()
    compulsory = read.total_bytes + once
    requested = read.requested_bytes(schedule) + once
    lead = ahead(l2_pressure, constants) if schedule.turns == 1 else 0.0
    return [
        Reuse(read_bytes, low, high, lockstep, compulsory, requested, written, lead)
        for (read_bytes, low, high), lockstep in zip(expected, in_lockstep, strict=True)
    ]


def bytes_per_tile(kernel: Kernel, launch: Launch) -> float:
    """Return how many bytes of the output a program writes per tile. A slice counts as a tile."""
    extents = kernel.extents(launch)
    output = kernel.family.output(launch.problem)
    writes = [access for access in kernel.accesses(launch) if access.tensor == output]
    elements = sum(
        access.elements * math.prod(extents[index] for index in access.over) for access in writes
    )
    return elements * launch.element_bytes / count_tiles(kernel, launch)


def fetched_bytes(
    panels: Panels,
    written_bytes: float,
    timeline: ExpectedTimeline,
    orders: Sequence[tuple[np.ndarray, np.ndarray]],
    capacities: Sequence[float],
    ways: int,
) -> np.ndarray:
    """Estimate the bytes of panels that each order fetches from DRAM.

    The uses of one byte of each panel represent all of its bytes.

    Args:
        written_bytes: bytes that all tiles write.
        timeline: the timeline of the tiles, in units of one tile's duration.
        orders: orders of the same tiles: for each order, the row panel and the column panel that each tile reads.
        capacities: L2 capacities to evaluate, in bytes of both halves together.

    Returns:
        (orders, capacities).
    """
    tiles = len(timeline.start)
    end = float((timeline.start + timeline.duration).max())
    random = np.random.default_rng(0)
    sizes = panels.row_bytes, panels.column_bytes
    number, weight = _sampled_panels(sizes, -(-2 * tiles // _MAX_USES), random)
    place = random.random(len(weight))
    start, duration = (np.tile(each, 2) for each in timeline[:2])
    side = np.tile(sides(int(timeline.sm.max()) + 1)[timeline.sm], 2)
    rows, columns = orders[0]
    requested = panels.row_bytes[rows].sum() + panels.column_bytes[columns].sum()
    fetched = np.empty((len(orders), len(capacities)))
    for order, (rows, columns) in zip(fetched, orders, strict=True):
        panel = number[np.concatenate([rows, len(panels.row_bytes) + columns])]
        used = np.flatnonzero(panel >= 0)
        panel = panel[used]
        time = start[used] + place[panel] * duration[used]
        uses = Uses(panel, time, side[used], weight[panel])
        order[:] = missed_shares(uses, end, written_bytes, capacities, ways) @ uses.size
    return np.minimum(fetched, requested)


def _sampled_panels(
    sides: tuple[np.ndarray, np.ndarray], every: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Sample one in `every` panels. Return each panel's sample number (-1: none), and the bytes per sample."""
    numbers = []
    weights = []
    known = 0
    for sizes in sides:
        first = np.arange(0, len(sizes), max(1, min(every, len(sizes) // _MIN_PANELS)))
        chosen = first + (random.random(len(first)) * np.diff(first, append=len(sizes))).astype(int)
        number = np.full(len(sizes), -1)
        number[chosen] = known + np.arange(len(chosen))
        known += len(chosen)
        numbers.append(number)
        weights.append(np.add.reduceat(sizes, first).astype(float))
    return np.concatenate(numbers), np.concatenate(weights)


def requested_bytes(schedule: KernelSchedule) -> int:
    """Return the bytes that all programs request in total, which is the traffic without any reuse."""
    read = panels(schedule)
    return _bytes_once(schedule)[0] + (read.requested_bytes(schedule) if read else 0)


def _bytes_once(schedule: KernelSchedule) -> tuple[int, int]:
    """Return the bytes that are read once, and those that are written.

    Read once: inputs without panels. Written: the output, and workspaces except copies of inputs.
    """
    kernel = schedule.kernel
    launch = schedule.launch
    problem = launch.problem
    bytes_of = kernel.family.tensor_bytes(problem)
    output = kernel.family.output(problem)
    once = sum(
        size
        for name, size in bytes_of.items()
        if name not in (output, *(kernel.family.panels or ()))
    )
    workspaces = sum(
        spec.stored_bytes(problem)
        for spec in kernel.workspaces(launch).values()
        if not spec.copy_of
    )
    return once, bytes_of[output] + workspaces


def _added_bytes(schedule: KernelSchedule, read: Panels, constants: L2Constants) -> float:
    """Return the bytes of the output that the L2 must read from DRAM because it adds to them.

    Slices add one after the other. The next slice finds the output still in the L2 if the output fits there together
    with the panels that a slice reads.
    """
    launch = schedule.launch
    _, output = _bytes_once(schedule)
    if not any(access.op == "atomic" for access in schedule.kernel.accesses(launch)):
        return 0.0
    # Panels that both sides of the L2 read are kept twice.
    between = 2 * read.total_bytes / schedule.slices + 1.5 * output
    return output * (
        1
        + (schedule.slices - 1)
        * float(evicted_share(between / launch.gpu.l2_bytes, constants.ways))
    )


def reuse_seconds(kernel: Kernel, launch: Launch, programs_per_sm: int) -> float:
    """Estimate the CPU seconds for predicting a launch, including every GROUP_SIZE if it has one."""
    tiles = count_tiles(kernel, launch)
    resident = programs_per_sm * launch.gpu.sms
    if kernel.family.panels is None or tiles > MAX_TILES:
        return 0.0  # inputs are read once, or the launch is rejected
    waves = -(-tiles // min(resident, kernel.programs(launch)))
    has_sizes = hasattr(launch.config, "GROUP_SIZE")
    sizes = len(_compared_sizes(kernel.extents(launch)["m"], tiles * waves)) if has_sizes else 1
    return (2 + sizes) * (_ORDER_S + tiles * _TILE_S)


def group_sizes(schedule: KernelSchedule) -> tuple[int, ...]:
    """Return the GROUP_SIZEs to compare: all up to the number of tile rows, or a few per octave for large launches."""
    return _compared_sizes(schedule.extents[0], len(schedule.step) * (int(schedule.step.max()) + 1))


def _compared_sizes(rows: int, work: int) -> tuple[int, ...]:
    """Return the sizes to compare; `work` is tiles × waves."""
    for per_octave in (rows, 8, 4, 2, 1):
        steps = [max(1, (1 << size.bit_length() - 1) // per_octave) for size in range(1, rows + 1)]
        sizes = [size for size, step in enumerate(steps, 1) if size % step == 0 or size == rows]
        if len(sizes) * work <= _MAX_WORK:
            break
    return tuple(sizes)


def fewest_bytes(sizes: Mapping[int, Reuse]) -> int:
    """Return the GROUP_SIZE that reads the fewest bytes; in a tie, the largest."""
    return max(sizes, key=lambda size: (-round(sizes[size].read_bytes), size))


def recommended(kernel: Kernel, launch: Launch, sizes: Mapping[int, Reuse]) -> int:
    """Return the GROUP_SIZE that is expected to be fast. The constants were fitted to times of 168 recorded launches.

    If the L2 limits the launch, return the largest GROUP_SIZE that leaves DRAM time to spare. The L2 has less work if
    more consecutive programs share a block of B. The wider the tile, the larger B's share of all requests.

    Otherwise, return the smallest GROUP_SIZE that reads nearly the fewest bytes, but at least half of the GROUP_SIZE
    that reads the fewest bytes. If every GROUP_SIZE reads nearly the fewest, return the one that reads the fewest.
    """
    fewest = fewest_bytes(sizes)
    least = sizes[fewest].read_bytes
    if not sizes[fewest].is_l2_limited:
        near = [size for size, each in sizes.items() if each.read_bytes <= _NEARLY_FEWEST * least]
        return (
            fewest if len(near) == len(sizes) else min(size for size in near if 2 * size >= fewest)
        )
    rows, columns = kernel.output_tile(launch) or (1, 1)
    spare = _SPARE_TIME * launch.gpu.dram_gbps / l2_gbps(launch.gpu) * sizes[fewest].requested_bytes
    most = min(spare, _SPARE_BYTES * columns / (rows + columns) * least)
    return max((size for size, each in sizes.items() if each.read_bytes <= most), default=fewest)


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
