"""What a report says about the inside of a program, as frozen values that JSON can store."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SharedAccess:
    """The instructions of one source line and opcode that access shared memory, over all programs of a launch.

    Attributes:
        opcode: "LDS", "STS", "LDSM", "STSM", "LDGSTS" (its write to shared memory) or "ATOMS".
        executed: number of times that a warp executed one of them, including those without an active lane.
        wavefronts: passes of a warp's access through the 32 banks.
        ideal_wavefronts: wavefronts without bank conflicts.
        operation: what they belong to, such as "layout conversion" or "reduction"; "" if unknown.
        why: why a number is missing (None); "" if none is.
    """

    file: str
    line: int
    opcode: str
    executed: int | None
    wavefronts: int | None
    ideal_wavefronts: int | None
    operation: str = ""
    why: str = ""


@dataclass(frozen=True)
class LineRegisters:
    """The most registers per thread that are live at an instruction of a source line."""

    file: str
    line: int
    registers: int


@dataclass(frozen=True)
class LineSpills:
    """The instructions of a source line that move registers to and from local memory.

    Attributes:
        stores, reloads: number of instructions in the SASS.
        stored_bytes: bytes per thread that the stores write, each once. The sum over lines is ptxas's "spill stores".
        executed: number of times that warps execute them in the launch; None if unknown.
        moved_bytes: bytes that they move in the launch, 32 lanes per warp; None if unknown.
    """

    file: str
    line: int
    stores: int
    reloads: int
    stored_bytes: int
    executed: int | None = None
    moved_bytes: int | None = None


@dataclass(frozen=True)
class SharedBuffer:
    """A buffer in a program's shared memory.

    Attributes:
        offset_bytes, size_bytes: its place.
        first, last: the operations of the TTGIR between which it is live, numbered from 0.
        operation: that needs it, such as "pipelined operand" or "layout conversion".
        stages: number of equal slots, one after the other; 1 for a buffer that is not pipelined.
        tensor: the argument that it holds a block of; "" if there is none.
    """

    file: str
    line: int
    offset_bytes: int
    size_bytes: int
    first: int
    last: int
    operation: str
    stages: int = 1
    tensor: str = ""


@dataclass(frozen=True, kw_only=True)
class Inside:
    """The inside of the programs of one launch.

    Attributes:
        instructions_executed: by all warps of the launch; None if unknown.
        shared_map: the buffers of shared memory.
    """

    shared: tuple[SharedAccess, ...] = ()
    instructions_executed: int | None = None
    registers_by_line: tuple[LineRegisters, ...] = ()
    spills_by_line: tuple[LineSpills, ...] = ()
    shared_map: tuple[SharedBuffer, ...] = ()
