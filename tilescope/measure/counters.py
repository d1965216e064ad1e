"""Count a launch's memory traffic with Nsight Compute, and join the counts to the compiled kernel.

`ncu` runs in a separate process. Counts per launch come from hardware counters, and counts per instruction from ncu's
source counters. The line table of the same SASS maps each counted instruction to its source line. ncu profiles the
command `python -m tilescope.measure.counters FILE REPEATS`, which launches the experiments of a JSON file.
"""

import csv
import dataclasses
import functools
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from tilescope.application import FOLDER, environment
from tilescope.declare.experiment import (
    Experiment,
    Json,
    from_json,
    launch_key,
    launch_of,
    resolve_gpu,
)
from tilescope.declare.gpus import this_gpu
from tilescope.declare.spec import Kernel
from tilescope.evaluate.declared_instructions import match_instructions
from tilescope.evaluate.instructions import CompiledFacts, Instruction
from tilescope.inside.report import WAVEFRONT_COUNTERS
from tilescope.measure.measurement import Measurement, Stages
from tilescope.measure.pool import Stopped
from tilescope.results import Compiled, Counters, Device, Failure, OpCounts, SharedCounts, records
from tilescope.sass.listing import parse
from tilescope.sass.opcodes import OPCODES

# Seconds that ncu may take for the first experiment, including imports and replay passes, and for each further one.
DEADLINE_S = 120.0
EACH_MORE_S = 5.0

# Metrics of a launch: our name → ncu's name (ncu 2025.3, compute capability 9.0).
METRICS = {
    **{
        f"{op}_{what}": f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}.sum"
        for op in ("ld", "st", "red", "atom")
        for what in ("requests", "sectors")
    },
    "tma_ld_sectors": "l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum",
    "tma_st_sectors": "l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum",
    "instructions_executed": "smsp__inst_executed.sum",
    # ncu computes these from the addresses of each executed instruction
    **{
        name: f"smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{OPCODES[opcode].counter}.sum"
        for name, opcode in WAVEFRONT_COUNTERS.items()
    },
    "gmma_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_gmma.sum",
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

# Prefixes of the metrics that describe the kernel, not its traffic.
_OF_KERNEL = ("registers", "shared_bytes", "limit", "occupancy")

# Columns of ncu's source page. The page omits the global columns if no instruction accesses global memory.
_EXECUTED = "Instructions Executed"
_SECTORS = "L2 Theoretical Sectors Global"
_GLOBAL = (_EXECUTED, "L1 Tag Requests Global", _SECTORS, f"{_SECTORS} Ideal")
_SHARED = (_EXECUTED, "L1 Wavefronts Shared", "L1 Wavefronts Shared Ideal")

_NUMBER = re.compile(r"[\d,]+(\.\d+)?(e[+-]?\d+)?")

# One launch's metrics by our names, and ncu's row for each of its instructions.
NcuCounts = tuple[dict[str, float], list[dict[str, str]]]

Cancel = Callable[[], None]


class CountingFailed(Stopped):
    """Nsight Compute returned no usable counts. `kind` is machine-readable; the message is human-readable."""

    def __init__(self, message: str, kind: str = "ncu_failed") -> None:
        super().__init__(Failure("launch", kind, message))


def count(
    experiments: Sequence[Experiment],
    metrics: Mapping[str, str],
    cache: str,
    on_start: Callable[[Cancel], None] = lambda _: None,
    repeats: int = 1,
    by_instruction: bool = True,
    deadline_s: float = DEADLINE_S,
) -> list[NcuCounts]:
    """Launch each experiment `repeats` times under ncu, with flushed caches. Return the counts per repeat, in order.

    If a kernel needs a first launch, the traffic of both launches is summed, and the first launch's rows come first.

    Args:
        metrics: our name → ncu's name.
        cache: the directory of compiled kernels.
        on_start: called with a function that kills ncu, so that another thread can cancel it.
        by_instruction: whether to count each instruction as well; otherwise the lists of rows are empty.
        deadline_s: seconds after which ncu is killed, plus EACH_MORE_S for each further experiment.

    Raises:
        CountingFailed: if ncu is missing, lacks permission, is too slow, or reports incomplete counts.
    """
    ncu = _find_ncu()
    launches_here = (launch_of(each, resolve_gpu(each, this_gpu())) for each in experiments)
    kernels = [kernel.launches(launch) for kernel, launch in launches_here]
    deadline_s += EACH_MORE_S * (len(experiments) - 1)
    run = functools.partial(_run, cache=cache, deadline_s=deadline_s, on_start=on_start)
    with tempfile.TemporaryDirectory() as directory:
        report = str(Path(directory, "report.ncu-rep"))
        file = Path(directory, "experiments.json")
        payloads = [experiment.to_json() for experiment in experiments]
        file.write_text(json.dumps(payloads), encoding="utf-8")
        profile = _profile_command(ncu, metrics, itertools.chain(*kernels), by_instruction)
        launch_all = [sys.executable, "-m", "tilescope.measure.counters", str(file), str(repeats)]
        run([*profile, "--export", report, *launch_all])
        page = [ncu, "--import", report, "--csv", "--page"]
        launches = parse_launches(run([*page, "raw", "--print-units", "base"]), metrics)
        rows: list[list[dict[str, str]]] = [[] for _ in launches]
        if by_instruction:
            rows = parse_instructions(run([*page, "source"]))
    expected = sum(map(len, kernels)) * repeats
    for counted in (launches, rows):
        if len(counted) != expected:
            raise CountingFailed(f"ncu counted {len(counted)} of {expected} launches.")
    counted_launches = zip(launches, rows, strict=True)
    return [
        _add_up(list(itertools.islice(counted_launches, len(each))))
        for each in kernels
        for _ in range(repeats)
    ]


def _find_ncu() -> str:
    ncu = shutil.which("ncu")
    if ncu is None:
        missing = "ncu (Nsight Compute) is not installed on this machine, so no counters can be collected."
        fix = "Install it (it comes with the CUDA toolkit) and put it on the PATH."
        raise CountingFailed(f"{missing} {fix}", "no_ncu")
    return ncu


def _profile_command(
    ncu: str, metrics: Mapping[str, str], kernels: Iterable[Kernel], by_instruction: bool
) -> list[str]:
    """Return the start of a command that profiles kernels."""
    names = sorted({kernel.jitted.fn.__name__ for kernel in kernels})
    command = [ncu, "--clock-control", "none", "--cache-control", "all"]
    command += ["--metrics", ",".join(metrics.values())]
    command += ["--kernel-name", f"regex:^({'|'.join(names)})$"]
    return [*command, "--section", "SourceCounters"] if by_instruction else command


def _add_up(counts: Sequence[NcuCounts]) -> NcuCounts:
    """Sum the traffic of a kernel and its first launch, if any. Registers and limits are the kernel's own."""
    *_, (own, _) = counts
    traffic = {
        name: sum(launch[name] for launch, _ in counts)
        for name in own
        if not name.startswith(_OF_KERNEL)
    }
    return {**own, **traffic}, [row for _, rows in counts for row in rows]


@functools.cache
def tool() -> str:
    """Return the profiler and its version: "Nsight Compute 2025.3.1.0"."""
    command = [shutil.which("ncu") or "ncu", "--version"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    version = next(line.split()[1] for line in text.splitlines() if line.startswith("Version "))
    return f"Nsight Compute {version}"


def _run(
    command: list[str], cache: str, deadline_s: float, on_start: Callable[[Cancel], None]
) -> str:
    """Run a command in its own process session, so that a kill reaches its children. Return its output."""
    variables = {**environment(FOLDER), "TRITON_CACHE_DIR": cache, "TRITON_INTERPRET": "0"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=variables,
        start_new_session=True,
    )

    def kill() -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    on_start(kill)
    try:
        printed, _ = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        kill()
        process.communicate()
        raise CountingFailed(
            f"ncu did not finish within {deadline_s:.0f} s and was killed.", "timeout"
        ) from None
    if "ERR_NVGPUCTRPERM" in printed:
        raise CountingFailed(
            "You don't have permission to read this GPU's performance counters. Ask an administrator to allow it (the "
            "driver's option NVreg_RestrictProfilingToAdminUsers=0), or run Tilescope as root: see "
            "https://developer.nvidia.com/ERR_NVGPUCTRPERM.",
            "ncu_denied",
        )
    if process.returncode:
        last = [line for line in printed.splitlines() if line.strip()][-1:] or ["nothing"]
        raise CountingFailed(f"ncu exited with status {process.returncode} and printed: {last[0]}")
    return printed


def parse_launches(page: str, metrics: Mapping[str, str]) -> list[dict[str, float]]:
    """Parse ncu's raw page. Return each launch's metrics by our names, in counts and bytes.

    Raises:
        CountingFailed: if a metric is missing, is not a number, or has a unit other than bytes.
    """
    start = page.find('"ID"')
    if start < 0:
        raise CountingFailed("ncu counted no launch.")
    units, *rows = csv.DictReader(page[start:].splitlines())
    for metric in metrics.values():
        size = (units.get(metric) or "").partition("/")[0]  # "byte" or "byte/block", never "Kbyte"
        if size != "byte" and ("bytes" in metric or "byte" in size):
            raise CountingFailed(
                f"ncu reported {metric} in {units.get(metric) or 'no unit'}, not in bytes."
            )
    return [{name: parse_count(row, metric) for name, metric in metrics.items()} for row in rows]


def parse_count(row: Mapping[str, str], column: str) -> float:
    """Parse one of ncu's numbers, such as 1,024.5.

    Raises:
        CountingFailed: if it is missing or not a number.
    """
    text = row.get(column) or ""
    if not _NUMBER.fullmatch(text):
        raise CountingFailed(f"ncu reported {text!r} for {column}, which is not a number.")
    return float(text.replace(",", ""))


def parse_instructions(page: str) -> list[list[dict[str, str]]]:
    """Parse ncu's source page. Return each launch's rows, one per instruction, in code order."""
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


def join_counts(experiment: Experiment, compiled: Compiled, counts: NcuCounts) -> Counters:
    """Join ncu's counts of a launch to the compiled kernel.

    Raises:
        CountingFailed: if ncu counted different code.
    """
    launch, rows = counts
    ops = tuple[OpCounts, ...]()
    shared = tuple[SharedCounts, ...]()
    number = 0
    for part in filter(None, (compiled.first, compiled)):
        own = part.operations[number:]
        end = len(parse(part.sass)) if part is compiled.first else None
        of_memory, of_shared = sum_instructions(rows[:end], part.sass, own)
        # An instruction that belongs to no declared operation keeps its negative number.
        ops += tuple(
            each
            if each.operation < 0
            else dataclasses.replace(each, operation=each.operation + number)
            for each in of_memory
        )
        shared = shared + of_shared
        number = len(own)
        rows = rows[end:] if end else rows
    device = Device("cuda", compiled.gpu, metadata.version("torch"), compiled.triton)
    facts = CompiledFacts(
        *(getattr(compiled, field.name) for field in dataclasses.fields(CompiledFacts))
    )
    return Counters(experiment, "cuda", device, tool(), facts, launch, ops, shared)


def sum_instructions(
    rows: list[dict[str, str]], sass: str, operations: tuple[Instruction, ...]
) -> tuple[tuple[OpCounts, ...], tuple[SharedCounts, ...]]:
    """Sum global-memory counts by operation and opcode, and shared-memory counts by source line and opcode.

    Args:
        rows: one per instruction, as `parse_instructions` returns them.
        sass: the same code with its line table.

    Raises:
        CountingFailed: if ncu's code differs from the SASS, or a column is missing.
    """
    code = parse(sass)
    # "@!P1  LDG.E R0, …" → "LDG.E"
    words = ((word for word in row["Source"].split() if not word.startswith("@")) for row in rows)
    if [each.opcode for each in code] != [next(row_words, "").rstrip(";") for row_words in words]:
        raise CountingFailed("The code that ncu counted differs from the compiled code.")
    ops = defaultdict[tuple[int, str], list[list[int]]](list)
    shared = defaultdict[tuple[tuple[str, int], str], list[list[int]]](list)
    for each, number, row in zip(code, match_instructions(code, operations), rows, strict=True):
        if each.traits.operation not in ("", "descriptor") and number is not None:
            ops[number, each.opcode].append(_counts(row, _GLOBAL))
        if each.traits.smem not in ("", "atomic") and row["Address Space"]:
            shared[each.source, each.opcode].append(_counts(row, _SHARED))
    return (
        tuple(OpCounts(*key, *map(sum, zip(*counts, strict=True))) for key, counts in ops.items()),
        tuple(
            SharedCounts(*key, *map(sum, zip(*counts, strict=True)))
            for key, counts in shared.items()
        ),
    )


def _counts(row: dict[str, str], columns: Sequence[str]) -> list[int]:
    return [int(parse_count(row, column)) for column in columns]


def measure_counters(experiment: Experiment, stages: Stages) -> Counters | Failure:
    (compiled,) = stages.compile_all(experiment)
    counters = stages.count(
        lambda **how: join_counts(experiment, compiled, count([experiment], METRICS, **how)[0])
    )
    if isinstance(counters, Failure):
        return stages.find_recording(COUNTERS, counters.message) or counters
    return counters


COUNTERS = Measurement(
    "counters",
    records.RecordForm("counters", Counters, key=launch_key, verb="Counted"),
    measure_counters,
    "Counters need the GPU itself: this machine has {this}, and no counters of this experiment on {gpu} are recorded.",
)


def _launch_all(payloads: list[Json], repeats: int) -> None:
    """Launch each experiment `repeats` times on this machine's GPU, one launch at a time."""
    import torch

    from tilescope.measure.run import prepare

    for payload in payloads:
        experiment = from_json(payload)
        prepared = prepare(experiment, resolve_gpu(experiment, this_gpu()))
        for _ in range(repeats):
            prepared.launch()
            torch.cuda.synchronize()


if __name__ == "__main__":
    _launch_all(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), int(sys.argv[2]))
