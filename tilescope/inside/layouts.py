"""Read the layouts of a kernel's blocks, and its layout conversions, from the TTGIR.

They become linear layouts as in Triton's `toLinearLayout`, for one CTA.
"""

import json
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tilescope.captures.layouts import Layout
from tilescope.captures.listings import UnsupportedOperation, find_user_place, is_in_sort
from tilescope.inside.report import LayoutConversion, TensorLayout
from tilescope.ttgir.graph import Graph
from tilescope.ttgir.parser import FREE, Op, Region

# #blocked = #ttg.blocked<{sizePerThread = [1, 8], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>
_ALIAS = re.compile(r"^(#\w+) = (#ttg\.\w+<.*>)$", re.MULTILINE)
# #ttg.slice<{dim = 1, parent = #ttg.blocked<{…}>}>
_ENCODING = re.compile(r"#ttg\.(\w+)<\{(.*)\}>")
# 128x64x!tt.ptr<f16>
_BLOCK = re.compile(r"((?:\d+x)+)(.*)")
# tensor<128x64xf16, #blocked>, but not tensordesc<tensor<128x64xf16, #shared>>
_TENSOR = re.compile(r"(?<!tensordesc<)\btensor<")

# The fields of an encoding, as text.
_Fields = Mapping[str, str]
# Triton shuffles elements within warps if at most this many bits of the lane become bits of the register.
_MOST_SHUFFLED_BITS = 1


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


def read_layouts(body: Region, encodings: Encodings) -> tuple[TensorLayout, ...]:
    """Return the layouts of the blocks of accesses, multiplications and conversions, each once per line.

    Raises:
        UnsupportedOperation: an encoding is unknown.
    """
    layouts = dict[TensorLayout, None]()
    for op in body.walk():
        for operand, block in _blocks(op):
            layout = encodings.convert(block.encoding, block.shape)
            element = block.element.removeprefix("!tt.ptr<").removesuffix(">")
            layouts[TensorLayout(*op.place, op.traits.kind, operand, element, layout)] = None
    return tuple(layouts)


def _blocks(op: Op) -> Iterator[tuple[str, TensorType]]:
    """Yield the blocks of an operation, each with the operand's name."""
    text = op.text.rpartition(" : ")[2]
    if _is_multiplication(op):  # some operands may be in shared memory
        for operand, part in zip(op.traits.blocks, re.split(r" \* | -> ", text), strict=True):
            yield from zip([operand], tensor_types(part), strict=False)
    else:
        yield from zip(op.traits.blocks, tensor_types(text), strict=False)


def read_conversions(body: Region, encodings: Encodings) -> tuple[LayoutConversion, ...]:
    """Return the layout conversions, in the order of the text.

    Raises:
        UnsupportedOperation: an encoding is unknown.
    """
    graph = Graph(body)
    free = graph.find_results(FREE)
    conversions = []
    for op in body.walk():
        if op.name != "ttg.convert_layout":
            continue
        (_, before), (_, after) = _blocks(op)
        source, destination = (
            encodings.convert(each.encoding, each.shape) for each in (before, after)
        )
        bits = re.match(r"[a-z]+(\d+)", before.element)
        element_bytes = -(-int(bits[1]) // 8) if bits else 8  # a pointer
        is_shared = _needs_shared_memory(source, destination)
        values = graph.trace_sources(op.operands, free)
        definitions = [graph.definitions[name] for name in values if name in graph.definitions]
        conversions.append(
            LayoutConversion(
                *op.place,
                element_bytes=element_bytes,
                source=source,
                destination=destination,
                shared_bytes=math.prod(before.shape) * element_bytes * is_shared,
                maker=_describe(definitions, encodings.expand(before.encoding)),
                user=_find_user(graph, free, op.results[0], encodings.expand(after.encoding)),
            )
        )
    return tuple(conversions)


def _needs_shared_memory(source: Layout, destination: Layout) -> bool:
    """Return whether a conversion moves elements between warps, or too many between lanes for shuffles."""
    reduced = dict[int, int]()

    def reduce(base: tuple[int, ...]) -> int:
        """Return the part of a base that the source's registers and lanes of a warp do not span."""
        left = 0
        for size, place in zip(source.shape, base, strict=True):
            left = left * size + place
        while left and left.bit_length() in reduced:
            left ^= reduced[left.bit_length()]
        return left

    for base in (*source.register, *source.lane):
        if left := reduce(base):
            reduced[left.bit_length()] = left
    warps = (
        tuple(map(operator.xor, *pair)) for pair in zip(source.warp, destination.warp, strict=True)
    )
    crosses_warps = any(map(reduce, (*destination.register, *destination.lane, *warps)))
    exchanged = max(
        len({base for base in ends.lane if any(base)}.intersection(starts.register))
        for ends, starts in ((source, destination), (destination, source))
    )
    return crosses_warps or exchanged > _MOST_SHUFFLED_BITS


def _find_user(graph: Graph, free: set[str], value: str, encoding: str) -> str:
    """Describe the operation that needs the layout of a value; "" if there is none.

    If no user needs it, describe a multiplication that computes another operand of a user, such as an addition.
    """
    derived = graph.trace_targets([value])
    users = [op for name in derived for op in graph.users[name]]
    if "mma" in encoding and not any(map(_is_multiplication, users)):
        partners = graph.trace_sources(derived[1:], free | {value})
        definitions = (graph.definitions[name] for name in partners if name in graph.definitions)
        users += filter(_is_multiplication, definitions)
    return _describe(users, encoding)


def _describe(ops: Sequence[Op], encoding: str) -> str:
    """Describe the first operation that needs a layout, preferably a multiplication if the layout belongs to one."""
    ops = [op for op in ops if op.traits.kind]
    if "mma" in encoding:
        ops.sort(key=_is_multiplication, reverse=True)
    if not ops:
        return ""
    location = ops[0].location
    noun = "sort" if is_in_sort(location) else ops[0].traits.kind
    place = find_user_place(location)
    return f"the {noun} on line {place[1]}" if place else f"the {noun}"


def _is_multiplication(op: Op) -> bool:
    return op.traits.kind == "multiplication"
