"""The time that each resource needs for one config, and the longest of them: the order in which a sweep tries configs.

It composes the models of one launch (bounds, occupancy, schedule, reuse) with three that matter between configs: how
fast operands reach the matrix units from shared memory, how much of a load's latency the pipeline hides, and how evenly
tiles fill the SMs. Before a compile, registers and shared memory are estimated from the tile, and each input is taken
to be read from DRAM once. It is made to rank: of five tiles recorded at 14 shapes each on an H200, the one that it
names is within 1 % of the fastest everywhere (the L2's rate, the sustained rate and that of spills are from the same
file, so this shows no more than that they go together).

Left out: how resources get in each other's way beyond a norm, the epilogue, and what the compiler schedules badly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.compile_cost import LANES, MOST_REGISTERS, accumulator_registers, operands
from kernels.lanes import CompiledFacts
from kernels.results import Prediction
from kernels.spec import DTYPE_BYTES, Kernel, Launch
from visualize.predict import coalescing
from visualize.predict.bounds import SUSTAINED, arithmetic, bounds, l2_gbps, l2_pressure, writes_in_parts
from visualize.predict.occupancy import occupancy
from visualize.predict.reuse import asked_bytes, reuse
from visualize.predict.schedule import schedule
from visualize.predict.traffic import Operation

# Registers of a thread besides its part of the accumulator: 38 to 65 in compiled float16 products.
_OTHER_REGISTERS = 56

# Bytes per cycle that an SM reads from shared memory: 32 banks of 4 bytes (CUDA C++ Programming Guide 13.0).
_SHARED_BYTES_PER_CYCLE = 128

# On compute capability 9.0 four warps multiply 64 rows together, reading both operands from shared memory once for
# all. With fewer warps or rows older instructions are used, at a lower rate: assumed.
_GROUP_WARPS, _GROUP_ROWS, _OLDER_RATE = 4, 64, 0.62

# From a load's issue to its data through a busy L2: assumed.
_LATENCY_NS = 700.0

# Loads in flight, where they are staged through registers or there is one stage: less than one step's, assumed.
_UNPIPELINED = 0.8

# What spilled registers move per SM, once out and once in for each step of K: two launches of the same file of reuse
# that spill 296 bytes per thread.
_SPILLED_GBPS_PER_SM = 11.5

# Starting a launch, its first loads and its last stores: assumed.
_ENDS_MS = 0.004

# How resources add up: the exponent of the norm. An infinite one would take the longest alone.
_NORM = 6.0


@dataclass(frozen=True)
class _Taken:
    """What a program takes, compiled or estimated, and how many an SM then holds."""

    registers: int
    shared_bytes: int
    spilled_bytes: int
    held: int
    is_pipelined: bool


def predicted(kernel: Kernel, launch: Launch, compiled: CompiledFacts | None) -> Prediction | None:
    """Predict the time of one launch, in ms, by resource; None where not one program fits on an SM.

    Args:
        compiled: None before a compile.

    Raises:
        ConfigError: where the problem has too many tiles to schedule.
    """
    taken = _taken(kernel, launch, compiled)
    if not taken.held:
        return None
    memory = _roughly(kernel, launch) if compiled is None else _memory(kernel, launch, compiled, taken.held)
    found = memory | _on_chip(kernel, launch, taken)
    total = float(sum(ms**_NORM for ms in found.values())) ** (1 / _NORM) + _ENDS_MS
    return Prediction(total, max(found, key=lambda name: found[name]), tuple(found.items()))


def _taken(kernel: Kernel, launch: Launch, compiled: CompiledFacts | None) -> _Taken:
    """What the compiler says; or the tile's sums and its stages of operands."""
    config, gpu = launch.config, launch.gpu
    if compiled is not None:
        registers, shared, spilled = compiled.registers, compiled.shared_bytes, compiled.spilled_bytes
    else:
        registers = min(MOST_REGISTERS, accumulator_registers(kernel, launch) + _OTHER_REGISTERS)
        step = sum(access.elements for access in operands(kernel, launch)) * DTYPE_BYTES[launch.problem.dtype]
        shared, spilled = step * config.num_stages, 0
    fits = shared <= gpu.shared_bytes_per_program
    held = occupancy(gpu, config.num_warps, registers, shared).programs_per_sm if fits else 0
    staged = compiled is not None and any(operation.op == "load" for operation in compiled.operations)
    return _Taken(registers, shared, spilled, held, is_pipelined=not staged)


def _roughly(kernel: Kernel, launch: Launch) -> dict[str, float]:
    """DRAM, each tensor once, and the L2, without a schedule."""
    gpu, extents, size = launch.gpu, kernel.extents(launch), DTYPE_BYTES[launch.problem.dtype]
    asked = sum(
        math.prod(extents[index] for index in access.over) * access.elements * size
        for access in kernel.accesses(launch)
        if access.op in ("load", "descriptor")
    )
    found = {"L2": asked / l2_gbps(gpu) / 1e6}
    if gpu.dram_gbps:
        found["DRAM"] = kernel.family.minimal_bytes(launch.problem) / gpu.dram_gbps / 1e6
    return found


def _memory(kernel: Kernel, launch: Launch, compiled: CompiledFacts, held: int) -> dict[str, float]:
    """DRAM as the order of programs reuses it, the L2, and load and store units."""
    ideal = schedule(kernel, launch, held, "compiled")
    operations: Sequence[Operation] = ()
    if not compiled.unreadable:
        operations = coalescing.operations(kernel, launch, compiled.operations)
    asked = asked_bytes(kernel, launch, ideal)
    pressure = l2_pressure(bounds(kernel, launch, ideal, operations, 0.0, asked), operations)
    own = reuse(kernel, launch, ideal, pressure, writes_in_parts(operations))
    moved = own.read_bytes + own.write_bytes if own else float(kernel.family.minimal_bytes(launch.problem))
    needed = bounds(kernel, launch, ideal, operations, moved, asked)
    return {one.name: one.ms for one in needed if one.name in ("DRAM", "L2", "load and store")}


def _on_chip(kernel: Kernel, launch: Launch, taken: _Taken) -> dict[str, float]:
    """Matrix units, what feeds them, latency that is not hidden, and spilled registers, on the busiest SM."""
    gpu, config, extents = launch.gpu, launch.config, kernel.extents(launch)
    programs, tiles = kernel.programs(launch), _tiles(extents)
    each = -(-tiles // programs)
    busiest = each * -(-programs // gpu.sms)
    per_ms = gpu.clock_mhz * 1e3
    steps = max(1, extents.get("k", 1) // extents.get("slice", 1))
    hidden = max(config.num_stages - 1, _UNPIPELINED) if taken.is_pipelined else _UNPIPELINED
    rounds = each * -(-programs // (gpu.sms * taken.held))
    found = {"latency": rounds * steps * _LATENCY_NS / hidden / 1e6}
    if taken.spilled_bytes:
        spilled = 2 * taken.spilled_bytes * LANES * config.num_warps * steps * busiest
        found["spills"] = spilled / _SPILLED_GBPS_PER_SM / 1e6
    work = arithmetic(kernel, launch, gpu.clock_mhz)
    if work is not None:
        groups = _multiplies_in_groups(kernel, launch)
        padded = _padded(kernel, launch) * busiest * gpu.sms / tiles
        found["arithmetic"] = work.ms * padded / SUSTAINED / (1.0 if groups else _OLDER_RATE)
        found["shared memory"] = busiest * steps * _fed_bytes(kernel, launch, groups) / _SHARED_BYTES_PER_CYCLE / per_ms
    return found


def _tiles(extents: dict[str, int]) -> int:
    """Tiles of the output, times the slices that share one."""
    return extents["m"] * extents["n"] * extents.get("slice", 1)


def _multiplies_in_groups(kernel: Kernel, launch: Launch) -> bool:
    """Whether warps multiply in groups of four, with operands in shared memory."""
    rows, _ = kernel.output_tile(launch) or (0, 0)
    if launch.gpu.compute_capability != (9, 0):
        return True  # one rate, and one kind of instruction, for all
    return launch.config.num_warps % _GROUP_WARPS == 0 and rows >= _GROUP_ROWS


def _padded(kernel: Kernel, launch: Launch) -> float:
    """Products that are computed, over those that are asked for: tiles and steps reach past the edges."""
    extents, output = kernel.extents(launch), kernel.family.output(launch.problem)
    tile = kernel.output_tile(launch)
    if tile is None:
        return 1.0
    whole = math.prod(kernel.family.tensors(launch.problem)[output].shape)
    return extents["m"] * extents["n"] * math.prod(tile) / whole


def _fed_bytes(kernel: Kernel, launch: Launch, groups: bool) -> float:
    """Bytes that matrix units read from shared memory for one tile and one step of K."""
    tile, loads = kernel.output_tile(launch), operands(kernel, launch)
    if tile is None or not loads:
        return 0.0
    rows, columns = tile
    depth = loads[0].elements // rows
    warps = launch.config.num_warps
    if groups and launch.gpu.compute_capability == (9, 0):
        # Each 64 rows read all columns' operand; where there are fewer rows than groups, groups share the columns.
        passes = max(1, rows // _GROUP_ROWS)
        elements = passes * columns + rows * max(1, warps // _GROUP_WARPS // passes)
    else:
        across = 2 ** (int(math.log2(warps)) // 2)
        elements = rows * across + columns * (warps // across)
    return float(elements * depth * DTYPE_BYTES[launch.problem.dtype])
