"""How many bytes of the inputs a launch reads from DRAM: what its order finds in the L2, and what it must fetch again.

A program of a product reads a panel of A (its rows, all of K) and one of B, piece by piece along K. Programs that
start together run in lockstep, so one fetch serves all that share a panel. Later programs find it if less has been read
in between than the L2 keeps (least recently used first). Programs start wave by wave, and come apart as timelines show:
SMs differ, the older of an SM's programs are served first, and where the L2 has more to deliver than it can some SMs
run ahead. What they miss holds them together, as who is ahead waits for it. A family without panels reads each input
once.

Constants come from timelines of H200s and an H100, and of lockstep from the comparisons of GROUP_SIZE recorded on an
H200 (`records/h200_reuse.jsonl`). What is left out: how replacement really works, and what is each device's own, such
as which SMs run ahead; `benchmarks/timelines.py` takes timelines in place of the expected course.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernels.spec import Kernel, Launch
from visualize.predict.bounds import l2_gbps
from visualize.predict.dispatch import Run
from visualize.predict.lru import evicted
from visualize.predict.panel_reads import MOST_STEPS, PIECES, fetched_on, panel_reads
from visualize.predict.reuse_constants import CONSTANTS, Constants
from visualize.predict.schedule import MAX_TILES, Schedule
from visualize.predict.steps import Panels, panels

# Steps that are modelled, of waves or of turns of a loop: time and memory grow with their square, to some 5 s of a core
# and half a gigabyte for so many and every octave of GROUP_SIZE.
MOST_WAVES = 2048

# Seconds of a core for each step of each order that is compared, each panel and other step that it is laid beside, and
# each way to start: fitted on one x86 server core.
_CELL_S = 3e-8

# From which ratio to what may be instead a prediction is called sensitive: to how programs go along, to the L2's size.
_UNSURE_COURSE, _UNSURE_SIZE = 1.18, 1.14

# The L2 holds programs up where some SMs run ahead by so much of a tile's time. DRAM needs little time, if at most so
# much of the L2's.
_HELD_UP = 0.1
_LITTLE = 0.2

# Tiles of all orders together, times waves, that are modelled: a few hundred milliseconds. Where one order per octave
# is more than that already, it takes seconds.
_MOST_WORK = 1 << 25


@dataclass(frozen=True)
class Reuse:
    """Bytes of one launch.

    Attributes:
        read_bytes: read from DRAM.
        low_bytes, high_bytes: the same with an L2 that keeps an eighth more, or a tenth less.
        otherwise_bytes: the same if programs behave otherwise, whichever is furthest off. Staggered programs: in
            lockstep. Programs that come apart: if they do so faster, or are not held back by what they miss. Programs
            in lockstep: the same as `read_bytes`.
        compulsory_bytes: each input once.
        asked_bytes: what all programs ask for together: reads without any reuse.
        write_bytes: the output once.
        ahead: by how much of a tile's time some SMs run ahead; 0 where none do.
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
        """Whether the prediction is a rough one, as it is sensitive to how far programs run in lockstep."""
        return _ratio(self.read_bytes, self.otherwise_bytes) > _UNSURE_COURSE

    @property
    def is_held_up(self) -> bool:
        """Whether the L2 holds programs up."""
        return self.ahead >= _HELD_UP

    @property
    def is_edge(self) -> bool:
        """Whether what is reused is about as large as the L2, so that reads are sensitive to its exact capacity."""
        return any(_ratio(self.read_bytes, one) > _UNSURE_SIZE for one in (self.low_bytes, self.high_bytes))


def _ratio(one: float, other: float) -> float:
    """Of the larger to the smaller."""
    return max(one, other) / max(min(one, other), 1)


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
    read = _read(kernel, launch, schedule)
    besides = _besides_panels(kernel, launch, schedule, read, constants)
    found = panel_reads(kernel, launch, [order for _, order in several], read, l2_pressure, constants)
    likely, otherwise = (each + besides for each in (found.likely, found.otherwise))
    compulsory, written = read.total_bytes + _once_bytes(kernel, launch), _output_bytes(kernel, launch)
    asked = asked_bytes(kernel, launch, schedule)
    return [
        Reuse(read_bytes, fewest, most, other, compulsory, asked, written, found.ahead)
        for (read_bytes, most, fewest), other in zip(likely.tolist(), otherwise.tolist(), strict=True)
    ]


def read_bytes_on(kernel: Kernel, launch: Launch, schedule: Schedule, run: Run) -> float:
    """Bytes that one launch reads from DRAM, where it is known when each tile was begun: of a family with panels.

    Args:
        schedule: of the same launch.
        run: times in units of a tile's time, and the SM of each tile.
    """
    read = _read(kernel, launch, schedule)
    besides = _besides_panels(kernel, launch, schedule, read, CONSTANTS)
    return fetched_on(kernel, launch, schedule, read, run) + besides


def _read(kernel: Kernel, launch: Launch, schedule: Schedule) -> Panels:
    read = panels(kernel, launch, schedule)
    assert read is not None, "only launches with panels come here"
    return read


def asked_bytes(kernel: Kernel, launch: Launch, schedule: Schedule) -> int:
    """What all programs ask for together: reads without any reuse."""
    read = panels(kernel, launch, schedule)
    if read is None:
        return _input_bytes(kernel, launch)
    return read.asked_bytes(schedule) + _once_bytes(kernel, launch)


def _input_bytes(kernel: Kernel, launch: Launch) -> int:
    return kernel.family.minimal_bytes(launch.problem) - _output_bytes(kernel, launch)


def _output_bytes(kernel: Kernel, launch: Launch) -> int:
    return kernel.family.tensor_bytes(launch.problem)[kernel.family.output(launch.problem)]


def _once_bytes(kernel: Kernel, launch: Launch) -> int:
    """Bytes of inputs that are read once for each tile, besides panels."""
    bytes_of, panel_inputs = kernel.family.tensor_bytes(launch.problem), kernel.family.panels or ()
    return _input_bytes(kernel, launch) - sum(bytes_of[name] for name in panel_inputs)


def _besides_panels(kernel: Kernel, launch: Launch, schedule: Schedule, read: Panels, constants: Constants) -> float:
    """Bytes that are read from DRAM besides panels: inputs that are read once, and an output that is added to."""
    return _once_bytes(kernel, launch) + _added_bytes(kernel, launch, schedule, read.total_bytes, constants)


def _added_bytes(kernel: Kernel, launch: Launch, schedule: Schedule, panel_bytes: int, constants: Constants) -> float:
    """Bytes of an output that the L2 adds to, which it must read first.

    Slices add one after the other. What one has added to is still in the L2 for the next, if that and the panels that
    it read fit.
    """
    if not any(access.op == "atomic" for access in kernel.accesses(launch)):
        return 0.0
    output = _output_bytes(kernel, launch)
    between = panel_bytes / schedule.slices + output
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
    if kernel.family.panels is None or waves > MOST_WAVES or tiles > MAX_TILES:
        return 0.0  # read once, or refused
    sizes = len(_compared_sizes(extents["m"], tiles * waves)) if hasattr(launch.config, "GROUP_SIZE") else 0
    steps = waves if waves * 2 > MOST_STEPS else min(waves * PIECES, MOST_STEPS)
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
    if not found[fewest].is_held_up or not launch.gpu.dram_gbps:
        return fewest
    little = _LITTLE * launch.gpu.dram_gbps / l2_gbps(launch.gpu)
    return max((size for size, one in found.items() if one.read_bytes <= little * one.asked_bytes), default=fewest)
