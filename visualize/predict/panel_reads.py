"""Bytes of panels that orders of the same programs fetch: as is expected, and if programs went along otherwise.

Programs come apart as timelines show, and each reads at its own pace: `expected_pace`. What holds them together is
DRAM: who is ahead waits for it, and the others find in the L2 what came. So where coming apart costs reads, they lie
between those of lockstep, wave by wave, and those of each at its own pace, unless the L2 holds programs up more than
DRAM does (`_held`). Programs that loop stay in lockstep, and those of one SM may be evenly staggered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernels.spec import DTYPE_BYTES, Kernel, Launch
from visualize.predict import reuse_gaps
from visualize.predict.dispatch import Run, by_pace, lockstep, staggered
from visualize.predict.expected_pace import expected_pace
from visualize.predict.lru import Programs, fetched_bytes
from visualize.predict.reuse_constants import CONSTANTS, Constants
from visualize.predict.schedule import Schedule
from visualize.predict.steps import Panels

# Pieces of a panel that are modelled one by one; fewer where there are many waves, so that steps stay this few as long
# as a panel has a piece at all.
PIECES, MOST_STEPS = 10, 512

# Cells (order × step × panel) that are modelled together: some tens of megabytes.
_MOST_CELLS = 1 << 23

# The L2's capacity as a share of what it is, as far as it may seem: as it is, less, and more.
_CAPACITIES = 1.0, 0.9, 1.12

# Programs may come apart so many times as fast as is expected.
_UNSURE_PACE = 1.27


@dataclass(frozen=True)
class PanelReads:
    """Bytes fetched by several orders.

    Attributes:
        likely: with the L2 as it is, with one that keeps a tenth less, and with one that keeps an eighth more:
            (orders, 3).
        otherwise: what is furthest from that, of the ways in which programs may go along instead: (orders,).
        ahead: by how much of a tile's time some SMs run ahead.
    """

    likely: np.ndarray
    otherwise: np.ndarray
    ahead: float


def panel_reads(
    kernel: Kernel, launch: Launch, orders: Sequence[Schedule], read: Panels, l2_pressure: float, constants: Constants
) -> PanelReads:
    """Bytes of panels that each order fetches.

    Args:
        orders: the same programs, in different orders.
        read: the panels' bytes.
        l2_pressure: the time that the L2 needs, over that of the next slowest resource.
    """
    fetched = _Fetched(kernel, launch, orders, read, constants)
    runs_ahead = 0.0
    others: tuple[np.ndarray, ...]
    if _is_staggered(launch, orders[0], constants):
        likely, others = fetched.at_once(staggered(orders[0])), (fetched.together,)
    elif l2_pressure and orders[0].turns == 1:
        pace = expected_pace(kernel, launch, orders[0].resident_programs // orders[0].sms, l2_pressure, constants)
        faster = replace(pace, **{name: _UNSURE_PACE * value for name, value in vars(pace).items()})
        runs_ahead = pace.ahead
        own, own_faster = fetched.apart([by_pace(orders[0], one) for one in (pace, faster)])
        likely, others = _held(fetched, own, l2_pressure), (_held(fetched, own_faster, l2_pressure), own)
    else:
        likely, others = fetched.together, (fetched.together,)
    other = np.stack([one[:, 0] for one in others])
    furthest = np.abs(np.log(other / likely[:, 0])).argmax(0)
    return PanelReads(likely, np.take_along_axis(other, furthest[None], 0)[0], runs_ahead)


def fetched_on(kernel: Kernel, launch: Launch, order: Schedule, read: Panels, run: Run) -> float:
    """Bytes of panels that one order fetches, where it is known when each tile was begun and how long it took.

    Args:
        order: the launch's programs.
        read: the panels' bytes.
        run: times in units of a tile's time, and the SM of each tile.
    """
    (fetched,) = _Fetched(kernel, launch, [order], read, CONSTANTS).apart([run])
    return float(fetched[0, 0])


class _Fetched:
    """Bytes that the orders of a launch fetch, by how their programs go along: each (orders, 3).

    Attributes:
        together: if they start wave by wave, in lockstep.
        asked: bytes that all programs ask for.
        row_bytes: bytes of a row of A that a tile reads.
        is_shared: whether many consecutive programs share a column panel: (orders, 1).
    """

    def __init__(
        self, kernel: Kernel, launch: Launch, orders: Sequence[Schedule], read: Panels, constants: Constants
    ) -> None:
        self.schedule, self.constants = orders[0], constants
        self.read_by = [_panels(order) for order in orders]
        self._l2_bytes, self._read = launch.gpu.l2_bytes, read
        self._written = math.prod(kernel.output_tile(launch) or ()) * DTYPE_BYTES[launch.problem.dtype]
        self.together = self.at_once(lockstep(self.schedule))
        assert kernel.family.panels is not None, "only launches with panels come here"
        rows = kernel.family.tensors(launch.problem)[kernel.family.panels[0]].shape[0]
        self.row_bytes = float(read.row_bytes.max()) / min((kernel.output_tile(launch) or (rows, 1))[0], rows)
        self.asked = read.asked_bytes(orders[0])
        columns = [columns for _, columns in self.read_by]
        runs = np.array([1 + np.count_nonzero(np.diff(one)) for one in columns])
        fewest = min(constants.shared_by, self.schedule.resident_programs)
        self.is_shared = (len(columns[0]) >= fewest * runs)[:, None]

    def at_once(self, begun: np.ndarray) -> np.ndarray:
        """Programs that begin at the same step read their panels together, as many orders at once as memory holds."""
        panel_bytes = np.concatenate([self._read.row_bytes, self._read.column_bytes]).astype(float)
        pieces = max(1, min(PIECES, MOST_STEPS // int(begun.max() + 1)))
        start = np.floor(begun * pieces + 1e-9).astype(np.int64)
        programs = Programs(start, pieces, panel_bytes, self._written)
        steps = len(np.unique(start))
        batches = -(-len(self.read_by) * steps * max(len(panel_bytes), steps) // _MOST_CELLS)
        places = np.array_split(np.arange(len(self.read_by)), min(batches, len(self.read_by)))
        low, high = (self._l2_bytes * share for share in (self.constants.evicted_from, self.constants.evicted_at))
        capacities = [(low * by, high * by) for by in _CAPACITIES]
        return np.concatenate(
            [fetched_bytes(programs, [self.read_by[place] for place in batch], capacities) for batch in places]
        )

    def apart(self, runs: Sequence[Run]) -> list[np.ndarray]:
        """Each program reads its panels at its own pace: for each run."""
        row_bytes, column_bytes = (each.astype(float) for each in (self._read.row_bytes, self._read.column_bytes))
        known = reuse_gaps.PanelBytes(row_bytes, column_bytes, self._written)
        capacities = [self._l2_bytes * by for by in _CAPACITIES]
        return list(reuse_gaps.fetched_bytes(known, runs, self.read_by, capacities))


def _held(fetched: _Fetched, own: np.ndarray, l2_pressure: float) -> np.ndarray:
    """What is fetched where programs that are ahead wait for DRAM, and the others catch up: (orders, 3).

    The more they miss, and the shorter a tile, the closer reads are to those of lockstep. That is so below
    `calm_until`, and of programs that share a column panel below `apart_from`; else, and wherever it reads less, each
    goes on at its own pace.

    Args:
        own: what is fetched if each goes on at its own pace.
    """
    constants, together = fetched.constants, fetched.together
    apart = np.ones_like(own)
    if l2_pressure < constants.apart_from:
        waits = 1 / (1 + own / fetched.asked * constants.wait_bytes / fetched.row_bytes)
        shared = waits if l2_pressure >= 1 else 0.0
        apart = np.where(fetched.is_shared, shared, waits if l2_pressure < constants.calm_until else 1.0)
    return np.where(own > together, together + apart * (own - together), own)


def _is_staggered(launch: Launch, schedule: Schedule, constants: Constants) -> bool:
    """Whether the programs of an SM are evenly staggered."""
    if DTYPE_BYTES[launch.problem.dtype] == 2 or schedule.programs <= schedule.sms:
        return False
    per_sm = schedule.resident_programs // schedule.sms
    return per_sm > 1 and per_sm * launch.config.num_warps >= constants.staggered_warps


def _panels(schedule: Schedule) -> tuple[np.ndarray, np.ndarray]:
    """The pieces of a row panel and of a column panel that each tile reads, numbered through both."""
    rows, columns = schedule.pieces
    return rows, schedule.extents[0] * schedule.slices + columns
