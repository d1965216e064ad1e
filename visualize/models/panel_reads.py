"""Bytes of panels that orders of the same programs fetch: as is expected, and if programs went along otherwise.

How programs go along is one of three ways. Below a pressure on the L2 they start wave by wave, and waves dissolve a
little. Above it programs come apart, some SMs run ahead, and each program reads at its own pace, unless a column panel
that many share holds them together. And programs of one SM may be evenly staggered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernels.spec import DTYPE_BYTES, Kernel, Launch
from visualize.models import reuse_gaps
from visualize.models.dispatch import Pace, Run, by_pace, lockstep, staggered
from visualize.models.lru import Programs, fetched_bytes
from visualize.models.reuse_constants import CONSTANTS, Constants, ahead
from visualize.models.schedule import Schedule
from visualize.models.steps import Panels

# Pieces of a panel that are modelled one by one; fewer where there are many waves, so that steps stay this few as long
# as a panel has a piece at all.
PIECES, MOST_STEPS = 10, 512

# Cells (order × step × panel) that are modelled together: some tens of megabytes.
_MOST_CELLS = 1 << 23

# The L2's capacity as a share of what it is, as far as it may seem: as it is, less, and more.
_CAPACITIES = 1.0, 0.9, 1.12

# How wrong may be, as a factor: how quickly programs come apart, and how unlike SMs are that are not pressed.
_UNSURE_HASTE = 1.4
_UNSURE_SPREAD = 3.0
# Up to so many times the pressure from which on programs come apart they may not: short launches' L2 rate is a tenth
# higher.
_UNSURE_PRESSURE = 1.1


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
    if _is_staggered(launch, orders[0], constants):
        likely, others = fetched.at_once(staggered(orders[0])), [fetched.together]
    elif l2_pressure > constants.pressed_from:
        runs_ahead = ahead(l2_pressure, constants)
        likely, others = _coming_apart(fetched, l2_pressure)
    else:
        likely, others = _dissolving(fetched, l2_pressure)
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
    """

    def __init__(
        self, kernel: Kernel, launch: Launch, orders: Sequence[Schedule], read: Panels, constants: Constants
    ) -> None:
        self.schedule, self.constants = orders[0], constants
        self.read_by = [_panels(order) for order in orders]
        self._l2_bytes, self._read = launch.gpu.l2_bytes, read
        self._written = math.prod(kernel.output_tile(launch) or ()) * DTYPE_BYTES[launch.problem.dtype]
        self.together = self.at_once(lockstep(self.schedule))

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


def _coming_apart(fetched: _Fetched, l2_pressure: float) -> tuple[np.ndarray, list[np.ndarray]]:
    """What is likely, and what may be, where the L2 holds programs up."""
    constants, together = fetched.constants, fetched.together
    pressed, share = l2_pressure - constants.pressed_from, _apart_share(fetched, l2_pressure)
    expected = Pace(
        ahead=ahead(l2_pressure, constants),
        spread=constants.spread * l2_pressure,
        first_jitter=constants.first_jitter * pressed,
        jitter=constants.jitter,
        stretch=min(constants.stretch * pressed, 1.0),
    )
    sooner = replace(
        expected,
        **{name: _UNSURE_HASTE * getattr(expected, name) for name in ("first_jitter", "jitter", "stretch")},
        ahead=min(_UNSURE_HASTE * expected.ahead, 0.9),
    )
    own, *rest = fetched.apart([by_pace(fetched.schedule, pace) for pace in (expected, sooner)])
    # Only where coming apart costs reads do programs wait for each other.
    likely, *others = (np.where(one > together, together + share * (one - together), one) for one in (own, *rest))
    is_unsure = (share < 1) | (l2_pressure < _UNSURE_PRESSURE * constants.pressed_from)
    return likely, others + [np.where(is_unsure, one, likely) for one in (together, own)]


def _dissolving(fetched: _Fetched, l2_pressure: float) -> tuple[np.ndarray, list[np.ndarray]]:
    """What is likely, and what may be, where waves dissolve slowly, or not at all."""
    constants, together = fetched.constants, fetched.together
    if not (spread := constants.spread * l2_pressure):
        return together, [together]
    slow, slower = fetched.apart([by_pace(fetched.schedule, Pace(spread=by * spread)) for by in (1.0, _UNSURE_SPREAD)])
    return together * (slow / together) ** constants.slow_share, [together, slower]


def _apart_share(fetched: _Fetched, l2_pressure: float) -> np.ndarray:
    """How far each order's programs come apart, from 0, lockstep, to 1: (orders, 1)."""
    constants = fetched.constants
    way = (l2_pressure - constants.pressed_from) / (constants.apart_from - constants.pressed_from)
    runs = np.array([1 + np.count_nonzero(np.diff(columns)) for _, columns in fetched.read_by])
    shared_by = min(constants.shared_by, fetched.schedule.resident_programs)
    is_shared = len(fetched.read_by[0][1]) >= shared_by * runs
    return np.where(is_shared, min(way, 1.0), 1.0)[:, None]


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
