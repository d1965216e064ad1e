"""The instructions that an average warp executes, and the SM resources that each of them occupies.

The rates are those of compute capability 9.0.
Sources of the rates: CUDA C++ Programming Guide 13.0, "Arithmetic Instructions"; of the latencies: Luo et al.,
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking" (2024).
Omitted: the instruction cache.
"""

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilescope.evaluate.sectors import LANES, LINE_BYTES
from tilescope.sass.instructions import PRODUCT_CYCLES, Instruction, parse_sass
from tilescope.sass.registers import count_group_rows, find_accesses, list_registers, split_operands

# -|R12|
_PLAIN = re.compile(r"[-!|~]*R(\d+)\|?")
# A register file has two banks: one for even registers, and one for odd ones.
_EVEN = int("01" * 128, 2)
# Uniform registers and predicates.
_OTHER = re.compile(r"(?<!\w)(?:UR\d+|U?P\d)\b")

# Cycles for which a warp's instruction occupies its pipe, and cycles until its result can be read.
_PIPES = {
    "alu": (2, 5.5),
    "fma": (1, 5.5),
    "fma heavy": (2, 5.5),
    "xu": (8, 36),
    "fp64": (2, 10),
    "uniform": (2, 11),
    "lsu": (4, 28),
    "control": (0, 12),
    "tensor": (0, 0),
}
PIPES = tuple(_PIPES)
# Effects of the instructions that occupy a tensor core.
ASYNC_PRODUCT = "async product"
PRODUCTS = ("product", "group product", ASYNC_PRODUCT)
# A 32-bit multiplication with a 64-bit result takes twice as long as one with a 32-bit result.
_WIDE_PRODUCT_CYCLES = 4
# Cycles by which a branch needs its predicate earlier than other instructions do, and cycles until its warp continues.
# ptxas writes them as stall counts into the code of compute capability 9.0: 12 or 13 cycles from a comparison to its
# branch, and 5 after it (`nvdisasm -hex`).
BRANCH_READ_CYCLES = 7.5
BRANCH_CYCLES = 5
# Latency of a load that finds its block in the L1 (measured on an H200), and of a fence of device scope (assumed).
L1_CYCLES = 34.0
FENCE_CYCLES = 600
# Products that one warp issues reach this share of the rate of those that a warp group issues (Luo et al.).
WARP_PRODUCT_RATE = 0.62
_WARP_PRODUCT_CYCLES = 20
_GROUP_PRODUCT = re.compile(r"[HQI]GMMA\.64x(\d+)x")
_GROUP_PRODUCT_CYCLES = 64

# The capacity of the two levels of an SM's instruction cache, in instructions, and the cycles by which those of larger
# loops are late. The delay grows until a loop exceeds the capacity by _OVERFLOW. Measured on an H200.
_CACHE_LEVELS = ((2048, 1.8), (8192, 3.4))
_OVERFLOW = 0.25

# Loops with less than this part of a launch's instructions may be missing in a trace.
_NEGLIGIBLE = 1e-3


@dataclass(slots=True)
class Step:
    """An instruction of a warp.

    Attributes:
        effect: what it waits for or changes besides registers; "" if nothing.
        pipe: index in PIPES.
        busy: cycles for which it occupies the pipe, or the tensor core.
        latency: cycles until its results can be read.
        reads, writes: numbers of registers.
        wavefronts: wavefronts on the SM's data path to shared memory, including its bank conflicts.
        conflicts: bank conflicts.
        traffic: kind of its access to global memory; "" without one.
        nominal_bytes: bytes of 32 lanes.
        pending: number of groups that may be in flight after a wait.
        banks: number of registers that it reads from the even and from the odd bank, one per cycle. 0 for matrix
            instructions, whose reads are in `matrix_issue_cycles`.
        issue: cycles until another instruction can be issued.
    """

    effect: str
    pipe: int
    busy: float
    latency: float
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    wavefronts: float = 0.0
    traffic: str = ""
    nominal_bytes: int = 0
    pending: int = 0
    banks: tuple[int, int] = (0, 0)
    conflicts: float = 0.0
    issue: float = 1.0


def _registers(instruction: Instruction) -> tuple[list[str], list[str]]:
    """Return the registers that an instruction reads and writes, uniform ones and predicates included."""
    results, values = split_operands(instruction)
    accesses = find_accesses(instruction)
    reads, writes = ([f"R{number}" for number in list_registers(each)] for each in accesses)
    reads += _OTHER.findall(" ".join((instruction.predicate, *values)))
    writes += _OTHER.findall(" ".join(results))
    return reads, writes


def _describe_group_product(step: Step, instruction: Instruction, columns: int) -> list[str]:
    """Describe the product of a warp group, which reads B, and A if it is not in registers. Return the registers read.

    Its four warps share the wavefronts. The accumulator is ready when their last product ends: see the wait.
    """
    operands = instruction.operands
    step.effect = "group product"
    step.busy = columns / 2
    step.latency = _GROUP_PRODUCT_CYCLES
    step.wavefronts = count_group_rows(instruction) * 32 / 128 / 4
    step.pending = int("gsb0" in operands[-1])
    if operands[1].startswith("gdesc"):
        return []
    first = int(operands[1][1:])
    return [f"R{first + offset}" for offset in range(4)]


def _count_reads(instructions: Sequence[Instruction]) -> list[tuple[int, int]]:
    """Count the registers that each instruction reads from the bank of even registers and from that of odd ones.

    An operand marked `.reuse` stays in a cache until an operand in the same position replaces it, or reads it without
    the mark.
    """
    counts = []
    cache: dict[int, str] = {}
    for instruction in instructions:
        reads, _ = find_accesses(instruction)
        results, _ = split_operands(instruction)
        for number, operand in enumerate(instruction.operands):
            place = number - len(results)
            match = _PLAIN.fullmatch(operand)
            if not match:
                continue
            if cache.get(place) == match[1]:
                reads &= ~(1 << int(match[1]))
                if number not in instruction.kept:
                    del cache[place]
            if number in instruction.kept:
                cache[place] = match[1]
        if instruction.traits.jump:
            cache.clear()
        counts.append(((reads & _EVEN).bit_count(), (reads >> 1 & _EVEN).bit_count()))
    return counts


@functools.lru_cache(maxsize=8)
def read_steps(sass: str) -> tuple[Step, ...]:
    """Return the steps of a listing, one per instruction."""
    numbers: dict[str, int] = {}

    def number(names: list[str]) -> tuple[int, ...]:
        return tuple({numbers.setdefault(name, len(numbers)) for name in names})

    steps = []
    instructions = parse_sass(sass)
    banks = _count_reads(instructions)
    for instruction, own in zip(instructions, banks, strict=True):
        opcode = instruction.opcode
        traits = instruction.traits
        pipe = traits.pipe or "control"
        busy, latency = _PIPES[pipe]
        reads, writes = _registers(instruction)
        step = Step(
            instruction.effect,
            PIPES.index(pipe),
            busy,
            traits.latency or latency,
            (),
            (),
            traits.wavefronts,
            traits.gmem,
        )
        if traits.jump == "branch" and not step.effect:
            step.effect = "branch"
        if step.effect in ("wait for copies", "wait for products"):
            step.pending = int(instruction.operands[1], 0)
        if traits.gmem or traits.lmem:
            step.nominal_bytes = LANES * instruction.lane_bytes
        if traits.lmem:
            step.wavefronts = step.nominal_bytes / LINE_BYTES
        elif traits.smem and not (traits.gmem or traits.wavefronts):
            step.wavefronts = instruction.lane_registers
        elif traits.widths == "wide product" and re.search("WIDE|HI", opcode):
            step.busy = _WIDE_PRODUCT_CYCLES
        elif traits.widths == "pair" and pipe == "fma":
            step.busy = 2  # two results per lane
        elif traits.widths == "tensor memory":
            # Assumed: a cycle per column of 32 lanes.
            columns = re.search(r"\.x(\d+)", opcode)
            step.busy = int(columns[1]) if columns else 1
            step.latency = step.busy + latency
        elif product := _GROUP_PRODUCT.match(opcode):
            reads = _describe_group_product(step, instruction, int(product[1]))
            writes = []
        elif pipe == "tensor" and step.effect != ASYNC_PRODUCT:
            starts = (start for start in PRODUCT_CYCLES if opcode.startswith(start))
            cycles = PRODUCT_CYCLES.get(next(starts, ""), 4)
            step.effect = "product"
            step.busy = cycles / WARP_PRODUCT_RATE
            step.latency = step.busy + _WARP_PRODUCT_CYCLES
        step.reads = number(reads)
        step.writes = number(writes)
        if step.effect not in PRODUCTS:
            step.banks = own
        steps.append(step)
    return tuple(steps)


def find_loops(instructions: Sequence[Instruction], per_warp: Sequence[float]) -> dict[int, int]:
    """Return the last instruction of each loop by its first one."""
    loops: dict[int, int] = {}
    for number, instruction in enumerate(instructions):
        target = instruction.target
        if instruction.traits.jump != "branch" or target is None or target >= number:
            continue
        if per_warp[number] and per_warp[target]:
            loops[target] = max(loops.get(target, 0), number)
    return loops


def count_issue_cycles(
    instructions: Sequence[Instruction], per_warp: Sequence[float], sharing: int
) -> list[float]:
    """Return the cycles that each instruction takes to issue: more than 1 in loops that overflow the instruction cache.

    Args:
        per_warp: mean executions of each instruction per warp of the launch.
        sharing: warps of a program that run on the same quarter of an SM, and share the instructions that it receives.
    """
    cycles = [1.0] * len(instructions)
    sizes = {first: last + 1 - first for first, last in find_loops(instructions, per_warp).items()}
    for first in sorted(sizes, key=sizes.__getitem__, reverse=True):  # inner loops last
        if per_warp[first] < 2:
            continue
        late = 1.0
        for capacity, delay in _CACHE_LEVELS:
            late += delay * min(1.0, max(0.0, sizes[first] / capacity - 1) / _OVERFLOW)
        cycles[first : first + sizes[first]] = [max(1.0, late / sharing)] * sizes[first]
    return cycles


def trace_warp(
    instructions: Sequence[Instruction],
    per_warp: Sequence[float],
    budget: float,
    copies: Mapping[int, float],
) -> tuple[list[int], list[float]]:
    """Return the numbers of the instructions that an average warp executes, in order, and a weight for each.

    Loops that are too long for the budget end early, outer ones first. A loop with an average
    of 2.5 iterations alternates between 2 and 3; branches alternate likewise. The first half of an instruction's
    executions in the trace have weight 1. The second half represent all remaining executions of the launch.

    Args:
        per_warp: mean executions of each instruction per warp of the launch.
        budget: approximate number of instructions to return.
        copies: executions per program of the instructions with which one warp copies a block for all. Each warp of
            the trace executes them.
    """
    loops = find_loops(instructions, per_warp)
    whole = sum(per_warp)
    executed = list(per_warp)
    owed = [0.0] * len(instructions)
    trips_owed = dict.fromkeys(loops, 0.0)
    missing = set(loops)
    trace: list[int] = []
    in_block = 0.0  # executions of the unpredicated instructions around a copy

    def run(first: int, last: int, share: float, loop: int, budget: float) -> None:
        nonlocal in_block
        work = sum(per_warp[first : last + 1]) / share
        number = first
        while number <= last:
            end = loops.get(number, -1)
            entries = per_warp[number] / share
            if number != loop and 0 <= end <= last:
                in_loop = sum(per_warp[number : end + 1])
                allowed = budget * in_loop / share / work if work else 0.0
                iteration = in_loop / per_warp[number] if per_warp[number] else 1.0
                most = max(1, allowed // iteration)
                if entries * iteration <= allowed:
                    most = entries
                trips_owed[number] += min(entries, most)
                trips = int(trips_owed[number] + 0.5)
                if number in missing and in_loop > _NEGLIGIBLE * whole:
                    trips = max(1, trips)
                trips_owed[number] -= trips
                missing.discard(number)
                for _ in range(trips):
                    run(number, end, per_warp[number], number, allowed / trips)
                number = end + 1
                continue
            if number in copies:
                executed[number] = min(in_block, copies[number])
                entries = executed[number] / share
            elif not instructions[number].predicate:
                in_block = per_warp[number]
            owed[number] += min(entries, 1.0)
            if owed[number] >= 0.5:
                owed[number] -= 1
                trace.append(number)
            number += 1

    run(0, len(instructions) - 1, 1.0, -1, budget)
    return trace, _weigh(trace, executed)


def _weigh(trace: Sequence[int], executed: Sequence[float]) -> list[float]:
    in_trace = Counter(trace)
    seen: Counter[int] = Counter()
    weights = []
    for number in trace:
        first = in_trace[number] // 2
        seen[number] += 1
        if seen[number] <= first:
            weights.append(1.0)
        else:
            weights.append(max(0.0, executed[number] - first) / (in_trace[number] - first))
    return weights
