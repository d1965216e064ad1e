"""Count launches with Nsight Compute: run `ncu` in another process, and read back its report per instruction.

Counts of a launch come from the hardware's counters, counts of an instruction from ncu's source counters. ncu profiles
this module run as a program, `python -m kernels.measuring.ncu FILE REPEATS`, which launches the experiments of a JSON
file.
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
from pathlib import Path
from typing import Any

from kernels import discover
from kernels.experiment import Experiment, from_json, resolve_gpu
from kernels.results import Failure

ROOT = Path(__file__).resolve().parents[2]

# Seconds for one launch, including imports and ncu's passes; and for each further one.
DEADLINE_S, EACH_MORE_S = 120.0, 5.0

_HELP = "https://developer.nvidia.com/ERR_NVGPUCTRPERM"

# The metrics of one launch by our names, and ncu's rows of its instructions.
LaunchCounts = tuple[dict[str, float], list[dict[str, str]]]


class CountingFailed(Exception):
    """Why there are no counts: `kind` for programs, the message for people."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def failure(self) -> Failure:
        return Failure("launch", self.kind, str(self))


class NcuProcess(subprocess.Popen[str]):
    """A running ncu, in its own session."""

    def cancel(self) -> None:
        """Kill ncu and all its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def count(
    experiments: Sequence[Experiment],
    metrics: Mapping[str, str],
    cache: str,
    started: Callable[[NcuProcess], None] = lambda _: None,
    repeats: int = 1,
    by_instruction: bool = True,
) -> list[LaunchCounts]:
    """Launch each experiment `repeats` times under ncu, with flushed caches. Return the counts per launch, in order.

    Args:
        metrics: our name → ncu's name.
        cache: the directory of compiled kernels.
        started: called with the process, so that another thread can cancel it.
        by_instruction: also count each instruction; otherwise the lists of rows are empty.

    Raises:
        CountingFailed: if ncu is missing, denied, too slow, or reports incomplete counts.
    """
    ncu = shutil.which("ncu")
    if ncu is None:
        raise CountingFailed(
            "no_ncu",
            "Nsight Compute's ncu is not installed here, so nothing is counted. Install it (it comes with the CUDA "
            "toolkit) and put it on the PATH.",
        )
    names = sorted({discover()[experiment.kernel].jitted.fn.__name__ for experiment in experiments})
    with tempfile.TemporaryDirectory() as directory:
        payloads, report = Path(directory, "experiments.json"), Path(directory, "report.ncu-rep")
        payloads.write_text(json.dumps([experiment.to_json() for experiment in experiments]), encoding="utf-8")
        command = [ncu, "--clock-control", "none", "--cache-control", "all"]
        command += ["--section", "SourceCounters"] if by_instruction else []
        command += ["--metrics", ",".join(metrics.values()), "--kernel-name", f"regex:^({'|'.join(names)})$"]
        command += ["--export", str(report), sys.executable, "-m", "kernels.measuring.ncu", str(payloads), str(repeats)]
        _run(command, cache, DEADLINE_S + EACH_MORE_S * (len(experiments) - 1), started)
        page = [ncu, "--import", str(report), "--csv", "--page"]
        launches = parse_launches(_run([*page, "raw", "--print-units", "base"]), metrics)
        rows = parse_instructions(_run([*page, "source"])) if by_instruction else [[] for _ in launches]
    expected = len(experiments) * repeats
    for counted in (launches, rows):
        if len(counted) != expected:
            raise CountingFailed(
                "ncu_failed", f"{expected} launches were made, and ncu counted {len(counted)} of them."
            )
    return list(zip(launches, rows, strict=True))


@functools.cache
def tool() -> str:
    """Return the profiler and its version: "Nsight Compute 2025.3.1.0"."""
    command = [shutil.which("ncu") or "ncu", "--version"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    version = next(line.split()[1] for line in text.splitlines() if line.startswith("Version "))
    return f"Nsight Compute {version}"


def _run(
    command: list[str],
    cache: str = "",
    deadline_s: float = DEADLINE_S,
    started: Callable[[NcuProcess], None] = lambda _: None,
) -> str:
    """Return the command's output. Its own session lets a kill reach all its children."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "TRITON_CACHE_DIR": cache, "PYTHONPATH": path} if cache else None
    process = NcuProcess(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )
    started(process)
    try:
        printed, _ = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        process.cancel()
        process.communicate()
        raise CountingFailed("timeout", f"Counting did not end within {deadline_s:.0f} s, so it was killed.") from None
    if "ERR_NVGPUCTRPERM" in printed:
        raise CountingFailed(
            "ncu_denied",
            "This machine does not let this user read the GPU's counters. Its administrator can allow it (the driver's "
            f"option NVreg_RestrictProfilingToAdminUsers=0), or run Tilescope as root: see {_HELP}.",
        )
    if process.returncode:
        last = [line for line in printed.splitlines() if line.strip()][-1:] or ["nothing"]
        raise CountingFailed("ncu_failed", f"ncu exited with status {process.returncode} and printed: {last[0]}")
    return printed


def parse_launches(page: str, metrics: Mapping[str, str]) -> list[dict[str, float]]:
    """Parse ncu's raw page: per launch, the metrics by our names, in counts and bytes.

    Raises:
        CountingFailed: if a metric is missing, is no number, or has a unit other than bytes.
    """
    start = page.find('"ID"')
    if start < 0:
        raise CountingFailed("ncu_failed", "ncu counted no launch.")
    units, *rows = csv.DictReader(page[start:].splitlines())
    for metric in metrics.values():
        size = (units.get(metric) or "").partition("/")[0]  # "byte" or "byte/block", never "Kbyte"
        if size != "byte" and ("bytes" in metric or "byte" in size):
            raise CountingFailed(
                "ncu_failed", f"ncu gave {metric} in {units.get(metric) or 'no unit'}, and not in byte."
            )
    return [{name: parse_count(row.get(metric), metric) for name, metric in metrics.items()} for row in rows]


def parse_count(text: str | None, metric: str) -> float:
    """Parse one of ncu's numbers, such as 1,024.5.

    Raises:
        CountingFailed: if it is no number.
    """
    try:
        value = float((text or "").replace(",", ""))
        if value != value:
            raise ValueError
    except ValueError:
        raise CountingFailed("ncu_failed", f"ncu gave {text!r} for {metric}, which is no count.") from None
    return value


def parse_instructions(page: str) -> list[list[dict[str, str]]]:
    """Parse ncu's source page: per launch, one row per instruction, in the order of the code."""
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


def _launch_all(payloads: list[dict[str, Any]], repeats: int) -> None:
    """Launch each experiment `repeats` times on this machine's GPU, one launch at a time."""
    from kernels.measuring import worker

    worker.start("cuda", os.environ["TRITON_CACHE_DIR"])

    import torch

    from kernels.gpus import this_gpu
    from kernels.measuring.prepared import prepare

    for payload in payloads:
        experiment = from_json(payload, discover())
        prepared = prepare(experiment, resolve_gpu(experiment, this_gpu()))
        for _ in range(repeats):
            prepared.launch()
            torch.cuda.synchronize()


if __name__ == "__main__":
    _launch_all(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), int(sys.argv[2]))
