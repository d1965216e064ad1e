"""The tiles that programs compute, and the blocks of memory that they access."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Tiles:
    """The tiles of each program: five int64 arrays with one entry per tile, in launch order.

    A program that computes several tiles has several consecutive entries. `group` is the number of the group to which
    the order assigns the tile.
    """

    program: np.ndarray
    pid_m: np.ndarray
    pid_n: np.ndarray
    pid_k: np.ndarray
    group: np.ndarray


@dataclass(frozen=True)
class Axis:
    """One axis of an access: `block` elements from `start(index, block)` for each value of the loop `index`."""

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
        over: the loop indices ("m", "n", "k", "slice") over which the operation is executed.
        transposed: whether the block is the transpose of the program's tile, so that lanes that keep their loaded
            elements move down the tensor's columns.
        source: (file, line) of the operation in the kernel's source.
        pointers: the loop index of each dimension of the program's block of pointers; None for (rows, columns). The
            order is reversed if the block is transposed before the access.
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
    def dims(self) -> tuple[str, str]:
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
        run: position of the run, in elements of the tensor as stored row by row or, if `transposed`, column by column.
        op, tensor, over, source: as for Access.
    """

    op: str
    tensor: str
    run: Axis
    over: tuple[str, ...]
    source: tuple[str, int]
    transposed: bool = False

    @property
    def elements(self) -> int:
        """Number of elements per execution, including elements past the end."""
        return self.run.block
