"""Which lane holds what in a compiled kernel: layouts, and the memory operations that use them."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

Bases = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Layout:
    """Which element of a block each register of each lane of each warp holds: a linear layout.

    Attributes:
        shape: elements of the block in each dimension.
        register, lane, warp: for each bit of a register's (lane's, warp's) number, where that bit moves it to, one
            coordinate per dimension. The place of an element is the exclusive or of the places of all bits that are
            set. A bit that moves nothing means copies: the same element in several places.
    """

    shape: tuple[int, ...]
    register: Bases
    lane: Bases
    warp: Bases

    @property
    def original_registers(self) -> tuple[tuple[int, ...], ...]:
        """Coordinates in the block of each register of lane 0 of warp 0, without copies."""
        places: tuple[tuple[int, ...], ...] = ((0,) * len(self.shape),)
        for base in filter(any, self.register):
            places += tuple(tuple(a ^ b for a, b in zip(place, base, strict=True)) for place in places)
        return places


def copy_bits(bases: Bases) -> int:
    """Return the bits, as a mask, whose base is zero: they only number copies."""
    return sum(1 << bit for bit, base in enumerate(bases) if not any(base))


@dataclass(frozen=True)
class MemoryOperation:
    """A memory operation on global memory, as compiled.

    Attributes:
        op: "load", "async copy" (a load that goes straight to shared memory), "store", "atomic", or "descriptor".
        source: (file without its folders, line) that it came from.
        layout: of the block of pointers; None for a descriptor, which no lane addresses.
        element_bytes: bytes of an element; 0 for a descriptor.
        width_bytes: bytes that a lane moves with one instruction; 0 for a descriptor.
        instruction: the PTX instruction without its operands.
        instructions: how often it occurs in the PTX.
        opcodes: the SASS instructions that carry it out, each once.
        swizzle_bytes: of a descriptor: how wide its block is swizzled in shared memory; 0 for not at all, and in
            recordings that do not say.
    """

    op: str
    source: tuple[str, int]
    layout: Layout | None
    element_bytes: int
    width_bytes: int
    instruction: str
    instructions: int
    opcodes: tuple[str, ...]
    swizzle_bytes: int = 0

    @property
    def swaps(self) -> bool:
        """Whether an atomic is a load and a loop that compares and swaps, which repeats where others came first."""
        return any(".CAS" in opcode for opcode in self.opcodes)

    @property
    def bypasses_l1(self) -> bool:
        """Whether it copies to shared memory past L1, 16 bytes per lane."""
        return self.instruction.startswith("cp.async.cg")

    @property
    def issued_by_owners(self) -> bool:
        """Whether lanes and warps that hold copies keep out of it. Plain loads are issued by all."""
        return self.op != "load"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class SharedOperation:
    """Instructions on shared memory that address it alike.

    Attributes:
        op: "load", "store", "load matrix", "store matrix" or "async copy" (the side of it that writes).
        source: (file without its folders, line) that they came from.
        instruction: the PTX instruction without its operands.
        width_bytes: bytes that a lane moves; of a matrix, those of the row whose address it gives: 16.
        matrices: 8 × 8 matrices of one instruction, whose rows' addresses are given by 8 lanes each; else 0.
        lane, warp: for each bit of a lane's (warp's) number, how far its address is, as an exclusive or of bytes. Of
            lanes, as many as give an address: 8 per matrix, else 32.
        count: how often they stand in the code.
    """

    op: str
    source: tuple[str, int]
    instruction: str
    width_bytes: int
    matrices: int
    lane: tuple[int, ...]
    warp: tuple[int, ...]
    count: int


@dataclass(frozen=True)
class Conversion:
    """A block of `shape` elements of `element_bytes` that changes its layout between two operations."""

    source: tuple[str, int]
    shape: tuple[int, ...]
    element_bytes: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.element_bytes


@dataclass(frozen=True)
class CompiledFacts:
    """A compiled kernel, without its text.

    Attributes:
        registers: of a thread.
        spilled_bytes: local memory of a thread, which holds what registers can't.
        shared_bytes: shared memory of a program.
        operations: each of the kernel's accesses as compiled.
        shared: instructions on shared memory.
        conversions: blocks that change their layout.
        unreadable: why operations are not known, where they are not.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    operations: tuple[MemoryOperation, ...]
    shared: tuple[SharedOperation, ...]
    conversions: tuple[Conversion, ...]
    unreadable: str

    @property
    def facts(self) -> CompiledFacts:
        """The facts alone, also of something that has more."""
        return CompiledFacts(**{field.name: getattr(self, field.name) for field in dataclasses.fields(CompiledFacts)})
