"""What the compiler gave to which lane: layouts and the memory operations that use them. Standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Bases = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Layout:
    """Which element of a block each register of each lane of each warp holds: a linear layout.

    Attributes:
        shape: elements of the block in each dimension.
        register, lane, warp: for each bit of a register's (lane's, warp's) number, where that bit moves it to, one
            coordinate a dimension. The place of an element is the exclusive or of the places of all bits that are
            set. A bit that moves nothing means copies: the same element in several places.
    """

    shape: tuple[int, ...]
    register: Bases
    lane: Bases
    warp: Bases

    @property
    def copied_registers(self) -> int:
        """The bits of a register's number that only make copies."""
        return copies(self.register)


def copies(bases: Bases) -> int:
    """The bits, as a mask, whose base is zero."""
    return sum(1 << bit for bit, base in enumerate(bases) if not any(base))


@dataclass(frozen=True)
class MemoryOperation:
    """A memory operation on global memory as the compiler made it.

    Attributes:
        op: "load", "async copy" (a load that goes straight to shared memory), "store", "atomic", or "descriptor".
        source: (file without its folders, line) that it came from.
        layout: of the block of pointers; None for a descriptor, which no lane addresses.
        element_bytes: bytes of an element; 0 for a descriptor.
        width_bytes: bytes that a lane moves with one instruction; 0 for a descriptor.
        instruction: the PTX instruction without its operands.
        opcodes: the SASS instructions that carry it out, each once.
    """

    op: str
    source: tuple[str, int]
    layout: Layout | None
    element_bytes: int
    width_bytes: int
    instruction: str
    opcodes: tuple[str, ...]

    @property
    def swaps(self) -> bool:
        """Whether an atomic is a load and a loop that compares and swaps, which repeats where others came first."""
        return any(".CAS" in opcode for opcode in self.opcodes)

    @property
    def issued_by_owners(self) -> bool:
        """Whether lanes and warps that hold copies keep out of it. Plain loads are issued by all."""
        return self.op != "load"

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> MemoryOperation:
        layout = fields["layout"] and Layout(**{name: _tuples(value) for name, value in fields["layout"].items()})
        return cls(**{**fields, **{name: tuple(fields[name]) for name in ("source", "opcodes")}, "layout": layout})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value
