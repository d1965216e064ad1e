"""Read the layouts of a kernel's blocks, and its layout conversions, from the TTGIR."""

import math
import operator
import re
from collections.abc import Iterator, Sequence

from tilescope.captures.layouts import Layout
from tilescope.captures.listings import find_user_place, is_in_sort
from tilescope.inside.report import LayoutConversion, TensorLayout
from tilescope.ttgir.encodings import Encodings, TensorType, tensor_types
from tilescope.ttgir.graph import Graph
from tilescope.ttgir.parser import FREE, Op, Region

# Triton shuffles elements within warps if at most this many bits of the lane become bits of the register.
_MOST_SHUFFLED_BITS = 1


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
