"""The command line, and the server of captures: run a script in a fork, and write its capture."""

import argparse
import atexit
import ctypes
import faulthandler
import functools
import gc
import io
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from signal import SIGCHLD, SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from triton.backends.nvidia import compiler as nvidia_compiler
from triton.runtime.cache import triton_key

from . import Values
from .capture_file import check_output, write_capture
from .compiled import recompile
from .patches import recording
from .programs import read_program, run_program, split_case
from .recorder import H200, LOCK, HostRead, Recorder, UsageError
from .tracebacks import describe_stop, print_exception, text_of

# The environment variable with the folder of the temporary files: see `captures/server.py`.
_FOLDER = "TILESCOPE_FOLDER"

# The signals that a recorder blocks: those of its script's terminal, and those that it awaits.
_BLOCKED = SIGINT, SIGCHLD

# The signals that the recorder forwards to the script, each with the one sent instead. `captures/server.py` sends the
# last two.
_PASSED_ON = {
    SIGHUP: SIGHUP,
    SIGTERM: SIGTERM,
    SIGUSR1: SIGINT,
    SIGUSR2: SIGKILL,
}

# prctl(2), <linux/prctl.h>.
_PR_SET_PDEATHSIG = 1


def this_gpu() -> Values:
    """Return the properties of this machine's GPU."""
    properties: Any = torch.cuda.get_device_properties(0)
    shared = properties.shared_memory_per_block_optin
    return {
        "name": properties.name.removeprefix("NVIDIA "), "sms": properties.multi_processor_count,
        "compute_capability": [properties.major, properties.minor], "shared_bytes_per_program": shared,
    }  # fmt: skip


def serve(stdin: int) -> None:
    """Serve requests, one JSON line of stdin each, with a reply of one line.

    The scripts' stdin is the given file descriptor.

    A list holds the arguments of a capture; the reply is the error, or nothing. An object holds the arguments of
    `recompile`; the reply is its result. Scripts run in forks of this process, which has imported torch and Triton.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_BLOCKED, SIGUSR1, SIGUSR2))
    tempfile.tempdir = os.environ.get(_FOLDER)
    requests = os.fdopen(os.dup(0))
    reply = os.dup(1)
    os.dup2(stdin, 0)
    os.dup2(2, 1)  # the scripts' output goes to stderr
    for line in requests:
        request = json.loads(line)
        is_capture = isinstance(request, list)
        message = capture(request) if is_capture else json.dumps(recompile(**request))
        os.write(reply, f"{message}\n".encode())


def capture(command_line: Sequence[str]) -> str:
    """Run a script in a fork, and write its capture even if it is killed. Return "", or why nothing was captured."""
    parser = argparse.ArgumentParser()
    add = parser.add_argument
    add("--out", type=Path, required=True)
    add("--gpu-json", type=json.loads)
    add("--config", action="append", default=[])
    add("--set", action="append", default=[])
    for name in ("--values", "--untimed", "-m"):
        add(name, action="store_true")
    add("script")
    add("arguments", nargs=argparse.REMAINDER)
    flags = parser.parse_args(command_line)
    try:
        check_output(flags.out)
        folder = Path(tempfile.mkdtemp(prefix="tilescope-"))
        try:
            status = 0
            if flags.untimed:  # under a profiler, which may not follow a fork
                record_script(flags, folder)
            else:
                # The costly steps of a process's first compile: its forks skip them
                triton_key()
                gc.freeze()
                if SIGUSR1 in signal.sigpending():
                    return "Interrupted before the script started."
                status = _run_in_fork(flags, folder)
            script = Path(split_case(flags.script)[0]).name
            return write_capture(folder, flags.out, script, status)
        finally:
            shutil.rmtree(folder)
    except OSError as error:
        return f"--out {flags.out} cannot be written ({error.strerror})."


def _run_in_fork(flags: argparse.Namespace, folder: Path) -> int:
    """Record a script. Return the exit status of its process, or minus the signal that killed it."""
    if child := os.fork():
        return _wait(child)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, SIGKILL)
    tempfile.tempdir = None
    temporary_file = functools.partial(tempfile.NamedTemporaryFile, dir=folder)
    # Triton deletes the files of a compile, unless it is killed.
    vars(nvidia_compiler)["tempfile"] = SimpleNamespace(NamedTemporaryFile=temporary_file)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_BLOCKED, *_PASSED_ON))
    faulthandler.enable()
    try:
        record_script(flags, folder)
    except BaseException as error:  # such as Ctrl+C while the script's threads end
        print_exception(error)
        _exit(1)
    _exit()


def _exit(status: int = 0) -> NoReturn:
    """Flush what the script wrote, and exit.

    Python's own exit takes half a second with torch. From Triton 3.8 on, it also prints a list of objects that
    Triton leaks when it returns a layout.
    """
    for file in (sys.stdout, sys.stderr, *gc.get_objects()):  # the fork's own objects
        if type(file) in (io.TextIOWrapper, io.BufferedWriter) and not file.closed:
            file.flush()
    os._exit(status)


def _wait(child: int) -> int:
    """Wait for a process, and pass signals on to it. Return its exit status, or minus the signal."""
    while True:
        number = signal.sigwait((SIGCHLD, *_PASSED_ON))
        if number == SIGUSR1 and SIGINT in signal.sigpending():
            signal.sigwait((SIGINT,))  # the terminal has interrupted the child, too
        elif number != SIGCHLD:
            os.kill(child, _PASSED_ON[signal.Signals(number)])
        else:
            process, status = os.waitpid(child, os.WNOHANG)
            if process:
                return os.waitstatus_to_exitcode(status)


def record_script(flags: argparse.Namespace, folder: Path) -> None:
    """Run a script, and record its launches and how it ended."""
    target, case = split_case(flags.script)
    title = Path(target).name
    here = this_gpu() if torch.cuda.is_available() else {}
    gpu = {**H200, **(flags.gpu_json or here)}
    is_here = here and all(here[name] == gpu[name] for name in ("sms", "compute_capability"))
    runs = "cuda" if is_here else "interpreter" if flags.values else ""
    pairs = re.findall(r"^(\w+)=(\d+)$", "\n".join(flags.config), re.MULTILINE)
    configs = {name: int(number) for name, number in pairs}
    with recording(folder, gpu, runs, configs=configs, is_timed=not flags.untimed) as recorder:
        if here and not is_here:
            recorder.note(
                f"Nothing ran on the GPU: this machine has {here['name']}, but --gpu is {gpu['name']}."
            )
        try:
            if len(pairs) < len(flags.config):
                raise UsageError(f"--config must be KERNEL=N (got {' '.join(flags.config)}).")
            _run(recorder, flags, target, case)
        except UsageError as error:
            recorder.write("refused", str(error))
        except HostRead:
            recorder.write("stopped", recorder.read)
        except SystemExit as error:
            if not isinstance(error.code, int | None):
                print(text_of(error.code), file=sys.stderr)
            if error.code:
                recorder.write("stopped", describe_stop(error, title))
        except BaseException as error:
            print_exception(error)
            recorder.keep_failed(error)
            recorder.write("stopped", describe_stop(error, title))
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as plain Python does at its end
        atexit._run_exitfuncs()
        LOCK.acquire()  # daemon threads stop at their next launch
        recorder.write("is_complete", True)


def _run(recorder: Recorder, flags: argparse.Namespace, target: str, case: str) -> None:
    # As Python does while it imports the package of a module
    sys.argv = ["-m" if flags.m else target, *flags.arguments]
    codes, attributes = read_program(recorder, target, flags.m)
    if flags.m:
        sys.argv[0] = attributes["__file__"]
    run_program(recorder, codes, attributes, Path(target).name, case, flags.set)
    tuned = {launch.function.__name__ for launch in recorder.launches if launch.content["tuned"]}
    if unused := sorted({*recorder.configs} - tuned):
        allowed = ", ".join(sorted(tuned)) or "none"
        raise UsageError(
            f"--config: no autotuned kernel {unused[0]} was launched. Autotuned kernels: {allowed}."
        )


def main() -> None:
    status = 0
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]))
        _exit()
    is_untimed = "--untimed" in sys.argv
    if not is_untimed:
        signal.pthread_sigmask(signal.SIG_BLOCK, (*_BLOCKED, *_PASSED_ON))
    if message := capture(sys.argv[1:]):
        print(message, file=sys.stderr)
        status = 2
    if is_untimed:  # a profiler may need the process's own exit
        sys.exit(status)
    _exit(status)
