"""`python app.py --doctor`: what of Tilescope works on this machine, tried out, and what to do about the rest."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from kernels.experiment import Experiment, from_json
from kernels.gpus import Gpu
from kernels.jit import HAS_TRITON
from kernels.measuring import worker
from kernels.measuring.counters import tool
from kernels.measuring.session import Session
from kernels.measuring.worker import default_cache_directory
from kernels.results import Failure, RunResult
from kernels.results.store import Store, machine_store
from visualize.command import listening

WORKS, LIMITED, FAILS = "works", "limited", "fails"

# As the Makefile and CI take them.
PYTHONS = ((3, 11), (3, 13))
_PACKAGES = ("gradio", "torch", "triton", "plotly", "pandas")
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

# Bytes: a Triton cache grows by some 100 kB a kernel.
_ENOUGH_DISK = 1 << 30


@dataclass(frozen=True)
class Finding:
    """What was tried, whether it works, what was found, and what to do where it doesn't."""

    name: str
    state: str
    found: str
    remedy: str = ""


def main(findings: Iterator[Finding]) -> int:
    """Print what works here as it is found; 1 where something fails that the page needs, else 0."""
    failed = False
    for finding in findings:
        failed |= finding.state == FAILS
        print(f"{finding.state:8} {finding.name:12} {finding.found}", flush=True)
        if finding.remedy:
            print(f"{'':21} {finding.remedy}", flush=True)
    return int(failed)


def findings(host: str, port: int, gpu: Gpu | None) -> Iterator[Finding]:
    """All that is tried, one after the other: the last ones take some seconds each."""
    store = machine_store(default_cache_directory())
    yield python_version(sys.version_info[:2])
    yield packages(_version)
    yield device(gpu)
    yield address(host, port)
    yield cache(default_cache_directory())
    yield database(store)
    yield browser(shutil.which)
    store.close()
    if not HAS_TRITON:
        yield Finding(
            "Triton", LIMITED, "not installed: the page predicts from the textbook alone", "pip install triton (Linux)."
        )
        return
    session = Session(gpu)
    try:
        yield from workers(session)
        yield counters(session)
    finally:
        session.close()


def python_version(found: tuple[int, ...]) -> Finding:
    low, high = (".".join(map(str, one)) for one in PYTHONS)
    said = ".".join(map(str, found))
    if PYTHONS[0] <= found <= PYTHONS[1]:
        return Finding("Python", WORKS, said)
    return Finding("Python", FAILS, said, f"Use Python {low} to {high}: make PYTHON=python{high} run.")


def packages(version: Callable[[str], str | None]) -> Finding:
    """Packages and their versions.

    Args:
        version: of a package by its name; None where it is not installed.
    """
    found = {name: version(name) for name in _PACKAGES}
    said = ", ".join(f"{name} {one or 'missing'}" for name, one in found.items())
    missing = [name for name, one in found.items() if one is None and name != "triton"]
    if not missing:
        return Finding("packages", WORKS, said)
    return Finding("packages", FAILS, said, "pip install -r requirements.txt.")


def device(gpu: Gpu | None) -> Finding:
    if gpu is not None:
        return Finding("GPU", WORKS, f"{gpu.name}, {gpu.sms} SMs" + (f"; {gpu.assumed}" if gpu.assumed else ""))
    return Finding(
        "GPU",
        LIMITED,
        "none: Triton's interpreter checks results, and nothing is timed or counted here",
        "With an NVIDIA GPU: install its driver, and in a container pass it on (docker run --gpus all).",
    )


def address(host: str, port: int) -> Finding:
    obstacle = listening.obstacle(host, port)
    return Finding("address", FAILS if obstacle else WORKS, obstacle or f"{host}, port {port}")


def cache(directory: Path, enough_bytes: int = _ENOUGH_DISK) -> Finding:
    """Whether compiled kernels can be kept."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory):
            free = shutil.disk_usage(directory).free
    except OSError as error:
        return Finding(
            "cache", FAILS, f"{directory}: {error.strerror}", "Name a directory that can be written: TILESCOPE_CACHE=."
        )
    said = f"{directory}, {free / 1e9:,.0f} GB free"
    if free < enough_bytes:
        return Finding("cache", LIMITED, said, "Make room, or name another directory: TILESCOPE_CACHE=.")
    return Finding("cache", WORKS, said)


def database(store: Store) -> Finding:
    """Whether what is measured can be kept."""
    if store.path is None:
        return Finding("database", LIMITED, "off (TILESCOPE_DB): results are lost when the app ends")
    if store.problem:
        return Finding("database", LIMITED, store.problem, "Name another file: TILESCOPE_DB=.")
    return Finding("database", WORKS, str(store.path))


def browser(which: Callable[[str], str | None]) -> Finding:
    found = next(filter(None, map(which, _BROWSERS)), None)
    if found:
        return Finding("browser", WORKS, found)
    return Finding("browser", LIMITED, "no Chromium: only the tests need one here", "`make test` installs one.")


def workers(session: Session) -> Iterator[Finding]:
    """A worker that starts, a compile, and a small run that is checked."""
    said = session.call_runner(worker.describe)
    if isinstance(said, Failure):
        yield Finding("worker", FAILS, said.message)
        return
    yield Finding("worker", WORKS, f"{said.name}; torch {said.torch}, Triton {said.triton}")
    small = _small(session)
    compiled = session.compile(small).result()
    if isinstance(compiled, Failure):
        yield Finding("compiler", FAILS, compiled.message)
    else:
        yield Finding("compiler", WORKS, f"{small.kernel}: {compiled.registers} registers per thread")
    ran = session.submit(small).result()
    if isinstance(ran, Failure):
        yield Finding("run", FAILS, ran.message)
    elif isinstance(ran, RunResult):
        right = ran.check.passed
        checked = "equals" if right else "differs from"
        yield Finding("run", WORKS if right else FAILS, f"{small.kernel} {checked} torch ({ran.backend})")


def counters(session: Session) -> Finding:
    """Whether Nsight Compute counts here."""
    if session.gpu is None:
        found = "Nsight Compute is here, and no GPU" if shutil.which("ncu") else "no GPU, so nothing is counted here"
        return Finding("counters", LIMITED, f"{found}; counts are predicted, or recorded")
    counted = session.submit(_small(session), "counters").result()
    if isinstance(counted, Failure):
        return Finding("counters", LIMITED, counted.message)
    return Finding("counters", WORKS, f"{tool()} counts requests and sectors")


def _small(session: Session) -> Experiment:
    """A launch that is quick everywhere."""
    tile = {"BLOCK_M": 32, "BLOCK_N": 32}
    small = from_json({"kernel": "transpose.tiled", "problem": {"M": 128, "N": 128}, "config": tile})
    return small if session.gpu is None else replace(small, gpu="this")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
