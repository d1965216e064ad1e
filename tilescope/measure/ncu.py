"""Run Nsight Compute: its metrics, its command line, and its pages of CSV."""

import csv
import functools
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from tilescope.inside.report import WAVEFRONT_COUNTERS
from tilescope.processes import FOLDER, environment
from tilescope.results import Failure, Stopped
from tilescope.sass.instructions import OPCODES

# Options that print the metrics of each launch as CSV.
RAW_PAGE = ("--csv", "--page", "raw", "--print-units", "base")

# Metrics of a launch: our name → ncu's name (ncu 2025.3, compute capability 9.0). A name ends with the unit, unless the
# metric is a number of registers, or a limit in programs per SM.
LAUNCH = {
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

# Sectors that SMs received, and sectors that the L2 looked up for SMs. The L2 looks up fewer sectors, because one reply
# can go to several SMs. Neither includes traffic between the L2's halves, which `lts__t_sectors.sum` counts twice.
L2 = {
    "received_sectors": "l1tex__m_xbar2l1tex_read_sectors.sum",
    "looked_up_sectors": "lts__t_sectors_srcunit_tex_op_read.sum",
}

METRICS = LAUNCH | L2

_NUMBER = re.compile(r"[\d,]+(\.\d+)?(e[+-]?\d+)?")

Cancel = Callable[[], None]


class CountingFailed(Stopped):
    """Nsight Compute returned no usable counts. `kind` is machine-readable; the message is human-readable."""

    def __init__(self, message: str, kind: str = "ncu_failed") -> None:
        super().__init__(Failure("launch", kind, message))


def find_ncu() -> str:
    """Return the path of ncu.

    Raises:
        CountingFailed: it is not installed.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise CountingFailed(
            "ncu (Nsight Compute) is not installed on this machine, so no counters can be collected. "
            "Install it (it comes with the CUDA toolkit) and put it on the PATH.",
            "no_ncu",
        )
    return ncu


def profile_command(metrics: Iterable[str], kernels: Iterable[str], *options: str) -> list[str]:
    """Return the start of a command that counts the metrics of each launch of some kernels.

    Args:
        metrics: keys of METRICS.
        options: further options of ncu.
    """
    names = "|".join(map(re.escape, sorted(set(kernels))))
    command = [find_ncu(), "--clock-control", "none", *options]
    command += ["--metrics", ",".join(METRICS[name] for name in metrics)]
    return [*command, "--kernel-name", f"regex:^({names})$"]


def run(
    command: list[str], cache: str, deadline_s: float, on_start: Callable[[Cancel], None]
) -> str:
    """Run ncu in its own process session, so that a kill reaches its children. Return its output.

    Args:
        cache: the directory of compiled kernels.
        on_start: called with a function that kills ncu, so that another thread can cancel it.
    """
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


@functools.cache
def tool() -> str:
    """Return the profiler and its version: "Nsight Compute 2025.3.1.0"."""
    command = [find_ncu(), "--version"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return "Nsight Compute " + re.findall(r"^Version (\S+)", text, re.MULTILINE)[0]


def read_rows(page: str) -> list[dict[str, str]]:
    """Return the rows of ncu's raw page: the units, and then each launch. A page without launches may have no rows."""
    return list(csv.DictReader(page[page.find('"ID"') :].splitlines()))


def parse_launches(page: str, metrics: Collection[str]) -> list[dict[str, float]]:
    """Parse ncu's raw page. Return each launch's metrics by our names, in counts and bytes.

    Raises:
        CountingFailed: if a metric is missing, is not a number, or has a unit other than bytes.
    """
    rows = read_rows(page)
    if not rows:
        raise CountingFailed("ncu counted no launch.")
    units, *launches = rows
    for metric in map(METRICS.__getitem__, metrics):
        size = (units.get(metric) or "").partition("/")[0]  # "byte" or "byte/block", never "Kbyte"
        if size != "byte" and ("bytes" in metric or "byte" in size):
            raise CountingFailed(
                f"ncu reported {metric} in {units.get(metric) or 'no unit'}, not in bytes."
            )
    return [{name: parse_count(row, METRICS[name]) for name in metrics} for row in launches]


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
