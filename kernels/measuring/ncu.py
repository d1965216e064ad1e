"""Count launches with Nsight Compute: `ncu` in a process of its own, its report read back instruction by instruction.

Counts of the whole launch come from the hardware's counters, counts of one instruction from ncu's source counters.
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
from kernels.experiment import Experiment
from kernels.results import Failure

ROOT = Path(__file__).resolve().parents[2]

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
    experiments: Sequence[Experiment],
    metrics: Mapping[str, str],
    cache: str,
    started: Callable[[Counting], None] = lambda _: None,
) -> list[tuple[dict[str, float], list[dict[str, str]]]]:
    """Launch each experiment once under ncu: what it says of the launch, and of each instruction, in order.

    Args:
        metrics: ncu's names of what is asked of the whole launch, by ours.
        cache: the directory of compiled kernels.
        started: is given the count under way, so that somebody else can end it.

    Raises:
        CountingFailed: where ncu is missing, denied, too slow, or leaves something out.
    """
    with tempfile.TemporaryDirectory() as directory:
        report = _report(directory, experiments, metrics, cache, 1, started, ("--section", "SourceCounters"))
        launches = of_launches(_raw_page(report), metrics)
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
        launches = of_launches(_raw_page(report), metrics)
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
    command += ["--export", str(report), sys.executable, "-m", "kernels.measuring.counted_launch"]
    command += [str(payloads), str(repeats)]
    _run(command, cache, DEADLINE_S + EACH_MORE_S * (len(experiments) - 1), started)
    return report


def _raw_page(report: Path) -> str:
    """What was counted of each launch, in bytes and not in a unit of ncu's choice."""
    return _page(report, "raw", "--print-units", "base")


def _page(report: Path, page: str, *more: str) -> str:
    return _run([str(shutil.which("ncu")), "--import", str(report), "--page", page, "--csv", *more])


def _expect(launches: int, *counted: Sequence[Any]) -> None:
    for found in counted:
        if len(found) != launches:
            raise CountingFailed("ncu_failed", f"{launches} launches were made, and ncu counted {len(found)} of them.")


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


def of_launches(page: str, metrics: Mapping[str, str]) -> list[dict[str, float]]:
    """What ncu's raw page says of each launch, by our names, in counts and bytes.

    Raises:
        CountingFailed: where a metric is missing, is no number, or comes in another unit than bytes.
    """
    start = page.find('"ID"')
    if start < 0:
        raise CountingFailed("ncu_failed", "ncu counted no launch.")
    units, *rows = csv.DictReader(page[start:].splitlines())
    return [
        {name: _in_base_unit(row.get(metric), metric, units.get(metric, "")) for name, metric in metrics.items()}
        for row in rows
    ]


def number(text: str | None, metric: str) -> float:
    """A number of ncu's, which writes 1,024.5.

    Raises:
        CountingFailed: where it is none.
    """
    try:
        value = float((text or "").replace(",", ""))
        if value != value:
            raise ValueError
    except ValueError:
        raise CountingFailed("ncu_failed", f"ncu gave {text!r} for {metric}, which is no count.") from None
    return value


def _in_base_unit(text: str | None, metric: str, unit: str) -> float:
    """A number whose unit is the base one: "byte" or "byte/block", never "Kbyte"."""
    size = unit.partition("/")[0]
    if size != "byte" and ("bytes" in metric or "byte" in size):
        raise CountingFailed("ncu_failed", f"ncu gave {metric} in {unit or 'no unit'}, and not in byte.")
    return number(text, metric)


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
