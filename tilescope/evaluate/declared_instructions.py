"""Read a kernel's operations on global memory from its TTGIR, PTX and SASS. Runs in a compile worker.

Layouts come from the TTGIR, widths from the PTX: see `matching.py`. SASS gives only lines, and ptxas assigns some
instructions to a neighbouring line, so SASS is also matched by opcode.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tilescope.captures.layouts import Layout
from tilescope.captures.listings import UnsupportedOperation, locate_lines
from tilescope.declare.accesses import AnyAccess, FlatAccess
from tilescope.declare.jit import call_lines
from tilescope.evaluate.instructions import Conversion, MemoryInstruction
from tilescope.evaluate.matching import PTX_MEMORY, find_instructions, read_instructions
from tilescope.sass.listing import Instruction, parse
from tilescope.sass.opcodes import OPCODES
from tilescope.ttgir.operations import MEMORY_OPS
from tilescope.ttgir.parser import Op, memory_ops
from tilescope.ttgir.parser import parse as parse_ttgir

# Accesses to global memory at each stage, including copies to shared memory and tensor (TMA) copies.
_MEMORY = {
    "ttgir": re.compile(rf"(?:^|= |\s)({'|'.join(map(re.escape, MEMORY_OPS))}) "),
    "ptx": PTX_MEMORY,
    "sass": re.compile(rf"\b({'|'.join(name for name in OPCODES if OPCODES[name].gmem)})\b"),
}

# %3 = ttg.convert_layout %2 : tensor<64x16xf16, #blocked> -> tensor<64x16xf16, #blocked1>
_CONVERSION = re.compile(r"ttg\.convert_layout .*: tensor<((?:\d+x)+)[a-z]+(\d+)\w*,")


def find_conversions(ttgir: str) -> tuple[Conversion, ...]:
    """Return the layout conversions, in order."""
    result = []
    for line, location in locate_lines(ttgir, "ttgir"):
        if location and (match := _CONVERSION.search(line)):
            shape = tuple(map(int, match[1][:-1].split("x")))
            result.append(Conversion(location[0][:2], shape, -(-int(match[2]) // 8)))
    return tuple(result)


def memory_lines(text: str, kind: str, file: str, lines: range) -> list[int]:
    """Return the numbers, from 0, of the lines that access global memory for some lines of a source file.

    Inlined code counts for the innermost function.
    """
    name = file.rsplit("/", 1)[-1]
    return [
        number
        for number, (line, location) in enumerate(locate_lines(text, kind))
        if location
        and location[0][0] == name
        and location[0][1] in lines
        and _MEMORY[kind].search(line)
    ]


def read_operations(
    accesses: Sequence[AnyAccess],
    shapes: Sequence[tuple[int, int]],
    ttgir: str,
    ptx: str,
    sass: str,
) -> tuple[MemoryInstruction, ...]:
    """Return the compiled operation of each declared access, in the same order.

    Args:
        shapes: for each access, the rows and columns of its tensor as stored.

    Raises:
        UnsupportedOperation: TTGIR, PTX, SASS and the declared accesses contradict one another.
    """
    body = parse_ttgir(ttgir)
    in_ptx = find_instructions(ptx)
    compiled = read_instructions(body, _read_layouts(ttgir), ptx, sass)
    declared = []
    for access, shape in zip(accesses, shapes, strict=True):
        name = access.source[0].rsplit("/", 1)[-1]
        lines = call_lines(access.source)
        ops = [
            op
            for op in memory_ops(body)
            if op.location[0][0] == name and op.location[0][1] in lines
        ]
        # A kernel may call the function containing the operation from several places. Pipelining duplicates operations.
        sites = {(op.traits.kind, op.location) for op in ops}
        count = sum(len(in_ptx[site]) for site in sites)
        variants = {replace(_check(op, compiled[op]), instructions=count, opcodes=()) for op in ops}
        if len(variants) != 1:
            raise UnsupportedOperation(
                f"The {access.op} of {access.tensor} became {len(variants)} operations, not one."
            )
        declared.append(variants.pop())
        _check_count(declared[-1], len(ops), access, shape)
    code = parse(sass)
    opcodes: dict[int | None, dict[str, None]] = defaultdict(dict)
    for each, number in zip(code, match_instructions(code, declared), strict=True):
        opcodes[number][each.opcode] = None
    return tuple(
        replace(operation, opcodes=tuple(opcodes[number]))
        for number, operation in enumerate(declared)
    )


def _read_layouts(ttgir: str) -> list[Layout | None]:
    from tilescope.record.ttgir import read_ttgir  # imports torch and Triton

    # Without its cache, which would grow in a worker.
    layouts = read_ttgir.__wrapped__(ttgir).layouts
    sides = ("register", "lane", "warp")
    return [
        Layout(tuple(bases["shape"]), *(tuple(map(tuple, bases[side])) for side in sides))
        if bases
        else None
        for bases in layouts
    ]


def _check(op: Op, instruction: MemoryInstruction | str) -> MemoryInstruction:
    if isinstance(instruction, str):
        raise UnsupportedOperation(instruction)
    if instruction.op == "descriptor" and op.swizzle_bytes is None:
        raise UnsupportedOperation(
            f"The layout in shared memory is unknown in {op.text.strip()!r}."
        )
    if instruction.layout and not instruction.layout.is_permutation:
        raise UnsupportedOperation(
            f"The layout is not a permutation of bits in {op.text.strip()!r}."
        )
    return instruction


def _kinds_of(instruction: Instruction) -> tuple[str, ...]:
    """Return the operations that a SASS instruction may implement.

    An atomic on half a word first loads the word that it swaps.
    """
    kind = instruction.traits.operation
    if kind == "load":
        return "load", "atomic"
    return (kind,) if kind else ()


def match_instructions(
    code: Sequence[Instruction], operations: Sequence[MemoryInstruction]
) -> list[int | None]:
    """Return, for each SASS instruction, the index of the operation that it implements; None if it accesses no memory.

    An instruction implements the operation of the same kind on its line. If ptxas names another line, it implements the
    only operation of the same kind and width that still lacks instructions; a swap has words of 4 bytes, and as many
    loads. The index is -1 if that is ambiguous.
    """
    numbers: list[int | None] = []
    for each in code:
        kinds = _kinds_of(each)
        on_line = (
            n
            for n, operation in enumerate(operations)
            if operation.op in kinds and operation.source == each.source
        )
        numbers.append(next(on_line, -1) if kinds else None)
    have = Counter(numbers)
    for place, each in enumerate(code):
        if numbers[place] != -1:
            continue
        widths = 0, each.lane_bytes  # a descriptor copy has no lanes
        kinds = _kinds_of(each)
        lacking = [
            n
            for n, operation in enumerate(operations)
            if operation.op in kinds
            and (operation.width_bytes in widths or operation.swaps)
            and have[n] < operation.instructions * (1 + operation.swaps)
        ]
        if len(lacking) == 1:
            numbers[place] = lacking[0]
            have[lacking[0]] += 1
    return numbers


def _check_count(
    operation: MemoryInstruction, copies: int, access: AnyAccess, shape: tuple[int, int]
) -> None:
    """Check that each copy of the loop body has equally many PTX instructions per group of registers.

    If the access is a branch (a compare-and-swap loop) rather than inline assembly, LLVM removes instructions whose
    mask it proves false: with N = 1, all columns except the first. A removed instruction would have had no active lane.
    So fewer instructions are valid, but at least one per group of registers with an element inside the tensor.
    """
    if operation.layout is None:
        return
    # Lane 0 of warp 0 has the lowest coordinates of each register.
    lanes = operation.vectors
    groups = lanes.place[:, lanes.warp == 0, 0].T
    if isinstance(access, FlatAccess):
        limits: tuple[int, ...] = (math.prod(shape),)
    else:
        limits = tuple(shape[index == access.columns.index] for index in access.dims)
    inside = (groups < limits).all(axis=1).sum()
    expected = copies * len(groups)
    count = operation.instructions
    if not (count % expected == 0 or inside <= count < expected):
        where = f"{operation.instruction} at {operation.source}"
        raise UnsupportedOperation(f"{where} occurs {count} times in the PTX; expected {expected}.")
