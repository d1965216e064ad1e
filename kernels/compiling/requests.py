"""Read how operations on global memory were compiled, and count their requests as Nsight Compute does.

The TTGIR gives an operation's layout, the PTX its width and the kind of instruction.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from kernels.accesses import Layout, vectors
from kernels.compiling.compile_cost import LANES
from kernels.compiling.listings import Location, instructions, lane_bytes, locate_lines
from kernels.compiling.ttgir import MEMORY_OPS, POINTER_OPS, Op, Region, memory_ops
from kernels.sectors import count_requests

PTX_MEMORY = re.compile(
    r"\b(?P<name>(?:ld|st)(?:\.[a-z]+)*\.global[\w.:]*|(?:red|atom)\.(?!shared)[\w.:]+|"
    r"cp\.async\.(?:c[ag]|bulk\.tensor)\.[\w.:]+|tensormap\.cp[\w.:]+)"
)
# The start of an instruction's name and the kind of the operations that it implements.
_KINDS = {"ld": "load", "st": "store", "cp.async.c": "async copy", "cp.async.b": "descriptor", "tensormap": "tensor map", "": "atomic"}


@dataclass(frozen=True)
class PtxInstruction:
    """An access to global memory in the PTX.

    Attributes:
        name: the instruction without its operands.
        width_bytes: bytes that a lane moves; 0 for a descriptor.
        is_repeated: whether an earlier load has loaded the same address.
    """

    name: str
    width_bytes: int
    is_repeated: bool


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
        is_merged: for each instruction of a warp, whether ptxas merged it into an earlier load; () if unknown.
    """

    counter: str
    name: str
    width_bytes: int
    element_bytes: int
    layout: Layout | None
    num_warps: int
    swaps: bool
    is_merged: tuple[bool, ...] = ()


def read_instructions(
    body: Region, layouts: Sequence[Layout | None], ptx: str, sass: str, num_warps: int
) -> dict[int, Instruction | str]:
    """Match the operations on global memory to the PTX by their full locations.

    Args:
        layouts: the layout of the pointers of each operation on pointers, in the order of the text.
        sass: "" if it is unknown. Then no load is assumed to be merged.

    Returns:
        For the line of each operation in the TTGIR its instruction, or a sentence that says why it is unknown.
    """
    in_ptx = find_instructions(ptx)
    in_sass = [(opcode, location[0][:2]) for opcode, location in instructions(sass) if location]
    merged_lines = _merged_lines(in_ptx, Counter(line for opcode, line in in_sass if opcode.startswith("LDG.")))
    swapping_lines = {line for opcode, line in in_sass if re.match(r"ATOM.*\.CAS", opcode)}
    used = {value for op in body.walk() for value in (*op.operands, *op.inits)}
    pointer_ops = (op.line for op in body.walk() if op.name in POINTER_OPS)
    layout_of = dict(zip(pointer_ops, layouts, strict=True))
    by_location: dict[tuple[str, Location], list[Op]] = defaultdict(list)
    for op in memory_ops(body):
        by_location[MEMORY_OPS[op.name].kind, op.location].append(op)
    result: dict[int, Instruction | str] = {}
    for (kind, location), group in by_location.items():
        matches, starts = in_ptx.get((kind, location), []), [0]
        for op in group:
            match = matches[min(starts[-1], len(matches) - 1)] if matches else PtxInstruction("", 0, False)
            starts.append(starts[-1] + _count_needed(op, layout_of.get(op.line), match))
        are_complete = starts[-1] == len(matches)
        for op, (start, end) in zip(group, pairwise(starts), strict=True):
            # Several copies of an operation, as of an unrolled loop, have one location. Their order is kept.
            own = matches[start:end] if are_complete else matches
            widths = {(match.name, match.width_bytes) for match in own}
            if len(widths) != 1:
                found = f"has several widths in the PTX: {sorted(widths)}" if widths else "is missing in the PTX"
                result[op.line] = f"{op.name} {found}."
                continue
            ((name, width),), size = widths, op.element_bytes
            is_reduction = kind == "atomic" and _is_reduction(op, name, used)
            is_on_merged_line = are_complete and location[0][:2] in merged_lines
            result[op.line] = Instruction(
                counter="red" if is_reduction else MEMORY_OPS[op.name].counter,
                name=name,
                width_bytes=size if ".cas" in name else width,
                element_bytes=size,
                layout=layout_of.get(op.line),
                num_warps=num_warps,
                swaps=op.name == "tt.atomic_rmw" and (".cas" in name or location[0][:2] in swapping_lines),
                is_merged=tuple(match.is_repeated for match in own) if is_on_merged_line else (),
            )
    return result


def _count_needed(op: Op, layout: Layout | None, match: PtxInstruction) -> int:
    """Return the number of instructions that each warp needs for one execution."""
    registers = 1 << sum(any(base) for base in layout.register) if layout else 1
    width = op.element_bytes if ".cas" in match.name else match.width_bytes
    return max(1, registers * op.element_bytes // max(1, width))


def _merged_lines(
    in_ptx: Mapping[tuple[str, Location], list[PtxInstruction]], in_sass: Counter[tuple[str, int]]
) -> set[tuple[str, int]]:
    """Return the source lines whose repeated loads ptxas has merged: the SASS has fewer loads than the PTX.

    Args:
        in_sass: number of loads of each line in the SASS.
    """
    loads, repeated = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for (kind, location), matches in in_ptx.items():
        if kind == "load":
            loads[location[0][:2]] += len(matches)
            repeated[location[0][:2]] += sum(match.is_repeated for match in matches)
    missing = loads.total() - in_sass.total()  # ptxas assigns some instructions to a neighbouring line
    return {line for line, count in repeated.items() if 0 < count <= min(missing, loads[line] - in_sass[line])}


def find_instructions(ptx: str) -> dict[tuple[str, Location], list[PtxInstruction]]:
    """Return the accesses to global memory by kind and location, in order.

    ptxas may merge loads with the same predicate and address if no store or branch lies between them.
    """
    result: dict[tuple[str, Location], list[PtxInstruction]] = defaultdict(list)
    loaded: set[tuple[str, ...]] = set()
    for line, location in locate_lines(ptx, "ptx"):
        if match := PTX_MEMORY.search(line):
            name = match["name"]
            kind = next(kind for start, kind in _KINDS.items() if name.startswith(start))
            load = name, line[: match.start()].strip(), *re.findall(r"\[.*?\]", line)[:1]
            if location:
                is_repeated = kind == "load" and load in loaded
                result[kind, location].append(PtxInstruction(name, lane_bytes(name, line), is_repeated))
            if kind == "load":
                loaded.add(load)
            elif kind in ("store", "atomic"):
                loaded.clear()
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
    shape = instruction.layout.shape
    bits = range(math.prod(shape).bit_length() - 1)
    bases = [tuple(map(int, np.unravel_index(1 << bit, shape))) for bit in bits]
    idle = ((0,) * len(shape),) * (5 - len(bases))  # lanes without an element
    layout = Layout(shape, tuple(bases[5:]), (*bases[:5], *idle), ())
    size, counter = instruction.element_bytes, instruction.counter
    return replace(instruction, layout=layout, width_bytes=size, name=counter, is_merged=(), num_warps=1)


def count_blocks(instruction: Instruction, is_load: bool, address: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Count executions of an operation.

    Args:
        is_load: whether all warps and lanes issue the operation, and not only the owners of an element.
        address: (executions, *block) int64, first byte of each element.
        active: (executions, *block) bool, the operation's mask.

    Returns:
        (executions, 4) int64: requests, sectors, lines of 128 bytes, and ideal sectors.
    """
    count = len(address)
    if instruction.layout is None:
        issued = active.reshape(count, 1) * (instruction.num_warps if is_load else 1)
        return np.repeat(issued.astype(np.int64), 4, axis=1)
    lanes = vectors(instruction.layout, max(1, instruction.width_bytes // instruction.element_bytes))
    element, owner = lanes.element, lanes.owner
    if any(instruction.is_merged):
        issued = np.resize(~np.array(instruction.is_merged), len(element))
        element, owner = element[issued], owner[issued]
    at, on = (block.reshape(count, -1)[:, element] for block in (address, active))
    on = on if is_load else on & owner
    counts = count_requests(at.reshape(-1, LANES), on.reshape(-1, LANES), instruction.width_bytes, instruction.name)
    return counts.reshape(count, -1, 4).sum(axis=1)
