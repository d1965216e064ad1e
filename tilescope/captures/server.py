"""Capture scripts, and compile, in forks of a process that has imported torch and Triton."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tilescope.captures.content import Allocation
from tilescope.captures.reader import BaseCapture
from tilescope.processes import GUARDED, partial_path

RECORDER = Path(__file__).parents[1] / "record"
_ALLOCATOR = RECORDER / "allocation.py"

_STDERR = 2  # its file descriptor
_OLDEST_TRITON = (3, 6)

# Timeout of allocating the shared memory of a capture's kernels, in seconds.
_ALLOCATE_S = 30

# Seconds between checks whether a capture is superseded.
_POLL_S = 0.2


def split_case(source: str) -> tuple[str, str]:
    """Split off the name of a case, as `record.split_case` does without this module."""
    name, colon, case = source.rpartition(":")
    return (name, case) if colon and not Path(source).is_file() else (source, "")


class CaptureFailed(Exception):
    """A script could not be captured. The message is one sentence."""


class CaptureServer:
    """A process that captures scripts, or compiles, in forks of itself. If it has died, another takes its place.

    The scripts have the stdin of this process. Their output goes to stderr.

    Args:
        python: the interpreter.
        options: of the recorder, for every script.
        stack: ends the process when it is closed.
        folder: of a guard (see `output.guard`).
        packages: a folder with packages that replace the installed ones.

    Raises:
        CaptureFailed: the interpreter does not exist.
    """

    def __init__(
        self,
        python: str,
        options: Sequence[str],
        stack: ExitStack,
        folder: Path,
        packages: Path | None = None,
    ) -> None:
        self.python = python
        paths = [str(path) for path in (packages, os.environ.get("PYTHONPATH")) if path]
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            GUARDED: str(folder),
        }
        self._options = options
        self._lock = threading.Lock()
        self._start()
        stack.callback(self._end)

    def _start(self) -> None:
        # The terminal interrupts the script alone.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
        try:
            with os.fdopen(os.dup(0)) as stdin:
                number = stdin.fileno()
                self._process = subprocess.Popen(
                    [self.python, str(RECORDER), "--serve", str(number)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    pass_fds=[number],
                    env=self.environment,
                    text=True,
                )
        except OSError as error:
            raise CaptureFailed(f"--python {self.python}: {error.strerror}.") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _end(self) -> None:
        with self._process:
            self._process.kill()

    def interrupt(self) -> None:
        """Interrupt the script, unless the terminal has done so."""
        self._process.send_signal(signal.SIGUSR1)

    def arguments(self, path: Path, command: Sequence[str], more: Sequence[str] = ()) -> list[str]:
        """Return the arguments of the recorder.

        Args:
            path: of the capture.
            command: a script or `-m` and a module, and its own arguments.
            more: further options, which override the others.
        """
        return ["--out", str(path), *self._options, *more, *command]

    def capture(
        self,
        path: Path,
        command: Sequence[str],
        more: Sequence[str] = (),
        is_superseded: Callable[[], bool] = bool,
    ) -> None:
        """Capture a script: see `arguments`. Kill it once it is superseded.

        Raises:
            CaptureFailed: no capture was written.
        """
        reply = self._request(self.arguments(path, command, more), is_superseded)
        if reply != "\n":
            ended = f"The capture process ({self.python}) ended; the terminal shows why."
            raise CaptureFailed(reply.strip() or ended)

    def compile(self, request: Mapping[str, Any]) -> Sequence[Mapping[str, Any] | None]:
        """Compile modules: see `record/compiled.py`. Each result is None if the process does not reply."""
        try:
            return json.loads(self._request(request))
        except ValueError:
            return [None] * len(request["modules"])

    def _request(self, request: Any, is_superseded: Callable[[], bool] = bool) -> str:
        with self._lock:
            if self._process.poll() is not None:
                self._start()
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            with suppress(OSError):
                self._process.stdin.write(f"{json.dumps(request)}\n")
                self._process.stdin.flush()
            replies = [self._process.stdout.fileno()]
            while self._process.poll() is None and not wait(replies, _POLL_S):
                if is_superseded():
                    self._process.send_signal(signal.SIGUSR2)
            # The script's own processes may hold the pipe open.
            reply = self._process.stdout.readline() if wait(replies, 0) else ""
            if not reply:
                self._end()
            return reply


@functools.lru_cache(maxsize=16)
def find_allocations(capture: BaseCapture) -> Sequence[Allocation]:
    """Return how the shared memory of each kernel is allocated.

    If the capture lacks the allocation, the Triton that this interpreter would import computes it.
    """
    content = capture.content
    missing = {
        number: {
            "ttgir": capture.read_code(number, "ttgir"),
            "ttir": "",
            "capability": content.capability,
            "options": {},
        }
        for number, kernel in enumerate(content.kernels)
        if kernel.allocation is None and kernel.shared_bytes
    }
    allocations = [kernel.allocation or Allocation() for kernel in content.kernels]
    if missing:
        for number, allocation in zip(missing, _allocate([*missing.values()]), strict=True):
            allocations[number] = allocation
    return allocations


def _allocate(kernels: Sequence[Mapping[str, Any]]) -> Sequence[Allocation]:
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(_ALLOCATOR)],
            input=json.dumps(kernels),
            capture_output=True,
            text=True,
            check=True,
            timeout=_ALLOCATE_S,
        )
    except (OSError, subprocess.SubprocessError):
        why = f"The capture has no allocation of shared memory, and {sys.executable} could not compute it with Triton."
        return [Allocation(why_missing=why)] * len(kernels)
    return TypeAdapter(list[Allocation]).validate_json(done.stdout)


def is_supported(triton: str) -> bool:
    """Return whether a text is a version of Triton that can be captured."""
    match = re.fullmatch(r"(\d+)\.(\d+)[\w.+]*", triton)
    return match is not None and (int(match[1]), int(match[2])) >= _OLDEST_TRITON


def install_triton(version: str, cache: Path, python: str, guarded: Path) -> Path:
    """Return the folder of a Triton version for an interpreter in a cache, and install that version if it is missing.

    Args:
        guarded: the folder of a guard of this version's folder in the cache.

    Raises:
        CaptureFailed: pip could not install it, it is too old, or the interpreter does not exist.
    """
    if not is_supported(version):
        raise CaptureFailed(
            f"--triton {version}: Tilescope needs Triton 3.6 or later, such as 3.6.0."
        )
    tag = "import sys; print(sys.implementation.cache_tag)"
    try:
        named = subprocess.run([python, "-c", tag], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CaptureFailed(f"--python {python} cannot run Python code: {error}.") from error
    folder = cache / f"triton-{version}-{named.stdout.strip()}"
    if folder.exists():
        return folder
    print(
        f"Installing Triton {version} for --triton: this downloads about 200 MB and unpacks to about 900 MB in "
        f"{folder}; delete that folder to remove it.",
        file=sys.stderr,
    )
    cache.mkdir(parents=True, exist_ok=True)
    partial = partial_path(cache / f"triton-{version}")
    # Without dependencies: those of the script's environment are used.
    pip = [python, "-m", "pip", "install", "--quiet", "--no-deps"]
    pip += ["--target", str(partial), f"triton=={version}"]
    environment = {**os.environ, GUARDED: str(guarded)}
    if subprocess.run(pip, stdout=_STDERR, check=False, env=environment).returncode:
        raise CaptureFailed(f"pip could not install Triton {version}.")
    if not folder.exists():  # another process may have been faster
        partial.rename(folder)
    return folder
