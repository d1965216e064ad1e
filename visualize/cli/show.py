"""`app.py show`: run a script, and serve or print the memory requests of every Triton launch in it."""

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import kernels.capture
from kernels.capture.reader import Capture, CountedLaunch, UnreadableCapture
from kernels.evaluate.counts import COUNTERS
from kernels.examples import EXAMPLES
from kernels.gpus import DEFAULT_GPU, GPUS, find_gpu, this_gpu
from kernels.measuring.counters import METRICS, CountingFailed, parse_count
from kernels.measuring.worker import default_cache_directory
from visualize import startup
from visualize.reports.report import differences, report, table

# Exit statuses.
FINE = 0
GREW = 1
USAGE = 2

_CAPTURE = Path(kernels.capture.__file__).with_name("record.py")
_STDERR = 2  # its file descriptor
_OLDEST_TRITON = (3, 6)
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags of `app.py show`."""
    parser = argparse.ArgumentParser(
        prog="app.py show",
        description="Run a script, and show the memory requests of every Triton launch in it. Exit status: 0 on "
        "success, 1 if a count or memory exceeds its value in --against or a launch is missing, 2 if the flags are "
        "invalid, the script raised an exception, or nothing could be captured.",
        epilog="Run it only on scripts that you trust. The script's own arguments come last, after `--`. "
        "Example: app.py show softmax.py --gpu H200 --json",
    )
    add = parser.add_argument
    add(
        "script", metavar="SCRIPT.py[:CASE]", nargs="?", default=str(EXAMPLES[0]),
        help="a script, one case of a script, or a capture (.tilescope) (default: the first example)",
    )  # fmt: skip
    add(
        "--gpu",
        type=_gpu,
        metavar="NAME",
        help=f"compile for this GPU (default: this machine's, or else {DEFAULT_GPU}): {', '.join(GPUS)}",
    )
    add("--text", action="store_true", help="print a table and exit")
    add("--json", action="store_true", help="print one JSON object and exit")
    add(
        "--against",
        type=Path,
        metavar="OTHER.json",
        help="exit with status 1 if launches, requests, sectors, registers or memory grew",
    )
    add(
        "--triton",
        metavar="VERSION",
        help="also compile with this version of Triton, and print the differences",
    )
    add(
        "--count",
        action="store_true",
        help="also count each launch with Nsight Compute (needs a GPU)",
    )
    add("--mcp", action="store_true", help="also offer the page's report as an MCP tool")
    add(
        "--python",
        default=sys.executable,
        metavar="PATH",
        help="Python interpreter for the script (default: this one)",
    )
    add(
        "--values",
        action="store_true",
        help="run launches in Triton's interpreter, so that later launches see their results",
    )
    add(
        "--set", action="append", default=[], metavar="NAME=VALUE,...",
        help="set a parameter of the case (repeatable); multiple values sweep over all combinations",
    )  # fmt: skip
    add(
        "--config",
        action="append",
        default=[],
        metavar="KERNEL=N",
        help="pin config N of a kernel's autotuner",
    )
    add("--out", type=Path, metavar="FILE.tilescope", help="save the capture to this file")
    add(
        "--host",
        default="127.0.0.1",
        help="loopback address to serve the page on (default: 127.0.0.1)",
    )
    add(
        "--port",
        type=startup.whole_number(1, 65535),
        default=7860,
        help="port to serve the page on (default: 7860)",
    )
    return parser


def show(arguments: Sequence[str]) -> int:
    """Capture a script, print or serve its launches, and return the exit status."""
    parser = make_parser()
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    flags = parser.parse_args(arguments[:end])
    flags.arguments = arguments[end + 1 :]
    prints = flags.text or flags.json or flags.against or flags.triton
    if obstacle := "" if prints else _obstacle(flags):
        parser.exit(USAGE, f"{obstacle}\n")
    with tempfile.TemporaryDirectory(prefix="tilescope-") as folder, ExitStack() as stack:
        path = Path(flags.script)
        is_capture = path.suffix == ".tilescope"
        before = None
        try:
            if flags.against:
                before = read_report(flags.against)
            packages = install_triton(flags.triton) if flags.triton and not flags.against else None
            if not is_capture:
                path = flags.out or Path(folder) / "script.tilescope"
            server = None if is_capture else CaptureServer(flags, path, stack)
            if server:
                server.capture(flags.script)
            compiler = server.compile if server else None
            if not prints:
                from visualize.web.capture_page import serve_capture

                recapture = server.capture if server else None
                serve_capture(
                    path, flags.script, recapture, compiler, flags.host, flags.port, flags.mcp
                )
                return FINE
            capture = Capture(path)
            is_failed = (
                capture.content.stopped is not None and capture.content.stopped.kind == "exception"
            )
            content = report(capture, compiler)
            if packages:
                other = CaptureServer(flags, Path(folder) / "other.tilescope", stack, packages)
                other.capture(flags.script)
                before = report(Capture(other.path))
            changed = [] if before is None else list(differences(before, content))
        except (UnreadableCapture, CaptureFailed) as error:
            parser.exit(USAGE, f"{error}\n")
    if flags.triton:
        content["compared_with"] = before
        content["differences"] = [asdict(difference) for difference in changed]
    if flags.json:
        print(json.dumps(content, allow_nan=False))
    else:
        title = (
            f"From Triton {flags.triton} to {content['triton']}: "
            if flags.triton
            else "Differences: "
        )
        lines = [
            title + (f"{len(changed)}" if changed else "none"),
            *(d.sentence for d in changed),
            "",
        ]
        print("\n".join([*(lines if before is not None else []), table(content)]))
    if not content["launches"]:
        advice = "Call one, or add a function whose name begins with `case`."
        print(
            content["stopped"] or f"{flags.script} launched no Triton kernels. {advice}",
            file=sys.stderr,
        )
        return USAGE
    grown = (
        [d for d in changed if d.after > d.before or d.what == "launches"] if flags.against else []
    )
    print("".join(f"{d.sentence}\n" for d in grown), end="", file=sys.stderr)
    return GREW if grown else USAGE if is_failed else FINE


def _gpu(text: str) -> str:
    try:
        return find_gpu(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _obstacle(flags: argparse.Namespace) -> str:
    """Return why the page can't be served, or "" if it can. Anyone who can reach the page can make it run scripts."""
    if "SPACE_ID" in os.environ:
        return "`show` does not serve its page on a Space, where visitors could run code. Use --text or --json."
    if flags.host not in _LOOPBACK:
        return f"`show` listens only on this machine: --host must be {', '.join(_LOOPBACK)} (got {flags.host!r})."
    return startup.obstacle(flags.host, flags.port)


class CaptureFailed(Exception):
    """A capture or report could not be produced or read. The message is one sentence."""


def read_report(path: Path) -> dict[str, Any]:
    """Read a report that `show --json` printed.

    Raises:
        CaptureFailed: the file is missing, or not a report.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        list(differences(content, content))
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise CaptureFailed(
            f"--against {path} is not a report of `show --json` ({reason})."
        ) from error
    return content


def capture_arguments(
    flags: argparse.Namespace, path: Path, script: str, more: Sequence[str] = ()
) -> list[str]:
    """Return the arguments of record.py.

    Args:
        more: further options of record.py, which override those in `flags`.
    """
    gpu = GPUS.get(flags.gpu or "") or this_gpu() or GPUS[DEFAULT_GPU]
    arguments = [
        "--out",
        str(path),
        "--gpu-json",
        json.dumps(asdict(gpu)),
        *(["--values"] if flags.values else []),
    ]
    for name, values in (("set", flags.set), ("config", flags.config)):
        arguments += [part for value in values for part in (f"--{name}", value)]
    return [*arguments, *more, script, *flags.arguments]


class CaptureServer:
    """A process that has imported torch and Triton, and captures scripts or compiles in forks of itself.

    The scripts have the stdin of this process. Their output goes to stderr.

    Args:
        stack: ends the process when it is closed.
        packages: a folder with packages that replace the installed ones.

    Raises:
        CaptureFailed: the interpreter does not exist.
    """

    def __init__(
        self, flags: argparse.Namespace, path: Path, stack: ExitStack, packages: Path | None = None
    ) -> None:
        self._flags = flags
        self.path = path
        self._lock = threading.Lock()
        paths = [str(path) for path in (packages, os.environ.get("PYTHONPATH")) if path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        pipe = subprocess.PIPE
        try:
            with os.fdopen(os.dup(0)) as stdin:
                number = stdin.fileno()
                command = [flags.python, str(_CAPTURE), "--serve", str(number)]
                process = subprocess.Popen(
                    command, stdin=pipe, stdout=pipe, pass_fds=[number], env=environment, text=True
                )
            self._process = stack.enter_context(process)
        except OSError as error:
            raise CaptureFailed(f"--python {flags.python}: {error.strerror}.") from error

    def capture(self, script: str, more: Sequence[str] = ()) -> None:
        """Capture a script.

        Args:
            more: see `capture_arguments`.

        Raises:
            CaptureFailed: no capture was written.
        """
        reply = self._ask(capture_arguments(self._flags, self.path, script, more))
        if reply != "\n":
            raise CaptureFailed(
                reply.strip()
                or f"The capture process ({self._flags.python}) exited; the terminal shows why."
            )
        if self._flags.count:
            count(self._flags, self.path, script, more)

    def compile(self, request: Mapping[str, Any]) -> Sequence[Mapping[str, Any] | None]:
        """Compile modules: see `capture.recompile`. Each result is None if the process does not reply."""
        try:
            return json.loads(self._ask(request))
        except ValueError:
            return [None] * len(request["modules"])

    def _ask(self, request: Any) -> str:
        with self._lock:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            with suppress(OSError):
                self._process.stdin.write(f"{json.dumps(request)}\n")
                self._process.stdin.flush()
            return self._process.stdout.readline()


def count(flags: argparse.Namespace, path: Path, script: str, settings: Sequence[str] = ()) -> None:
    """Capture the script again under Nsight Compute, and replace the capture with the new one and its counters.

    Raises:
        CaptureFailed: there is no GPU or ncu.
    """
    if this_gpu() is None or not (ncu := shutil.which("ncu")):
        raise CaptureFailed("--count needs a GPU and Nsight Compute's ncu on the PATH.")
    capture = Capture(path)
    elapsed = (launch.elapsed_ms for launch in capture.content.launches)  # without the profiler
    times = dict(zip(launch_keys(capture), elapsed, strict=True))
    names = sorted({find_entry(capture, kernel) for kernel in range(len(capture.content.kernels))})
    metrics = {name: METRICS[name] for name in COUNTERS}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.csv")
        again = Path(folder, "counted.tilescope")
        command = [
            ncu,
            "--clock-control",
            "none",
            "--metrics",
            ",".join(metrics.values()),
            "--kernel-name",
        ]
        command += [
            f"regex:^({'|'.join(map(re.escape, names))})$",
            "--csv",
            "--page",
            "raw",
            "--print-units",
            "base",
        ]
        arguments = capture_arguments(flags, again, script, ["--untimed", *settings])
        command += ["--log-file", str(log), flags.python, str(_CAPTURE), *arguments]
        # The script may fail while it is counted
        subprocess.run(command, stdout=_STDERR, check=False)
        page = log.read_text(encoding="utf-8") if log.exists() else ""
        if again.exists():
            shutil.move(again, path)  # random data differs between runs
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


def launch_keys(capture: Capture) -> list[tuple[str, ...]]:
    """Return the key of each launch, as in `read_counters`."""
    launches = capture.content.launches
    names = (find_entry(capture, launch.kernel) if launch.ran else "" for launch in launches)
    return _number((name, str(launch.grid)) for name, launch in zip(names, launches, strict=True))


def read_counters(page: str) -> dict[tuple[str, ...], dict[str, int]]:
    """Return launches' counters from ncu's raw page, by kernel, grid, and number of earlier launches of both.

    A script may launch more or less often while it is counted.
    """
    keys = []
    counters = []
    for row in csv.DictReader(page[page.find('"ID"') :].splitlines()):
        with suppress(CountingFailed):  # the row of units, or a launch that failed
            counters.append({name: int(parse_count(row, METRICS[name])) for name in COUNTERS})
            keys.append((row["Kernel Name"], row["Grid Size"]))
    return dict(zip(_number(keys), counters, strict=True))


def _number(keys: Iterable[tuple[str, str]]) -> list[tuple[str, ...]]:
    seen = Counter[tuple[str, str]]()
    numbered = list[tuple[str, ...]]()
    for key in keys:
        numbered.append((*key, str(seen[key])))
        seen[key] += 1
    return numbered


def install_triton(version: str) -> Path:
    """Return the cache folder of a Triton version, and install that version if it is missing.

    Raises:
        CaptureFailed: pip could not install it, or it is too old.
    """
    if (
        not re.fullmatch(r"\d+\.\d+[\w.+]*", version)
        or tuple(map(int, version.split(".")[:2])) < _OLDEST_TRITON
    ):
        raise CaptureFailed(
            f"--triton {version}: Tilescope needs Triton 3.6 or later, such as 3.6.0."
        )
    folder = default_cache_directory() / f"triton-{version}"
    if not folder.exists():
        print(f"Installing Triton {version} in {folder}.", file=sys.stderr)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as partial_folder:
            # Without dependencies: those of the script's environment are used.
            pip = [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--target",
                partial_folder,
            ]
            if subprocess.run([*pip, f"triton=={version}"], stdout=_STDERR, check=False).returncode:
                raise CaptureFailed(f"pip could not install Triton {version}.")
            shutil.copytree(partial_folder, folder)
    return folder
