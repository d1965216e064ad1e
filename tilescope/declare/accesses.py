"""The tiles that programs compute, and the memory accesses that kernels declare."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray


@dataclass(frozen=True)
class Tiles:
    """The tiles of each program: four int64 arrays with one entry per tile, in launch order.

    A program that computes several tiles has several consecutive entries.
    """

    program: ndarray
    pid_m: ndarray
    pid_n: ndarray
    pid_k: ndarray


def grid_of(extents: Mapping[str, int]) -> tuple[int, ...]:
    """Return the grid with one program per tile: axes m, n and, if K is split, slice."""
    return tuple(extents[axis] for axis in ("m", "n", "slice") if axis in extents)


def tiles_on_grid(pids: ndarray, extents: Mapping[str, int]) -> Tiles:
    """Return the tile of each program on the grid that `grid_of` returns.

    The first axis varies fastest in `pids`.
    """
    rest, pid_m = np.divmod(pids, extents["m"])
    pid_k, pid_n = np.divmod(rest, extents["n"])
    return Tiles(pids, pid_m, pid_n, pid_k)


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
