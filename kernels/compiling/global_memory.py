"""Read a compiled kernel's memory operations: layouts from its TTGIR, widths from its PTX. In a compile worker.

Triton's own bindings parse the TTGIR and turn each layout into bases. An operation is found again in the PTX by its
whole location: line, column, and the calls that it was inlined through. SASS has lines alone, and ptxas gives some
instruction the line of its neighbour, so there the opcode decides, too.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernels.compiling.listing import Location, instructions, locations
from kernels.lanes import Layout, MemoryOperation
from kernels.source import last_line
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
_DESCRIPTOR = re.compile(r"!tt\.tensordesc<[^#]*(?P<layout>#\w+)>")
_SWIZZLE = re.compile(r"^(#\w+) = #ttg\.nvmma_shared<\{swizzlingByteWidth = (\d+)", re.MULTILINE)


# What a SASS instruction may carry out. An atomic on halves of words loads the word before it swaps it.
SASS_KINDS = {
    "LDG": ("load", "atomic"),
    "LDGSTS": ("async copy",),
    "STG": ("store",),
    "RED": ("atomic",),
    "REDG": ("atomic",),
    "ATOM": ("atomic",),
    "ATOMG": ("atomic",),
    "UTMALDG": ("descriptor",),
    "UTMASTG": ("descriptor",),
}


class Unreadable(Exception):
    """The compiled kernel is not of a form that this reader knows."""


def operations(accesses: Sequence[Access | FlatAccess], ttgir: str, ptx: str, sass: str) -> tuple[MemoryOperation, ...]:
    """Each declared access as compiled, in their order.

    Raises:
        Unreadable: where the texts contradict one another or the accesses.
    """
    found = _operations(ttgir, ptx)
    declared = []
    for access in accesses:
        (file, first), last = access.source, last_line(access.source)
        here = [o for o in found if o.source[0] == file.rsplit("/", 1)[-1] and first <= o.source[1] <= last]
        if len(here) != 1:
            raise Unreadable(f"The {access.op} of {access.tensor} became {len(here)} operations, not one.")
        declared += here
    return _with_opcodes(tuple(declared), sass)


def _operations(ttgir: str, ptx: str) -> tuple[MemoryOperation, ...]:
    """The operations on global memory of a kernel, in the order of its TTGIR, each once.

    A loop that was pipelined has an operation several times: all must be alike.
    """
    in_ptx = _instructions(ptx)
    layouts, swizzles = _layouts(ttgir), dict(_SWIZZLE.findall(ttgir))
    found: dict[Location, MemoryOperation] = {}
    times: dict[Location, int] = defaultdict(int)
    for (name, line, location), layout in zip(_lines(ttgir), layouts, strict=True):
        widths = set(_carried_out_by(_OPS[name], in_ptx[location], _element_bytes(line)))
        if len(widths) != 1:
            raise Unreadable(f"{name} at {location[0]} is {sorted(widths) or 'not in the PTX'}.")
        ((instruction, width),) = widths
        place = location[0]
        swizzle_bytes = _swizzle_bytes(line, swizzles) if _OPS[name] == "descriptor" else 0
        operation = MemoryOperation(
            _OPS[name], place[:2], layout, _element_bytes(line), width, instruction, 0, (), swizzle_bytes
        )
        if found.setdefault(location, operation) != operation:
            raise Unreadable(f"{name} at {place} has several layouts.")
        times[location] += 1
    counted = []
    for location, operation in found.items():
        count = len(_carried_out_by(operation.op, in_ptx[location], operation.element_bytes))
        _check_count(operation, times[location], count)
        counted.append(replace(operation, instructions=count))
    return tuple(counted)


def carried_out(listed: Sequence[tuple[str, Location]], operations: Sequence[MemoryOperation]) -> list[int | None]:
    """For each SASS instruction the number of the operation that it carries out: None of those that carry out none.

    Of the operations of its kind, the one on its line. Where ptxas says another line: one that is as wide and has fewer
    instructions than in the PTX. -1 where that does not tell, either.
    """
    found: list[int | None] = []
    have = [0] * len(operations)
    for opcode, location in listed:
        number = None
        if kinds := SASS_KINDS.get(opcode.partition(".")[0]):
            here = [
                place
                for place, operation in enumerate(operations)
                if operation.op in kinds and location and operation.source == location[0][:2]
            ]
            number = here[0] if here else -1
            if here:
                have[number] += 1
        found.append(number)
    for place, (opcode, _) in enumerate(listed):
        if found[place] == -1:
            lacking = [
                number
                for number, operation in enumerate(operations)
                if operation.op in SASS_KINDS[opcode.partition(".")[0]]
                and operation.width_bytes == _sass_width(opcode)
                and have[number] < operation.instructions
            ]
            if len(lacking) == 1:
                found[place] = lacking[0]
                have[lacking[0]] += 1
    return found


def _sass_width(opcode: str) -> int:
    """Bytes that a lane moves: LDG.E.128 16, LDG.E.U16 2, LDG.E 4."""
    parts = opcode.split(".")
    return next((bits // 8 for bits in (128, 64, 16, 8) if {str(bits), f"U{bits}", f"S{bits}"} & set(parts)), 4)


def _with_opcodes(operations: tuple[MemoryOperation, ...], sass: str) -> tuple[MemoryOperation, ...]:
    listed = instructions(sass)
    found: list[dict[str, None]] = [{} for _ in operations]
    for (opcode, _), number in zip(listed, carried_out(listed, operations), strict=True):
        if number is not None and number >= 0:
            found[number][opcode] = None
    return tuple(
        replace(operation, opcodes=tuple(opcodes)) for operation, opcodes in zip(operations, found, strict=True)
    )


def _carried_out_by(op: str, instructions: list[tuple[str, int]], element_bytes: int) -> list[tuple[str, int]]:
    """The instructions that carry out an operation: of an atomic, not the load before a swap, which is of words."""
    if op != "atomic":
        return instructions
    atomics = [(name, width) for name, width in instructions if name.startswith(("atom", "red"))]
    return [(name, element_bytes if ".cas" in name else width) for name, width in atomics]


def _check_count(operation: MemoryOperation, times: int, count: int) -> None:
    """As many instructions as there are groups of registers, copies left out; more times, where a loop was unrolled."""
    layout = operation.layout
    if layout is None:
        return
    registers = 1 << (len(layout.register) - layout.copied_registers.bit_count())
    expected = times * registers * operation.element_bytes // operation.width_bytes
    if not count or count % expected:
        where = f"{operation.instruction} at {operation.source}"
        raise Unreadable(f"{where} occurs {count} times in the PTX; expected {expected}.")


def _lines(ttgir: str) -> list[tuple[str, str, Location]]:
    """Each operation on global memory: its name, its line, and where it comes from."""
    found = []
    for line, location in zip(ttgir.splitlines(), locations(ttgir, "ttgir"), strict=True):
        if match := _TTGIR.search(line):
            if not location:
                raise Unreadable(f"{match[1]} has no location.")
            found.append((match[1], line, location))
    return found


def _layouts(ttgir: str) -> list[Layout | None]:
    """The layout of the pointers of each operation on global memory, in the order of the text."""
    import tempfile

    from triton._C.libtriton import gluon_ir, ir, nvidia

    context = ir.context()  # must outlive all that is made from it
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".ttgir") as file:
        file.write(ttgir)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    builder = gluon_ir.GluonOpBuilder(context)
    shapes = iter([_shape(line) for _, line, _ in _lines(ttgir)])
    found: list[Layout | None] = []

    def visit(operation: Any) -> None:
        if operation.get_name() in _OPS:
            shape = next(shapes)
            found.append(_layout(builder, operation.get_operand(0), shape) if shape else None)

    module.walk(visit)
    return found


def _layout(builder: Any, tensor: Any, shape: tuple[int, ...]) -> Layout:
    encoding = builder.get_gluon_layout_from_tensor(tensor)
    linear = builder.to_linear_layout(encoding._to_ir(builder), list(shape))
    register, lane, warp = (
        tuple(tuple(base) for base in bases) for bases in (linear.reg_bases, linear.lane_bases, linear.warp_bases)
    )
    return Layout(shape, register, lane, warp)


def _shape(line: str) -> tuple[int, ...] | None:
    """The shape of a block of pointers; None where no pointers are named."""
    match = _POINTERS.search(line)
    return tuple(int(size) for size in match[1][:-1].split("x")) if match else None


def _swizzle_bytes(line: str, swizzles: dict[str, str]) -> int:
    """How wide the block of a descriptor is swizzled in shared memory.

    Args:
        swizzles: the width of each layout for matrix units that the TTGIR names.
    """
    match = _DESCRIPTOR.search(line)
    if not match or match["layout"] not in swizzles:
        raise Unreadable(f"Where does a descriptor copy to in {line.strip()!r}?")
    return int(swizzles[match["layout"]])


def _element_bytes(line: str) -> int:
    """Bytes of what a block of pointers points to, from its type's name: f16, bf16, f8E4M3FN, i32."""
    match = _POINTERS.search(line)
    if not match:
        return 0
    bits = re.search(r"\d+", match[2])
    if not bits:
        raise Unreadable(f"An element is a {match[2]}.")
    return int(bits[0]) // 8


def _instructions(ptx: str) -> dict[Location, list[tuple[str, int]]]:
    """The instructions on global memory by where they come from: name, and bytes per lane."""
    found: dict[Location, list[tuple[str, int]]] = defaultdict(list)
    for line, location in zip(ptx.splitlines(), locations(ptx, "ptx"), strict=True):
        if location and (match := _PTX.search(line)):
            found[location].append((match["name"], _width(match["name"], line)))
    return found


def _width(name: str, line: str) -> int:
    """Bytes that one lane moves."""
    if name.startswith("cp.async.bulk"):
        return 0
    if name.startswith("cp.async"):
        return int(line.split(",")[2].strip().rstrip(";"), 0)
    vector = re.search(r"\.v(\d)\b", name)
    bits = _BITS.search(name)
    if not bits:
        raise Unreadable(f"How wide is {name}?")
    return int(bits[1]) * (2 if bits[2] else 1) * int(vector[1] if vector else 1) // 8
