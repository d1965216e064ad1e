"""Count the launches of a captured script with Nsight Compute, and join the counters to the capture."""

import itertools
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from tilescope.captures.reader import Capture, CountedLaunch
from tilescope.captures.server import RECORDER, CaptureFailed, CaptureServer
from tilescope.declare.gpus import this_gpu
from tilescope.evaluate.counts import COUNTER_NAMES
from tilescope.inside.report import INSIDE_COUNTERS
from tilescope.measure.ncu import (
    METRICS,
    RAW_PAGE,
    CountingFailed,
    parse_count,
    profile_command,
    read_rows,
)
from tilescope.output import replacing

_STDERR = 2  # its file descriptor
Key = tuple[str, str, int]

_COUNTERS = (*COUNTER_NAMES, *INSIDE_COUNTERS)


def count_capture(
    server: CaptureServer, path: Path, command: Sequence[str], more: Sequence[str]
) -> None:
    """Capture a script again under Nsight Compute, and replace the capture with the new one and its counters.

    Args:
        path, command, more: see `CaptureServer.arguments`.

    Raises:
        CaptureFailed: this machine has no GPU or no ncu.
    """
    if this_gpu() is None or not shutil.which("ncu"):
        raise CaptureFailed("--count needs a GPU and Nsight Compute's ncu on the PATH.")
    capture = Capture(path)
    elapsed = (launch.elapsed_ms for launch in capture.content.launches)  # without the profiler
    times = dict(zip(launch_keys(capture), elapsed, strict=True))
    names = [find_entry(capture, kernel) for kernel in range(len(capture.content.kernels))]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.csv")
        again = Path(folder, "counted.tilescope")
        profile = [*profile_command(_COUNTERS, names), *RAW_PAGE, "--log-file", str(log)]
        arguments = server.arguments(again, command, ["--untimed", *more])
        # The script may fail while it is counted
        subprocess.run(
            [*profile, server.python, str(RECORDER), *arguments],
            stdout=_STDERR,
            check=False,
            env=server.environment,
        )
        page = log.read_text(encoding="utf-8") if log.exists() else ""
        if again.exists():
            with replacing(path) as partial:
                shutil.move(again, partial)  # random data differs between runs
    capture = Capture(path)
    keys = launch_keys(capture)
    counters = read_counters(page)
    capture.write_counters([CountedLaunch(counters.get(key), times.get(key)) for key in keys])
    if missing := len(set(keys) - set(counters)):
        last = "".join(page.splitlines()[-1:])
        print(
            f"Nsight Compute did not count {missing} of {len(keys)} launches. {last}",
            file=sys.stderr,
        )


def find_entry(capture: Capture, kernel: int) -> str:
    """Return the name of a kernel's compiled function, which may differ from the Python function's."""
    match = re.search(r"\.entry ([\w$]+)", capture.read_code(kernel, "ptx"))
    return match[1] if match else capture.content.kernels[kernel].name


def launch_keys(capture: Capture) -> list[Key]:
    """Return the key of each launch, as in `read_counters`."""
    launches = capture.content.launches
    names = (find_entry(capture, launch.kernel) if launch.ran else "" for launch in launches)
    return _number((name, str(launch.grid)) for name, launch in zip(names, launches, strict=True))


def read_counters(page: str) -> dict[Key, dict[str, int]]:
    """Return launches' counters from ncu's raw page, by kernel, grid, and number of earlier launches with the same two.

    A script may launch more or less often while it is counted.
    """
    keys = []
    counters = []
    for row in read_rows(page):
        with suppress(CountingFailed):  # the row of units, or a launch that failed
            counters.append({name: int(parse_count(row, METRICS[name])) for name in _COUNTERS})
            keys.append((row["Kernel Name"], row["Grid Size"]))
    return dict(zip(_number(keys), counters, strict=True))


def _number(keys: Iterable[tuple[str, str]]) -> list[Key]:
    seen = defaultdict[tuple[str, str], Iterator[int]](itertools.count)
    return [(*key, next(seen[key])) for key in keys]
