"""`tilescope doctor`: find what does not work on this machine, and say how to mend it."""

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

from tilescope.captures.server import is_supported
from tilescope.cli.command import FAILED, PAGE, CommandFailed, address_parser, obstacle
from tilescope.declare.discovery import opening
from tilescope.declare.experiment import from_json, nest
from tilescope.declare.gpus import Gpu, this_gpu
from tilescope.declare.jit import HAS_TRITON
from tilescope.measure import worker
from tilescope.measure.session import Session
from tilescope.results import Failure, RunResult
from tilescope.results.store import Store, machine_store

# The versions that the Makefile and CI use.
PYTHONS = ((3, 11), (3, 13))
# The packages of the wheel's extras.
_EXTRAS = {"torch": ("torch", "triton"), "page": PAGE}
# Triton's cache grows by about 100 kB per kernel.
_MIN_FREE_BYTES = 1 << 30


@dataclass(frozen=True)
class Problem:
    """Something that does not work on this machine.

    Attributes:
        remedy: how to mend it, if that is known.
        is_failure: Tilescope does not work; otherwise, a part of it is missing.
    """

    name: str
    detail: str
    remedy: str = ""
    is_failure: bool = False


def doctor(arguments: Sequence[str]) -> None:
    """Check this machine for the page's address in the arguments."""
    parser = address_parser("doctor")
    parser.description = "Find what does not work on this machine, and how to mend it. Exit status: 1 if a check fails."
    flags = parser.parse_args(arguments)
    print_problems(find_problems(flags.host, flags.port, this_gpu()))


def print_problems(problems: Iterable[Problem]) -> None:
    """Print each problem when it is found, before the next check.

    Raises:
        CommandFailed: one of them is a failure.
    """
    found = []
    for problem in problems:
        found.append(problem)
        line = f"{'fails' if problem.is_failure else 'limited'}  {problem.name}: {problem.detail}"
        indent = " " * 9
        print(textwrap.fill(line, 110, subsequent_indent=indent, break_on_hyphens=False))
        if problem.remedy:
            print(f"{indent}{problem.remedy}")
        sys.stdout.flush()
    if not found:
        print("Everything works.")
    if failed := [problem.name for problem in found if problem.is_failure]:
        raise CommandFailed(f"These checks failed: {', '.join(failed)}.", FAILED)


def find_problems(host: str, port: int, gpu: Gpu | None) -> Iterator[Problem]:
    """Check this machine. The checks that start workers come last, and take a few seconds each."""
    yield from check_python(sys.version_info[:2])
    yield from check_packages(
        {package.name: package.version for package in metadata.distributions()}
    )
    if gpu is None:
        detail = "none. Triton's interpreter checks results, and nothing is timed or counted."
        remedy = "With an NVIDIA GPU: install its driver, and pass it to containers (docker run --gpus all)."
        yield Problem("GPU", detail, remedy)
    if address := obstacle(host, port):
        yield Problem("address", address)
    yield from check_cache(worker.default_cache_directory())
    with closing(machine_store(worker.default_cache_directory())) as store:
        yield from check_database(store)
    if HAS_TRITON:
        with closing(Session(gpu)) as session:
            yield from check_workers(session)


def check_python(version: tuple[int, ...]) -> Iterator[Problem]:
    if not PYTHONS[0] <= version <= PYTHONS[1]:
        detail, low, high = (".".join(map(str, each)) for each in (version, *PYTHONS))
        remedy = f"Use Python {low} to {high}: make PYTHON=python{high} run."
        yield Problem("Python", detail, remedy, is_failure=True)


def check_packages(installed: Mapping[str, str]) -> Iterator[Problem]:
    """Check that the packages of torch and of the page are installed, and that Triton is supported.

    Args:
        installed: the version of each package.
    """
    if "triton" in installed and not is_supported(installed["triton"]):
        detail = f"Triton {installed['triton']} is installed."
        yield Problem("packages", detail, "Tilescope needs Triton 3.6 or later.", is_failure=True)
    missing = [name for name in itertools.chain(*_EXTRAS.values()) if name not in installed]
    if missing:
        extras = [extra for extra, names in _EXTRAS.items() if {*names} & {*missing}]
        remedy = f'pip install "tilescope[{",".join(extras)}]"'
        yield Problem("packages", f"{', '.join(missing)} missing.", remedy)


def check_cache(directory: Path, min_free_bytes: int = _MIN_FREE_BYTES) -> Iterator[Problem]:
    """Check that compiled kernels can be stored."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory):
            free_bytes = shutil.disk_usage(directory).free
    except OSError as error:
        remedy = "Set TILESCOPE_CACHE to a writable directory."
        yield Problem("cache", f"{directory}: {error.strerror}", remedy, is_failure=True)
        return
    if free_bytes < min_free_bytes:
        detail = f"{directory} has {free_bytes / 1e9:,.0f} GB free."
        yield Problem("cache", detail, "Free some space, or set TILESCOPE_CACHE to another disk.")


def check_database(store: Store) -> Iterator[Problem]:
    """Check that results can be stored."""
    if store.problem or store.path is None:
        detail = store.problem or "TILESCOPE_DB is off: results are lost when the app ends."
        yield Problem("database", detail, "Set TILESCOPE_DB to a writable file.")


def check_workers(session: Session) -> Iterator[Problem]:
    """Start a worker, compile a small kernel, check its result, and count its requests with Nsight Compute."""
    small = from_json({**nest(opening()), "gpu": "this" if session.gpu else ""})
    described = session.call_runner(worker.describe)
    if isinstance(described, Failure):
        yield Problem("worker", described.message, is_failure=True)
    compiled = session.compile(small).result()
    if isinstance(compiled, Failure):
        yield Problem("compiler", compiled.message, is_failure=True)
    run = session.submit(small).result()
    if isinstance(run, Failure):
        yield Problem("run", run.message, is_failure=True)
    elif isinstance(run, RunResult) and not run.check.passed:
        detail = f"{small.kernel} differs from torch ({run.backend})."
        yield Problem("run", detail, is_failure=True)
    if session.gpu:
        counters = session.submit(small, "counters").result()
        if isinstance(counters, Failure):
            yield Problem("counters", counters.message)
