"""Convert the layouts that a TTGIR names to linear layouts, as Triton's `toLinearLayout` does, for one CTA."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from tilescope.captures.layouts import Layout
from tilescope.captures.listings import UnsupportedOperation

_ALIAS = re.compile(r"^(#\w+) = (#ttg\.\w+<.*>)$", re.MULTILINE)
_ENCODING = re.compile(r"#ttg\.(\w+)<\{(.*)\}>")
_BLOCK = re.compile(r"((?:\d+x)+)(.*)")
_TENSOR = re.compile(r"(?<!tensordesc<)\btensor<")


@dataclass(frozen=True)
class TensorType:
    """The type of a block.

    Attributes:
        element: the type of an element, such as "f16" or "!tt.ptr<f16>".
        encoding: the name of its layout; "" without one.
    """

    shape: tuple[int, ...]
    element: str
    encoding: str


def tensor_types(text: str) -> Iterator[TensorType]:
    """Yield the types of blocks that a line of the TTGIR names, in order."""
    for match in _TENSOR.finditer(text):
        block, *encoding = _split(text[match.end() :])
        if parts := _BLOCK.fullmatch(block):
            shape = tuple(map(int, parts[1][:-1].split("x")))
            yield TensorType(shape, parts[2], ",".join(encoding).strip())


def _split(text: str) -> list[str]:
    """Return the parts between commas, up to the end of the text or a bracket that was opened before it."""
    parts = [""]
    depth = 0
    for character in text.replace("->", "  "):
        depth += (character in "<[{(") - (character in ">]})")
        if depth < 0:
            break
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


class _Tile:
    """The part of a block that a layout has covered so far.

    Attributes:
        sizes: in each dimension.
        bases: of registers, lanes and warps.
    """

    def __init__(self, rank: int) -> None:
        self.sizes = [1] * rank
        self.bases: dict[str, list[tuple[int, ...]]] = {"register": [], "lane": [], "warp": []}

    def repeat(self, side: str, counts: Sequence[tuple[int, int]], shared: int = -1) -> None:
        """Repeat the tile.

        Args:
            counts: dimensions and how often the tile is repeated along them, in order.
            shared: a dimension in which all repetitions are the same elements.
        """
        for dim, count in counts:
            for _ in range(count.bit_length() - 1):
                size = 0 if dim == shared else self.sizes[dim]
                self.bases[side].append(tuple(size * (d == dim) for d in range(len(self.sizes))))
                self.sizes[dim] += size

    def fit(self, shape: tuple[int, ...], order: Iterable[int]) -> Layout:
        """Return the layout of a block: registers repeat a smaller tile, and a larger tile repeats the block."""
        self.repeat("register", [(dim, shape[dim] // self.sizes[dim]) for dim in order])
        sides = (
            tuple(tuple(map(int.__mod__, base, shape)) for base in bases)
            for bases in self.bases.values()
        )
        return Layout(shape, *sides)


class Encodings:
    """The layouts of a TTGIR."""

    def __init__(self, ttgir: str) -> None:
        self._aliases = dict(_ALIAS.findall(ttgir))

    def expand(self, encoding: str) -> str:
        """Return an encoding without aliases."""
        return re.sub(r"#\w+", lambda match: self._aliases.get(match[0], match[0]), encoding)

    def convert(self, encoding: str, shape: tuple[int, ...]) -> Layout:
        """Return the linear layout of a block.

        Raises:
            UnsupportedOperation: the encoding is unknown.
        """
        kind, fields = self._read(encoding)
        rank = len(shape)
        if kind == "slice":
            dim = int(fields["dim"])
            parent = self.convert(fields["parent"], (*shape[:dim], 1, *shape[dim:]))
            register, lane, warp = (
                tuple((*base[:dim], *base[dim + 1 :]) for base in bases)
                for bases in (parent.register, parent.lane, parent.warp)
            )
            return Layout(shape, tuple(filter(any, register)), lane, warp)
        tile = _Tile(rank)
        if kind == "linear":
            for side, bases in tile.bases.items():
                bases += map(tuple, json.loads(fields[side]))
            places = zip(*chain.from_iterable(tile.bases.values()), strict=True)
            tile.sizes = [1 << max(own).bit_length() for own in places]
            return tile.fit(shape, range(rank - 1, -1, -1))
        operand = None
        if kind == "dot_op":
            operand = int(fields["opIdx"])
            width = int(fields.get("kWidth", 0))
            kind, fields = self._read(fields["parent"])
        # All warps that differ only along K hold the same elements of an operand.
        shared = -1 if operand is None else rank - 1 - operand
        if kind == "blocked":
            order = json.loads(fields["order"])
            counts = dict(enumerate(json.loads(fields["sizePerThread"])))
            if operand is not None:
                counts[shared] = shape[shared]
            tile.repeat("register", [(dim, counts[dim]) for dim in order])
            for side, name in (("lane", "threadsPerWarp"), ("warp", "warpsPerCTA")):
                counts = json.loads(fields[name])
                tile.repeat(side, [(dim, counts[dim]) for dim in order], shared)
            return tile.fit(shape, order)
        if kind != "nvidia_mma":
            raise UnsupportedOperation(f"The layout {encoding} is unknown.")
        is_second = operand == 1
        inner = rank - 1 - is_second
        outer = rank - 2 + is_second
        sizes = json.loads(fields["instrShape"])
        rows, columns = sizes[-2:] if fields["versionMajor"] == "2" else sizes[:2]
        if operand is None:
            width = 2
        else:
            rows = 8 if is_second else 16
            columns = 8 * width
        tile.repeat("register", [(inner, width)])
        tile.repeat("lane", [(inner, 4), (outer, 8)])
        tile.repeat("register", [(outer, rows // 8), (inner, columns // (4 * width))])
        warps = list(enumerate(json.loads(fields["warpsPerCTA"])))
        tile.repeat("warp", warps if fields["versionMajor"] == "3" else warps[::-1], shared)
        return tile.fit(shape, (inner, outer, *range(rank - 3, -1, -1)))

    def _read(self, encoding: str) -> tuple[str, dict[str, str]]:
        """Return the kind of an encoding, and its fields."""
        match = _ENCODING.fullmatch(self.expand(encoding))
        if not match:
            raise UnsupportedOperation(f"The layout {encoding} is unknown.")
        pairs = (part.partition(" = ") for part in _split(match[2]))
        return match[1], {name.strip(): value for name, _, value in pairs}
