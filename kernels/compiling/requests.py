"""Count the requests and sectors of TTGIR operations on global memory, as Nsight Compute does.

The TTGIR gives an operation's layout, the PTX its width and the kind of instruction.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kernels.accesses import Layout, vectors
from kernels.compiling.atomics import atomic_sectors
from kernels.compiling.compile_cost import LANES
from kernels.compiling.memory_operations import Location, instructions, lane_bytes, locate_lines
from kernels.compiling.ttgir import POINTER_OPS, Op, Region, UnsupportedOperation

SECTOR_BYTES, LINE_BYTES = 32, 128

# Columns of a count.
REQUESTS, SECTORS, LINES, IDEAL = range(4)

_PTX_MEMORY = re.compile(
    r"\b(?P<name>(?:ld|st)(?:\.[a-z]+)*\.global[\w.:]*|(?:red|atom)\.[\w.:]+|cp\.async\.c[ag]\.[\w.:]+)"
)
# The first word of an instruction's name and Nsight Compute's name of its kind, and the same for operations.
_KINDS = {"ld": "ld", "st": "st", "cp": "cp", "red": "atom", "atom": "atom"}
_OP_KINDS = {
    "tt.load": "ld", "tt.store": "st", "ttg.async_copy_global_to_local": "cp", "tt.atomic_rmw": "atom",
    "tt.atomic_cas": "atom",
}  # fmt: skip
_NOWHERE = np.iinfo(np.int64).min


@dataclass(frozen=True)
class _Match:
    """An instruction in the PTX, and whether an earlier one has loaded the same address."""

    name: str
    width_bytes: int
    is_repeated: bool


@dataclass(frozen=True)
class Instruction:
    """How an operation on pointers was compiled.

    Attributes:
        counter: Nsight Compute's name of the kind: "ld", "st", "red" or "atom".
        name: PTX instruction without its operands.
        width_bytes: bytes that a lane moves.
        layout: layout of the block of pointers; None for a scalar pointer.
        num_warps: warps that issue a scalar load.
        swaps: whether it became a load and a compare-and-swap loop, which retries after a conflict.
        location: source location of the operation, innermost call first.
        is_merged: whether an earlier one has loaded the same addresses, for each instruction of a warp; () if unknown.
    """

    counter: str
    name: str
    width_bytes: int
    element_bytes: int
    layout: Layout | None
    num_warps: int
    swaps: bool
    location: Location
    is_merged: tuple[bool, ...] = ()


def read_instructions(
    body: Region, layouts: Sequence[Layout | None], ttgir: str, ptx: str, sass: str, num_warps: int
) -> dict[int, Instruction | str]:
    """Match the operations on pointers to the PTX by their full locations.

    Args:
        layouts: the layout of each operation's pointers, in the order of the text.
        sass: "" if it is unknown. Then no load is assumed to be merged.

    Returns:
        For the line of each operation in the TTGIR its instruction, or a sentence that says why it is unknown.
    """
    in_ptx = _find_instructions(ptx)
    merged_lines = _merged_lines(in_ptx, sass)
    in_sass = ((opcode, location) for opcode, location in instructions(sass) if location)
    swapping_lines = {location[0][:2] for opcode, location in in_sass if re.match(r"ATOM.*\.CAS", opcode)}
    used = {value for op in body.walk() for value in (*op.operands, *op.inits)}
    locations = [location for _, location in locate_lines(ttgir, "ttgir")]
    by_location: dict[tuple[str, Location], list[tuple[Op, Layout | None]]] = defaultdict(list)
    ops = (op for op in body.walk() if op.name in POINTER_OPS)
    for op, layout in zip(ops, layouts, strict=True):
        by_location[_OP_KINDS[op.name], locations[op.line]].append((op, layout))
    result: dict[int, Instruction | str] = {}
    for (kind, location), group in by_location.items():
        matches, start, spans = in_ptx[kind, location], 0, []
        for op, layout in group:
            count = _count_needed(op, layout, matches[min(start, len(matches) - 1)]) if matches else 0
            spans.append((start, start + count))
            start += count
        are_complete = start == len(matches)
        for (op, layout), (begin, end) in zip(group, spans, strict=True):
            # Several copies of an operation, as of an unrolled loop, have one location. Their order is kept.
            own = matches[begin:end] if are_complete else matches
            widths = {(match.name, match.width_bytes) for match in own}
            if len(widths) != 1:
                found = f"has several widths in the PTX: {sorted(widths)}" if widths else "is missing in the PTX"
                result[op.line] = f"{op.name} {found}."
                continue
            name, size = own[0].name, element_bytes(op)
            swaps = op.name == "tt.atomic_rmw" and (".cas" in name or location[0][:2] in swapping_lines)
            result[op.line] = Instruction(
                counter="red" if kind == "atom" and _is_reduction(op, name, used) else kind.replace("cp", "ld"),
                name=name,
                width_bytes=size if ".cas" in name else own[0].width_bytes,
                element_bytes=size,
                layout=layout,
                num_warps=num_warps,
                swaps=swaps,
                location=location,
                is_merged=tuple(m.is_repeated for m in own) if are_complete and location[0][:2] in merged_lines else (),
            )
    return result


def _count_needed(op: Op, layout: Layout | None, match: _Match) -> int:
    """Return the number of instructions that each warp needs for one execution."""
    registers = 1 << sum(any(base) for base in layout.register) if layout else 1
    width = element_bytes(op) if ".cas" in match.name else match.width_bytes
    return max(1, registers * element_bytes(op) // width)


def _merged_lines(in_ptx: Mapping[tuple[str, Location], list[_Match]], sass: str) -> set[tuple[str, int]]:
    """Return the source lines whose repeated loads ptxas has merged: the SASS has fewer loads than the PTX."""
    loads, repeated = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
    for (kind, location), matches in in_ptx.items():
        if kind == "ld":
            loads[location[0][:2]] += len(matches)
            repeated[location[0][:2]] += sum(match.is_repeated for match in matches)
    in_sass = Counter(
        location[0][:2] for opcode, location in instructions(sass) if opcode.startswith("LDG.") and location
    )
    missing = loads.total() - in_sass.total()  # ptxas assigns some instructions to a neighbouring line
    return {line for line, count in repeated.items() if 0 < count <= min(missing, loads[line] - in_sass[line])}


def _find_instructions(ptx: str) -> dict[tuple[str, Location], list[_Match]]:
    """Return the accesses to global memory by kind and location, in order.

    ptxas may merge loads with the same predicate and address if no store or branch lies between them.
    """
    result: dict[tuple[str, Location], list[_Match]] = defaultdict(list)
    loaded: set[tuple[str, ...]] = set()
    for line, location in locate_lines(ptx, "ptx"):
        if match := _PTX_MEMORY.search(line):
            kind = _KINDS[match["name"].partition(".")[0]]
            address = re.search(r"\[.*?\]", line)
            key = match["name"], line[: match.start()].strip(), address[0] if address else ""
            if location:
                found = _Match(match["name"], lane_bytes(match["name"], line), kind == "ld" and key in loaded)
                result[kind, location].append(found)
            if kind == "ld":
                loaded.add(key)
            elif kind != "cp":
                loaded.clear()
        elif re.match(r"\$|.*\b(bra|bar\.sync|ret)\b", line):
            loaded.clear()
    return result


def _is_reduction(op: Op, name: str, used: set[str]) -> bool:
    """Whether ptxas turns an atomic into RED: its result is not used, and no later access has to wait for it."""
    is_swap = re.search(r"\.(exch|cas)\b", name)
    return (
        not is_swap
        and not re.search(r"\b(acquire|acq_rel)\b", op.text)
        and not any(result in used for result in op.results)
    )


def element_bytes(op: Op) -> int:
    match = re.search(r"!tt\.ptr<(?:!tt\.ptr<|[a-z]+(\d+))", op.text)
    if not match:
        raise UnsupportedOperation(f"The element size of {op.name} is unknown.")
    return max(1, int(match[1]) // 8) if match[1] else 8  # a pointer to pointers


def textbook(instruction: Instruction) -> Instruction:
    """Return the blackboard's version of an instruction: lane i takes element i of the block, row by row."""
    if instruction.layout is None:
        return instruction
    shape, bases = instruction.layout.shape, []
    for axis in reversed(range(len(shape))):
        bases += [
            tuple((1 << bit) * (axis == i) for i in range(len(shape))) for bit in range(shape[axis].bit_length() - 1)
        ]
    idle = ((0,) * len(shape),) * max(0, 5 - len(bases))  # lanes without an element
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
    place, owner = np.ravel_multi_index(tuple(lanes.place), instruction.layout.shape), lanes.owner
    if any(instruction.is_merged):
        issued = np.resize(~np.array(instruction.is_merged), len(place))
        place, owner = place[issued], owner[issued]
    at = address.reshape(count, -1)[:, place].reshape(-1, LANES)
    on = active.reshape(count, -1)[:, place]
    on = (on if is_load else on & owner).reshape(-1, LANES)
    at = np.where(on, at, _NOWHERE)
    ordered = np.sort(at, axis=1)
    wanted = _distinct(ordered, 1) * instruction.width_bytes
    sectors = _distinct(ordered, SECTOR_BYTES)
    if instruction.counter in ("red", "atom"):
        sectors = atomic_sectors(at, on)
    elif instruction.name.startswith("cp.async.cg"):
        sectors = _bypassing_sectors(at)
    parts = on.any(axis=1), sectors, _distinct(ordered, LINE_BYTES), -(-wanted // SECTOR_BYTES)
    return np.stack([part.reshape(count, -1).sum(axis=1) for part in parts], axis=1)


def _distinct(ordered: np.ndarray, unit_bytes: int) -> np.ndarray:
    """Return the number of distinct units in each row of sorted addresses. Inactive lanes have address _NOWHERE."""
    units = ordered // unit_bytes
    return np.count_nonzero(units[:, 1:] != units[:, :-1], axis=1) + (ordered[:, 0] != _NOWHERE)


def _bypassing_sectors(address: np.ndarray) -> np.ndarray:
    """Count the sectors of 16-byte copies that bypass L1, as the hardware's counter does, pair of lanes by pair.

    A pair's 32 consecutive bytes count once per line that they touch. Other pairs count their sectors.
    """
    first, second = np.moveaxis(address.reshape(len(address), -1, 2), 2, 0)
    unit = np.where(second - first == 16, LINE_BYTES, SECTOR_BYTES)
    shares = (first != _NOWHERE) & (first // unit == second // unit)
    return np.count_nonzero(address != _NOWHERE, axis=1) - np.count_nonzero(shares, axis=1)
