"""What is computed in each step of a launch, and which panels of A and B the programs of a step touch.

A step is a wave, or, where programs loop over tiles, a turn of the loop in a wave. Left out, as in `schedule`: how long
a program runs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from kernels.spec import DTYPE_BYTES, Access, Kernel, Launch, Tiles
from visualize.models.schedule import Schedule, ordered_by, slice_blocks

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
        timed: the launch as if each tile were a program of its own, started when the tile is computed.
        tiles: how many each step computes: (steps,).
        a_pieces, b_pieces: distinct pieces of panels that each step touches: (steps,); None without a reduction.
        panel_bytes: their bytes.
        slots: programs that compute at once in a full step.
    """

    name: str
    entries: np.ndarray | None
    timed: Schedule
    tiles: np.ndarray
    a_pieces: np.ndarray | None
    b_pieces: np.ndarray | None
    panel_bytes: np.ndarray | None
    slots: int

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
        entries = ordered_by(step)
        step = step[entries]
    timed = _in_time(planned, entries)
    ends = np.searchsorted(step, np.arange(step[-1] + 1), side="right")
    name = "wave" if planned.turns == 1 else "turn" if planned.waves == 1 else "step"
    # A launch that loops has as many programs as it wants at once, however many more a SM would hold.
    slots = planned.resident_programs
    if planned.turns > 1:
        slots = min(slots, -(-planned.programs // planned.sms) * planned.sms)
    cut = Steps(name, entries, timed, np.diff(ends, prepend=0), None, None, None, slots)
    if touched is None:
        return cut
    (a_pieces, a_bytes), (b_pieces, b_bytes) = (
        _touched(step, ends, piece, piece_bytes)
        for piece, piece_bytes in zip(timed.pieces, (touched.a_bytes, touched.b_bytes), strict=True)
    )
    return replace(cut, a_pieces=a_pieces, b_pieces=b_pieces, panel_bytes=a_bytes + b_bytes)


def _touched(
    step: np.ndarray, ends: np.ndarray, piece: np.ndarray, piece_bytes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Distinct pieces of each step, but for those without bytes, and the bytes of them: (steps,), (steps,).

    Args:
        step, piece: (tiles,) the step that computes each tile, ascending, and the piece that the tile touches.
        ends: (steps,) tiles up to the end of each step.
    """
    count, at_once = len(piece_bytes), max(1, _MARKS // len(piece_bytes))
    last = np.empty(at_once * count, dtype=np.int32)
    fresh = np.empty(len(piece), dtype=bool)
    for begin in range(0, len(ends), at_once):
        part = slice(ends[begin - 1] if begin else 0, ends[begin : begin + at_once][-1])
        key = (step[part] - begin) * count + piece[part]
        here = np.arange(len(key), dtype=np.int32)
        last[key] = here  # of several that are assigned, the last one stays: it alone counts
        fresh[part] = last.take(key) == here
    touched = piece_bytes.take(piece) * fresh
    tiles = np.diff(ends, prepend=0)
    # Of a step without tiles, reduceat gives what the next tile touches.
    pieces, moved = (np.add.reduceat(x, ends - tiles, dtype=np.int64) * (tiles > 0) for x in (touched > 0, touched))
    return pieces, moved


def _in_time(planned: Schedule, entries: np.ndarray | None) -> Schedule:
    """The launch as if each of these entries, in this order, were a program of its own."""
    if entries is None:
        return planned
    tiles = Tiles(*(getattr(planned.tiles, field.name)[entries] for field in fields(Tiles)))
    return replace(planned, programs=len(entries), tiles=replace(tiles, program=np.arange(len(entries))))


def first_touches(cut: Steps) -> tuple[np.ndarray, np.ndarray]:
    """The entry that touches each piece first in time: of A (num_pid_m, slices), of B (slices, num_pid_n)."""
    a, b = cut.timed.first_of_piece
    return (a, b.T) if cut.entries is None else (cut.entries[a], cut.entries[b.T])


def with_programs_per_sm(planned: Schedule, programs_per_sm: int) -> Schedule:
    """The same launch on a GPU whose SMs hold so many programs."""
    return replace(planned, resident_programs=planned.sms * programs_per_sm)
