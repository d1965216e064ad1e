"""Predict a config's launch time, by resource and combined. A sweep tries configs in this order.

The model combines the models of one launch (bounds, occupancy, schedule, reuse) with three effects that differ between
configs: how fast operands reach the matrix units from shared memory, how much load latency the pipeline hides, and how
evenly tiles fill the SMs. Before a compile, registers and shared memory are estimated from the tile, and DRAM reads
each input once. The model ranks configs. An H200 ran five tiles at each of 14 shapes; the model's choice is always
within 1 % of the fastest. (The L2's rate, the sustained rate and the spill rate come from the same recordings, so this
shows only that they are consistent.)

Omitted: interference between resources beyond a norm, the epilogue, and poor instruction schedules.
"""

import math

import numpy as np

from kernels.compiling.compile_cost import (
    LANES,
    MOST_REGISTERS,
    accumulator_registers,
    estimate_shared_bytes,
    panel_loads,
)
from kernels.gpus import occupancy
from kernels.instructions import CompiledFacts
from kernels.results import Prediction
from kernels.spec import DTYPE_BYTES, Kernel, Launch
from visualize.predict.bounds import SUSTAINED, arithmetic, bounds
from visualize.predict.reuse import DramTraffic
from visualize.predict.schedule import count_tiles

# Registers per thread besides the accumulator: 38 to 65 in compiled float16 products.
_OTHER_REGISTERS = 56

# Bytes per cycle that an SM reads from shared memory: 32 banks of 4 bytes (CUDA C++ Programming Guide 13.0).
_SHARED_BYTES_PER_CYCLE = 128

# On compute capability 9.0, four warps multiply 64 rows together and read both operands from shared memory only once.
# With fewer warps or rows, Triton uses older instructions, at an assumed lower rate.
_GROUP_WARPS = 4
_GROUP_ROWS = 64
_OLDER_RATE = 0.62

# Assumed latency of a load through a busy L2.
_LATENCY_NS = 700.0

# Assumed number of steps with loads in flight, if loads are staged through registers or num_stages is 1.
_UNPIPELINED = 0.8

# Bandwidth of spilled registers per SM, written and read once per step of K: two of the recorded launches spill 296
# bytes per thread.
_SPILLED_GBPS_PER_SM = 11.5

# Assumed time for launch, first loads and last stores.
ENDS_MS = 0.004

# The exponent of the norm that combines resources. An infinite exponent would select the longest time.
_NORM = 6.0


def predict_time(
    kernel: Kernel, launch: Launch, compiled: CompiledFacts | None
) -> Prediction | None:
    """Predict the time of one launch, in ms, and by resource; None if no program fits on an SM.

    Args:
        compiled: facts about the compiled kernel; None before a compile.

    Raises:
        ConfigError: the problem has too many tiles to schedule.
    """
    config = launch.config
    gpu = launch.gpu
    spilled_bytes = 0
    if compiled is not None:
        registers = compiled.registers
        shared = compiled.shared_bytes
        spilled_bytes = compiled.spilled_bytes
    else:
        registers = min(MOST_REGISTERS, accumulator_registers(kernel, launch) + _OTHER_REGISTERS)
        shared = estimate_shared_bytes(kernel, launch)
    programs_per_sm = occupancy(gpu, config.num_warps, registers, shared).programs_per_sm
    if shared > gpu.shared_bytes_per_program or not programs_per_sm:
        return None
    staged = compiled is not None and any(
        operation.op == "load" for operation in compiled.operations
    )
    loads_in_flight = max(0 if staged else config.num_stages - 1, _UNPIPELINED)
    times = _memory(kernel, launch, compiled)
    # SMs share the L2's bandwidth equally, so the SM with the most tiles sets the time.
    times["L2"] *= _busiest_tiles(kernel, launch) * gpu.sms / count_tiles(kernel, launch)
    times |= _on_chip(kernel, launch, programs_per_sm, loads_in_flight, spilled_bytes)
    total = (
        float(sum(ms**_NORM for ms in times.values())) ** (1 / _NORM)
        + ENDS_MS
        + kernel.reduction_ms(launch)
    )
    if first := kernel.first(launch):
        total += first.ms
    return Prediction(total, max(times, key=lambda name: times[name]), tuple(times.items()))


def _memory(kernel: Kernel, launch: Launch, compiled: CompiledFacts | None) -> dict[str, float]:
    """Return the times of the L2, of DRAM with reuse, and of the load and store units.

    Before a compile, each tensor is assumed to be read once, and no schedule is computed.
    """
    if compiled is None:
        extents = kernel.extents(launch)
        size = DTYPE_BYTES[launch.problem.dtype]
        loads = [
            access for access in kernel.accesses(launch) if access.op in ("load", "descriptor")
        ]
        asked = sum(
            math.prod(extents[index] for index in load.over) * load.elements * size
            for load in loads
        )
        limits = bounds(kernel, launch, (), kernel.family.minimal_bytes(launch.problem), asked)
    else:
        limits = DramTraffic(kernel, launch, compiled).bounds
    return {
        bound.name: bound.ms for bound in limits if bound.name in ("DRAM", "L2", "load and store")
    }


def _busiest_tiles(kernel: Kernel, launch: Launch) -> int:
    """Return the number of tiles that the SM with the most tiles computes."""
    programs = kernel.programs(launch)
    return -(-count_tiles(kernel, launch) // programs) * -(-programs // launch.gpu.sms)


def _on_chip(
    kernel: Kernel, launch: Launch, programs_per_sm: int, loads_in_flight: float, spilled_bytes: int
) -> dict[str, float]:
    """Return the busiest SM's times: exposed latency, spills, matrix units and their shared-memory operands."""
    gpu = launch.gpu
    warps = launch.config.num_warps
    extents = kernel.extents(launch)
    tiles = count_tiles(kernel, launch)
    busiest = _busiest_tiles(kernel, launch)
    steps = max(1, extents.get("k", 1) // extents.get("slice", 1))
    programs = kernel.programs(launch)
    rounds = -(-tiles // programs) * -(-programs // (gpu.sms * programs_per_sm))
    times = {"latency": rounds * steps * _LATENCY_NS / loads_in_flight / 1e6}
    if spilled_bytes:
        times["spills"] = (
            2 * spilled_bytes * LANES * warps * steps * busiest / _SPILLED_GBPS_PER_SM / 1e6
        )
    work = arithmetic(kernel, launch, gpu.clock_mhz)
    tile = kernel.output_tile(launch)
    if work is None:
        return times
    rows, columns = tile or (0, 0)
    is_hopper = gpu.compute_capability == (9, 0)
    in_groups = not is_hopper or (warps % _GROUP_WARPS == 0 and rows >= _GROUP_ROWS)
    # Tiles and steps extend past the edges, where they compute unused products.
    output = math.prod(
        kernel.family.tensors(launch.problem)[kernel.family.output(launch.problem)].shape
    )
    padded = extents["m"] * extents["n"] * rows * columns / output if tile else 1.0
    rate = SUSTAINED * (1.0 if in_groups else _OLDER_RATE)
    times["arithmetic"] = work.ms * padded * busiest * gpu.sms / tiles / rate
    loads = panel_loads(kernel, launch)
    if not tile or not loads:
        return times
    if in_groups and is_hopper:
        # Each block of 64 rows reads all columns of B. With fewer blocks than warp groups, groups divide the columns.
        passes = max(1, rows // _GROUP_ROWS)
        elements = passes * columns + rows * max(1, warps // _GROUP_WARPS // passes)
    else:
        across = 2 ** (int(math.log2(warps)) // 2)
        elements = rows * across + columns * (warps // across)
    step_bytes = elements * (loads[0].elements // rows) * DTYPE_BYTES[launch.problem.dtype]
    times["shared memory"] = (
        busiest * steps * step_bytes / _SHARED_BYTES_PER_CYCLE / gpu.clock_mhz / 1e3
    )
    return times


def expected_best(times_ms: np.ndarray) -> np.ndarray:
    """Return the expected fastest of the first 1, 2, 3 … configs of a random search over the same times.

    Of n times in ascending order, the i-th is the fastest of k draws with probability C(n − i, k − 1) / C(n, k).
    Omitted: configs that were never timed, such as configs predicted to be slow when a search ended early.

    Args:
        times_ms: (n,), in any order.

    Returns:
        (n,), in ms; the last one is the fastest of all.

    >>> expected_best(np.array([3.0, 1.0])).tolist()
    [2.0, 1.0]
    """
    count = len(times_ms)
    draws = np.arange(1, count + 1)
    chance = draws / max(count, 1)
    expected = np.zeros(count)
    for rest, time_ms in zip(range(count - 1, -1, -1), np.sort(times_ms), strict=True):
        expected += chance * time_ms
        chance = chance * np.maximum(rest + 1 - draws, 0) / max(rest, 1)
    return expected
