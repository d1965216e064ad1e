"""Predict how many bytes of its inputs a launch reads from DRAM, depending on the order of its programs.

Each program of a matmul reads a panel of A (its rows, all of K) and a panel of B. Programs that run at the same time
share one fetch of a panel, and later programs hit it if the L2 still holds it (`l2.py`). A family without panels reads
each input once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernels.spec import DTYPE_BYTES, Kernel, Launch
from visualize.predict.bounds import l2_gbps
from visualize.predict.l2 import CONSTANTS, Constants, ahead, evicted_share, expected_timeline, fetched_bytes
from visualize.predict.schedule import MAX_TILES, Schedule
from visualize.predict.steps import Panels, panels

# Maximum number of modelled waves, or turns of a loop.
MAX_WAVES = 2048

# CPU seconds per order and per tile, fitted on one x86 server core.
_ORDER_S, _TILE_S = 1e-3, 2.5e-7

# Fractions of the L2's capacity that the band covers, and ratios from which a prediction counts as sensitive.
_CAPACITIES = (1.0, 1.12, 0.9)
_SENSITIVE_TO_DRIFT, _SENSITIVE_TO_CAPACITY = 1.3, 1.14

# The L2 limits a launch if its fast SMs run ahead by this fraction of a tile's time. DRAM then has time to spare for
# reads that take this fraction of the L2's time, and for this many times the fewest bytes if all requests are for B.
_L2_LIMITED, _SPARE_TIME, _SPARE_BYTES = 0.1, 0.3, 4.2

# In other launches, a smaller group may read this many times the fewest bytes: of 12 launches for which this changes
# the recommendation, 10 became faster, two of them by 3 to 4 %, and two took 0.1 % longer.
_NEARLY_FEWEST = 1.16

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
        asked_bytes: bytes that all programs request in total, which is the traffic without any reuse.
        write_bytes: bytes of the output, written once.
        ahead: lead of the fast SMs, in tile times; 0 if no SM runs ahead.
    """

    read_bytes: float
    low_bytes: float
    high_bytes: float
    lockstep_bytes: float
    compulsory_bytes: int
    asked_bytes: int
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


def reuse(
    kernel: Kernel,
    launch: Launch,
    schedule: Schedule,
    l2_pressure: float,
    in_parts: bool = False,
    constants: Constants = CONSTANTS,
) -> Reuse | None:
    """Predict one launch's DRAM traffic; None for more than MAX_WAVES of tiles with panels.

    Args:
        schedule: the launch's schedule, with its resident programs.
        l2_pressure: the L2's time divided by that of the next slowest resource; 0 if unknown.
        in_parts: whether the kernel writes partial sectors of the output. For a family without panels, the model
            assumes that such sectors are first read from DRAM.
    """
    if schedule.panels is None:
        read, written = _input_bytes(kernel, launch), _output_bytes(kernel, launch)
        filled = read + (written if in_parts else 0)
        return Reuse(filled, read, filled, filled, read, read, written)
    if schedule.step.max() >= MAX_WAVES:
        return None
    return _predict(kernel, launch, [schedule], l2_pressure, constants)[0]


def by_group_size(
    kernel: Kernel,
    launch: Launch,
    schedule: Schedule,
    l2_pressure: float,
    sizes: Sequence[int],
    constants: Constants = CONSTANTS,
) -> dict[int, Reuse]:
    """Predict the traffic with each GROUP_SIZE; {} for more than MAX_WAVES. Takes the arguments of `reuse`."""
    if schedule.step.max() >= MAX_WAVES:
        return {}
    pids = np.arange(schedule.programs, dtype=np.int32)  # divides faster than int64
    launches = [replace(launch, config=replace(launch.config, GROUP_SIZE=size)) for size in sizes]
    orders = [replace(schedule, tiles=kernel.tiles(pids, each)) for each in launches]
    return dict(zip(sizes, _predict(kernel, launch, orders, l2_pressure, constants), strict=True))


def _predict(
    kernel: Kernel, launch: Launch, orders: Sequence[Schedule], l2_pressure: float, constants: Constants
) -> list[Reuse]:
    """Predict the traffic of several orders of the same programs."""
    schedule, l2_bytes = orders[0], launch.gpu.l2_bytes
    read = panels(kernel, launch, schedule)
    assert read is not None, "a launch without panels reads each input once"
    once, written = _once_bytes(kernel, launch), _output_bytes(kernel, launch)
    besides = once + _added_bytes(kernel, launch, schedule, read, constants)
    tile_bytes = math.prod(kernel.output_tile(launch) or ()) * DTYPE_BYTES[launch.problem.dtype]
    pieces = [order.pieces for order in orders]

    def fetch(pressure: float, is_staggered: bool, shares: tuple[float, ...]) -> np.ndarray:
        timeline = expected_timeline(schedule, pressure, is_staggered, constants)
        capacities = [l2_bytes * share for share in shares]
        return fetched_bytes(read, tile_bytes, timeline, pieces, capacities, constants.ways) + besides

    expected = fetch(l2_pressure, _is_staggered(launch, schedule, constants), _CAPACITIES).tolist()
    in_lockstep = fetch(0.0, False, _CAPACITIES[:1])[:, 0].tolist()
    compulsory, asked = read.total_bytes + once, read.asked_bytes(schedule) + once
    lead = ahead(l2_pressure, constants) if schedule.turns == 1 else 0.0
    return [
        Reuse(read_bytes, low, high, lockstep, compulsory, asked, written, lead)
        for (read_bytes, low, high), lockstep in zip(expected, in_lockstep, strict=True)
    ]


def _is_staggered(launch: Launch, schedule: Schedule, constants: Constants) -> bool:
    per_sm = schedule.resident_programs // schedule.sms
    is_half = DTYPE_BYTES[launch.problem.dtype] == 2
    return (
        not is_half
        and schedule.programs > schedule.sms
        and (per_sm > 1 and per_sm * launch.config.num_warps >= constants.staggered_warps)
    )


def asked_bytes(kernel: Kernel, launch: Launch, schedule: Schedule) -> int:
    """Return the bytes that all programs request in total, which is the traffic without any reuse."""
    read = panels(kernel, launch, schedule)
    if read is None:
        return _input_bytes(kernel, launch)
    return read.asked_bytes(schedule) + _once_bytes(kernel, launch)


def _input_bytes(kernel: Kernel, launch: Launch) -> int:
    return kernel.family.minimal_bytes(launch.problem) - _output_bytes(kernel, launch)


def _output_bytes(kernel: Kernel, launch: Launch) -> int:
    return kernel.family.tensor_bytes(launch.problem)[kernel.family.output(launch.problem)]


def _once_bytes(kernel: Kernel, launch: Launch) -> int:
    """Return the bytes of inputs without panels, which are read once."""
    bytes_of, panel_inputs = kernel.family.tensor_bytes(launch.problem), kernel.family.panels or ()
    return _input_bytes(kernel, launch) - sum(bytes_of[name] for name in panel_inputs)


def _added_bytes(kernel: Kernel, launch: Launch, schedule: Schedule, read: Panels, constants: Constants) -> float:
    """Return the bytes of the output that the L2 must read from DRAM because it adds to them.

    Slices add one after the other. The output of one slice is still in the L2 for the next slice if it fits there
    together with the panels that a slice reads.
    """
    if not any(access.op == "atomic" for access in kernel.accesses(launch)):
        return 0.0
    output = _output_bytes(kernel, launch)
    # Panels that both sides of the L2 read are kept twice.
    between = 2 * read.total_bytes / schedule.slices + 1.5 * output
    return output * (1 + (schedule.slices - 1) * float(evicted_share(between / launch.gpu.l2_bytes, constants.ways)))


def reuse_seconds(kernel: Kernel, launch: Launch, resident_programs: int) -> float:
    """Estimate the CPU seconds for predicting a launch, including every GROUP_SIZE if it has one.

    Args:
        resident_programs: number of programs that all SMs hold at once.
    """
    extents = kernel.extents(launch)
    tiles = extents["m"] * extents["n"] * extents.get("slice", 1)
    waves = -(-tiles // max(1, min(resident_programs, kernel.programs(launch))))
    if kernel.family.panels is None or waves > MAX_WAVES or tiles > MAX_TILES:
        return 0.0  # inputs are read once, or the launch is rejected
    sizes = len(_compared_sizes(extents["m"], tiles * waves)) if hasattr(launch.config, "GROUP_SIZE") else 1
    return (2 + sizes) * (_ORDER_S + tiles * _TILE_S)


def group_sizes(schedule: Schedule) -> tuple[int, ...]:
    """Return the GROUP_SIZEs to compare: all up to the number of tile rows, or a few per octave for large launches."""
    return _compared_sizes(schedule.extents[0], len(schedule.tiles.program) * (int(schedule.step.max()) + 1))


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

    If the L2 limits the launch, that is the largest GROUP_SIZE that leaves DRAM time to spare: the L2 has less work if
    more consecutive programs share a block of B, and the wider the tile, the larger B's share of all requests.
    Otherwise it is the smallest of those that read nearly the fewest bytes, at least half the GROUP_SIZE that reads the
    fewest.
    """
    fewest = fewest_bytes(sizes)
    least = sizes[fewest].read_bytes
    if not sizes[fewest].is_l2_limited:
        return min(
            size for size, each in sizes.items() if 2 * size >= fewest and each.read_bytes <= _NEARLY_FEWEST * least
        )
    rows, columns = kernel.output_tile(launch) or (1, 1)
    spare = _SPARE_TIME * launch.gpu.dram_gbps / l2_gbps(launch.gpu) * sizes[fewest].asked_bytes
    most = min(spare, _SPARE_BYTES * columns / (rows + columns) * least)
    return max((size for size, each in sizes.items() if each.read_bytes <= most), default=fewest)
