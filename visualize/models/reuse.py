"""How many bytes of the inputs a launch reads from DRAM: what its order finds in the L2, and what it must fetch again.

A program of a product reads a panel of A (its rows, all of K) and one of B, piece by piece along K. Programs that
start together run in lockstep, so one fetch serves all that share a panel. Later programs find it if less has been read
in between than the L2 keeps (least recently used first). Programs start wave by wave. Where the L2 has more to deliver
than it can, some SMs run ahead, and waves dissolve. A family without panels reads each input once.

Constants come from the comparisons of GROUP_SIZE recorded on an H200 (`records/h200_reuse.jsonl`), and from timelines
of the same launches. Left out: which of the L2's halves holds what, how sets and replacement really work, that early
programs of a wave may wait for what late ones find, that a program which runs ahead reads its panels faster, too, and
the rest of the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernels.spec import DTYPE_BYTES, Kernel, Launch
from visualize.models.bounds import l2_gbps
from visualize.models.dispatch import by_pace, lockstep, staggered
from visualize.models.lru import Programs, evicted, fetched_bytes
from visualize.models.schedule import MOST_TILES, Schedule
from visualize.models.steps import panels

# Pieces of a panel that are modelled one by one; fewer where there are many waves, so that steps stay this few as long
# as a panel has a piece at all.
PIECES, _MOST_STEPS = 10, 512

# Steps that are modelled, of waves or of turns of a loop: time and memory grow with their square, to some 5 s of a core
# and half a gigabyte for so many and every octave of GROUP_SIZE.
MOST_WAVES = 2048

# Seconds of a core for each step of each order that is compared, each panel and other step that it is laid beside, and
# each way to start: fitted on one x86 server core.
_CELL_S = 3e-8

# How wrong the L2's capacity may be, as a factor, when asking how sensitive a prediction is to it; and from which ratio
# of predictions on it is called sensitive.
_UNSURE = 0.8, 1.25
_UNSURE_RATIO = 1.2

# Where some SMs run so far ahead and inputs are read more than twice, predictions are rough.
_FAR_AHEAD, _OFTEN = 0.3, 2

# DRAM needs little time, if at most so much of the L2's.
_LITTLE = 0.2

# Tiles of all orders together, times waves, that are modelled: a few hundred milliseconds. Where one order per octave
# is more than that already, it takes seconds.
_MOST_WORK = 1 << 25

# Cells (GROUP_SIZE × step × panel) that are modelled together: some tens of megabytes.
_MOST_CELLS = 1 << 23


@dataclass(frozen=True)
class Constants:
    """What was fitted to counts and read from timelines.

    Attributes:
        evicted_from, evicted_at: bytes read since, as a share of the L2, from which on what was read before begins to
            be evicted, and at which all of it is. About a half: what SMs on both sides of the L2 read is kept in both
            its halves.
        ahead_from: the pressure on the L2 from which on some SMs run ahead.
        ahead_slope: by how much of a tile's time, for each unit of pressure more.
        spread: how much faster or slower the other SMs are then, and
        jitter: how much, by standard deviation, the programs of one SM; both as timelines show them.
        slow_spread: the same without pressure; waves dissolve slowly, or not at all where early programs wait for DRAM.
        staggered_warps: warps per SM from which on its programs are evenly staggered if they multiply float32 or
            float8: so it was in 36 of 43 such launches, but with fewer warps in 3 of 15.
    """

    evicted_from: float = 0.2
    evicted_at: float = 0.64
    ahead_from: float = 1.2
    ahead_slope: float = 0.36
    spread: float = 0.02
    jitter: float = 0.03
    slow_spread: float = 0.01
    staggered_warps: int = 12


CONSTANTS = Constants()


@dataclass(frozen=True)
class Reuse:
    """Bytes of one launch.

    Attributes:
        read_bytes: read from DRAM.
        low_bytes, high_bytes: the same with an L2 that keeps a quarter more, or a fifth less.
        otherwise_bytes: the same if programs run in lockstep where they are expected not to, or the reverse.
        compulsory_bytes: each input once.
        asked_bytes: what all programs ask for together: reads without any reuse.
        write_bytes: the output once.
        ahead: by how much of a tile's time some SMs run ahead, as the L2 holds the programs up; 0 where it does not.
    """

    read_bytes: float
    low_bytes: float
    high_bytes: float
    otherwise_bytes: float
    compulsory_bytes: int
    asked_bytes: int
    write_bytes: int
    ahead: float = 0.0

    @property
    def is_drift(self) -> bool:
        """Whether the prediction is a rough one, as it is sensitive to whether programs run in lockstep."""
        low, high = sorted((self.read_bytes, self.otherwise_bytes))
        is_far = self.ahead > _FAR_AHEAD and self.read_bytes > _OFTEN * self.compulsory_bytes
        return is_far or high > _UNSURE_RATIO * low

    @property
    def is_edge(self) -> bool:
        """Whether what is reused is about as large as the L2, so that reads are sensitive to its exact capacity."""
        return self.high_bytes > _UNSURE_RATIO * self.low_bytes


def ahead(l2_pressure: float, constants: Constants = CONSTANTS) -> float:
    """By how much of a tile's time some SMs run ahead, where the L2 needs `l2_pressure` times as long as the next."""
    return float(np.clip(constants.ahead_slope * (l2_pressure - constants.ahead_from), 0, 0.9))


def reuse(
    kernel: Kernel,
    launch: Launch,
    schedule: Schedule,
    l2_pressure: float,
    in_parts: bool = False,
    constants: Constants = CONSTANTS,
) -> Reuse | None:
    """Predict one launch's DRAM traffic; None for more than MOST_WAVES of tiles with panels.

    Args:
        schedule: of the same launch, with its resident programs.
        l2_pressure: the time that the L2 needs, over that of the next slowest resource.
        in_parts: whether the output's sectors are written in parts. Those are taken to be read first, where no input
            has panels.
    """
    if schedule.panels is None:
        return _read_once(kernel, launch, in_parts)
    if schedule.step.max() >= MOST_WAVES:
        return None
    return _predicted(kernel, launch, [(launch, schedule)], l2_pressure, constants)[0]


def _read_once(kernel: Kernel, launch: Launch, in_parts: bool) -> Reuse:
    """The traffic of a kernel that reads each input once."""
    read, written = _input_bytes(kernel, launch), _output_bytes(kernel, launch)
    filled = read + (written if in_parts else 0)
    return Reuse(filled, read, filled, filled, read, read, written)


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
    read = panels(kernel, launch, schedule)
    assert read is not None, "only launches with panels come here"
    panel_bytes = np.concatenate([read.row_bytes, read.column_bytes]).astype(float)
    once, added = _once_bytes(kernel, launch), _added_bytes(kernel, launch, schedule, panel_bytes, constants)
    read_by = [_panels(order) for _, order in several]
    low, high = (launch.gpu.l2_bytes * share for share in (constants.evicted_from, constants.evicted_at))
    capacities = [(low * by, high * by) for by in (1.0, *_UNSURE)]
    is_staggered = _is_staggered(launch, schedule, constants)
    runs_ahead = 0.0 if is_staggered else ahead(l2_pressure, constants)
    if is_staggered:
        begun = staggered(schedule), lockstep(schedule)
    elif runs_ahead:
        begun = by_pace(schedule, runs_ahead, constants.spread, constants.jitter), lockstep(schedule)
    else:
        begun = lockstep(schedule), by_pace(schedule, 0.0, constants.slow_spread)
    likely, otherwise = (_fetched(_programs(kernel, launch, panel_bytes, one), read_by, capacities) for one in begun)
    written = _output_bytes(kernel, launch)
    asked = asked_bytes(kernel, launch, schedule)
    return [
        Reuse(read, fewest, most, other, int(panel_bytes.sum()) + once, asked, written, runs_ahead)
        for (read, most, fewest), (other, *_) in zip(
            (likely + once + added).tolist(), (otherwise + once + added).tolist(), strict=True
        )
    ]


def asked_bytes(kernel: Kernel, launch: Launch, schedule: Schedule) -> int:
    """What all programs ask for together: reads without any reuse."""
    read = panels(kernel, launch, schedule)
    if read is None:
        return _input_bytes(kernel, launch)
    rows, columns = schedule.pieces
    return int(read.row_bytes[rows].sum() + read.column_bytes[columns].sum()) + _once_bytes(kernel, launch)


def _is_staggered(launch: Launch, schedule: Schedule, constants: Constants) -> bool:
    """Whether the programs of an SM are evenly staggered."""
    if DTYPE_BYTES[launch.problem.dtype] == 2 or schedule.programs <= schedule.sms:
        return False
    per_sm = schedule.resident_programs // schedule.sms
    return per_sm > 1 and per_sm * launch.config.num_warps >= constants.staggered_warps


def _programs(kernel: Kernel, launch: Launch, panel_bytes: np.ndarray, begun: np.ndarray) -> Programs:
    """Programs that read their panels piece by piece, from when they are begun."""
    pieces = max(1, min(PIECES, _MOST_STEPS // int(begun.max() + 1)))
    written = math.prod(kernel.output_tile(launch) or ()) * DTYPE_BYTES[launch.problem.dtype]
    return Programs(np.floor(begun * pieces + 1e-9).astype(np.int64), pieces, panel_bytes, written)


def _fetched(
    programs: Programs,
    read_by: Sequence[tuple[np.ndarray, np.ndarray]],
    capacities: Sequence[tuple[float, float]],
) -> np.ndarray:
    """Bytes fetched: (orders, capacities), by as many orders at once as memory holds."""
    steps = len(np.unique(programs.start))
    batches = -(-len(read_by) * steps * max(len(programs.panel_bytes), steps) // _MOST_CELLS)
    places = np.array_split(np.arange(len(read_by)), min(batches, len(read_by)))
    return np.concatenate(
        [fetched_bytes(programs, [read_by[place] for place in batch], capacities) for batch in places]
    )


def _panels(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """The pieces of a row panel and of a column panel that each tile reads, numbered through both."""
    rows, columns = schedule.pieces
    return rows, schedule.extents[0] * schedule.slices + columns


def _input_bytes(kernel: Kernel, launch: Launch) -> int:
    return kernel.family.minimal_bytes(launch.problem) - _output_bytes(kernel, launch)


def _output_bytes(kernel: Kernel, launch: Launch) -> int:
    return kernel.family.tensor_bytes(launch.problem)[kernel.family.output(launch.problem)]


def _once_bytes(kernel: Kernel, launch: Launch) -> int:
    """Bytes of inputs that are read once for each tile, besides panels."""
    bytes_of, panel_inputs = kernel.family.tensor_bytes(launch.problem), kernel.family.panels or ()
    return _input_bytes(kernel, launch) - sum(bytes_of[name] for name in panel_inputs)


def _added_bytes(
    kernel: Kernel, launch: Launch, schedule: Schedule, panel_bytes: np.ndarray, constants: Constants
) -> float:
    """Bytes of an output that the L2 adds to, which it must read first.

    Slices add one after the other. What one has added to is still in the L2 for the next, if that and the panels that
    it read fit.
    """
    if not any(access.op == "atomic" for access in kernel.accesses(launch)):
        return 0.0
    output = _output_bytes(kernel, launch)
    between = panel_bytes.sum() / schedule.slices + output
    return output * (1 + (schedule.slices - 1) * _evicted(between / launch.gpu.l2_bytes, constants))


def _evicted(read_since: float, constants: Constants) -> float:
    """The share that is no longer in the L2 after so much else was read, as a share of the L2."""
    return evicted(read_since, constants.evicted_from, constants.evicted_at).item()


def reuse_seconds(kernel: Kernel, launch: Launch, resident_programs: int) -> float:
    """Seconds of a core that predicting a launch's traffic takes, for every GROUP_SIZE where it has one, roughly.

    Args:
        resident_programs: over all SMs.
    """
    extents = kernel.extents(launch)
    slices = extents.get("slice", 1)
    tiles, pieces = extents["m"] * extents["n"] * slices, (extents["m"] + extents["n"]) * slices
    waves = -(-tiles // max(1, min(resident_programs, kernel.programs(launch))))
    if kernel.family.panels is None or waves > MOST_WAVES or tiles > MOST_TILES:
        return 0.0  # read once, or refused
    sizes = len(_compared_sizes(extents["m"], tiles * waves)) if hasattr(launch.config, "GROUP_SIZE") else 0
    steps = waves if waves * 2 > _MOST_STEPS else min(waves * PIECES, _MOST_STEPS)
    ways = 2
    return ways * (1 + sizes) * steps * (pieces + steps) * _CELL_S


def group_sizes(schedule: Schedule) -> tuple[int, ...]:
    """The GROUP_SIZEs to compare: every one up to all rows of tiles, or, of large launches, some of each octave."""
    return _compared_sizes(schedule.extents[0], len(schedule.tiles.program) * (int(schedule.step.max()) + 1))


def _compared_sizes(rows: int, work: int) -> tuple[int, ...]:
    """Every one up to `rows`, or some of each octave, for so many tiles times waves."""
    for per_octave in (rows, 8, 4, 2, 1):
        steps = [max(1, (1 << size.bit_length() - 1) // per_octave) for size in range(1, rows + 1)]
        several = [size for size, step in enumerate(steps, 1) if size % step == 0 or size == rows]
        if len(several) * work <= _MOST_WORK:
            break
    return tuple(several)


def fewest_bytes(found: Mapping[int, Reuse]) -> int:
    """The GROUP_SIZE that reads the fewest bytes; of equal ones the largest."""
    return max(found, key=lambda size: (-round(found[size].read_bytes), size))


def recommended(found: Mapping[int, Reuse], launch: Launch) -> int:
    """The GROUP_SIZE that is expected to be fast.

    That of the fewest bytes; but where the L2 holds programs up, it has less to do the more consecutive programs share
    a panel: then the largest for which DRAM needs little of the L2's time.
    """
    fewest = fewest_bytes(found)
    if not found[fewest].ahead or not launch.gpu.dram_gbps:
        return fewest
    little = _LITTLE * launch.gpu.dram_gbps / l2_gbps(launch.gpu)
    return max((size for size, one in found.items() if one.read_bytes <= little * one.asked_bytes), default=fewest)
