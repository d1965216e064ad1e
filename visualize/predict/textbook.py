"""The textbook model: lane i of a warp accesses element i of the tile, in row-major order of the addressed tensor.

Omitted: the layout and width that the compiler really chooses, and the caches behind L1.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernels.knobs import ConfigError, knob, powers, read_fields
from kernels.spec import DTYPE_BYTES, Access, FlatAccess, Kernel, Launch, ProblemFields
from visualize.predict.traffic import First, Matrix, Operation, Requests, Tile, count, count_access


@dataclass(frozen=True)
class Textbook:
    """Warp, line and element sizes of the textbook model. A GPU has 32 lanes, 128-byte lines and 32-byte sectors."""

    warp_size: int = knob(32, "Blackboard", "Lanes per warp.", choices=powers(2, 64), label="Warp size")
    line_bytes: int = knob(128, "Blackboard", "Bytes per cache line.", choices=powers(8, 512), label="Line size")
    element_bytes: str = knob(
        "dtype", "Blackboard", "Bytes per element. dtype: as in the problem.",
        choices=("dtype", "1", "2", "4", "8", "16"), label="Element size",
    )  # fmt: skip
    lanes: str = knob(
        "tile", "Blackboard",
        "tile: lane i accesses element i of the tile. loaded: each lane stores what it loaded.",
        choices=("tile", "loaded"), label="Lanes",
    )  # fmt: skip

    @property
    def sector_bytes(self) -> int:
        """Bytes of a sector: 32, as on a GPU, or the whole line if it is shorter."""
        return min(32, self.line_bytes)

    def refuse(self, problem: ProblemFields) -> None:
        """Raise ConfigError if an element of the problem does not fit in a line."""
        self.bytes_of(problem.dtype)

    def bytes_of(self, dtype: str) -> int:
        """Return the bytes of an element.

        Raises:
            ConfigError: an element does not fit in a line.
        """
        size = DTYPE_BYTES[dtype] if self.element_bytes == "dtype" else int(self.element_bytes)
        if size > self.line_bytes:
            message = f"Element size (element_bytes) must be at most line_bytes, which is {self.line_bytes}"
            raise ConfigError("out_of_range", f"{message} (got {size}).", "element_bytes")
        return size

    def matrix(self, shape: tuple[int, int], dtype: str) -> Matrix:
        """Return a stored tensor of (rows, columns), with the textbook's element, sector and line sizes."""
        return Matrix(*shape, self.bytes_of(dtype), self.sector_bytes, self.line_bytes)


def textbook(options: object) -> Textbook:
    """Read a textbook machine from JSON. Omitted fields take a GPU's numbers, as does None."""
    if options is None:
        return Textbook()
    if not isinstance(options, Mapping):
        raise ConfigError("not_an_object", f"The textbook options must be a JSON object (got {options!r}).")
    return read_fields(Textbook, options, "the textbook")


def requests(access: Access | FlatAccess, matrix: Matrix, first: First, board: Textbook) -> Requests:
    """Assign every element of one block or run to a lane.

    Args:
        first: (row, column) of the block's first element; (element,) for a run.
    """
    element = np.arange(access.elements, dtype=np.int64).reshape(-1, min(board.warp_size, access.elements))
    if isinstance(access, FlatAccess):
        row, column = matrix.run_elements(access, first[0] + element)
    else:
        rows, columns = access.rows.block, access.columns.block
        row, column = np.divmod(element, columns)
        if access.transposed and board.lanes == "loaded":
            column, row = np.divmod(element, rows)
        row, column = row + first[0], column + first[1]
    return matrix.requests(row, column, True, matrix.element_bytes)


def tile(lanes: Requests) -> Tile:
    """Return the elements of one execution. Each lane holds one element, and each warp issues one request."""
    request, lane = np.indices(lanes.row.shape)
    parts = (lanes.row, lanes.column, lanes.address, lanes.active, request, request, lane, np.zeros_like(lane))
    return Tile(*(part.ravel() for part in parts))


def operations(kernel: Kernel, launch: Launch, board: Textbook) -> tuple[Operation, ...]:
    """Return every operation of a launch with its cost."""
    tensors = kernel.tensors(launch)
    extents = kernel.extents(launch)
    requests_at = functools.partial(requests, board=board)
    result = []
    for number, access in enumerate(kernel.all_accesses(launch)):
        matrix = board.matrix(tensors[access.tensor].stored, tensors[access.tensor].dtype_in(launch.problem))
        costs = count_access(access, matrix, extents, requests_at, count)
        result.append(Operation(number, access, matrix.element_bytes, *costs))
    return tuple(result)
