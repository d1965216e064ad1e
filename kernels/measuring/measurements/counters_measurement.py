"""Count a launch's memory traffic with Nsight Compute, and join the counts to the compiled kernel.

The line table of the same SASS maps each counted instruction to its source line.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any

from kernels.compiling.global_memory import match_instructions
from kernels.compiling.listing import instructions
from kernels.experiment import Experiment, same_launch
from kernels.lanes import MemoryOperation
from kernels.measuring import ncu
from kernels.measuring.measurements.measurement import Incomplete, Measurement
from kernels.measuring.stages import Stages
from kernels.results import Compiled, Counters, Device, OpCounts, SharedCounts
from kernels.results.records import RecordForm

# Metrics of a launch, by their names in ncu 2025.3 on compute capability 9.0.
METRICS = {
    **{
        f"{op}_{what}": f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum"
        for op in ("ld", "st", "red", "atom")
        for what in ("requests", "sectors")
    },
    "tma_ld_sectors": "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum",
    "tma_st_sectors": "l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum",
    "shared_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "registers": "launch__registers_per_thread",
    "shared_bytes": "launch__shared_mem_per_block_dynamic",
    "limit_programs": "launch__occupancy_limit_blocks",
    "limit_registers": "launch__occupancy_limit_registers",
    "limit_shared": "launch__occupancy_limit_shared_mem",
    "limit_warps": "launch__occupancy_limit_warps",
    "occupancy_percent": "sm__maximum_warps_per_active_cycle_pct",
}

# Columns of ncu's source page. It omits the global ones if the kernel has no instruction on global memory.
_EXECUTED = "Instructions Executed"
_GLOBAL = ("L1 Tag Requests Global", "L2 Theoretical Sectors Global", "L2 Theoretical Sectors Global Ideal")
_SHARED = ("L1 Wavefronts Shared", "L1 Wavefronts Shared Ideal")

# Opcodes that lanes issue on global memory and on shared memory.
GLOBAL_OPCODES = ("LDG", "STG", "LDGSTS", "RED", "REDG", "ATOM", "ATOMG")
SHARED_OPCODES = ("LDS", "STS", "LDSM", "STSM", "LDGSTS")


class CountersMeasurement(Measurement[Counters]):
    name = "counters"
    form = RecordForm("counters", Counters, key=same_launch, verb="Counted")
    takes = "Counting takes the GPU itself"
    missing = "no counts of this experiment on {gpu} were recorded"

    def measure(self, experiment: Experiment, stages: Stages) -> Counters | Incomplete[Counters]:
        (compiled,) = stages.compiled(experiment)
        try:
            return stages.count(count_launch, experiment, compiled)
        except ncu.CountingFailed as error:
            return Incomplete(error.failure, str(error))


COUNTERS = CountersMeasurement()


def count_launch(
    experiment: Experiment,
    compiled: Compiled,
    *,
    cache: str,
    started: Callable[[ncu.NcuProcess], None] = lambda _: None,
) -> Counters:
    """Count one launch.

    Raises:
        CountingFailed: as `ncu.count` and `join_counts`.
    """
    (counts,) = ncu.count([experiment], METRICS, cache, started)
    return join_counts(experiment, compiled, counts)


def join_counts(experiment: Experiment, compiled: Compiled, counts: ncu.LaunchCounts) -> Counters:
    """Join ncu's counts of a launch to the compiled kernel.

    Raises:
        CountingFailed: if ncu counted other code.
    """
    launch, rows = counts
    ops, shared = sum_instructions(rows, compiled.sass, compiled.operations)
    device = Device("cuda", compiled.gpu, metadata.version("torch"), compiled.triton)
    return Counters(experiment, "cuda", device, ncu.tool(), compiled.facts, launch, ops, shared)


def sum_instructions(
    rows: list[dict[str, str]], sass: str, operations: tuple[MemoryOperation, ...]
) -> tuple[tuple[OpCounts, ...], tuple[SharedCounts, ...]]:
    """Sum counts by memory operation and opcode, and those on shared memory by source line and opcode.

    Args:
        rows: one per instruction, as from `ncu.parse_instructions`.
        sass: the same code with its line table.

    Raises:
        CountingFailed: if ncu's code differs from the SASS, or a column is missing.
    """
    listed = instructions(sass)
    # "@!P1  LDG.E R0, …" → "LDG.E"
    words = ((word for word in row["Source"].split() if not word.startswith("@")) for row in rows)
    if [opcode for opcode, _ in listed] != [next(row_words, "").rstrip(";") for row_words in words]:
        raise ncu.CountingFailed("ncu_failed", "ncu counted other code than was compiled.")
    ops: dict[tuple[int, str], list[int]] = {}
    shared: dict[tuple[tuple[str, int], str], list[int]] = {}
    for (opcode, location), number, row in zip(listed, match_instructions(listed, operations), rows, strict=True):
        kind = opcode.partition(".")[0]
        if kind in GLOBAL_OPCODES and number is not None:
            _add(ops, (number, opcode), row, _GLOBAL)
        if kind in SHARED_OPCODES and row["Address Space"]:
            _add(shared, (location[0][:2] if location else ("", 0), opcode), row, _SHARED)
    return (
        tuple(OpCounts(*key, *sums) for key, sums in ops.items()),
        tuple(SharedCounts(*key, *sums) for key, sums in shared.items()),
    )


def _add(sums: dict[Any, list[int]], key: Any, row: dict[str, str], columns: tuple[str, ...]) -> None:
    values = [int(ncu.parse_count(row.get(column), column)) for column in (_EXECUTED, *columns)]
    sums[key] = [a + b for a, b in zip(sums.get(key, [0] * len(values)), values, strict=True)]
