"""The blackboard's picture: lane i of a warp takes element i of the tile, row-major in the tensor that is addressed.

What the compiler really chooses (layout, width) is left out here; so are the caches behind the L1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernels.knobs import ConfigError, checked_fields, knob, powers
from kernels.spec import DTYPE_BYTES, Access, FlatAccess, Kernel, Launch, ProblemFields
from visualize.predict.traffic import (
    Operation,
    Requests,
    Tile,
    Traffic,
    at_places,
    of_run,
    over_blocks,
    over_runs,
    traffic,
)


@dataclass(frozen=True)
class Textbook:
    """The blackboard's machine. A real GPU has 32 lanes, lines of 128 bytes, and sectors of 32."""

    warp_size: int = knob(32, "Blackboard", "Lanes of a warp.", choices=powers(2, 64))
    line_bytes: int = knob(128, "Blackboard", "Bytes of a cache line.", choices=powers(8, 512))
    element_bytes: str = knob(
        "dtype", "Blackboard", "Bytes of an element; dtype takes the problem's.",
        choices=("dtype", "1", "2", "4", "8", "16"),
    )  # fmt: skip
    lanes: str = knob(
        "tile", "Blackboard",
        "tile: lane i takes element i of the addressed tile. loaded: the lane that loaded an element stores it.",
        choices=("tile", "loaded"),
    )  # fmt: skip

    @property
    def sector_bytes(self) -> int:
        """A line has four sectors of 32 bytes on a GPU; the small lines of a blackboard have one."""
        return min(32, self.line_bytes)

    def refuse(self, problem: ProblemFields) -> None:
        """Raise ConfigError where an element of the problem does not fit in a line."""
        self.bytes_of(problem.dtype)

    def bytes_of(self, dtype: str) -> int:
        size = DTYPE_BYTES[dtype] if self.element_bytes == "dtype" else int(self.element_bytes)
        if size > self.line_bytes:
            raise ConfigError(
                "out_of_range",
                f"element_bytes is {size}; an element must fit in a line of {self.line_bytes} bytes.",
                "element_bytes",
            )
        return size

    def count(self, lanes: Requests) -> Traffic:
        return traffic(lanes, self.sector_bytes, self.line_bytes)


def textbook(options: object) -> Textbook:
    """A blackboard from JSON: any of its fields, or None for a GPU's own numbers."""
    if options is None:
        return Textbook()
    if not isinstance(options, Mapping):
        raise ConfigError("not_an_object", f"The textbook options are {options!r}; they must be a JSON object.")
    return checked_fields(Textbook, options, "the textbook")


def requests(
    access: Access | FlatAccess, shape: tuple[int, int], first: tuple[int, ...], size: int, board: Textbook
) -> Requests:
    """Give every element of one block, or of one run, to a lane.

    Args:
        shape: rows and columns of the tensor as it is stored, row-major, its start aligned to a line.
        first: row and column of the block's first element; of a run the number of its first element.
        size: bytes of an element.
    """
    element = np.arange(access.elements, dtype=np.int64).reshape(-1, min(board.warp_size, access.elements))
    if isinstance(access, FlatAccess):
        row, column = of_run(access, shape, first[0] + element)
    else:
        rows, columns = access.rows.block, access.columns.block
        if access.transposed and board.lanes == "loaded":
            row, column = element % rows, element // rows
        else:
            row, column = element // columns, element % columns
        row, column = row + first[0], column + first[1]
    return at_places(row, column, True, shape, size, size)


def tile(lanes: Requests) -> Tile:
    """The elements of one execution: a lane has one, a warp one request."""
    request, lane = np.indices(lanes.row.shape)
    parts = (lanes.row, lanes.column, lanes.address, lanes.active, request, request, lane, np.zeros_like(lane))
    return Tile(*(part.ravel() for part in parts))


def operations(kernel: Kernel, launch: Launch, board: Textbook) -> tuple[Operation, ...]:
    """Count every operation of a launch."""
    size = board.bytes_of(launch.problem.dtype)
    extents = kernel.extents(launch)
    tensors = kernel.family.tensors(launch.problem)
    counted = []
    for number, access in enumerate(kernel.accesses(launch)):
        shape = tensors[access.tensor].stored

        def one(start: tuple[int, ...], access: Any = access, shape: tuple[int, int] = shape) -> Traffic:
            return board.count(requests(access, shape, start, size, board))

        if isinstance(access, FlatAccess):
            # One run follows the other, so requests do: the run's length doesn't matter.
            length = min(board.warp_size, access.run.block)
            run = FlatAccess(access.op, access.tensor, replace(access.run, block=length), access.over, access.source)
            lanes = requests(run, (1, length), (0,), size, board)
            total = over_runs(access, shape, size, length, lanes, board.sector_bytes, board.line_bytes)
            first: tuple[int, ...] = (0,)
        else:
            total = over_blocks(access, shape, extents, size, board.line_bytes, one)
            first = tuple(int(axis.start(0, axis.block)) for axis in (access.rows, access.columns))
        counted.append(Operation(number, access, size, total, one(first)))
    return tuple(counted)
