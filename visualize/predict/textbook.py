"""The textbook model: lane i of a warp accesses element i of the tile, in row-major order of the addressed tensor.

Omitted: the layout and width that the compiler really chooses, and the caches behind L1.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tilescope.captures.layouts import textbook_layout
from tilescope.declare.accesses import AnyAccess
from tilescope.declare.knobs import ConfigError, knob, powers, read_fields
from tilescope.declare.spec import DTYPE_BYTES, Kernel, Launch, ProblemFields
from tilescope.evaluate import declared
from tilescope.evaluate.declared import AccessPattern, DeclaredCounts, make_pattern
from tilescope.evaluate.instructions import MemoryInstruction


@dataclass(frozen=True)
class Textbook:
    """Warp, line and element sizes of the textbook model. A GPU has 32 lanes, 128-byte lines and 32-byte sectors."""

    warp_size: int = knob(32, "", "Lanes per warp.", choices=powers(2, 64))
    line_bytes: int = knob(128, "", "Bytes per cache line.", choices=powers(8, 512))
    element_bytes: str = knob(
        "dtype", "", "Bytes per element. dtype: as in the problem.",
        choices=("dtype", "1", "2", "4", "8", "16"),
    )  # fmt: skip
    lanes: str = knob(
        "tile", "Picture",
        "tile: lane i accesses element i of the tile. loaded: each lane stores what it loaded.",
        choices=("tile", "loaded"), label="Textbook lanes",
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
            message = f"element_bytes must be at most line_bytes, which is {self.line_bytes}"
            raise ConfigError("out_of_range", f"{message} (got {size}).", "element_bytes")
        return size

    def make_pattern(self, kernel: Kernel, launch: Launch, access: AnyAccess) -> AccessPattern:
        """Return the pattern that assigns the elements of a block or run to consecutive lanes."""
        tensor = kernel.tensors(launch)[access.tensor]
        size = self.bytes_of(tensor.dtype_in(launch.problem))
        axes = {axis.index: axis.block for axis in access.axes}
        order = [access.dims.index(index) for index in axes]
        if access.transposed and self.lanes == "loaded":
            order.reverse()
        shape = tuple(axes[index] for index in access.dims)
        layout = textbook_layout(shape, self.warp_size, order)
        instruction = MemoryInstruction(access.op, access.source, layout, size, size)
        return make_pattern(kernel, launch, access, instruction, self.sector_bytes, self.line_bytes)


def textbook(options: object) -> Textbook:
    """Read a textbook machine from JSON. Omitted fields take a GPU's numbers, as does None."""
    if options is None:
        return Textbook()
    if not isinstance(options, Mapping):
        raise ConfigError(
            "not_an_object", f"The textbook options must be a JSON object (got {options!r})."
        )
    return read_fields(Textbook, options, "the textbook")


def count_accesses(kernel: Kernel, launch: Launch, machine: Textbook) -> tuple[DeclaredCounts, ...]:
    """Return every operation of a launch with its cost on the textbook machine."""
    patterns = (
        machine.make_pattern(kernel, launch, access) for access in kernel.all_accesses(launch)
    )
    return declared.count_patterns(kernel, launch, patterns, is_textbook=True)
