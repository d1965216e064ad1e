"""Read the layouts of a kernel's blocks, and its layout conversions, from the TTGIR."""

import math
import operator
import re
from collections.abc import Iterator, Sequence

from tilescope.captures.layouts import Layout
from tilescope.captures.listings import find_user_place, is_in_sort
from tilescope.evaluate.ttgir import MEMORY_OPS, Op, Region
from tilescope.inside.encodings import Encodings, TensorType, tensor_types
from tilescope.inside.flow import Flow
from tilescope.inside.report import LayoutConversion, TensorLayout

_CONVERSION = "ttg.convert_layout"
_DOTS = dict.fromkeys(("tt.dot", "tt.dot_scaled", "ttng.warp_group_dot"), "multiplication")
# Operations that require a certain layout.
_NOUNS = {
    **_DOTS,
    **{name: access.kind for name, access in MEMORY_OPS.items()},
    "tt.reduce": "reduction",
    "tt.scan": "scan",
    "tt.gather": "gather",
    "tt.histogram": "histogram",
    "tt.join": "join",
    "tt.split": "split",
    "ttg.local_load": "read of shared memory",
    "ttg.local_alloc": "write to shared memory",
    "ttg.local_store": "write to shared memory",
    "ttng.tmem_load": "read of tensor memory",
    "ttng.tmem_store": "write to tensor memory",
    _CONVERSION: "layout conversion",
}
# Operations whose result can have any layout.
_FREE = ("tt.splat", "tt.make_range", "arith.constant")
# Names of the blocks in the text of other operations than multiplications and accesses to global memory.
_OPERANDS = {
    _CONVERSION: ("source", "destination"),
    "ttg.local_load": ("result",),
    "ttg.local_alloc": ("value",),
    "ttg.local_store": ("value",),
}
# Triton shuffles elements within warps if at most this many bits of the lane become bits of the register.
_MOST_SHUFFLED_BITS = 1


def read_layouts(body: Region, encodings: Encodings) -> tuple[TensorLayout, ...]:
    """Return the layouts of the blocks of accesses, multiplications and conversions, each once per line.

    Raises:
        UnsupportedOperation: an encoding is unknown.
    """
    layouts = dict[TensorLayout, None]()
    for op in body.walk():
        file, line = op.source or ("", 0)
        for operand, block in _blocks(op):
            layout = encodings.convert(block.encoding, block.shape)
            element = block.element.removeprefix("!tt.ptr<").removesuffix(">")
            layouts[TensorLayout(file, line, _NOUNS[op.name], operand, element, layout)] = None
    return tuple(layouts)


def _blocks(op: Op) -> Iterator[tuple[str, TensorType]]:
    """Yield the blocks of an operation, each with the operand's name."""
    text = op.text.rpartition(" : ")[2]
    if op.name in _DOTS:
        for operand, part in zip("abc", re.split(r" \* | -> ", text), strict=True):
            yield from zip([operand], tensor_types(part), strict=False)
    elif op.name in MEMORY_OPS:
        pointers = (block for block in tensor_types(text) if block.element.startswith("!tt.ptr"))
        yield from zip(["block"], pointers, strict=False)
    elif op.name in _OPERANDS:
        yield from zip(_OPERANDS[op.name], tensor_types(text), strict=False)


def read_conversions(body: Region, encodings: Encodings) -> tuple[LayoutConversion, ...]:
    """Return the layout conversions, in the order of the text.

    Raises:
        UnsupportedOperation: an encoding is unknown.
    """
    flow = Flow(body)
    conversions = []
    for op in body.walk():
        if op.name != _CONVERSION:
            continue
        (_, before), (_, after) = _blocks(op)
        source, destination = (
            encodings.convert(each.encoding, each.shape) for each in (before, after)
        )
        bits = re.match(r"[a-z]+(\d+)", before.element)
        element_bytes = -(-int(bits[1]) // 8) if bits else 8  # a pointer
        is_shared = _needs_shared_memory(source, destination)
        values = flow.search(op.operands, flow.sources, _FREE)
        definitions = [flow.definitions[name] for name in values if name in flow.definitions]
        file, line = op.source or ("", 0)
        conversions.append(
            LayoutConversion(
                file=file,
                line=line,
                element_bytes=element_bytes,
                source=source,
                destination=destination,
                shared_bytes=math.prod(before.shape) * element_bytes * is_shared,
                maker=_describe(definitions, encodings.expand(before.encoding)),
                user=_find_user(flow, op.results[0], encodings.expand(after.encoding)),
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


def _find_user(flow: Flow, value: str, encoding: str) -> str:
    """Describe the operation that needs the layout of a value; "" if there is none.

    If no user needs it, describe a multiplication that computes another operand of a user, such as an addition.
    """
    derived = flow.search([value], flow.targets, ())
    users = [op for name in derived for op in flow.users[name]]
    if "mma" in encoding and not any(op.name in _DOTS for op in users):
        partners = flow.search(derived[1:], flow.sources, _FREE, without=value)
        users += (op for op in map(flow.definitions.get, partners) if op and op.name in _DOTS)
    return _describe(users, encoding)


def _describe(ops: Sequence[Op], encoding: str) -> str:
    """Describe the first operation that needs a layout, preferably a multiplication if the layout belongs to one."""
    names = _DOTS if "mma" in encoding else _NOUNS
    ops = sorted((op for op in ops if op.name in _NOUNS), key=lambda op: op.name not in names)
    if not ops:
        return ""
    location = ops[0].location
    noun = "sort" if is_in_sort(location) else _NOUNS[ops[0].name]
    return " on line ".join(map(str, (f"the {noun}", *find_user_place(location)[1:])))
