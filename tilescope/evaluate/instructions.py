"""The memory instructions of a compiled kernel."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tilescope.captures.layouts import Layout, Vectors, textbook_layout, vectors
from tilescope.evaluate.sectors import RequestCosts, count_requests


@dataclass(frozen=True)
class MemoryInstruction:
    """How an operation on global memory was compiled.

    Attributes:
        op: "load", "async copy" (a load straight to shared memory), "store", "atomic", "descriptor", or, for
            `tl.atomic_cas`, "compare-and-swap".
        source: (file without its folders, line) of the operation.
        layout: layout of the block of pointers; None for a scalar pointer, or a descriptor, which has no per-lane
            addresses.
        element_bytes: bytes per element; 0 for a descriptor.
        width_bytes: bytes that a lane moves with one instruction; 0 for a descriptor.
        instruction: PTX instruction without its operands.
        instructions: number of occurrences in the PTX; 0 if unknown.
        opcodes: distinct SASS opcodes that implement it.
        swizzle_bytes: a descriptor's swizzle width in shared memory; 0 without a swizzle or if the recording omits it.
        is_merged: for each instruction of a warp, whether ptxas merged it into another load; () if unknown.
    """

    op: str
    source: tuple[str, int]
    layout: Layout | None
    element_bytes: int
    width_bytes: int
    instruction: str = ""
    instructions: int = 0
    opcodes: tuple[str, ...] = ()
    swizzle_bytes: int = 0
    is_merged: tuple[bool, ...] = ()

    @property
    def swaps(self) -> bool:
        """Whether an atomic was compiled to a load and a compare-and-swap loop, which retries after a conflict."""
        return self.op == "atomic" and any(
            ".CAS" in name.upper() for name in (self.instruction, *self.opcodes)
        )

    @property
    def vectors(self) -> Vectors:
        """The warp requests of one execution on a block of pointers."""
        assert self.layout is not None, "a descriptor's copy has no lanes"
        return vectors(self.layout, max(1, self.width_bytes // self.element_bytes))

    @property
    def count(self) -> int:
        """The number of instructions of a warp for one execution."""
        return len(self.vectors.owner) >> len(self.layout.warp) if self.layout else 1

    @property
    def bytes_per_lane(self) -> int:
        """A lane's share of a block's bytes; 0 if there are fewer bytes than lanes."""
        assert self.layout is not None, "a descriptor's copy has no lanes"
        lanes = 1 << len(self.layout.lane) + len(self.layout.warp)
        return math.prod(self.layout.shape) * self.element_bytes // lanes

    @property
    def kept(self) -> int:
        """The number of these instructions that ptxas did not merge into others."""
        return self.count - sum(self.is_merged)

    @property
    def issued(self) -> np.ndarray:
        """(requests,) bool: whether each request is issued, and not merged into another load by ptxas."""
        return ~np.resize(np.array(self.is_merged or [False]), len(self.vectors.owner))

    def lanes(self, num_warps: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return the lanes of the requests of one execution, in the order of warps, then registers.

        Args:
            num_warps: warps that issue a scalar load.

        Returns:
            The coordinates in the block of each lane's first element, (dimensions, requests, lanes) int64, and which
            lanes participate, (requests, lanes) bool: all in loads, otherwise the owners of an element.
        """
        is_load = self.op == "load"
        if self.layout is None:
            requests = num_warps if is_load else 1
            return np.zeros((0, requests, 1), np.int64), np.ones((requests, 1), bool)
        place = self.vectors.place[:, self.issued]
        return place, (self.vectors.owner | is_load)[self.issued]

    def count_requests(self, address: np.ndarray, active: np.ndarray) -> RequestCosts:
        """Count the sectors and lines of requests: see `sectors.count_requests`."""
        return count_requests(address, active, self.width_bytes, self.instruction)

    @property
    def textbook(self) -> "MemoryInstruction":
        """The textbook's version: lane i takes element i of the block, row by row."""
        if self.layout is None:
            return self
        return replace(
            self,
            layout=textbook_layout(self.layout.shape),
            width_bytes=self.element_bytes,
            instruction=self.instruction.removeprefix("cp.async.cg"),
            is_merged=(),
        )


@dataclass(frozen=True)
class Conversion:
    """A conversion of a block to another layout between two operations."""

    source: tuple[str, int]
    shape: tuple[int, ...]
    element_bytes: int


@dataclass(frozen=True)
class CompiledFacts:
    """Facts about a compiled kernel, without its IR, PTX and SASS.

    Attributes:
        registers: registers per thread.
        spilled_bytes: local memory per thread, for values that do not fit in registers.
        shared_bytes: shared memory per program.
        operations: the compiled operation of each of the kernel's accesses.
        conversions: layout conversions.
        unreadable: why the operations are unknown; "" if they are known.
    """

    # Recordings of earlier versions have additional fields.
    __pydantic_config__: ClassVar = {"strict": True, "extra": "ignore"}

    registers: int
    spilled_bytes: int
    shared_bytes: int
    operations: tuple[MemoryInstruction, ...]
    conversions: tuple[Conversion, ...]
    unreadable: str
