"""Read how operations on global memory were compiled, and count their requests as Nsight Compute does.

The TTGIR gives an operation's layout, the PTX its width and the kind of instruction. The SASS says which of the PTX's
instructions the assembler kept: it merges loads of the same bytes, omits accesses whose mask is never true, and copies
the bodies of loops that it unrolls.
"""

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from kernels.accesses import Layout, textbook_layout, vectors
from kernels.evaluate.listings import Location, instructions, lane_bytes, locate_lines
from kernels.evaluate.ttgir import MEMORY_OPS, POINTER_OPS, Op, Region, Site, Source, memory_ops
from kernels.sectors import count_requests

PTX_MEMORY = re.compile(
    r"(?<![\w.:])(?P<name>(?:ld|st|red|atom)\.(?![\w.:]*\b(?:param|local|shared|const)\b)[\w.:]+|"
    r"cp\.async\.(?:c[ag]|bulk\.tensor)\.[\w.:]+|tensormap\.cp[\w.:]+)"
)
# The start of an instruction's name and the kind of the operations that it implements.
_KINDS = {
    "ld": "load",
    "st": "store",
    "cp.async.c": "async copy",
    "cp.async.b": "descriptor",
    "tensormap": "tensor map",
    "": "atomic",
}


# The operations that a SASS instruction may implement.
SASS_KINDS = {
    "LDG": "load", "LD": "load", "LDGSTS": "async copy", "STG": "store", "ST": "store", "UTMALDG": "descriptor",
    "UTMASTG": "descriptor",
    **dict.fromkeys(("RED", "REDG", "ATOM", "ATOMG"), "atomic"),
}  # fmt: skip
_ADDRESS = re.compile(r"\[\s*(%\w+)\s*(?:\+\s*(-?\d+))?\s*\]")
_OFFSET = re.compile(r"\s*add\.s64\s+(%\w+), (%\w+), (-?\d+);")


@dataclass
class PtxInstruction:
    """An access to global memory in the PTX.

    Attributes:
        name: the instruction without its operands.
        width_bytes: bytes that a lane moves; 0 for a descriptor.
        is_repeated: whether another load, with no store or branch in between, loads the same bytes.
    """

    name: str
    width_bytes: int
    is_repeated: bool = False


# Accesses to global memory by kind and location.
Ptx = Mapping[tuple[str, Location], Sequence[PtxInstruction]]


@dataclass(frozen=True)
class Instruction:
    """How an operation was compiled.

    Attributes:
        counter: Nsight Compute's name of the kind: "ld", "st", "red", "atom", "tma_ld" or "tma_st".
        name: PTX instruction without its operands.
        width_bytes: bytes that a lane moves; 0 for a descriptor.
        element_bytes: bytes per element; 0 for a descriptor.
        layout: layout of the block of pointers; None for a scalar pointer or a descriptor.
        num_warps: warps that issue a scalar load.
        swaps: whether it became a load and a compare-and-swap loop, which retries after a conflict.
        count: instructions of a warp for one execution.
        is_merged: for each of them, whether ptxas merged it into another load; () if unknown.
    """

    counter: str
    name: str
    width_bytes: int
    element_bytes: int
    layout: Layout | None
    num_warps: int
    swaps: bool
    count: int = 1
    is_merged: tuple[bool, ...] = ()


def read_instructions(
    body: Region,
    layouts: Sequence[Layout | None],
    ptx: str,
    sass: str,
    num_warps: int,
) -> dict[Op, Instruction | str]:
    """Match the operations on global memory to the PTX by their full locations.

    Args:
        layouts: the layout of the pointers of each operation on pointers, in the order of the text.
        sass: "" if it is unknown. Then no load is assumed to be merged.

    Returns:
        For each operation its instruction, or a sentence that says why it is unknown.
    """
    in_ptx = find_instructions(ptx)
    opcodes = find_opcodes(sass)
    merged_lines = _merged_lines(in_ptx, opcodes)
    used = {value for op in body.walk() for value in (*op.operands, *op.inits)}
    pointer_lines = sorted({op.line for op in body.walk() if op.name in POINTER_OPS})
    layout_of = dict(zip(pointer_lines, layouts, strict=True))
    by_location: dict[tuple[str, Location], list[Op]] = defaultdict(list)
    for op in memory_ops(body):
        by_location[MEMORY_OPS[op.name].kind, op.location].append(op)
    result: dict[Op, Instruction | str] = {}
    for (kind, location), group in by_location.items():
        matches = in_ptx.get((kind, location), [])
        starts = [0]
        for op in group:
            match = matches[min(starts[-1], len(matches) - 1)] if matches else PtxInstruction("", 0)
            starts.append(starts[-1] + _count_needed(op, layout_of.get(op.line), match))
        are_complete = starts[-1] == len(matches)
        for op, (start, end) in zip(group, pairwise(starts), strict=True):
            # Several copies of an operation, as of an unrolled loop, have one location. Their order is kept.
            own = matches[start:end] if are_complete else matches
            widths = {(match.name, match.width_bytes) for match in own}
            if len(widths) != 1:
                which = "instructions of several widths for" if widths else "no instruction for"
                result[op] = f"The compiler made {which} this {kind}, so it is not counted."
                continue
            ((name, width),) = widths
            size = op.element_bytes
            made = opcodes.get(op.site, [])
            names = {opcode.partition(".")[0] for opcode in made}
            is_known = (
                kind == "atomic" and bool(names) and len({"RED" in own for own in names}) == 1
            )
            is_reduction = kind == "atomic" and (
                "RED" in names.pop() if is_known else _is_reduction(op, name, used)
            )
            is_on_merged_line = are_complete and op.source in merged_lines
            swaps = ".cas" in name or any(".CAS" in opcode for opcode in made)
            result[op] = Instruction(
                counter="red" if is_reduction else MEMORY_OPS[op.name].counter,
                name=name,
                width_bytes=size if ".cas" in name else width,
                element_bytes=size,
                layout=layout_of.get(op.line),
                num_warps=num_warps,
                swaps=op.name == "tt.atomic_rmw" and swaps,
                count=end - start,
                is_merged=tuple(match.is_repeated for match in own) if is_on_merged_line else (),
            )
    return result


def _count_needed(op: Op, layout: Layout | None, match: PtxInstruction) -> int:
    """Return the number of instructions that each warp needs for one execution."""
    registers = 1 << sum(any(base) for base in layout.register) if layout else 1
    width = op.element_bytes if ".cas" in match.name else match.width_bytes
    return max(1, registers * op.element_bytes // max(1, width))


@functools.lru_cache(maxsize=4)
def find_opcodes(sass: str) -> dict[Site, list[str]]:
    """Return the opcodes of the accesses to global memory at each site, in order."""
    result: dict[Site, list[str]] = defaultdict(list)
    for opcode, location in instructions(sass):
        if kind := SASS_KINDS.get(opcode.partition(".")[0]):
            result[kind, location[0][:2] if location else ()].append(opcode)
    return dict(result)


def _merged_lines(in_ptx: Ptx, opcodes: Mapping[Site, Sequence[str]]) -> set[Source]:
    """Return the source lines whose repeated loads ptxas has merged."""
    in_sass = Counter({site: len(made) for site, made in opcodes.items()})
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
def find_instructions(ptx: str) -> dict[tuple[str, Location], list[PtxInstruction]]:
    """Return the accesses to global memory by kind and location, in order.

    ptxas may merge loads with the same predicate and bytes if no store or branch lies between them.
    """
    result: dict[tuple[str, Location], list[PtxInstruction]] = defaultdict(list)
    bases: dict[str, tuple[str, int]] = {}
    loaded: list[tuple[tuple[str, str], range, PtxInstruction]] = []
    for line, location in locate_lines(ptx, "ptx"):
        match = PTX_MEMORY.search(line)
        if match:
            name = match["name"]
            kind = next(kind for start, kind in _KINDS.items() if name.startswith(start))
            instruction = PtxInstruction(name, lane_bytes(name, line))
            result[kind, location].append(instruction)
            address = _ADDRESS.search(line)
            if kind in ("store", "atomic"):
                loaded.clear()
            elif kind == "load" and address:
                base, offset = bases.get(address[1], (address[1], 0))
                start = offset + int(address[2] or 0)
                own = range(start, start + instruction.width_bytes)
                key = line[: match.start()].strip(), base
                for other_key, other, earlier in loaded:
                    if key == other_key and other.start <= own.start and own.stop <= other.stop:
                        instruction.is_repeated = True
                    elif key == other_key and own.start <= other.start and other.stop <= own.stop:
                        earlier.is_repeated = True
                loaded.append((key, own, instruction))
        elif sum_of := _OFFSET.match(line):
            base, offset = bases.get(sum_of[2], (sum_of[2], 0))
            bases[sum_of[1]] = base, offset + int(sum_of[3])
        elif re.match(r"\$|.*\b(bra|bar\.sync|ret)\b", line):
            loaded.clear()
    return result


def _is_reduction(op: Op, name: str, used: set[str]) -> bool:
    """Whether ptxas turns an atomic into RED: its result is not used, and no later access has to wait for it."""
    must_answer = re.search(r"\.(exch|cas)\b", name) or re.search(r"\b(acquire|acq_rel)\b", op.text)
    return not must_answer and used.isdisjoint(op.results)


def textbook(instruction: Instruction) -> Instruction:
    """Return the blackboard's version of an instruction: lane i takes element i of the block, row by row."""
    if instruction.layout is None:
        return instruction
    return replace(
        instruction,
        layout=textbook_layout(instruction.layout.shape),
        width_bytes=instruction.element_bytes,
        name=instruction.counter,
        count=1,
        is_merged=(),
    )


def lanes_of(instruction: Instruction, is_load: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the lanes of the requests of one execution, in the order of warps, then registers.

    Args:
        is_load: whether all warps and lanes issue the operation, and not only the owners of an element.

    Returns:
        The coordinates in the block of each lane's first element, (dimensions, requests, lanes) int64, and which lanes
        take part, (requests, lanes) bool.
    """
    if instruction.layout is None:
        requests = instruction.num_warps if is_load else 1
        return np.zeros((0, requests, 1), np.int64), np.ones((requests, 1), bool)
    lanes = vectors(
        instruction.layout, max(1, instruction.width_bytes // instruction.element_bytes)
    )
    owner = lanes.owner | is_load
    issued = ~np.resize(np.array(instruction.is_merged or [False]), len(owner))
    return lanes.place[:, issued], owner[issued]


def count_lanes(instruction: Instruction, address: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Count executions of an operation.

    Args:
        address: (executions, requests, lanes) int64, the first byte of each lane.
        active: (executions, requests, lanes) bool.

    Returns:
        (executions, requests, 4) int64: requests, sectors, lines of 128 bytes, and ideal sectors.
    """
    executions, requests, lanes = address.shape
    counts = count_requests(
        address.reshape(-1, lanes),
        active.reshape(-1, lanes),
        instruction.width_bytes,
        instruction.name,
    )
    return counts.reshape(executions, requests, 4)
