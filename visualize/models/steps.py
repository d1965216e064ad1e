"""What is computed in each step of a launch, and which panels of A and B the programs of a step touch.

A step is a wave, or, where programs loop over tiles, a turn of the loop in a wave. Left out, as in `schedule`: how long
a program runs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from kernels.spec import DTYPE_BYTES, Access, Kernel, Launch, Tiles
from visualize.models.schedule import Schedule, slice_blocks

# Steps × pieces that are looked at together: few enough to stay in a core's cache.
_MARKS = 1 << 20


@dataclass(frozen=True)
class Panels:
    """The panels of A and B that the tiles of C need: as high or wide as a tile, as long as K.

    Where K is cut into slices, so is a panel: piece `pid * slices + slice`.

    Attributes:
        a_bytes, b_bytes: of each piece, (num_pid_m * slices,) and (num_pid_n * slices,). Past an edge there is nothing.
    """

    a_bytes: np.ndarray
    b_bytes: np.ndarray


def panels(kernel: Kernel, launch: Launch, planned: Schedule) -> Panels | None:
    """The panels of a launch; None for a kernel without a reduction."""
    if not planned.k_blocks:
        return None
    loads = [a for a in kernel.accesses(launch) if isinstance(a, Access) and a.tensor in ("A", "B")]
    block = {axis.index: axis.block for load in loads for axis in (load.rows, load.columns)}
    tensors = kernel.family.tensors(launch.problem)
    (height, depth), width = tensors["A"].shape, tensors["B"].shape[1]
    ends = np.minimum(np.cumsum(slice_blocks(planned)) * block["k"], depth)
    of_slice = np.diff(ends, prepend=0) * DTYPE_BYTES[launch.problem.dtype]

    def pieces(extent: int, size: int, total: int) -> np.ndarray:
        rows = np.minimum(size, total - np.arange(extent) * size)
        return np.outer(rows, of_slice).reshape(-1)

    num_pid_m, num_pid_n = planned.extents
    return Panels(pieces(num_pid_m, block["m"], height), pieces(num_pid_n, block["n"], width))


@dataclass(frozen=True)
class Steps:
    """A launch, step by step.

    Attributes:
        name: what a step is: "wave", "turn" (of the loop), or "step" (a turn in a wave).
        entries: the entries of the schedule's tiles, step after step; None where launch order is that.
        tiles: how many each step computes: (steps,).
        a_pieces, b_pieces: distinct pieces of panels that each step touches: (steps,); None without a reduction.
        panel_bytes: their bytes.
        slots: programs that compute at once in a full step.
    """

    name: str
    entries: np.ndarray | None
    tiles: np.ndarray
    a_pieces: np.ndarray | None
    b_pieces: np.ndarray | None
    panel_bytes: np.ndarray | None
    slots: int

    def in_order(self, of_tile: np.ndarray) -> np.ndarray:
        """A value of each tile in launch order, step after step."""
        return of_tile if self.entries is None else of_tile[self.entries]

    @property
    def tail_idle(self) -> float:
        """The share of the last step's slots in which nothing is computed, 0 to 1."""
        return 1 - int(self.tiles[-1]) / self.slots

    @property
    def idle(self) -> float:
        """The share of all steps' slots in which nothing is computed, 0 to 1."""
        return 1 - int(self.tiles.sum()) / (len(self.tiles) * self.slots)


def steps(planned: Schedule, touched: Panels | None) -> Steps:
    """Cut a launch into steps.

    Args:
        touched: the panels, where there are any.
    """
    step, entries = planned.step, None
    if planned.turns > 1:
        # The smaller the type, the quicker the sort.
        entries = np.argsort(step.astype(np.min_scalar_type(int(step.max()))), kind="stable")
    counts = np.bincount(step)
    name = "wave" if planned.turns == 1 else "turn" if planned.waves == 1 else "step"
    # A launch that loops has as many programs as it wants at once, however many more a SM would hold.
    slots = planned.resident_programs
    if planned.turns > 1:
        slots = min(slots, -(-planned.programs // planned.sms) * planned.sms)
    cut = Steps(name, entries, counts, None, None, None, slots)
    if touched is None:
        return cut
    (a_pieces, a_bytes), (b_pieces, b_bytes) = (
        _touched(counts, cut.in_order(piece), piece_bytes)
        for piece, piece_bytes in zip(planned.pieces, (touched.a_bytes, touched.b_bytes), strict=True)
    )
    return replace(cut, a_pieces=a_pieces, b_pieces=b_pieces, panel_bytes=a_bytes + b_bytes)


def _touched(counts: np.ndarray, piece: np.ndarray, piece_bytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct pieces of each step, but for those without bytes, and the bytes of them: (steps,), (steps,).

    Args:
        counts: (steps,) tiles of each step.
        piece: (tiles,) the piece that each touches, step after step.
    """
    ends = np.concatenate([[0], np.cumsum(counts)])
    at_once = max(1, _MARKS // len(piece_bytes))
    fresh = np.empty(len(piece), dtype=bool)
    for begin in range(0, len(counts), at_once):
        of_step = counts[begin : begin + at_once]
        part = slice(ends[begin], ends[begin + len(of_step)])
        fresh[part] = _last_ones(np.repeat(np.arange(len(of_step)) * len(piece_bytes), of_step) + piece[part])
    counted = np.flatnonzero(fresh)
    counted = counted[piece_bytes[piece[counted]] > 0]
    at_end = np.searchsorted(counted, ends)
    total = np.concatenate([[0], np.cumsum(piece_bytes[piece[counted]])])
    return np.diff(at_end), np.diff(total[at_end])


def _last_ones(keys: np.ndarray) -> np.ndarray:
    """Whether each key is the last of its kind: so that each kind is counted once."""
    here = np.arange(len(keys), dtype=np.int32)
    last = np.empty(int(keys.max(initial=-1)) + 1, dtype=np.int32)
    last[keys] = here  # of several that are assigned, the last one stays
    return last[keys] == here


def in_time(planned: Schedule, cut: Steps) -> Schedule:
    """The launch as if each tile were a program of its own, started when the tile is computed."""
    tiles = (cut.in_order(getattr(planned.tiles, field.name)) for field in fields(Tiles))
    timed = replace(Tiles(*tiles), program=np.arange(len(planned.tiles.program)))
    return replace(planned, programs=len(timed.program), tiles=timed)


def first_touches(planned: Schedule, cut: Steps) -> tuple[np.ndarray, np.ndarray]:
    """The entry that touches each piece first in time: of A (num_pid_m, slices), of B (slices, num_pid_n)."""
    if cut.entries is None:
        a, b = planned.first_of_piece
    else:
        a, b = (cut.entries[first] for first in in_time(planned, cut).first_of_piece)
    return a, b.T


def with_programs_per_sm(planned: Schedule, programs_per_sm: int) -> Schedule:
    """The same launch on a GPU whose SMs hold so many programs."""
    return replace(planned, resident_programs=planned.sms * programs_per_sm)
