"""Layouts and memory operations of a compiled kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Bases = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Layout:
    """The element of a block that each register of each lane of each warp holds: a linear layout.

    Attributes:
        shape: elements of the block in each dimension.
        register, lane, warp: one base per bit of a register's (lane's, warp's) number: the coordinates that the bit
            adds. An element's coordinates are the exclusive or of the bases of all set bits. A zero base means copies:
            the same element in several places.
    """

    shape: tuple[int, ...]
    register: Bases
    lane: Bases
    warp: Bases


def expand_bases(bases: Sequence[Any], rank: int) -> np.ndarray:
    """Return the place of each number, (2 ** bits, rank) int64: the exclusive or of the bases of its set bits."""
    places = np.zeros((1, rank), dtype=np.int64)
    for base in bases:
        places = np.concatenate([places, places ^ np.array(base, dtype=np.int64)])
    return places


@dataclass(frozen=True)
class MemoryOperation:
    """An operation on global memory, as compiled.

    Attributes:
        op: "load", "async copy" (a load straight to shared memory), "store", "atomic", or "descriptor".
        source: (file without its folders, line) that it comes from.
        layout: of the block of pointers; None for a descriptor, which no lane addresses.
        element_bytes: bytes per element; 0 for a descriptor.
        width_bytes: bytes that a lane moves with one instruction; 0 for a descriptor.
        instruction: PTX instruction without its operands.
        instructions: occurrences in the PTX.
        opcodes: SASS instructions that implement it, each once.
        swizzle_bytes: width of a descriptor's swizzle in shared memory; 0 if there is none or the recording omits it.
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
        """Whether an atomic is a load and a compare-and-swap loop, which retries after a conflict."""
        return any(".CAS" in opcode for opcode in self.opcodes)


@dataclass(frozen=True)
class SharedOperation:
    """Instructions on shared memory with equal addresses.

    Attributes:
        op: "load", "store", "load matrix", "store matrix" or "async copy" (its write to shared memory).
        source: (file without its folders, line) that they come from.
        instruction: PTX instruction without its operands.
        width_bytes: bytes that a lane moves; for a matrix, those of the row that it addresses: 16.
        matrices: 8 × 8 matrices per instruction, whose rows 8 lanes each address; otherwise 0.
        lane, warp: one base per bit of a lane's (warp's) number: the bytes by which the bit changes the address, as an
            exclusive or. Only addressing lanes count: 8 per matrix, otherwise 32.
        count: occurrences in the PTX.
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
    """A block that changes its layout between two operations."""

    source: tuple[str, int]
    shape: tuple[int, ...]
    element_bytes: int


@dataclass(frozen=True)
class CompiledFacts:
    """Facts about a compiled kernel, without its texts.

    Attributes:
        registers: per thread.
        spilled_bytes: local memory per thread, for values that do not fit in registers.
        shared_bytes: shared memory per program.
        operations: the kernel's accesses as compiled.
        shared: instructions on shared memory.
        conversions: blocks that change their layout.
        unreadable: why the operations are unknown; "" if they are known.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    operations: tuple[MemoryOperation, ...]
    shared: tuple[SharedOperation, ...]
    conversions: tuple[Conversion, ...]
    unreadable: str
