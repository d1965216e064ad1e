"""The textbook model: lane i of a warp accesses element i of the tile, in row-major order of the addressed tensor.

Omitted: the layout and width that the compiler really chooses, and the caches behind L1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kernels.accesses import AnyAccess, MemoryOperation, textbook_layout
from kernels.knobs import ConfigError, knob, powers, read_fields
from kernels.spec import DTYPE_BYTES, Kernel, Launch, ProblemFields
from visualize.predict import coalescing
from visualize.predict.traffic import Operation


@dataclass(frozen=True)
class Textbook:
    """Warp, line and element sizes of the textbook model. A GPU has 32 lanes, 128-byte lines and 32-byte sectors."""

    warp_size: int = knob(
        32, "Blackboard", "Lanes per warp.", choices=powers(2, 64), label="Warp size"
    )
    line_bytes: int = knob(
        128, "Blackboard", "Bytes per cache line.", choices=powers(8, 512), label="Line size"
    )
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

    def assign_lanes(self, access: AnyAccess, dtype: str) -> MemoryOperation:
        """Return the operation that assigns the elements of a block or run to consecutive lanes."""
        size = self.bytes_of(dtype)
        axes = {axis.index: axis.block for axis in access.axes}
        order = [access.dims.index(index) for index in axes]
        if access.transposed and self.lanes == "loaded":
            order.reverse()
        shape = tuple(axes[index] for index in access.dims)
        layout = textbook_layout(shape, self.warp_size, order)
        return MemoryOperation(access.op, access.source, layout, size, size, "", 1, ())


def textbook(options: object) -> Textbook:
    """Read a textbook machine from JSON. Omitted fields take a GPU's numbers, as does None."""
    if options is None:
        return Textbook()
    if not isinstance(options, Mapping):
        raise ConfigError(
            "not_an_object", f"The textbook options must be a JSON object (got {options!r})."
        )
    return read_fields(Textbook, options, "the textbook")


def operations(kernel: Kernel, launch: Launch, board: Textbook) -> tuple[Operation, ...]:
    """Return every operation of a launch with its cost."""
    tensors = kernel.tensors(launch)
    assigned = tuple(
        board.assign_lanes(access, tensors[access.tensor].dtype_in(launch.problem))
        for access in kernel.all_accesses(launch)
    )
    counted = coalescing.operations(kernel, launch, assigned, board.sector_bytes, board.line_bytes)
    return tuple(replace(op, compiled=None) for op in counted)
