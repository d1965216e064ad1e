"""The constants of any GPU of the table. H100 and H200 were timed; other GPUs are scaled by their datasheets.

Sources: CUDA C++ Programming Guide 13.0, "Arithmetic Instructions", for the results per cycle and SM;
`tilescope.declare.gpus` for the rest.
Omitted: latencies other than the H100's.
"""

from collections.abc import Sequence
from dataclasses import replace

from tilescope.captures.listings import UnsupportedOperation
from tilescope.declare.gpus import GPUS, Gpu, gpu_or_slice
from tilescope.sass.listing import Instruction
from tilescope.timing.constants import H100, H200, Constants
from tilescope.timing.steps import PIPES, WARP_PRODUCT_RATE, Step

_MEASURED = GPUS["H100"]
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
    (12, 0): (128, 2),
}
# Results per cycle of a quarter of an SM's pipe, if an instruction of 32 lanes occupies it for one cycle.
_QUARTER_RESULTS = 128


def find_gpu(name: str, sms: int, capability: tuple[int, int]) -> Gpu:
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
        return CONSTANTS[gpu.name]
    is_hopper = gpu.compute_capability == _MEASURED.compute_capability
    clock = H100.clock_ghz if is_hopper else gpu.clock_mhz / 1e3
    matrix_clock = H100.matrix_clock_ghz if is_hopper else clock
    share = gpu.sms / _MEASURED.sms
    constants = replace(
        H100,
        clock_ghz=clock,
        matrix_clock_ghz=matrix_clock,
        kept_bytes=H100.kept_bytes * gpu.l2_bytes / _MEASURED.l2_bytes,
        l2_tbps=H100.l2_tbps * share * clock / H100.clock_ghz,
        atomics_per_cycle=H100.atomics_per_cycle * share,
    )
    assumed = f"{gpu.name}: nothing was measured. Rates are the datasheet's, latencies an H100's."
    return constants, assumed


def scale_steps(
    steps: Sequence[Step], instructions: Sequence[Instruction], gpu: Gpu
) -> Sequence[Step]:
    """Return the steps with the rates of another architecture.

    Raises:
        UnsupportedOperation: the rate of a matrix instruction is unknown.
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
    scaled = []
    for step, instruction in zip(steps, instructions, strict=True):
        is_known = "float32" in gpu.matrix_tflops and instruction.name == "HMMA"
        if step.pipe == tensor and not is_known:
            raise UnsupportedOperation(
                f"The rate of {instruction.opcode} on {gpu.name} is unknown; known: HMMA since compute capability 8.0."
            )
        factor = factors[step.pipe]
        scaled.append(replace(step, busy=step.busy * factor))
    return scaled


def _products_per_cycle(gpu: Gpu) -> float:
    """Return the float16 multiplications per cycle and SM."""
    return gpu.matrix_tflops["float16"] * 1e6 / 2 / gpu.sms / gpu.clock_mhz
