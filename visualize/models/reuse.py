"""How many bytes of the inputs a launch reads from DRAM: what its order finds in the L2, and what it must fetch again.

A program reads a panel of A (its rows, all of K) and one of B, piece by piece along K. Programs that start together go
along K together, so one fetch serves all that share a panel; later programs find it if, in between, less has been
touched than the L2 keeps (least recently used first). Programs start wave by wave. Where the L2 has more to deliver
than it can, they drift: wave by wave their starts spread, at last over a whole program's time.

Constants come from the comparisons of GROUP_SIZE recorded on an H200 (`records/h200_reuse.jsonl`). Left out: which of
the L2's halves holds what, how sets and replacement really work, and the rest of the machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernels.spec import DTYPE_BYTES, Kernel, Launch
from visualize.models.bounds import L2_GBPS_PER_SM
from visualize.models.lru import Programs, fetched_bytes, gone
from visualize.models.schedule import Schedule
from visualize.models.steps import panels

# Pieces of a panel that are looked at one by one; fewer where there are very many waves, so that steps stay this few.
PIECES, _MOST_STEPS = 8, 512

# Waves that are looked at: memory grows with their square, and holds half a gigabyte of these.
MOST_WAVES = 4096

# How wrong the L2's capacity may be, as a factor, when asking how much hangs on it.
_UNSURE = 0.8, 1.25
_UNSURE_RATIO = 1.3

# Where no more than this is read, as a share of what must be, everything fits, and drift makes no difference.
_NOTHING_AGAIN = 1.02

# Where programs drift this far apart, the L2 limits; and DRAM needs little time, if at most so much of the L2's.
_FAR_APART, _LITTLE = 0.5, 0.3

# Tiles of all orders together that are looked at.
_MOST_TILES = 3_000_000

# Cells (GROUP_SIZE × step × panel) that are looked at together: some tens of megabytes.
_MOST_CELLS = 1 << 23


@dataclass(frozen=True)
class Constants:
    """What was fitted to counts.

    Attributes:
        gone_from, gone_at: touched bytes, as a share of the L2, from which on what was read before begins to be gone,
            and at which all of it is. About a half: what SMs on both sides of the L2 read is kept in both its halves.
        drift_from: the pressure on the L2 at which drift begins: where it needs about as long as the next resource.
        drift_slope: drift for each unit of pressure more.
        drift_waves: within so many waves most of it (1 − 1/e) has come.
        relief: how much one answer of the L2 for several SMs takes off it (or not).
        relief_programs: the consecutive programs that halve the relief.
    """

    gone_from: float = 0.36
    gone_at: float = 0.66
    drift_from: float = 0.95
    drift_slope: float = 1.2
    drift_waves: float = 5.0
    relief: float = 1.6
    relief_programs: int = 64


CONSTANTS = Constants()


@dataclass(frozen=True)
class Reuse:
    """Bytes of one launch.

    Attributes:
        read_bytes: read from DRAM.
        low_bytes, high_bytes: the same with an L2 that keeps a quarter more, or a fifth less.
        compulsory_bytes: each input once.
        asked_bytes: what all programs ask for together: reads without any reuse.
        write_bytes: the output once.
        drift: 0 where programs go along together, 1 where their starts end up spread evenly.
    """

    read_bytes: float
    low_bytes: float
    high_bytes: float
    compulsory_bytes: int
    asked_bytes: int
    write_bytes: int
    drift: float

    @property
    def is_drift(self) -> bool:
        """Whether programs are expected to drift apart where that matters, so that the prediction is a rough one."""
        return self.drift > 0 and self.read_bytes > _NOTHING_AGAIN * self.compulsory_bytes

    @property
    def is_edge(self) -> bool:
        """Whether what is reused is about as large as the L2, so that much hangs on its exact capacity."""
        return self.high_bytes > _UNSURE_RATIO * self.low_bytes


def drift(l2_pressure: float, constants: Constants = CONSTANTS) -> float:
    """How far programs drift apart, in tenths, where the L2 needs `l2_pressure` times as long as the next resource."""
    return round(float(np.clip(constants.drift_slope * (l2_pressure - constants.drift_from), 0, 1)), 1)


def reuse(
    kernel: Kernel,
    launch: Launch,
    schedule: Schedule,
    l2_pressure: float,
    in_parts: bool = False,
    constants: Constants = CONSTANTS,
) -> Reuse | None:
    """Predict one launch's DRAM traffic; None for a matmul of more than MOST_WAVES.

    Args:
        schedule: of the same launch, with its resident programs.
        l2_pressure: the time that the L2 needs, over that of the next slowest resource.
        in_parts: whether the output's sectors are written in parts. Those of a copy are taken to be read first.
    """
    if not schedule.k_blocks:
        return _copied(kernel, launch, in_parts)
    if schedule.step.max() >= MOST_WAVES:
        return None
    return _predicted(kernel, launch, [(launch, schedule)], l2_pressure, constants)[0]


def _copied(kernel: Kernel, launch: Launch, in_parts: bool) -> Reuse:
    """The traffic of a kernel that reads its input once."""
    read = kernel.family.minimal_bytes(launch.problem) // 2
    fills = read if in_parts else 0
    return Reuse(read + fills, read, read + fills, read, read, read, 0.0)


def by_group_size(
    kernel: Kernel,
    launch: Launch,
    schedule: Schedule,
    l2_pressure: float,
    sizes: Sequence[int],
    constants: Constants = CONSTANTS,
) -> dict[int, Reuse]:
    """Predict the traffic for each GROUP_SIZE of a kernel that has one; {} for more than MOST_WAVES.

    Arguments as of `reuse`.
    """
    if schedule.step.max() >= MOST_WAVES:
        return {}
    pids = np.arange(schedule.programs, dtype=np.int32)  # divides faster than int64
    launches = [replace(launch, config=replace(launch.config, GROUP_SIZE=size)) for size in sizes]
    several = [(one, replace(schedule, tiles=kernel.tiles(pids, one))) for one in launches]
    return dict(zip(sizes, _predicted(kernel, launch, several, l2_pressure, constants), strict=True))


def _predicted(
    kernel: Kernel,
    launch: Launch,
    several: Sequence[tuple[Launch, Schedule]],
    l2_pressure: float,
    constants: Constants,
) -> list[Reuse]:
    """The traffic of several orders of the same programs."""
    schedule = several[0][1]
    touched = panels(kernel, launch, schedule)
    assert touched is not None, "only launches with a reduction come here"
    panel_bytes = np.concatenate([touched.a_bytes, touched.b_bytes]).astype(float)
    once, added = _once_bytes(kernel, launch), _added_bytes(kernel, launch, schedule, panel_bytes, constants)
    read_by = [_panels(order) for _, order in several]
    spread = [drift(l2_pressure * _relief(one, schedule, constants), constants) for one, _ in several]
    low, high = (launch.gpu.l2_bytes * share for share in (constants.gone_from, constants.gone_at))
    capacities = [(low * by, high * by) for by in (1.0, *_UNSURE)]
    fetched = np.empty((len(several), len(capacities)))
    for level in sorted(set(spread)):
        programs = _programs(launch, schedule, panel_bytes, level, constants.drift_waves)
        alike = np.flatnonzero(np.array(spread) == level)
        steps = len(np.unique(programs.start))
        batches = -(-len(alike) * steps * max(len(panel_bytes), steps) // _MOST_CELLS)
        for batch in np.array_split(alike, min(batches, len(alike))):
            fetched[batch] = fetched_bytes(programs, [read_by[place] for place in batch], capacities)
    written = _tensor_bytes(kernel, launch)[kernel.family.output(launch.problem)]
    asked = int(sum(panel_bytes[side].sum() for side in read_by[0])) + once
    return [
        Reuse(read, fewest, most, int(panel_bytes.sum()) + once, asked, written, level)
        for (read, most, fewest), level in zip((fetched + once + added).tolist(), spread, strict=True)
    ]


def _relief(launch: Launch, schedule: Schedule, constants: Constants) -> float:
    """The factor by which the order of programs changes the L2's work.

    Where many consecutive programs share the larger panel, one answer of the L2 serves several SMs; where they share
    the smaller one, fewer.
    """
    config, (rows, columns) = launch.config, schedule.extents
    size = min(getattr(config, "GROUP_SIZE", rows), rows)
    run, shared = (size, config.BLOCK_N) if size > 1 else (columns, config.BLOCK_M)
    share = shared / (config.BLOCK_M + config.BLOCK_N)
    return 1 - constants.relief * (share - 0.5) * run / (run + constants.relief_programs)


def _programs(
    launch: Launch, schedule: Schedule, panel_bytes: np.ndarray, spread: float, drift_waves: float
) -> Programs:
    """When each tile is begun: wave by wave, spread more and more where programs drift."""
    step, resident = schedule.step, schedule.resident_programs
    pieces = max(1, min(PIECES, _MOST_STEPS // int(step.max() + 1)))
    place = schedule.tiles.program % resident / min(resident, schedule.programs)
    spread_by = spread * (1 - np.exp(-step / drift_waves))
    start = np.floor((step + spread_by * place) * pieces + 1e-9).astype(np.int64)
    written = launch.config.BLOCK_M * launch.config.BLOCK_N * DTYPE_BYTES[launch.problem.dtype]
    return Programs(start, pieces, panel_bytes, written)


def _panels(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """The pieces of panels that each tile reads, of A and of B, numbered through both."""
    a, b = schedule.pieces
    return a, schedule.extents[0] * schedule.slices + b


def _tensor_bytes(kernel: Kernel, launch: Launch) -> dict[str, int]:
    size = DTYPE_BYTES[launch.problem.dtype]
    tensors = kernel.family.tensors(launch.problem)
    return {name: tensor.shape[0] * tensor.shape[1] * size for name, tensor in tensors.items()}


def _once_bytes(kernel: Kernel, launch: Launch) -> int:
    """Bytes of inputs that are read once for each tile, besides panels."""
    bytes_of, tensors = _tensor_bytes(kernel, launch), kernel.family.tensors(launch.problem)
    once = {access.tensor for access in kernel.accesses(launch) if "k" not in access.over}
    return sum(bytes_of[name] for name in once if tensors[name].is_input)


def _added_bytes(
    kernel: Kernel, launch: Launch, schedule: Schedule, panel_bytes: np.ndarray, constants: Constants
) -> float:
    """Bytes of an output that the L2 adds to, which it must read first.

    Slices add one after the other. What one has added to is still there for the next, if that and the panels that it
    read fit.
    """
    if not any(access.op == "atomic" for access in kernel.accesses(launch)):
        return 0.0
    output = _tensor_bytes(kernel, launch)[kernel.family.output(launch.problem)]
    between = panel_bytes.sum() / schedule.slices + output
    return output * (1 + (schedule.slices - 1) * _gone(between / launch.gpu.l2_bytes, constants))


def _gone(touched: float, constants: Constants) -> float:
    """The share that is no longer in the L2 after so much else was touched, as a share of the L2."""
    return gone(touched, constants.gone_from, constants.gone_at).item()


def group_sizes(schedule: Schedule) -> tuple[int, ...]:
    """The GROUP_SIZEs to look at: every one up to all rows of tiles, or, of large launches, some of each octave."""
    rows, tiles = schedule.extents[0], len(schedule.tiles.program)
    for per_octave in (rows, 8, 1):
        steps = [max(1, (1 << size.bit_length() - 1) // per_octave) for size in range(1, rows + 1)]
        several = [size for size, step in enumerate(steps, 1) if size % step == 0 or size == rows]
        if len(several) * tiles <= _MOST_TILES:
            break
    return tuple(several)


def fewest_bytes(found: Mapping[int, Reuse]) -> int:
    """The GROUP_SIZE that reads the fewest bytes; of equal ones the largest."""
    return max(found, key=lambda size: (-round(found[size].read_bytes), size))


def recommended(found: Mapping[int, Reuse], launch: Launch) -> int:
    """The GROUP_SIZE that is expected to be fast.

    That of the fewest bytes; but where programs drift far apart, it is the L2 that limits, and it has less to do the
    more consecutive programs share a panel: then the largest for which DRAM needs little of the L2's time.
    """
    fewest = fewest_bytes(found)
    if found[fewest].drift < _FAR_APART or not launch.gpu.dram_gbps:
        return fewest
    little = _LITTLE * launch.gpu.dram_gbps / (L2_GBPS_PER_SM * launch.gpu.sms)
    return max((size for size, one in found.items() if one.read_bytes <= little * one.asked_bytes), default=fewest)
