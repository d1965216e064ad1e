"""Count launches with Nsight Compute: `ncu` in a process of its own, its report read back instruction by instruction.

Counts of the whole launch come from the hardware's counters, counts of one instruction from ncu's source counters.
Each instruction is joined to its source line through the line table of the same SASS.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from kernels import discover
from kernels.compiled.global_memory import carried_out
from kernels.compiled.listing import instructions
from kernels.experiment import Experiment
from kernels.lanes import CompiledFacts, MemoryOperation
from kernels.results import Compiled, Counters, Device, Failure, OpCounts, SharedCounts

ROOT = Path(__file__).resolve().parents[2]

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
_PREFIXES = {"": 1, "K": 1_000, "M": 1_000_000, "G": 1_000_000_000, "T": 1_000_000_000_000}

# What is asked of one instruction: columns of ncu's source page. Those on global memory are left out of the page where
# the kernel has no instruction on it.
_EXECUTED = "Instructions Executed"
_GLOBAL = ("L1 Tag Requests Global", "L2 Theoretical Sectors Global", "L2 Theoretical Sectors Global Ideal")
_SHARED = ("L1 Wavefronts Shared", "L1 Wavefronts Shared Ideal")

# Opcodes on global memory (by lanes), and on shared memory (by lanes).
GLOBAL_OPCODES = ("LDG", "STG", "LDGSTS", "RED", "REDG", "ATOM", "ATOMG")
SHARED_OPCODES = ("LDS", "STS", "LDSM", "STSM", "LDGSTS")

# Seconds for one launch, imports and ncu's passes included; and for each more.
DEADLINE_S, EACH_MORE_S = 120.0, 5.0

_HELP = "https://developer.nvidia.com/ERR_NVGPUCTRPERM"


class CountingFailed(Exception):
    """Why there are no counts: `kind` for programs, the message for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def failure(self) -> Failure:
        return Failure("launch", self.kind, str(self))


class Counting:
    """A count under way, which can be ended."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def cancel(self) -> None:
        """Kill ncu, with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def count(
    experiments: Sequence[Experiment], cache: str, started: Callable[[Counting], None] = lambda _: None
) -> list[tuple[dict[str, float], list[dict[str, str]]]]:
    """Launch each experiment once under ncu: what it says of the launch, and of each instruction, in order.

    Args:
        cache: the directory of compiled kernels.
        started: is given the count under way, so that somebody else can end it.

    Raises:
        CountingFailed: where ncu is missing, denied, too slow, or leaves something out.
    """
    with tempfile.TemporaryDirectory() as directory:
        report = _report(directory, experiments, METRICS, cache, 1, started, ("--section", "SourceCounters"))
        launches = of_launches(_page(report, "raw"), METRICS)
        pages = of_instructions(_page(report, "source"))
    _expect(len(experiments), launches, pages)
    return list(zip(launches, pages, strict=True))


def launched(
    experiments: Sequence[Experiment],
    metrics: Mapping[str, str],
    cache: str,
    repeats: int,
    started: Callable[[Counting], None],
) -> list[dict[str, float]]:
    """Launch each experiment `repeats` times under ncu: what it says of each launch, by the names of `metrics`.

    Raises:
        CountingFailed: as `count` does.
    """
    with tempfile.TemporaryDirectory() as directory:
        report = _report(directory, experiments, metrics, cache, repeats, started)
        launches = of_launches(_page(report, "raw"), metrics)
    _expect(len(experiments) * repeats, launches)
    return launches


def _report(
    directory: str,
    experiments: Sequence[Experiment],
    metrics: Mapping[str, str],
    cache: str,
    repeats: int,
    started: Callable[[Counting], None],
    more: Sequence[str] = (),
) -> Path:
    """Count with ncu into a file. Caches are flushed before each launch."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise CountingFailed(
            "no_ncu",
            "Nsight Compute's ncu is not installed here, so nothing is counted. Install it (it comes with the CUDA "
            "toolkit) and put it on the PATH.",
        )
    names = {discover()[experiment.kernel].jitted.fn.__name__ for experiment in experiments}
    payloads, report = Path(directory, "experiments.json"), Path(directory, "report.ncu-rep")
    payloads.write_text(json.dumps([experiment.to_json() for experiment in experiments]), encoding="utf-8")
    command = [ncu, "--clock-control", "none", "--cache-control", "all", *more]
    command += ["--metrics", ",".join(metrics.values()), "--kernel-name", f"regex:^({'|'.join(sorted(names))})$"]
    command += ["--export", str(report), sys.executable, "-m", "kernels.runner.counted_launch"]
    command += [str(payloads), str(repeats)]
    _run(command, cache, DEADLINE_S + EACH_MORE_S * (len(experiments) - 1), started)
    return report


def _page(report: Path, page: str) -> str:
    return _run([str(shutil.which("ncu")), "--import", str(report), "--page", page, "--csv"])


def _expect(launches: int, *counted: Sequence[Any]) -> None:
    for found in counted:
        if len(found) != launches:
            raise CountingFailed("ncu_failed", f"{launches} launches were made, and ncu counted {len(found)} of them.")


def counters(
    experiment: Experiment, compiled: Compiled, launch: dict[str, float], rows: list[dict[str, str]]
) -> Counters:
    """What `count` found of one launch, joined to what the compiler had made.

    Raises:
        CountingFailed: where the two don't fit together.
    """
    ops, shared = of_operations(rows, compiled.sass, compiled.operations)
    device = Device("cuda", compiled.gpu, metadata.version("torch"), compiled.triton)
    facts = CompiledFacts.from_json(compiled.to_json())
    return Counters(experiment, "cuda", device, tool(), facts, launch, ops, shared)


@functools.cache
def tool() -> str:
    """What counts, with its version: "Nsight Compute 2025.3.1.0"."""
    said = subprocess.run(
        [shutil.which("ncu") or "ncu", "--version"], capture_output=True, text=True, check=True
    ).stdout
    version = next(line.split()[1] for line in said.splitlines() if line.startswith("Version "))
    return f"Nsight Compute {version}"


def _run(
    command: list[str],
    cache: str = "",
    deadline_s: float = DEADLINE_S,
    started: Callable[[Counting], None] = lambda _: None,
) -> str:
    """What a command prints; it has a session of its own, so that all of it can be killed."""
    environment = {**os.environ, "TRITON_CACHE_DIR": cache, "PYTHONPATH": _path()} if cache else None
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    counting = Counting(process)
    started(counting)
    try:
        printed, _ = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        counting.cancel()
        process.communicate()
        raise CountingFailed("timeout", f"Counting did not end within {deadline_s:.0f} s, so it was killed.") from None
    if "ERR_NVGPUCTRPERM" in printed:
        raise CountingFailed(
            "ncu_denied",
            "This machine does not let this user read the GPU's counters. Its administrator can allow it (the driver's "
            f"option NVreg_RestrictProfilingToAdminUsers=0), or run Tilescope as root: see {_HELP}.",
        )
    if process.returncode:
        said = [line for line in printed.splitlines() if line.strip()] or ["nothing"]
        raise CountingFailed("ncu_failed", f"ncu ended with status {process.returncode}; it said: {said[-1]}")
    return printed


def _path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def of_launches(page: str, metrics: Mapping[str, str] = METRICS) -> list[dict[str, float]]:
    """What ncu's raw page says of each launch, by our names, in counts and bytes.

    Raises:
        CountingFailed: where a metric is missing, or is no number.
    """
    start = page.find('"ID"')
    if start < 0:
        raise CountingFailed("ncu_failed", "ncu counted no launch.")
    units, *rows = csv.DictReader(page[start:].splitlines())
    return [
        {name: _number(row.get(metric), metric, units.get(metric, "")) for name, metric in metrics.items()}
        for row in rows
    ]


def _number(text: str | None, metric: str, unit: str = "") -> float:
    """A number of ncu's, which writes 1,024.5 with a unit of its own choice: "Kbyte", "byte/block"."""
    try:
        value = float((text or "").replace(",", ""))
        if value != value:
            raise ValueError
    except ValueError:
        raise CountingFailed("ncu_failed", f"ncu gave {text!r} for {metric}, which is no count.") from None
    size = unit.partition("/")[0]
    return value * _PREFIXES[size[: -len("byte")]] if size.endswith("byte") else value


def of_instructions(page: str) -> list[list[dict[str, str]]]:
    """The rows of ncu's source page, launch by launch: one an instruction, in the order of the code."""
    launches: list[list[dict[str, str]]] = []
    header: list[str] = []
    for row in csv.reader(page.splitlines()):
        if row and row[0] == "Kernel Name":
            launches.append([])
            header = []
        elif "Source" in row:
            header = row
        elif header and len(row) == len(header):
            launches[-1].append(dict(zip(header, row, strict=True)))
    return launches


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
        raise CountingFailed("ncu_failed", "ncu counted other code than was compiled.")
    ops: dict[tuple[int, str], list[int]] = {}
    shared: dict[tuple[tuple[str, int], str], list[int]] = {}
    numbers = carried_out(listed, operations)
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
    values = [int(_number(row.get(column), column)) for column in (_EXECUTED, *columns)]
    sums[key] = [a + b for a, b in zip(sums.get(key, [0] * len(values)), values, strict=True)]


def opcode_of(text: str) -> str:
    """The opcode of an instruction: "@!P1  LDG.E R0, …" → "LDG.E"."""
    words = text.split()
    return next((word.rstrip(";") for word in words if not word.startswith("@")), "")
