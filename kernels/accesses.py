"""Which tiles programs compute, and which blocks of memory they read and write. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Tiles:
    """Which program computes which tiles: five int64 arrays of one entry per tile, in launch order.

    A program that computes several tiles has several consecutive entries. `group` numbers the tiles that the order
    keeps together.
    """

    program: np.ndarray
    pid_m: np.ndarray
    pid_n: np.ndarray
    pid_k: np.ndarray
    group: np.ndarray


@dataclass(frozen=True)
class Axis:
    """One axis of an access: `block` elements that begin at `start(index, block)` for each loop `index`."""

    index: str
    block: int
    start: Callable[[Any, int], Any]


@dataclass(frozen=True)
class Access:
    """One memory operation of a kernel: a block of `rows` × `columns` of a tensor, masked at its edges.

    Attributes:
        op: "load", "store", "atomic", or "descriptor" (a whole block copied by the tensor memory accelerator).
        tensor: name in the family's tensors.
        rows, columns: where the block lies in that tensor as it is stored.
        over: the loop indices ("m", "n", "k", "slice") that the operation is executed for.
        transposed: the block is the transpose of the tile that the program holds, so a lane that kept its
            loaded element would walk down the tensor's columns.
        source: (file, line) of the operation in the kernel's source.
        pointers: the loop indices that the program's block of pointers follows in each of its dimensions, where they
            are not those of rows and columns: in the other order, if it is transposed before it is loaded or stored.
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
        """The loop indices that the block of pointers follows, dimension by dimension."""
        return self.pointers or (self.rows.index, self.columns.index)

    @property
    def elements(self) -> int:
        """Elements of one execution, those past an edge included."""
        return self.rows.block * self.columns.block


@dataclass(frozen=True)
class FlatAccess:
    """One memory operation on a run of consecutive elements, masked at the end.

    Attributes:
        run: where the run begins, counting the elements of the tensor as it is stored row by row, or, where
            `transposed`, column by column.
        op, tensor, over, source: as of Access.
    """

    op: str
    tensor: str
    run: Axis
    over: tuple[str, ...]
    source: tuple[str, int]
    transposed: bool = False

    @property
    def elements(self) -> int:
        """Elements of one execution, those past the end included."""
        return self.run.block
