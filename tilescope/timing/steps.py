"""The resources of an SM that each instruction of a kernel's SASS occupies (compute capability 9.0).

Sources of the rates: CUDA C++ Programming Guide 13.0, "Arithmetic Instructions"; of the latencies: Luo et al.,
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking" (2024).
Omitted: register banks, the operand cache and the instruction cache.
"""

import functools
import re
from dataclasses import dataclass

from tilescope.evaluate.matching import SASS_KINDS
from tilescope.sass.listing import Instruction, parse
from tilescope.sass.operands import find_accesses, list_registers

_PREDICATE = re.compile(r"U?P[\dT]")
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
_OPCODES = {
    "alu": "LOP3 ISETP IADD IADD3 SHF LEA SEL FSEL F2FP PRMT FSETP MOV VIADD FMNMX P2R R2P PLOP3 I2FP IABS SGXT VOTE "
    "VOTEU VIMNMX IMNMX VHMNMX VIADDMNMX HMNMX2 HSETP2 FSET HSET2 BMSK LOP PSETP",
    "xu": "MUFU I2F F2I F2F POPC FLO BREV FRND FCHK I2I REDUX",
    "fma": "FFMA FMUL FADD HFMA2 HADD2 HMUL2 FSWZADD",
    "fma heavy": "IMAD IDP",
    "fp64": "DFMA DADD DMUL DSETP",
    "lsu": "LDG STG LDS STS LDSM STSM SHFL ATOM ATOMG RED REDG LDGSTS ATOMS LDL STL LD ST",
    "tensor": "HMMA IMMA DMMA QMMA HGMMA QGMMA IGMMA",
    "control": "BRA BRX EXIT BSSY BSYNC CALL RET NOP WARPSYNC BREAK YIELD NANOSLEEP BPT LEPC DEPBAR LDGDEPBAR MEMBAR "
    "ERRBAR CCTL WARPGROUP BAR SYNCS R2UR S2R CS2R S2UR LDC LDCU ULDC FENCE ELECT UTMALDG UTMASTG "
    "UTMACMDFLUSH CGAERRBAR",
}
_PIPE_OF = {opcode: pipe for pipe, opcodes in _OPCODES.items() for opcode in opcodes.split()}
_UNIFORM = re.compile(r"U(?!TC|BLK|VIRT)")
# Instructions whose first operand is not a result.
_WITHOUT_RESULT = (
    "STG STS STSM RED REDG BAR BRA EXIT LDGSTS DEPBAR LDGDEPBAR MEMBAR WARPSYNC UTMALDG UTMASTG SYNCS STL WARPGROUP "
    "NOP ERRBAR CCTL FENCE BREAK BSSY BSYNC ST UTMACMDFLUSH UTMACCTL"
)
_NO_RESULT = frozenset(_WITHOUT_RESULT.split())
# A 32-bit multiplication with a 64-bit result takes twice as long as one with a 32-bit result.
_WIDE_PRODUCT_CYCLES = 4
# Latency of a load that finds its block in the L1 (Luo et al.), and of a fence of device scope (assumed).
L1_CYCLES = 40.0
FENCE_CYCLES = 600
_SHARED_CYCLES = {"LDS": 30, "LDSM": 30, "STS": 1, "STSM": 1, "LDL": 36, "STL": 1, "ATOMS": 60}
# Wavefronts of an atomic on shared memory: measured in histograms.
_SHARED_ATOMIC_WAVEFRONTS = 7

GLOBAL = {**SASS_KINDS, "UTMALDG": "descriptor load", "UTMASTG": "descriptor store"}
# Cycles of a tensor core at the full rate, by the first parts of the opcode.
_PRODUCTS = {
    "HMMA.16816": 4,
    "HMMA.1688.F32.TF32": 4,
    "HMMA.1688": 2,
    "HMMA.1684": 2,
    "IMMA.16816": 2,
    "DMMA": 16,
}
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


def find_pipe(name: str) -> str:
    """Return the pipe of an instruction; "" if its rate is unknown."""
    return _PIPE_OF.get(name) or ("uniform" if _UNIFORM.match(name) else "")


def _registers(instruction: Instruction) -> tuple[list[str], list[str]]:
    """Return the registers that an instruction reads and writes, uniform ones and predicates included."""
    operands = instruction.operands
    results = 0
    if instruction.name not in _NO_RESULT and operands:
        results = 1
        while results < min(3, len(operands)) and _PREDICATE.fullmatch(operands[results]):
            results += 1
    accesses = find_accesses(instruction)
    reads, writes = ([f"R{number}" for number in list_registers(each)] for each in accesses)
    reads += _OTHER.findall(" ".join((instruction.predicate, *operands[results:])))
    writes += _OTHER.findall(" ".join(operands[:results]))
    return reads, writes


@functools.lru_cache(maxsize=8)
def read_steps(sass: str) -> tuple[Step, ...]:
    """Return the steps of a listing, one per instruction."""
    numbers: dict[str, int] = {}

    def number(names: list[str]) -> tuple[int, ...]:
        return tuple({numbers.setdefault(name, len(numbers)) for name in names})

    steps = []
    for instruction in parse(sass):
        name = instruction.name
        opcode = instruction.opcode
        operands = instruction.operands
        pipe = find_pipe(name) or "control"
        busy, latency = _PIPES[pipe]
        reads, writes = _registers(instruction)
        latency = _SHARED_CYCLES.get(name, latency)
        step = Step("", PIPES.index(pipe), busy, latency, (), ())
        last = operands[-1] if operands else ""
        match name:
            case "LDGDEPBAR":
                step.effect = "commit"
            case "DEPBAR" if "LE" in opcode:  # the other form waits for the warp's other loads
                step.effect = "wait for copies"
                step.pending = int(operands[1], 0)
            case "WARPGROUP" if "DEPBAR" in opcode:
                step.effect = "wait for products"
                step.pending = int(last, 0)
            case "BAR" if "ARV" not in opcode:
                step.effect = "barrier"
            case "SYNCS" if "TRYWAIT" in opcode:
                step.effect = "wait for descriptor"
            case "MEMBAR" if "CTA" not in opcode:
                step.effect = "fence"
            case "SHFL":
                step.wavefronts = 1
            case "ATOMS":
                step.wavefronts = _SHARED_ATOMIC_WAVEFRONTS
            case "IMAD" if re.search("WIDE|HI", opcode):
                step.busy = _WIDE_PRODUCT_CYCLES
            case "LDL" | "STL":
                step.nominal_bytes = 32 * instruction.lane_bytes
                step.wavefronts = step.nominal_bytes / 128
            case _ if name in _SHARED_CYCLES:
                step.wavefronts = instruction.lane_registers
            case _ if name in GLOBAL:
                step.traffic = GLOBAL[name]
                step.nominal_bytes = 32 * instruction.lane_bytes
                if step.traffic == "atomic":
                    step.elements = step.nominal_bytes // (2 if "F16" in opcode else 4)
            case _ if product := _GROUP_PRODUCT.match(opcode):
                columns = int(product[1])
                is_shared = operands[1].startswith("gdesc")
                # A warp group reads B, and A if it is not in registers: its four warps share the wavefronts.
                step.effect = "group product"
                step.busy = columns / 2
                step.latency = _GROUP_PRODUCT_CYCLES
                step.wavefronts = (columns + 64 * is_shared) * 32 / 128 / 4
                step.pending = int("gsb0" in last)
                # The accumulator is ready when the warp group's last product ends: see the wait.
                first = 0 if is_shared else int(operands[1][1:])
                reads = [] if is_shared else [f"R{first + offset}" for offset in range(4)]
                writes = []
            case _ if pipe == "tensor":
                cycles = next((c for start, c in _PRODUCTS.items() if opcode.startswith(start)), 4)
                step.effect = "product"
                step.busy = cycles / WARP_PRODUCT_RATE
                step.latency = step.busy + _WARP_PRODUCT_CYCLES
        step.reads = number(reads)
        step.writes = number(writes)
        steps.append(step)
    return tuple(steps)
