"""Products that one thread issues for its whole program: tcgen05, from compute capability 10.0 on.

The rates are the datasheets'. Nothing was measured: tensor cores are assumed to reach them, unless reading the operands
from shared memory takes longer, at 128 bytes per cycle. (SemiAnalysis, "Dissecting Nvidia Blackwell", 2026, measured
both: products with fewer than 128 columns are limited by shared memory.)
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tilescope.captures.listings import UnsupportedOperation
from tilescope.declare.gpus import Gpu
from tilescope.evaluate.sectors import LINE_BYTES
from tilescope.sass.instructions import Instruction
from tilescope.timing.steps import ASYNC_PRODUCT, Step
from tilescope.ttgir.parser import Source, parse_ttgir

_OPERATIONS = ("ttng.tc_gen5_mma", "ttng.tc_gen5_mma_scaled")
# !ttg.memdesc<128x64xf16, #shared, #smem>
_OPERAND = re.compile(r"memdesc<((?:\d+x)+)(\w+)")
# Rates relative to that of 16-bit elements.
_RATES = {"UTCHMMA": 1, "UTCIMMA": 2, "UTCQMMA": 2, "UTCOMMA": 4}
_QUARTERS = 4


def add_products(
    steps: Sequence[Step], instructions: Sequence[Instruction], ttgir: str, gpu: Gpu, warps: int
) -> list[Step]:
    """Return the steps with the cycles and wavefronts of these products.

    The operations of a source line are divided equally among its instructions. An instruction is divided among warps,
    because an average warp is simulated.

    Args:
        warps: that share the executions of an instruction.

    Raises:
        UnsupportedOperation: the size of a product, or its rate, is unknown.
    """
    numbers = [number for number, step in enumerate(steps) if step.effect == ASYNC_PRODUCT]
    if not numbers:
        return [*steps]
    counts = Counter(instructions[number].source for number in numbers)
    totals = {source: _sum_products(ttgir, source) for source in counts}
    changed = [*steps]
    for number in numbers:
        name, source = instructions[number].name, instructions[number].source
        products, operand_bytes, is_tf32 = totals[source]
        rate = gpu.matrix_rate("float32" if is_tf32 else "float16") * _RATES[name]
        if not products or not rate:
            raise UnsupportedOperation(f"The size or the rate of {name} on {gpu.name} is unknown.")
        per_cycle = rate * 1e6 / 2 / gpu.sms / gpu.clock_mhz
        share = counts[source] * warps
        changed[number] = replace(
            steps[number],
            busy=_QUARTERS * products / per_cycle / share,
            wavefronts=operand_bytes / LINE_BYTES / share,
        )
    return changed


def _sum_products(ttgir: str, source: Source) -> tuple[int, float, bool]:
    """Return the multiplications of a source line, the bytes of their operands, and whether these are float32."""
    products = 0
    operand_bytes = 0.0
    is_tf32 = False
    for op in parse_ttgir(ttgir).walk():
        if op.name in _OPERATIONS and op.source == source:
            (a_shape, a_type), (b_shape, b_type), *_ = _OPERAND.findall(op.text)
            (rows, _), (inner, columns) = (
                [int(extent) for extent in shape.rstrip("x").split("x")[-2:]]
                for shape in (a_shape, b_shape)
            )
            products += rows * inner * columns
            for shape, kind in ((a_shape, a_type), (b_shape, b_type)):
                bits = int(re.findall(r"\d+", kind)[0])
                operand_bytes += math.prod(map(int, shape.rstrip("x").split("x"))) * bits / 8
            is_tf32 |= a_type == "f32"
    return products, operand_bytes, is_tf32
