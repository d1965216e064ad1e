"""Why the compiler rejected a config: the resource that it exceeds, or the first error that was printed."""

from __future__ import annotations

import errno
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from kernels.jit import display_path
from kernels.results import Failure
from kernels.spec import Launch

_TOO_FEW_REGISTERS = re.compile(r"Insufficient registers \((\d+)\).*register target of (\d+)")
# "ptxas fatal   : (C7602) text", "ptxas a.ptx, line 7; error   : text", "/a/b.py:29:0: error: text"
_ERROR = re.compile(r"(?<!PTXAS )\b(?:error|fatal)\s*: (?:\(\w+\) )?(.+)")
_PATH = re.compile(r"(?<![\w.])/\w[^\s\"':,;]+")
_PTXAS = "PTXAS error: "
_LANES = 32


@contextmanager
def capture_output() -> Iterator[Callable[[], str]]:
    """Keep output off the terminal, native output included: MLIR and ptxas dump whole kernels when they fail.

    Yields:
        A function that returns the text printed so far.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:

        def printed() -> str:
            file.flush()
            file.seek(0)
            text = file.read()
            file.seek(0, os.SEEK_END)
            return text

        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
        saved = [os.dup(1), os.dup(2)]
        try:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
            with redirect_stdout(file), redirect_stderr(file):
                yield printed
        finally:
            for number, before in zip((1, 2), saved, strict=True):
                os.dup2(before, number)
                os.close(before)


def explain_rejection(error: Exception, printed: str, launch: Launch) -> Failure:
    """Return the failure for an exception of the compiler.

    Args:
        printed: output of the compiler before it raised.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failure(
            "compile",
            "disk_full",
            f"The disk of {Path(os.environ['TRITON_CACHE_DIR']).name} is full ({error.strerror}), so the compiled "
            "kernel can't be kept. Free some space, or name another place by TILESCOPE_CACHE.",
        )
    text = f"{error}\n{printed}"
    if match := _TOO_FEW_REGISTERS.search(text):
        return Failure(
            "compile",
            "out_of_resources",
            f"This config needs at least {match[2]} registers per thread; with {_LANES * launch.config.num_warps} "
            f"threads per program, {launch.gpu.name} allows {match[1]}. Make the tile smaller.",
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if match := _ERROR.search(text):
        reason = match[1].strip()
    elif lines and lines[0].startswith(_PTXAS):  # it died without a message; a command to reproduce it follows
        reason = lines[0].removeprefix(_PTXAS)
    else:  # the message of a Python exception ends with the reason
        reason = f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
    reason = _PATH.sub(lambda match: display_path(match[0]), reason)
    return Failure("compile", "compile_error", f"Triton could not compile this config: {reason}")
