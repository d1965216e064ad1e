"""GPU properties that the timing model needs and the table in `tilescope.declare.gpus` lacks.

H100 and H200 were timed; other GPUs are scaled by their datasheets. The results per cycle and SM are those of the CUDA
C++ Programming Guide 13.0, "Arithmetic Instructions".
Omitted: latencies other than the H100's.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilescope.captures.listings import UnsupportedOperation
from tilescope.declare.gpus import GPUS, Gpu, gpu_or_slice
from tilescope.evaluate.sectors import LINE_BYTES
from tilescope.sass.instructions import Instruction
from tilescope.timing.steps import ASYNC_PRODUCT, PIPES, WARP_PRODUCT_RATE, Step
from tilescope.ttgir.parser import parse_ttgir

_ASYNC_PRODUCTS = ("ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled")
# !ttg.memdesc<128x64xf16, #shared, #smem>
_OPERAND = re.compile(r"memdesc<(?:\d+x)*(\d+)x(\d+)x([a-z]+)(\d+)")
# Rates relative to that of 16-bit elements.
_RATES = {"UTCHMMA": 1, "UTCIMMA": 2, "UTCQMMA": 2, "UTCOMMA": 4}
_QUARTERS = 4


@dataclass(frozen=True)
class Constants:
    """Measured properties of a GPU. Cycles are cycles of an SM.

    Attributes:
        gpu: its row of the table.
        launch_us: time between two events around an empty kernel.
        start_ns: time that the GPU needs to start one program.
        start_cycles: from the end of a program to the first instruction of the next in its slot.
        clock_ghz: without matrix instructions.
        matrix_clock_ghz: with matrix instructions.
        matrix_clock_activity, matrix_clock_drop_ghz: the clock falls when tensor cores and ports to the L2 draw power.
            If the sum of the fractions of time in which they are busy exceeds the first value, the clock falls by
            the second one times the excess.
        dram_share: fraction of the datasheet's bandwidth that reads achieve.
        turnaround: additional time per byte, relative to a read, if as many bytes are read as written.
        kept_bytes: written bytes that remain in the L2 when the launch ends.
        l2_tbps: rate at which the L2 serves all SMs.
        shared_requests: fraction of requests that the crossbar merges if programs run in lockstep (one per SM).
        port_bytes: bytes per cycle that an SM receives from the L2.
        l2_cycles, dram_cycles: latencies of loads.
        drift: how far SMs drift apart if the L2 or DRAM is not busy: 0 if all load at once, 1 if at random times.
        queue_cycles: service time of a queued load.
        barrier_cycles: from the last warp's arrival until all warps continue.
        atomic_cycles: for which the atomic update of a sector occupies an L2 slice. Measured on an H200: 1.6 for one of
            its words, 1.7 for all words of 32 or 16 bits, and 2.5 for all words of 64 bits.
        matrix_issue_cycles: additional cycles per instruction issued while the tensor core uses the register file.
    """

    gpu: Gpu
    launch_us: float
    start_ns: float
    start_cycles: float
    clock_ghz: float
    matrix_clock_ghz: float
    matrix_clock_activity: float
    matrix_clock_drop_ghz: float
    dram_share: float
    turnaround: float
    kept_bytes: float
    l2_tbps: float
    shared_requests: float
    port_bytes: float
    l2_cycles: float
    dram_cycles: float
    drift: float
    queue_cycles: float
    barrier_cycles: float
    atomic_cycles: float
    matrix_issue_cycles: float


H100 = Constants(
    gpu=GPUS["H100"],
    launch_us=3.8,
    start_ns=0.6,
    start_cycles=290,
    clock_ghz=1.98,
    matrix_clock_ghz=1.82,
    matrix_clock_activity=0.72,
    matrix_clock_drop_ghz=0.30,
    dram_share=0.94,
    turnaround=0.28,
    kept_bytes=20e6,
    l2_tbps=7.7,
    shared_requests=0.6,
    port_bytes=60,
    l2_cycles=286,
    dram_cycles=650,
    drift=0.3,
    queue_cycles=330,
    barrier_cycles=55,
    atomic_cycles=1.7,
    matrix_issue_cycles=2.3,
)

# The SMs and their constants are the H100's. Microbenchmarks gave the others: an empty kernel between two events, and
# the slope of the time to read 0.5 and 1 GiB (DRAM) and 4 MB 64 times (L2). The same fraction of the L2 keeps written
# bytes.
H200 = replace(H100, gpu=GPUS["H200"], launch_us=3.4, dram_share=0.92, kept_bytes=24e6, l2_tbps=9.1)

_MEASURED = H100.gpu
# The constants of GPUs on which launches were timed, and what is assumed about them.
CONSTANTS = {
    "H100": (H100, ""),
    "H200": (H200, "H200: bandwidths were measured; latencies are the H100's."),
}
# Results per cycle and SM of float32 and float64 arithmetic, by compute capability.
RESULTS = {
    (7, 5): (64, 2),
    (8, 0): (64, 32),
    (8, 6): (128, 2),
    (8, 9): (128, 2),
    (9, 0): (128, 64),
    (10, 0): (128, 64),
    (10, 3): (128, 2),
    (12, 0): (128, 2),
    (12, 1): (128, 2),
}
# Results per cycle of a quarter of an SM's pipe, if an instruction of 32 lanes occupies it for one cycle.
_QUARTER_RESULTS = 128


def find_rated_gpu(name: str, sms: int, capability: tuple[int, int]) -> Gpu:
    """Return a GPU by its name.

    Raises:
        UnsupportedOperation: the rates of the GPU are unknown.
    """
    try:
        gpu = gpu_or_slice(name, sms, capability)
    except ValueError as error:
        raise UnsupportedOperation(str(error)) from error
    if not gpu.dram_gbps or not gpu.clock_mhz:
        raise UnsupportedOperation(
            f"The DRAM bandwidth and the clock of {name} are unknown; known GPUs: {', '.join(GPUS)}."
        )
    return gpu


def find_constants(gpu: Gpu) -> tuple[Constants, str]:
    """Return the constants of a GPU, and which of them are assumed; "" if all are measured."""
    if gpu.name in CONSTANTS:
        constants, assumed = CONSTANTS[gpu.name]
        return replace(constants, gpu=gpu), assumed
    is_hopper = gpu.compute_capability == _MEASURED.compute_capability
    clock = H100.clock_ghz if is_hopper else gpu.clock_mhz / 1e3
    matrix_clock = H100.matrix_clock_ghz if is_hopper else clock
    share = gpu.sms / _MEASURED.sms
    constants = replace(
        H100,
        gpu=gpu,
        clock_ghz=clock,
        matrix_clock_ghz=matrix_clock,
        kept_bytes=H100.kept_bytes * gpu.l2_bytes / _MEASURED.l2_bytes,
        l2_tbps=H100.l2_tbps * share * clock / H100.clock_ghz,
        atomic_cycles=H100.atomic_cycles / share,
        # Products that one thread issues do not use the register file.
        matrix_issue_cycles=0.0 if gpu.has_tensor_memory else H100.matrix_issue_cycles,
    )
    assumed = (
        f"{gpu.name}: no measurements on this GPU. Its rates are assumed from the datasheet; the L2's rate per SM and "
        "cycle and all latencies are assumed to be an H100's. Error ranges come from launches on an H100 and an H200."
    )
    return constants, assumed


def scale_steps(
    steps: Sequence[Step], instructions: Sequence[Instruction], gpu: Gpu, ttgir: str, warps: int
) -> Sequence[Step]:
    """Return the steps with the rates of another architecture.

    Args:
        warps: that share the executions of a product that one thread issues, because an average warp is simulated.

    Raises:
        UnsupportedOperation: the rate of a matrix instruction, or the size of its product, is unknown.
    """
    if gpu.compute_capability == _MEASURED.compute_capability:
        return steps
    single, double = RESULTS[gpu.compute_capability]
    factors = dict.fromkeys(range(len(PIPES)), 1.0)
    factors[PIPES.index("fma")] = _QUARTER_RESULTS / single
    factors[PIPES.index("fp64")] = RESULTS[_MEASURED.compute_capability][1] / double
    tensor = PIPES.index("tensor")
    # Only on compute capability 9.0 do products of a warp run below the full rate.
    factors[tensor] = WARP_PRODUCT_RATE * _products_per_cycle(_MEASURED)
    if "float32" in gpu.matrix_tflops:
        factors[tensor] /= _products_per_cycle(gpu)
    pairs = list(zip(steps, instructions, strict=True))
    counts = Counter(each.source for step, each in pairs if step.effect == ASYNC_PRODUCT)
    scaled = []
    for step, instruction in pairs:
        if step.effect == ASYNC_PRODUCT:
            shares = counts[instruction.source] * warps
            scaled.append(_add_products(step, instruction, shares, gpu, ttgir))
            continue
        is_known = "float32" in gpu.matrix_tflops and instruction.name == "HMMA"
        if step.pipe == tensor and not is_known:
            raise UnsupportedOperation(
                f"The rate of {instruction.opcode} on {gpu.name} is unknown; known: HMMA since compute capability 8.0."
            )
        factor = factors[step.pipe]
        scaled.append(replace(step, busy=step.busy * factor))
    return scaled


def _add_products(step: Step, instruction: Instruction, shares: int, gpu: Gpu, ttgir: str) -> Step:
    """Return a step with the cycles and wavefronts of products that one thread issues for its whole program (tcgen05).

    Nothing was measured: tensor cores are assumed to reach the datasheet's rates, unless reading the operands from
    shared memory takes longer, at 128 bytes per cycle. (SemiAnalysis, "Dissecting Nvidia Blackwell", 2026, measured
    both: products with fewer than 128 columns are limited by shared memory.)

    Args:
        shares: parts into which the products of the source line are divided.
    """
    products = 0
    operand_bytes = 0.0
    dtype = "float16"
    for op in parse_ttgir(ttgir).walk():
        if op.name in _ASYNC_PRODUCTS and op.source == instruction.source:
            a, b, *_ = _OPERAND.findall(op.text)
            rows, inner, columns = int(a[0]), int(a[1]), int(b[1])
            products += rows * inner * columns
            operand_bytes += inner * (rows * int(a[3]) + columns * int(b[3])) / 8
            if a[2:] == ("f", "32"):
                dtype = "float32"
    rate = gpu.matrix_rate(dtype) * _RATES[instruction.name]
    if not products or not rate:
        raise UnsupportedOperation(
            f"The size or the rate of {instruction.name} on {gpu.name} is unknown."
        )
    return replace(
        step,
        busy=_QUARTERS * products / _products_per_cycle(gpu, rate) / shares,
        wavefronts=operand_bytes / LINE_BYTES / shares,
    )


def _products_per_cycle(gpu: Gpu, rate: float = 0.0) -> float:
    """Return the multiplications per cycle and SM, at a rate in TFLOP/s or the float16 rate."""
    return (rate or gpu.matrix_tflops["float16"]) * 1e6 / 2 / gpu.sms / gpu.clock_mhz
