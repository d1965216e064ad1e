"""Find the PTX and SASS instructions of each operation on global memory, and of each declared access.

The TTGIR gives an operation's layout, the PTX its width and the kind of instruction. The SASS says which of the PTX's
instructions the assembler kept: it merges loads of the same bytes, omits accesses whose mask is never true, and copies
the bodies of loops that it unrolls.
"""

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from pydantic import TypeAdapter

from tilescope.captures.layouts import Layout
from tilescope.captures.listings import Location, UnsupportedOperation, lane_bytes, locate_lines
from tilescope.declare.jit import call_lines
from tilescope.declare.spec import AnyAccess, FlatAccess
from tilescope.evaluate.instructions import Conversion, MemoryInstruction
from tilescope.sass.instructions import OPCODES, Instruction, find_opcode, parse_sass
from tilescope.ttgir.parser import (
    MEMORY_OPS,
    POINTER_OPS,
    Op,
    Region,
    Site,
    Source,
    memory_ops,
    parse_ttgir,
    shape_of,
)

PTX_MEMORY = re.compile(
    r"(?<![\w.:])(?P<name>(?:ld|st|red|atom)\.(?![\w.:]*\b(?:param|local|shared|const)\b)[\w.:]+|"
    r"cp\.async\.(?:c[ag]|bulk\.tensor)\.[\w.:]+|tensormap\.cp[\w.:]+)"
)
# The start of an instruction's name and the kind of the operations that it implements.
PTX_KINDS = {
    "ld": "load",
    "st": "store",
    "cp.async.c": "async copy",
    "cp.async.b": "descriptor",
    "tensormap": "tensor map",
    "": "atomic",
}

# Accesses to global memory at each stage, including copies to shared memory and tensor (TMA) copies.
_MEMORY = {
    "ttgir": re.compile(rf"(?:^|= |\s)({'|'.join(map(re.escape, MEMORY_OPS))}|amdg\S*buffer_\w+) "),
    "amdgcn": re.compile(r"\t(buffer|global|flat)_(load|store|atomic)"),
    "ptx": PTX_MEMORY,
    "sass": re.compile(rf"\b({'|'.join(name for name in OPCODES if OPCODES[name].gmem)})\b"),
}

# %3 = ttg.convert_layout %2 : tensor<64x16xf16, #blocked> -> tensor<64x16xf16, #blocked1>
_CONVERSION = re.compile(r"ttg\.convert_layout .*: tensor<[\dx]+x[a-z]+(\d+)\w*,")

_ADDRESS = re.compile(r"\[\s*(%\w+)\s*(?:\+\s*(-?\d+))?\s*\]")
_OFFSET = re.compile(r"\s*add\.s64\s+(%\w+), (%\w+), (-?\d+);")

_LAYOUTS_TYPE = TypeAdapter(list[Layout | None])


@dataclass
class PtxAccess:
    """An access to global memory in the PTX.

    Attributes:
        name: the instruction without its operands.
        width_bytes: bytes that a lane moves; 0 for a descriptor.
        is_repeated: whether another load, with no store or branch in between, loads the same bytes.
    """

    name: str
    width_bytes: int
    is_repeated: bool = False


# The instruction of each operation, or a sentence that says why it is unknown.
Instructions = Mapping[Op, MemoryInstruction | str]
# Accesses to global memory by kind and location.
Ptx = Mapping[tuple[str, Location], Sequence[PtxAccess]]


def read_instructions(
    body: Region, layouts: Sequence[Layout | None], ptx: str, sass: str
) -> Instructions:
    """Match the operations on global memory to the PTX by their full locations.

    Args:
        layouts: the layout of the pointers of each operation on pointers, in the order of the text.
        sass: "" if it is unknown. Then no load is assumed to be merged.
    """
    in_ptx = find_instructions(ptx)
    opcodes = find_opcodes(sass)
    merged_lines = _merged_lines(in_ptx, opcodes)
    pointer_lines = sorted({op.line for op in body.walk() if op.name in POINTER_OPS})
    layout_of = dict(zip(pointer_lines, layouts, strict=True))
    by_location: dict[tuple[str, Location], list[Op]] = defaultdict(list)
    for op in memory_ops(body):
        by_location[op.traits.kind, op.location].append(op)
    result: dict[Op, MemoryInstruction | str] = {}
    for (kind, location), group in by_location.items():
        matches = in_ptx.get((kind, location), [])
        instructions = list(_match_in_order(group, matches, layout_of, opcodes))
        ends = list(accumulate(instruction.count for instruction in instructions))
        are_complete = ends[-1] == len(matches)
        for op, instruction, end in zip(group, instructions, ends, strict=True):
            own = matches[end - instruction.count : end] if are_complete else matches
            widths = {(match.name, match.width_bytes) for match in own}
            if len(widths) != 1:
                which = "instructions of several widths for" if widths else "no instruction for"
                result[op] = f"The compiler emitted {which} this {kind}, so it is not counted."
                continue
            is_on_merged_line = are_complete and op.source in merged_lines
            merged = tuple(match.is_repeated for match in own) if is_on_merged_line else ()
            result[op] = replace(instruction, is_merged=merged)
    return result


def _match_in_order(
    ops: Sequence[Op],
    matches: Sequence[PtxAccess],
    layout_of: Mapping[int, Layout | None],
    opcodes: Mapping[Site, Sequence[str]],
) -> Iterator[MemoryInstruction]:
    """Yield the instruction of each operation at a location. Copies, as of an unrolled loop, keep their order."""
    start = 0
    for op in ops:
        match = matches[min(start, len(matches) - 1)] if matches else PtxAccess("", 0)
        is_swap = ".cas" in match.name
        instruction = MemoryInstruction(
            op="compare-and-swap" if op.name == "tt.atomic_cas" else op.traits.kind,
            source=op.place,
            layout=layout_of.get(op.line),
            element_bytes=op.element_bytes,
            width_bytes=op.element_bytes if is_swap else match.width_bytes,
            instruction=match.name,
            instructions=len(matches),
            opcodes=tuple(dict.fromkeys(opcodes.get(op.site, []))),
            swizzle_bytes=op.swizzle_bytes or 0,
        )
        start += instruction.count
        yield instruction


@functools.lru_cache(maxsize=4)
def find_opcodes(sass: str) -> dict[Site, list[str]]:
    """Return the opcodes of the accesses to global memory at each site, in order."""
    result: dict[Site, list[str]] = defaultdict(list)
    for instruction in parse_sass(sass):
        if kind := instruction.traits.operation:
            source = instruction.source if instruction.location else ()
            result[kind, source].append(instruction.opcode)
    return dict(result)


def _merged_lines(in_ptx: Ptx, opcodes: Mapping[Site, Sequence[str]]) -> set[Source]:
    """Return the source lines whose repeated loads ptxas has merged."""
    in_sass = Counter({site: len(names) for site, names in opcodes.items()})
    loads = Counter[Site]()
    kept = Counter[Site]()
    for (kind, location), matches in in_ptx.items():
        if kind == "load":
            site = kind, location[0][:2]
            loads[site] += len(matches)
            kept[site] += sum(not match.is_repeated for match in matches)
    total = sum(in_sass[site] for site in in_sass if site[0] == "load")
    repeating = [site for site in loads if kept[site] < loads[site]]
    if total in (
        0,
        loads.total(),
        kept.total(),
    ):  # ptxas assigns some instructions to a neighbouring line
        return {line for _, line in repeating} if total == kept.total() else set()
    return {
        site[1]
        for site in repeating
        if in_sass[site] != loads[site] and in_sass[site] % kept[site] == 0
    }


@functools.lru_cache(maxsize=4)
def find_instructions(ptx: str) -> dict[tuple[str, Location], list[PtxAccess]]:
    """Return the accesses to global memory by kind and location, in order.

    ptxas may merge loads with the same predicate and bytes if no store or branch lies between them.
    """
    result: dict[tuple[str, Location], list[PtxAccess]] = defaultdict(list)
    bases: dict[str, tuple[str, int]] = {}
    # The bytes that loads access, by predicate and base.
    loaded: dict[tuple[str, str], list[tuple[set[int], PtxAccess]]] = defaultdict(list)
    for line, location in locate_lines(ptx, "ptx"):
        match = PTX_MEMORY.search(line)
        if match:
            name = match["name"]
            kind = next(kind for start, kind in PTX_KINDS.items() if name.startswith(start))
            instruction = PtxAccess(name, lane_bytes(name, line))
            result[kind, location].append(instruction)
            address = _ADDRESS.search(line)
            if kind in ("store", "atomic"):
                loaded.clear()
            elif kind == "load" and address:
                base, offset = bases.get(address[1], (address[1], 0))
                start = offset + int(address[2] or 0)
                own = {*range(start, start + instruction.width_bytes)}
                same = loaded[line[: match.start()].strip(), base]
                for other, earlier in same:
                    if own <= other:
                        instruction.is_repeated = True
                    elif other <= own:
                        earlier.is_repeated = True
                same.append((own, instruction))
        elif sum_of := _OFFSET.match(line):
            base, offset = bases.get(sum_of[2], (sum_of[2], 0))
            bases[sum_of[1]] = base, offset + int(sum_of[3])
        elif re.match(r"\$|.*\b(bra|bar\.sync|ret)\b", line):
            loaded.clear()
    return result


def counter_of(op: Op, instruction: MemoryInstruction, body: Region) -> str:
    """Return Nsight Compute's name of the kind of an operation: "ld", "st", "red", "atom", "tma_ld" or "tma_st".

    ptxas turns an atomic into RED if its result is not used, and no later access has to wait for it.
    """
    counter = op.traits.counter
    if counter != "atom":
        return counter
    answers = {
        find_opcode(opcode.partition(".")[0]).result != "none" for opcode in instruction.opcodes
    }
    if len(answers) != 1:
        is_exchange = re.search(r"\.(exch|cas)\b", instruction.instruction)
        waits = re.search(r"\b(acquire|acq_rel)\b", op.text)
        is_used = any(not {*op.results}.isdisjoint(each.uses) for each in body.walk())
        answers = {bool(is_exchange or waits) or is_used}
    return "atom" if answers.pop() else "red"


def find_conversions(ttgir: str) -> tuple[Conversion, ...]:
    """Return the layout conversions, in order."""
    matches = (
        (location, match)
        for line, location in locate_lines(ttgir, "ttgir")
        if location and (match := _CONVERSION.search(line))
    )
    return tuple(
        Conversion(location[0][:2], shape_of(match[0]), -(-int(match[1]) // 8))
        for location, match in matches
    )


def access_lines(text: str, kind: str, file: str, lines: range) -> list[int]:
    """Return the numbers, from 0, of a listing's instructions that access global memory for the given source lines.

    An inlined instruction belongs to the innermost function.
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
    code = parse_sass(sass)
    opcodes: dict[int | None, dict[str, None]] = defaultdict(dict)
    for each, number in zip(code, match_instructions(code, declared), strict=True):
        opcodes[number][each.opcode] = None
    return tuple(
        replace(operation, opcodes=tuple(opcodes[number]))
        for number, operation in enumerate(declared)
    )


def _read_layouts(ttgir: str) -> list[Layout | None]:
    from tilescope.record.compiled import read_ttgir  # imports torch and Triton

    # Without its cache, which would grow in a worker.
    return _LAYOUTS_TYPE.validate_python(read_ttgir.__wrapped__(ttgir).layouts)


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
