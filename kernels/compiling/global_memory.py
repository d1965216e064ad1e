"""Read a compiled kernel's memory operations: layouts from its TTGIR, widths from its PTX. Runs in a compile worker.

Triton's bindings parse the TTGIR and convert each layout to bases. An operation is matched with the PTX by its whole
location: line, column, and the calls that it was inlined through. SASS has lines only, and ptxas gives some
instructions the line of a neighbour, so the opcode decides, too.
"""

from __future__ import annotations

import math
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from kernels.compiling.listing import Location, instructions, locations
from kernels.jit import last_line
from kernels.lanes import Layout, MemoryOperation
from kernels.spec import Access, FlatAccess

_OPS = {
    "tt.load": "load",
    "ttg.async_copy_global_to_local": "async copy",
    "tt.store": "store",
    "tt.atomic_rmw": "atomic",
    "tt.descriptor_load": "descriptor",
    "tt.descriptor_store": "descriptor",
    "ttng.async_tma_copy_global_to_local": "descriptor",
    "ttng.async_tma_copy_local_to_global": "descriptor",
}
_TTGIR = re.compile(rf"(?:^|= |\s)({'|'.join(map(re.escape, _OPS))}) ")
_POINTERS = re.compile(r"tensor<((?:\d+x)+)!tt\.ptr<(\w+)>")
_PTX = re.compile(
    r"\b(?P<name>(?:ld|st)\.global[\w.:]*|(?:red|atom)\.[\w.:]+|cp\.async\.c[ag]\.[\w.:]+|cp\.async\.bulk\.tensor[\w.:]+)"
)
_BITS = re.compile(r"(\d+)(x2)?$")
_DESCRIPTOR = re.compile(r"!tt\.tensordesc<[^#]*(#\w+)>")
_SWIZZLE = re.compile(r"^(#\w+) = #ttg\.nvmma_shared<\{swizzlingByteWidth = (\d+)", re.MULTILINE)

# Operations that a SASS instruction may implement. An atomic on half a word loads the word before it swaps it.
SASS_KINDS = {
    "LDG": ("load", "atomic"),
    "LDGSTS": ("async copy",),
    "STG": ("store",),
    **dict.fromkeys(("RED", "REDG", "ATOM", "ATOMG"), ("atomic",)),
    **dict.fromkeys(("UTMALDG", "UTMASTG"), ("descriptor",)),
}


class Unreadable(Exception):
    """The compiled kernel has a form that this reader does not know."""


def read_operations(
    accesses: Sequence[Access | FlatAccess], shapes: Sequence[tuple[int, int]], ttgir: str, ptx: str, sass: str
) -> tuple[MemoryOperation, ...]:
    """Return each declared access as compiled, in the same order.

    Args:
        shapes: rows and columns of the tensor, as stored, that each access addresses.

    Raises:
        Unreadable: the texts contradict one another or the accesses.
    """
    in_ptx: dict[Location, list[tuple[str, int]]] = defaultdict(list)
    for line, location in zip(ptx.splitlines(), locations(ptx, "ptx"), strict=True):
        if location and (match := _PTX.search(line)):
            in_ptx[location].append((match["name"], _ptx_width(match["name"], line)))
    found: dict[Location, MemoryOperation] = {}
    copies: Counter[Location] = Counter()  # a pipelined loop has an operation several times
    for location, operation in _ttgir_operations(ttgir):
        made = in_ptx[location]
        if operation.op == "atomic":  # without the load before a compare-and-swap, which is of whole words
            made = [
                (name, operation.element_bytes if ".cas" in name else width)
                for name, width in made
                if name.startswith(("atom", "red"))
            ]
        if len(set(made)) != 1:
            raise Unreadable(f"The {operation.op} at {location[0]} is {sorted(set(made)) or 'not in the PTX'}.")
        operation = replace(operation, instruction=made[0][0], width_bytes=made[0][1], instructions=len(made))
        if found.setdefault(location, operation) != operation:
            raise Unreadable(f"The {operation.op} at {location[0]} has several layouts.")
        copies[location] += 1
    declared = []
    for access, shape in zip(accesses, shapes, strict=True):
        (file, first), last = access.source, last_line(access.source)
        here = [at for at in found if at[0][0] == file.rsplit("/", 1)[-1] and first <= at[0][1] <= last]
        if len(here) != 1:
            raise Unreadable(f"The {access.op} of {access.tensor} became {len(here)} operations, not one.")
        _check_count(found[here[0]], copies[here[0]], access, shape)
        declared.append(found[here[0]])
    opcodes: list[dict[str, None]] = [{} for _ in declared]
    listed = instructions(sass)
    for (opcode, _), number in zip(listed, match_instructions(listed, declared), strict=True):
        if number is not None and number >= 0:
            opcodes[number][opcode] = None
    return tuple(replace(made, opcodes=tuple(names)) for made, names in zip(declared, opcodes, strict=True))


def match_instructions(
    listed: Sequence[tuple[str, Location]], operations: Sequence[MemoryOperation]
) -> list[int | None]:
    """Return the number of the operation that each SASS instruction implements, or None if it implements none.

    It is the operation of its kind on its line. If ptxas names another line: the only one of the same width with fewer
    instructions than in the PTX; -1 if that is ambiguous.
    """
    kinds = [SASS_KINDS.get(opcode.partition(".")[0], ()) for opcode, _ in listed]
    numbers: list[int | None] = []
    for (_, location), kind in zip(listed, kinds, strict=True):
        places = (
            number
            for number, made in enumerate(operations)
            if made.op in kind and location and made.source == location[0][:2]
        )
        numbers.append(next(places, -1) if kind else None)
    have = Counter(numbers)
    for place, (opcode, _) in enumerate(listed):
        if numbers[place] == -1:
            # LDG.E.128 moves 16 bytes per lane, LDG.E.U16 2, LDG.E 4. A descriptor copy has no lanes: 0.
            width = next((int(bits[1]) // 8 for bits in re.finditer(r"\.[US]?(128|64|16|8)(?=\.|$)", opcode)), 4)
            lacking = [
                number
                for number, made in enumerate(operations)
                if made.op in kinds[place] and made.width_bytes in (0, width) and have[number] < made.instructions
            ]
            if len(lacking) == 1:
                numbers[place] = lacking[0]
                have[lacking[0]] += 1
    return numbers


def _check_count(operation: MemoryOperation, copies: int, access: Access | FlatAccess, shape: tuple[int, int]) -> None:
    """Raise Unreadable unless the PTX has an instruction per group of registers, as often as the loop was unrolled.

    LLVM removes an instruction whose mask it proves false: with N = 1, all columns but the first, if the access is a
    branch (a compare-and-swap loop) and not inline assembly. So there may be fewer, but one for each group of registers
    with an element inside the tensor. A removed instruction would have had no active lane, so it costs nothing.
    """
    layout = operation.layout
    if layout is None:
        return
    length = operation.width_bytes // operation.element_bytes
    expected = copies * len(layout.original_registers) // length
    if isinstance(access, FlatAccess):
        limits: tuple[int, ...] = (math.prod(shape),)
    else:
        limits = tuple(shape[0] if index == access.rows.index else shape[1] for index in access.dims)
    # Lane 0 of warp 0 has the lowest coordinates of each register.
    inside = [
        all(at < limit for at, limit in zip(place, limits, strict=True))
        for place in layout.original_registers[::length]
    ]
    count = operation.instructions
    if not (count % expected == 0 or sum(inside) <= count < expected):
        where = f"{operation.instruction} at {operation.source}"
        raise Unreadable(f"{where} occurs {count} times in the PTX; expected {expected}.")


def _ttgir_operations(ttgir: str) -> Iterator[tuple[Location, MemoryOperation]]:
    """Yield the operations on global memory with their locations, in the order of the text."""
    from triton._C.libtriton import gluon_ir, ir, nvidia

    context = ir.context()  # must outlive everything made from it
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".ttgir") as file:
        file.write(ttgir)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    builder = gluon_ir.GluonOpBuilder(context)
    pointers: list[Any] = []
    module.walk(lambda made: pointers.append(made.get_operand(0)) if made.get_name() in _OPS else None)
    lines = [
        (match[1], line, location)
        for line, location in zip(ttgir.splitlines(), locations(ttgir, "ttgir"), strict=True)
        if (match := _TTGIR.search(line))
    ]
    swizzles = dict(_SWIZZLE.findall(ttgir))
    for (name, line, location), pointer in zip(lines, pointers, strict=True):
        if not location:
            raise Unreadable(f"{name} has no location.")
        layout, element_bytes, swizzle_bytes = None, 0, 0
        if block := _POINTERS.search(line):
            shape = tuple(int(size) for size in block[1][:-1].split("x"))
            encoding = builder.get_gluon_layout_from_tensor(pointer)
            linear = builder.to_linear_layout(encoding._to_ir(builder), list(shape))
            register, lane, warp = (
                tuple(map(tuple, bases)) for bases in (linear.reg_bases, linear.lane_bases, linear.warp_bases)
            )
            layout = Layout(shape, register, lane, warp)
            bits = re.search(r"\d+", block[2])  # f16, bf16, f8E4M3FN, i32
            if not bits:
                raise Unreadable(f"An element is a {block[2]}.")
            element_bytes = int(bits[0]) // 8
        elif _OPS[name] == "descriptor":
            match = _DESCRIPTOR.search(line)
            if not match or match[1] not in swizzles:
                raise Unreadable(f"The layout in shared memory is unknown in {line.strip()!r}.")
            swizzle_bytes = int(swizzles[match[1]])
        yield (
            location,
            MemoryOperation(_OPS[name], location[0][:2], layout, element_bytes, 0, "", 0, (), swizzle_bytes),
        )


def _ptx_width(name: str, line: str) -> int:
    """Return the bytes that one lane moves."""
    if name.startswith("cp.async.bulk"):
        return 0
    if name.startswith("cp.async"):
        return int(line.split(",")[2].strip().rstrip(";"), 0)
    vector, bits = re.search(r"\.v(\d)\b", name), _BITS.search(name)
    if not bits:
        raise Unreadable(f"The width of {name} is unknown.")
    return int(bits[1]) * (2 if bits[2] else 1) * int(vector[1] if vector else 1) // 8
