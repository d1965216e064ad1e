"""`tilescope doctor`: check what works on this machine."""

import itertools
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tilescope.captures.server import is_supported
from tilescope.cli.address import address_parser, obstacle
from tilescope.cli.command import FAILED, PAGE, CommandFailed, load_page, missing_page
from tilescope.declare.discovery import opening
from tilescope.declare.experiment import from_json, nest
from tilescope.declare.gpus import Gpu, this_gpu
from tilescope.declare.jit import HAS_TRITON
from tilescope.measure import worker
from tilescope.measure.counters import tool
from tilescope.measure.session import JOB_LIMITS, Session
from tilescope.results import Failure, RunResult
from tilescope.results.store import Store, machine_store

WORKS = "works"
LIMITED = "limited"
FAILS = "fails"

# The versions that the Makefile and CI use.
PYTHONS = ((3, 11), (3, 13))
# The packages of the wheel's extras.
_EXTRAS = {"torch": ("torch", "triton"), "page": PAGE}
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Triton's cache grows by about 100 kB per kernel.
_MIN_FREE_BYTES = 1 << 30


@dataclass(frozen=True)
class MachineCheck:
    """One check of this machine.

    Attributes:
        state: WORKS, LIMITED or FAILS.
        remedy: printed unless it works.
    """

    name: str
    state: str
    detail: str
    remedy: str = ""


def doctor(arguments: Sequence[str]) -> None:
    """Check this machine for the page's address in the arguments."""
    parser = address_parser("doctor")
    parser.description = "Check what works on this machine. Exit status: 1 if a check fails."
    flags = parser.parse_args(arguments)
    print_checks(run_checks(flags.host, flags.port, this_gpu()))


def print_checks(checks: Iterable[MachineCheck]) -> None:
    """Print each check as it completes.

    Raises:
        CommandFailed: one of them fails.
    """
    failed = []
    for check in checks:
        if check.state == FAILS:
            failed.append(check.name)
        line = f"{check.state:8} {check.name:12} {check.detail}"
        print(
            textwrap.fill(line, 110, subsequent_indent=" " * 22, break_on_hyphens=False), flush=True
        )
        if check.remedy and check.state != WORKS:
            print(f"{'':21} {check.remedy}", flush=True)
    if failed:
        raise CommandFailed(f"These checks failed: {', '.join(failed)}.", FAILED)


def run_checks(host: str, port: int, gpu: Gpu | None) -> Iterator[MachineCheck]:
    """Check this machine. The checks that start workers come last, and take a few seconds each."""
    yield check_python(sys.version_info[:2])
    yield check_packages({package.name: package.version for package in metadata.distributions()})
    yield check_gpu(gpu)
    problem = obstacle(host, port)
    yield MachineCheck("address", LIMITED if problem else WORKS, problem or f"{host}, port {port}")
    if not missing_page():
        guard = load_page("web.guard")
        limits = f"{guard.LIMITS}; {guard.max_connections()} connections; {JOB_LIMITS}"
        yield MachineCheck("limits", WORKS, limits)
    yield check_cache(worker.default_cache_directory())
    with closing(machine_store(worker.default_cache_directory())) as store:
        yield check_database(store)
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    yield MachineCheck(
        "browser", WORKS if browser else LIMITED, browser or "no Chromium; `make test` installs one"
    )
    if not HAS_TRITON:
        detail = "not installed: the page predicts only with the textbook model"
        yield MachineCheck("Triton", LIMITED, detail, "pip install triton (Linux).")
        return
    with closing(Session(gpu)) as session:
        yield from check_workers(session)


def check_python(version: tuple[int, ...]) -> MachineCheck:
    detail, low, high = (".".join(map(str, each)) for each in (version, *PYTHONS))
    state = WORKS if PYTHONS[0] <= version <= PYTHONS[1] else FAILS
    return MachineCheck(
        "Python", state, detail, f"Use Python {low} to {high}: make PYTHON=python{high} run."
    )


def check_packages(installed: Mapping[str, str]) -> MachineCheck:
    """Check that the packages of torch and of the page are installed, and that Triton is supported.

    Args:
        installed: the version of each package.
    """
    names = itertools.chain(*_EXTRAS.values())
    detail = ", ".join(f"{name} {installed.get(name, 'missing')}" for name in names)
    if "triton" in installed and not is_supported(installed["triton"]):
        return MachineCheck("packages", FAILS, detail, "Tilescope needs Triton 3.6 or later.")
    missing = [extra for extra, names in _EXTRAS.items() if not {*names} <= {*installed}]
    state = LIMITED if missing else WORKS
    return MachineCheck("packages", state, detail, f'pip install "tilescope[{",".join(missing)}]"')


def check_gpu(gpu: Gpu | None) -> MachineCheck:
    if gpu is not None:
        return MachineCheck(
            "GPU", WORKS, f"{gpu.name}, {gpu.sms} SMs" + (f"; {gpu.assumed}" if gpu.assumed else "")
        )
    detail = (
        "none: Triton's interpreter checks results, and nothing is timed or counted on this machine"
    )
    remedy = (
        "With an NVIDIA GPU: install its driver, and pass it to containers (docker run --gpus all)."
    )
    return MachineCheck("GPU", LIMITED, detail, remedy)


def check_cache(directory: Path, min_free_bytes: int = _MIN_FREE_BYTES) -> MachineCheck:
    """Check that compiled kernels can be stored."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory):
            free = shutil.disk_usage(directory).free
    except OSError as error:
        return MachineCheck(
            "cache",
            FAILS,
            f"{directory}: {error.strerror}",
            "Set TILESCOPE_CACHE to a writable directory.",
        )
    state = LIMITED if free < min_free_bytes else WORKS
    detail = f"{directory}, {free / 1e9:,.0f} GB free"
    return MachineCheck(
        "cache", state, detail, "Free some space, or set TILESCOPE_CACHE to another directory."
    )


def check_database(store: Store) -> MachineCheck:
    """Check that results can be stored."""
    detail = store.problem or str(
        store.path or "off (TILESCOPE_DB): results are lost when the app ends"
    )
    state = LIMITED if store.problem or store.path is None else WORKS
    return MachineCheck("database", state, detail, "Set TILESCOPE_DB to a writable file.")


def check_workers(session: Session) -> Iterator[MachineCheck]:
    """Start a worker, compile a small kernel, check its result, and count its requests with Nsight Compute."""
    small = from_json({**nest(opening()), "gpu": "this" if session.gpu else ""})

    def check(name: str, outcome: Any, detail: str, otherwise: str = FAILS) -> MachineCheck:
        """Return a check whose detail may contain the outcome's attributes."""
        if isinstance(outcome, Failure):
            return MachineCheck(name, otherwise, outcome.message)
        return MachineCheck(name, WORKS, detail.format(outcome))

    yield check(
        "worker",
        session.call_runner(worker.describe),
        "{0.name}; torch {0.torch}, Triton {0.triton}",
    )
    yield check(
        "compiler",
        session.compile(small).result(),
        f"{small.kernel}: {{0.registers}} registers per thread",
    )
    run = session.submit(small).result()
    if isinstance(run, RunResult) and not run.check.passed:
        run = Failure("check", "wrong", f"{small.kernel} differs from torch ({run.backend})")
    yield check("run", run, f"{small.kernel} equals torch ({{0.backend}})")
    if session.gpu is None:
        yield MachineCheck("counters", LIMITED, "no GPU: counts are predicted or recorded")
    else:
        counters = session.submit(small, "counters").result()
        yield check("counters", counters, f"{tool()} counts requests and sectors", LIMITED)
