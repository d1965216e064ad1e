"""Why the compiler rejected a config: what was too much, or the first error that it printed."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from kernels.results import Failure
from kernels.source import shown_path
from kernels.spec import Launch

_TOO_FEW_REGISTERS = re.compile(r"Insufficient registers \((\d+)\).*register target of (\d+)")
# "ptxas fatal   : (C7602) text", "ptxas a.ptx, line 7; error   : text", "/a/b.py:29:0: error: text"
_ERROR = re.compile(r"(?<!PTXAS )\b(?:error|fatal)\s*: (?:\(\w+\) )?(.+)")
_PATH = re.compile(r"(?<![\w.])/\w[^\s\"':,;]+")
_PTXAS = "PTXAS error: "
_LANES = 32


@contextmanager
def captured_output() -> Iterator[Callable[[], str]]:
    """Keep what is printed from the terminal, by native code, too: MLIR and ptxas dump whole kernels when they fail.

    Yields:
        What gives the text that was printed so far.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as kept:

        def printed() -> str:
            kept.flush()
            kept.seek(0)
            text = kept.read()
            kept.seek(0, os.SEEK_END)
            return text

        streams = [stream for stream in (sys.stdout, sys.stderr) if stream is not None]
        for stream in streams:
            stream.flush()
        saved = [os.dup(1), os.dup(2)]
        try:
            for number in (1, 2):
                os.dup2(kept.fileno(), number)
            with redirect_stdout(kept), redirect_stderr(kept):
                yield printed
        finally:
            for number, before in zip((1, 2), saved, strict=True):
                os.dup2(before, number)
                os.close(before)


def rejection(error: Exception, printed: str, launch: Launch) -> Failure:
    """The failure that an exception of the compiler comes to.

    Args:
        printed: what the compiler printed before it raised.
    """
    text = f"{error}\n{printed}"
    if match := _TOO_FEW_REGISTERS.search(text):
        return _registers(int(match[2]), int(match[1]), launch)
    reason = _PATH.sub(lambda match: shown_path(match[0]), _reason(error, text))
    return Failure("compile", "compile_error", f"Triton could not compile this config: {reason}")


def _registers(needed: int, allowed: int, launch: Launch) -> Failure:
    threads = _LANES * launch.config.num_warps
    return Failure(
        "compile",
        "out_of_resources",
        f"This config needs at least {needed} registers per thread; with {threads} threads per program, "
        f"{launch.gpu.name} allows {allowed}. Make the tile smaller.",
    )


def _reason(error: Exception, text: str) -> str:
    """The compiler's first error line; of an exception of Python's, whose message ends with it, the last line."""
    if match := _ERROR.search(text):
        return match[1].strip()
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].startswith(_PTXAS):  # which died without a word; a command to repeat it follows
        return lines[0].removeprefix(_PTXAS)
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"
