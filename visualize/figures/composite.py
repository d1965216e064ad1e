"""A product's picture as one grid of cells: B's blocks above, A's at the left, C's tiles at the lower right.

One grid is one trace, and Plotly's time goes by traces. Large grids keep square cells of one size: those it draws as
pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from visualize.predict.schedule import Schedule, slice_blocks

# Cells drawn along each side at most: more than a screen shows would only make the page slower.
MOST_CELLS = 256

# Most blocks along K that are drawn one by one.
MOST_BLOCKS = 32

# Tiles along the longer side up to which cells have gaps between them.
GAPS_UP_TO = 32

# Shares of C's side that blocks along K take, and the gap beside them; a strip takes a share for each slice.
_LEAST_BLOCKS, _STRIP, _WIDEST_STRIP, _GAP = 0.3, 0.07, 0.25, 0.035


@dataclass(frozen=True)
class Side:
    """The cells along one side of the picture: those along K, a gap, and those of C.

    Attributes:
        tiles: tiles of C along the side.
        stride: tiles that a cell of C stands for.
        depth: cells along K; 0 where there are no panels.
        repeat, gap: columns (or rows) of the grid that one of these takes, and that the gap takes.
        edges: where the columns of the grid begin and end, in tiles from C's first edge.
    """

    tiles: int
    stride: int
    depth: int
    repeat: int
    gap: int
    edges: np.ndarray

    @property
    def lead(self) -> int:
        """Columns of the grid before C's."""
        return self.depth * self.repeat + self.gap

    @property
    def cells(self) -> int:
        """C's cells."""
        return -(-self.tiles // self.stride)

    @property
    def middle_of_k(self) -> float:
        return float(self.edges[0] + self.edges[self.depth * self.repeat]) / 2


@dataclass(frozen=True)
class Composite:
    """How a launch's tiles, and the blocks of its panels, lie in one grid.

    Attributes:
        slice_of: the slice of K that each cell along K belongs to: (depth,); () without panels.
        blocks: whether each of these cells is one block.
        down, across: its sides.
    """

    slice_of: np.ndarray
    blocks: bool
    down: Side
    across: Side

    @cached_property
    def shape(self) -> tuple[int, int]:
        return len(self.down.edges) - 1, len(self.across.edges) - 1

    def grid(self, c: np.ndarray, a: np.ndarray | None = None, b: np.ndarray | None = None) -> np.ma.MaskedArray:
        """The grid of values, masked where there is nothing.

        Args:
            c: (cells down, cells across).
            a, b: by slice of K: (cells down, slices), (slices, cells across).
        """
        if a is None or b is None:
            return np.ma.masked_array(c)
        whole = np.ma.masked_all(self.shape, dtype=np.result_type(c, a, b))
        top, left = self.down.lead, self.across.lead
        whole[top:, left:] = c
        whole[top:, : left - self.across.gap] = np.repeat(a[:, self.slice_of], self.across.repeat, axis=1)
        whole[: top - self.down.gap, left:] = np.repeat(b[self.slice_of], self.down.repeat, axis=0)
        return whole


def composite(launch: Schedule) -> Composite:
    """The grid of a launch with panels; of one without, its tiles alone."""
    stride = -(-max(launch.extents) // MOST_CELLS)
    slices = np.empty(0, dtype=np.int64)
    blocks = False
    if launch.panels is not None:
        blocks = launch.k_blocks <= min(MOST_BLOCKS, 4 * min(launch.extents))
        held = slice_blocks(launch)
        slices = np.repeat(np.arange(launch.slices), held) if blocks else np.flatnonzero(held)
    even = max(launch.extents) > GAPS_UP_TO
    down, across = (_side(tiles, stride, len(slices), blocks, even) for tiles in launch.extents)
    return Composite(slices, blocks, down, across)


def _side(tiles: int, stride: int, depth: int, blocks: bool, even: bool) -> Side:
    """One side.

    Args:
        even: all columns of the grid are as wide as a cell of C.
    """
    cells = -(-tiles // stride)
    c_edges = np.arange(cells + 1) * stride
    if not depth:
        return Side(tiles, stride, 0, 1, 0, c_edges.astype(float))
    share = _LEAST_BLOCKS if blocks else min(_STRIP * (1 + (depth - 1) / 4), _WIDEST_STRIP)
    width = min(max(depth, share * tiles), tiles) if blocks else share * tiles
    space = _GAP * (tiles + width)
    if not even:
        lead = np.linspace(-space - width, -space, depth + 1)
        return Side(tiles, stride, depth, 1, 1, np.concatenate([lead, np.minimum(c_edges, tiles)]).astype(float))
    repeat, gap = max(1, round(width / stride / depth)), max(1, round(space / stride))
    return Side(tiles, stride, depth, repeat, gap, np.arange(-depth * repeat - gap, cells + 1) * float(stride))
