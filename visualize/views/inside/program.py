"""What the pictures of a program's inside are drawn from, for a kernel of ours and for a script's launch."""

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from kernels.capture.reader import CapturedKernel
from kernels.evaluate.listings import Location
from kernels.gpus import Gpu
from kernels.inside.report import Inside
from kernels.instructions import CompiledFacts
from visualize.views.prose import picture_caption
from visualize.views.state import Snapshot

BANKS = 32
_WORD_BYTES = 4


@dataclass(frozen=True)
class Example:
    """One execution of an instruction that accesses shared memory.

    Attributes:
        address: (warps, 32) int64, first byte of each lane.
        active: (warps, 32) bool.
        width_bytes: bytes per lane; 16 for the rows of matrices.
    """

    opcode: str
    location: Location
    address: ndarray
    active: ndarray
    width_bytes: int


@dataclass(frozen=True)
class Program:
    """The inside of a launch's programs, with what only the pictures show.

    Attributes:
        live: live registers at each instruction of the SASS.
        about: the line below a saved picture.
    """

    inside: Inside
    facts: CompiledFacts | CapturedKernel
    num_warps: int
    gpu: Gpu | None
    sass: str
    about: str
    examples: tuple[Example, ...] = ()
    live: tuple[int, ...] = ()


def describe(snapshot: Snapshot) -> Program:
    """Return the inside of an experiment's programs, as compiled."""
    compiled = snapshot.compiled
    assert compiled is not None, "only a compiled kernel has an inside"
    state = snapshot.state
    return Program(
        inside=Inside(),
        facts=compiled,
        num_warps=state.experiment.config.num_warps,
        gpu=state.gpu,
        sass=compiled.sass,
        about=picture_caption(state.experiment, state.gpu.name, "compiled"),
    )


def serve(address: ndarray, active: ndarray, width_bytes: int) -> tuple[ndarray, ndarray]:
    """Return which word each bank serves in each wavefront of one warp's instruction.

    Returns:
        (wavefronts, 32) lane, the first of those with the word, or -1; and (wavefronts, 32, 2) byte and number of lanes.
    """
    words = max(1, width_bytes // _WORD_BYTES)
    at_once = BANKS // words
    lanes_by_word: list[dict[int, list[int]]] = []
    for first in range(0, len(address), at_once):
        group = dict[int, list[int]]()
        for lane in range(first, first + at_once):
            for word in range(words) if active[lane] else ():
                group.setdefault(int(address[lane]) // _WORD_BYTES + word, []).append(lane)
        lanes_by_word.append(group)
    rows: list[ndarray] = []
    for group in lanes_by_word:
        start = len(rows)
        used = [0] * BANKS
        for word, lanes in group.items():
            bank = word % BANKS
            row = start + used[bank]
            used[bank] += 1
            if row == len(rows):
                rows.append(np.full((BANKS, 3), -1))
            rows[row][bank] = lanes[0], word * _WORD_BYTES, len(lanes)
    table = np.array(rows).reshape(-1, BANKS, 3)
    return table[..., 0], table[..., 1:]
