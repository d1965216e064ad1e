"""Convert the layouts that a TTGIR names to linear layouts, as Triton's `toLinearLayout` does, for one CTA."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from tilescope.captures.layouts import Layout
from tilescope.captures.listings import UnsupportedOperation

# #blocked = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
_ALIAS = re.compile(r"^(#\w+) = (#ttg\.\w+<.*>)$", re.MULTILINE)
# #ttg.slice<{dim = 1, parent = #ttg.blocked<{…}>}>
_ENCODING = re.compile(r"#ttg\.(\w+)<\{(.*)\}>")
# 128x64x!tt.ptr<f16>
_BLOCK = re.compile(r"((?:\d+x)+)(.*)")
# tensor<128x64xf16, #blocked>, but not tensordesc<tensor<128x64xf16, #shared>>
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


# The fields of an encoding, as text.
_Fields = Mapping[str, str]


class _Tile:
    """The part of a block that a layout has covered so far.

    The methods name the functions in Triton's LinearLayoutConversions.cpp that they follow.

    Attributes:
        summed: the dimension along which a multiplication sums the block; None if it is not an operand.
        sizes: in each dimension.
        bases: of registers, lanes and warps.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.summed: int | None = None
        self.sizes = [1] * len(shape)
        self.bases: dict[str, list[tuple[int, ...]]] = {"register": [], "lane": [], "warp": []}

    def repeat(self, side: str, counts: Iterable[tuple[int, int]], same: int | None = None) -> None:
        """Repeat the tile (`identityStandardND`).

        Args:
            counts: dimensions and how often the tile is repeated along them, in order.
            same: a dimension in which all repetitions are the same elements.
        """
        for dim, count in counts:
            for _ in range(count.bit_length() - 1):
                size = 0 if dim == same else self.sizes[dim]
                self.bases[side].append(tuple(size * (d == dim) for d in range(len(self.sizes))))
                self.sizes[dim] += size

    def fit(self, order: Iterable[int]) -> Layout:
        """Return the layout of the block: registers repeat a smaller tile, and a larger tile repeats the block."""
        self.repeat("register", [(dim, self.shape[dim] // self.sizes[dim]) for dim in order])
        sides = (
            tuple(tuple(map(int.__mod__, base, self.shape)) for base in bases)
            for bases in self.bases.values()
        )
        return Layout(self.shape, *sides)

    def convert_linear(self, fields: _Fields) -> Layout:
        """Return the layout of a block (`LinearEncodingAttr::toLinearLayout`)."""
        for side, bases in self.bases.items():
            bases += map(tuple, json.loads(fields[side]))
        places = zip(*chain.from_iterable(self.bases.values()), strict=True)
        self.sizes = [1 << max(own).bit_length() for own in places]
        return self.fit(reversed(range(len(self.shape))))

    def convert_blocked(self, fields: _Fields) -> Layout:
        """Return the layout of a block (`BlockedEncodingAttr::toLinearLayout`) or operand (`fmaDotToLinearLayout`).

        The registers of each lane of an operand span the summed dimension. Lanes and warps that differ only along it
        hold the same elements.
        """
        order = json.loads(fields["order"])
        sizes = json.loads(fields["sizePerThread"])
        if self.summed is not None:
            sizes[self.summed] = self.shape[self.summed]
        self.repeat("register", [(dim, sizes[dim]) for dim in order])
        for side, name in (("lane", "threadsPerWarp"), ("warp", "warpsPerCTA")):
            counts = json.loads(fields[name])
            self.repeat(side, [(dim, counts[dim]) for dim in order], self.summed)
        return self.fit(order)

    def convert_mma(self, fields: _Fields, width: int) -> Layout:
        """Return the layout of a product (`NvidiaMmaEncodingAttr`) or of an operand (`nvidiaDotToLinearLayout`).

        Eight groups of four lanes hold a fragment (PTX ISA 9.0, "Matrix Fragments for mma.m16n8k16"). Warps that differ
        only along the summed dimension hold the same elements of an operand.

        Args:
            width: elements that a lane holds next to each other along the fragment's inner dimension.
        """
        rows = len(self.shape) - 2
        columns = rows + 1
        inner = columns if self.summed is None else self.summed
        outer = rows if inner == columns else columns
        is_hopper = fields["versionMajor"] == "3"
        if self.summed is None:
            sizes = json.loads(fields["instrShape"])
            outer_size, inner_size = sizes[:2] if is_hopper else sizes[-2:]
        else:
            outer_size = 16 if outer == rows else 8
            inner_size = 8 * width
        self.repeat("register", [(inner, width)])
        self.repeat("lane", [(inner, 4), (outer, 8)])
        self.repeat("register", [(outer, outer_size // 8), (inner, inner_size // (4 * width))])
        warps = [*enumerate(json.loads(fields["warpsPerCTA"]))]
        self.repeat("warp", warps if is_hopper else warps[::-1], self.summed)
        return self.fit((inner, outer, *reversed(range(rows))))


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
        if kind == "slice":
            return self._convert_slice(fields, shape)
        tile = _Tile(shape)
        if kind == "linear":
            return tile.convert_linear(fields)
        width = 2
        if kind == "dot_op":
            tile.summed = len(shape) - 1 - int(fields["opIdx"])
            width = int(fields.get("kWidth", 0))
            kind, fields = self._read(fields["parent"])
        if kind == "blocked":
            return tile.convert_blocked(fields)
        if kind == "nvidia_mma":
            return tile.convert_mma(fields, width)
        raise UnsupportedOperation(f"The layout {encoding} is unknown.")

    def _convert_slice(self, fields: _Fields, shape: tuple[int, ...]) -> Layout:
        """Omit a dimension, and registers that differ only along it (`SliceEncodingAttr::toLinearLayout`)."""
        dim = int(fields["dim"])
        parent = self.convert(fields["parent"], (*shape[:dim], 1, *shape[dim:]))
        register, lane, warp = (
            tuple((*base[:dim], *base[dim + 1 :]) for base in bases)
            for bases in (parent.register, parent.lane, parent.warp)
        )
        return Layout(shape, tuple(filter(any, register)), lane, warp)

    def _read(self, encoding: str) -> tuple[str, _Fields]:
        """Return the kind of an encoding, and its fields."""
        match = _ENCODING.fullmatch(self.expand(encoding))
        if not match:
            raise UnsupportedOperation(f"The layout {encoding} is unknown.")
        pairs = (part.partition(" = ") for part in _split(match[2]))
        return match[1], {name.strip(): value for name, _, value in pairs}
