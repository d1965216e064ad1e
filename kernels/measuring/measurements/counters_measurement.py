"""What a launch asks of memory, counted: one launch under Nsight Compute, joined to what the compiler made.

Each instruction that ncu counted is joined to its source line through the line table of the same SASS.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from typing import Any

from kernels.compiling.global_memory import match_instructions
from kernels.compiling.listing import instructions
from kernels.equivalence import same_launch
from kernels.experiment import Experiment
from kernels.lanes import MemoryOperation
from kernels.measuring import ncu
from kernels.measuring.measurements.measurement import Incomplete, Measurement
from kernels.measuring.stages import Stages
from kernels.results import Compiled, Counters, Device, OpCounts, SharedCounts
from kernels.results.records import RecordForm

# What is asked of the whole launch, by the names of ncu 2025.3 on compute capability 9.0.
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

# What is asked of one instruction: columns of ncu's source page. Those on global memory are left out of the page where
# the kernel has no instruction on it.
_EXECUTED = "Instructions Executed"
_GLOBAL = ("L1 Tag Requests Global", "L2 Theoretical Sectors Global", "L2 Theoretical Sectors Global Ideal")
_SHARED = ("L1 Wavefronts Shared", "L1 Wavefronts Shared Ideal")

# Opcodes on global memory (by lanes), and on shared memory (by lanes).
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
            return stages.count(counted, experiment, compiled)
        except ncu.CountingFailed as error:
            return Incomplete(error.failure, str(error))


COUNTERS = CountersMeasurement()


def counted(
    experiment: Experiment,
    compiled: Compiled,
    *,
    cache: str,
    started: Callable[[ncu.Counting], None] = lambda _: None,
) -> Counters:
    """Count one launch.

    Raises:
        CountingFailed: as `ncu.count` and `counters` do.
    """
    ((launch, rows),) = ncu.count([experiment], METRICS, cache, started)
    return counters(experiment, compiled, launch, rows)


def counters(
    experiment: Experiment, compiled: Compiled, launch: dict[str, float], rows: list[dict[str, str]]
) -> Counters:
    """What `ncu.count` found of one launch, joined to what the compiler made.

    Raises:
        CountingFailed: where the two don't fit together.
    """
    ops, shared = of_operations(rows, compiled.sass, compiled.operations)
    device = Device("cuda", compiled.gpu, metadata.version("torch"), compiled.triton)
    return Counters(experiment, "cuda", device, ncu.tool(), compiled.facts, launch, ops, shared)


def of_operations(
    rows: list[dict[str, str]], sass: str, operations: tuple[MemoryOperation, ...]
) -> tuple[tuple[OpCounts, ...], tuple[SharedCounts, ...]]:
    """Sum the instructions by operation and opcode, and those on shared memory by source line and opcode.

    Args:
        rows: one an instruction, as `of_instructions` gives them.
        sass: the same code with its line table.

    Raises:
        CountingFailed: where ncu's code is not this code, or a column is missing.
    """
    listed = instructions(sass)
    if [opcode for opcode, _ in listed] != [opcode_of(row["Source"]) for row in rows]:
        raise ncu.CountingFailed("ncu_failed", "ncu counted other code than was compiled.")
    ops: dict[tuple[int, str], list[int]] = {}
    shared: dict[tuple[tuple[str, int], str], list[int]] = {}
    numbers = match_instructions(listed, operations)
    for (opcode, location), number, row in zip(listed, numbers, rows, strict=True):
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
    values = [int(ncu.number(row.get(column), column)) for column in (_EXECUTED, *columns)]
    sums[key] = [a + b for a, b in zip(sums.get(key, [0] * len(values)), values, strict=True)]


def opcode_of(text: str) -> str:
    """The opcode of an instruction: "@!P1  LDG.E R0, …" → "LDG.E"."""
    words = text.split()
    return next((word.rstrip(";") for word in words if not word.startswith("@")), "")
