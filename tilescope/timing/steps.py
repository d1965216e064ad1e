"""The resources of an SM that each instruction of a kernel's SASS occupies (compute capability 9.0).

Sources of the rates: CUDA C++ Programming Guide 13.0, "Arithmetic Instructions"; of the latencies: Luo et al.,
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking" (2024).
Omitted: register banks, the operand cache and the instruction cache.
"""

import functools
import re
from dataclasses import dataclass

from tilescope.evaluate.sectors import LANES, LINE_BYTES
from tilescope.sass.listing import Instruction, parse
from tilescope.sass.opcodes import PRODUCT_CYCLES
from tilescope.sass.registers import count_group_rows, find_accesses, list_registers, split_operands

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
PRODUCTS = ("product", "group product")
# A 32-bit multiplication with a 64-bit result takes twice as long as one with a 32-bit result.
_WIDE_PRODUCT_CYCLES = 4
# Latency of a load that finds its block in the L1 (Luo et al.), and of a fence of device scope (assumed).
L1_CYCLES = 40.0
FENCE_CYCLES = 600
# Products that one warp issues reach this share of the rate of those that a warp group issues (Luo et al.).
WARP_PRODUCT_RATE = 0.62
_WARP_PRODUCT_CYCLES = 20
_GROUP_PRODUCT = re.compile(r"[HQI]GMMA\.64x(\d+)x")
_GROUP_PRODUCT_CYCLES = 64


@dataclass(slots=True)
class Step:
    """An instruction of a warp.

    Attributes:
        effect: what it waits for or changes besides registers; "" if nothing.
        pipe: index in PIPES.
        busy: cycles for which it occupies the pipe, or the tensor core.
        latency: cycles until its results can be read.
        reads, writes: numbers of registers.
        wavefronts: wavefronts on the SM's data path to shared memory.
        traffic: kind of its access to global memory; "" without one.
        nominal_bytes: bytes of 32 lanes.
        elements: elements that an atomic updates.
        pending: number of groups that may be in flight after a wait.
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
    elements: int = 0
    pending: int = 0


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


@functools.lru_cache(maxsize=8)
def read_steps(sass: str) -> tuple[Step, ...]:
    """Return the steps of a listing, one per instruction."""
    numbers: dict[str, int] = {}

    def number(names: list[str]) -> tuple[int, ...]:
        return tuple({numbers.setdefault(name, len(numbers)) for name in names})

    steps = []
    for instruction in parse(sass):
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
        if step.effect in ("wait for copies", "wait for products"):
            step.pending = int(instruction.operands[1], 0)
        if traits.gmem or traits.lmem:
            step.nominal_bytes = LANES * instruction.lane_bytes
        if traits.gmem == "atomic":
            step.elements = step.nominal_bytes // (2 if "F16" in opcode else 4)
        elif traits.lmem:
            step.wavefronts = step.nominal_bytes / LINE_BYTES
        elif traits.smem and not (traits.gmem or traits.wavefronts):
            step.wavefronts = instruction.lane_registers
        elif traits.widths == "wide product" and re.search("WIDE|HI", opcode):
            step.busy = _WIDE_PRODUCT_CYCLES
        elif product := _GROUP_PRODUCT.match(opcode):
            reads = _describe_group_product(step, instruction, int(product[1]))
            writes = []
        elif pipe == "tensor":
            starts = (start for start in PRODUCT_CYCLES if opcode.startswith(start))
            cycles = PRODUCT_CYCLES.get(next(starts, ""), 4)
            step.effect = "product"
            step.busy = cycles / WARP_PRODUCT_RATE
            step.latency = step.busy + _WARP_PRODUCT_CYCLES
        step.reads = number(reads)
        step.writes = number(writes)
        steps.append(step)
    return tuple(steps)
