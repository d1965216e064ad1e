"""The tiles that programs compute, the memory accesses that kernels declare, and the compiled memory operations."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

Bases = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Tiles:
    """The tiles of each program: five int64 arrays with one entry per tile, in launch order.

    A program that computes several tiles has several consecutive entries. `group` is the number of the group to which
    the order assigns the tile.
    """

    program: ndarray
    pid_m: ndarray
    pid_n: ndarray
    pid_k: ndarray
    group: ndarray


def grid_of(extents: Mapping[str, int]) -> tuple[int, ...]:
    """Return the grid with one program per tile: axes m, n and, if K is split, slice."""
    return tuple(extents[axis] for axis in ("m", "n", "slice") if axis in extents)


def tiles_on_grid(pids: ndarray, extents: Mapping[str, int]) -> Tiles:
    """Return the tile of each program on the grid that `grid_of` returns.

    The first axis varies fastest in `pids`. Tiles with the same index on the last axis form a group.
    """
    rest, pid_m = np.divmod(pids, extents["m"])
    pid_k, pid_n = np.divmod(rest, extents["n"])
    return Tiles(pids, pid_m, pid_n, pid_k, group=pid_k if "slice" in extents else pid_n)


@dataclass(frozen=True)
class Axis:
    """One axis of an access: `block` elements from `start(index, block)` for each value of the loop index `index`."""

    index: str
    block: int
    start: Callable[[Any, int], Any]


@dataclass(frozen=True)
class Access:
    """One memory operation of a kernel: a block of `rows` × `columns` of a tensor, masked at its edges.

    Attributes:
        op: "load", "store", "atomic", or "descriptor" (the tensor memory accelerator copies the whole block).
        tensor: name in the family's tensors.
        rows, columns: position of the block in that tensor as stored.
        over: loop indices ("m", "n", "k", "slice"). The operation executes once for each combination of their values.
        transposed: whether the block is the transpose of the program's tile. Lanes that store the elements that they
            loaded then move down the tensor's columns.
        source: (file, line) of the operation in the kernel's source.
        pointers: the loop index of each dimension of the program's block of pointers; None for (rows, columns). The
            order is reversed if the block of pointers is the transpose of the stored block.
    """

    op: str
    tensor: str
    rows: Axis
    columns: Axis
    over: tuple[str, ...]
    source: tuple[str, int]
    transposed: bool = False
    pointers: tuple[str, str] | None = None

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.rows, self.columns

    @property
    def dims(self) -> tuple[str, ...]:
        """The loop index of each dimension of the block of pointers."""
        return self.pointers or (self.rows.index, self.columns.index)

    @property
    def elements(self) -> int:
        """Number of elements per execution, including elements past an edge."""
        return self.rows.block * self.columns.block


@dataclass(frozen=True)
class FlatAccess:
    """One memory operation on a run of consecutive elements, masked at the end.

    Attributes:
        run: position of the run among the stored tensor's elements, counted row by row or, if `transposed`, column by
            column.
        op, tensor, over, source: as for Access.
    """

    op: str
    tensor: str
    run: Axis
    over: tuple[str, ...]
    source: tuple[str, int]
    transposed: bool = False

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (self.run,)

    @property
    def dims(self) -> tuple[str, ...]:
        return (self.run.index,)

    @property
    def elements(self) -> int:
        """Number of elements per execution, including elements past the end."""
        return self.run.block


AnyAccess = Access | FlatAccess


@dataclass(frozen=True)
class Layout:
    """A linear layout: it maps each register of each lane of each warp to an element of a block.

    Attributes:
        shape: the block's size in each dimension.
        register, lane, warp: one base, a tuple of coordinates, per bit of the register (lane, warp) index. An element's
            coordinates are the XOR of the bases of all set bits. A zero base means replication: several registers,
            lanes or warps hold the same element.
    """

    shape: tuple[int, ...]
    register: Bases
    lane: Bases
    warp: Bases

    @property
    def is_permutation(self) -> bool:
        """Whether each bit of an index is a bit of one coordinate. All requests then have the same lanes, shifted."""
        bases = [base for base in (*self.register, *self.lane, *self.warp) if any(base)]
        return len(set(bases)) == len(bases) and all(
            sum(map(int.bit_count, base)) == 1 for base in bases
        )


def expand_bases(bases: Sequence[Any], rank: int) -> ndarray:
    """Return the coordinates of each index, (2 ** bits, rank) int64: the XOR of the bases of its set bits."""
    places = np.zeros((1, rank), dtype=np.int64)
    for base in bases:
        places = np.concatenate([places, places ^ np.array(base, dtype=np.int64)])
    return places


def textbook_layout(shape: tuple[int, ...], lanes: int = 32, order: Sequence[int] = ()) -> Layout:
    """Return the textbook's layout: lane i of a warp holds element i, and the next warp continues.

    Args:
        shape: powers of two.
        order: the dimensions in which elements are numbered, from the slowest to the fastest; row by row by default.
    """
    bases = [
        tuple((other == dim) << bit for other in range(len(shape)))
        for dim in reversed(order or range(len(shape)))
        for bit in range(shape[dim].bit_length() - 1)
    ]
    lane_bits = lanes.bit_length() - 1
    return Layout(shape, (), tuple(bases[:lane_bits]), tuple(bases[lane_bits:]))


@dataclass(frozen=True)
class Vectors:
    """Warp requests of one execution, in the order of warps, then registers.

    Attributes:
        place: (dimensions, requests, lanes) int64, coordinates in the block of the first element of each lane.
        element: (requests, lanes) int64, number of that element in the block, row by row.
        owner: (requests, lanes) bool, false for lanes and warps that hold replicas.
        register, warp: (requests,) int64, the first register moved, and the warp that issues the request.
    """

    place: ndarray
    element: ndarray
    owner: ndarray
    register: ndarray
    warp: ndarray


@functools.lru_cache(maxsize=256)
def vectors(layout: Layout, length: int) -> Vectors:
    """Split each lane's registers, without replicas, into vectors of `length`. One instruction moves one vector."""
    rank = len(layout.shape)
    is_original, warps, lanes = map(_is_original, (layout.register, layout.warp, layout.lane))
    registers = np.flatnonzero(is_original)[::length]
    place = (
        expand_bases(layout.warp, rank)[:, None, None]
        ^ expand_bases(layout.register, rank)[registers][:, None]
        ^ expand_bases(layout.lane, rank)
    ).reshape(-1, len(lanes), rank)
    place = np.moveaxis(place, 2, 0)
    element = np.ravel_multi_index(tuple(place), layout.shape)
    warp = np.repeat(np.arange(len(warps)), len(registers))
    return Vectors(
        place, element, lanes & warps[warp][:, None], np.tile(registers, len(warps)), warp
    )


def _is_original(bases: Bases) -> ndarray:
    """Return whether each index is an original. A set bit with a zero base makes an index a replica."""
    return expand_bases([(not any(base)) << bit for bit, base in enumerate(bases)], 1)[:, 0] == 0


@dataclass(frozen=True)
class MemoryOperation:
    """An operation on global memory, as compiled.

    Attributes:
        op: "load", "async copy" (a load straight to shared memory), "store", "atomic", or "descriptor".
        source: (file without its folders, line) of the operation.
        layout: layout of the block of pointers; None for a descriptor, which has no per-lane addresses.
        element_bytes: bytes per element; 0 for a descriptor.
        width_bytes: bytes that a lane moves with one instruction; 0 for a descriptor.
        instruction: PTX instruction without its operands.
        instructions: number of occurrences in the PTX.
        opcodes: distinct SASS opcodes that implement it.
        swizzle_bytes: a descriptor's swizzle width in shared memory; 0 without a swizzle or if the recording omits it.
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
        """Whether an atomic was compiled to a load and a compare-and-swap loop, which retries after a conflict."""
        return any(".CAS" in opcode for opcode in self.opcodes)


@dataclass(frozen=True)
class SharedOperation:
    """Shared-memory instructions of one source line with the same address pattern.

    Attributes:
        op: "load", "store", "load matrix", "store matrix" or "async copy" (its write to shared memory).
        source: (file without its folders, line) of the instructions.
        instruction: PTX instruction without its operands.
        width_bytes: bytes that a lane moves; for a matrix, the 16 bytes of the row that the lane addresses.
        matrices: number of 8 × 8 matrices per instruction, each addressed by 8 lanes; 0 for other instructions.
        lane, warp: one base per bit of the lane (warp) index: the byte offset that a set bit XORs into the address.
            Only lanes that supply an address count: 8 per matrix, otherwise 32.
        count: number of occurrences in the PTX.
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
        shared: instructions on shared memory.
        conversions: layout conversions.
        unreadable: why the operations are unknown; "" if they are known.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    operations: tuple[MemoryOperation, ...]
    shared: tuple[SharedOperation, ...]
    conversions: tuple[Conversion, ...]
    unreadable: str
