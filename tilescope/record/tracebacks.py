"""Find the user's code in stacks and tracebacks, and describe how a program ended."""

import gc
import inspect
import os
import re
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import triton
from triton.compiler import CompilationError
from triton.runtime import jit

from . import Values

# The folder of this package, whose frames users do not see.
FOLDER = Path(__file__).parent

# The place of an event outside the user's code.
NO_PLACE: Values = {"file": "", "line": 0}

# Advice on exceptions, by a pattern of their messages.
_ADVICE = {
    "relative import": "Show it as a module, from the folder above its package: -m PACKAGE.MODULE",
    "(waves_per_eu|kpack|matrix_instr_nonkdim|schedule_hint) was specified but unrecognised": (
        "This is an option for AMD GPUs (ROCm), which Triton refuses for an NVIDIA GPU"
    ),
    r"\b(XPU|HIP|xpu|hip|lib\w*hip64\.so)\b": 'Tilescope captures for NVIDIA GPUs, so use device="cuda"',
}


def current_line() -> Values:
    """Return the innermost line of the user's code that is being executed."""
    return _find_line(traceback.extract_stack())


def _find_line(frames: Iterable[traceback.FrameSummary]) -> Values:
    folders = (f"{folder}/" for folder in (torch.__path__[0], triton.__path__[0]))
    skipped = [re.escape(prefix) for prefix in ("<frozen", "<string", *folders)]
    skipped.append(re.escape(str(Path(os.__file__).parent)) + "/(?!(site|dist)-packages/)")
    skipped.append(f"{re.escape(str(FOLDER.parent))}/(?!page/)")  # our package, except its examples
    pattern = re.compile("|".join(skipped))
    lines = [
        {"file": frame.filename, "line": frame.lineno}
        for frame in frames
        if not pattern.match(frame.filename)
    ]
    return lines[-1] if lines else NO_PLACE


def describe_place(line: Values) -> str:
    return f"{Path(line['file']).name}:{line['line']}" if line["line"] else "The case"


def describe_stop(error: BaseException, title: str) -> Values:
    """Return the JSON that says where and why a program ended early."""
    frames = list[traceback.FrameSummary](traceback.extract_tb(error.__traceback__))
    # Kernels have no frames: an error names the source of the function that the compiler visited
    link: BaseException | None = error
    while isinstance(link, CompilationError):
        for function in gc.get_objects():
            if issubclass(type(function), jit.JITFunction) and function.src == link.src:
                lines, first = inspect.getsourcelines(function.fn)
                first += [line.lstrip()[:4] for line in lines].index("def ")
                file = function.fn.__code__.co_filename
                number = first + getattr(link.node, "lineno", 1) - 1
                frames.append(traceback.FrameSummary(file, number, ""))
        link = link.__cause__
    line = _find_line(frames)
    if isinstance(error, SystemExit):
        if isinstance(error.code, int):
            return line | describe_exit(title, int(error.code), "")
        return line | describe_exit(title, 1, f": {text_of(error.code)}")
    message = f"{title} raised {summarize(error)}"
    advice = (text for pattern, text in _ADVICE.items() if re.search(pattern, message))
    notes = map(text_of, getattr(error, "__notes__", []))
    message = "; ".join([". ".join([message, *advice]), *notes])
    return {**line, "kind": "exception", "message": message}


def describe_exit(title: str, status: int, text: str) -> Values:
    message = f"{title} exited with status {status}{text}"
    return {"kind": "exit", "status": status, "message": message[:300]}


def summarize(error: Any) -> str:
    """Return an exception's type and the first line of its message. Of a CompilationError, return the reason."""
    while isinstance(error, CompilationError) and isinstance(error.__cause__, CompilationError):
        error = error.__cause__
    text = getattr(error, "error_message", "") or text_of(error).partition("\n")[0]
    return " ".join(f"{type(error).__name__}: {text}".split()).rstrip(":")[:300]


def text_of(value: Any) -> str:
    """Return a value's text, as Python prints it if the value's own method raises an exception."""
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__} str() failed>"


def print_exception(error: BaseException) -> None:
    """Print a traceback as plain Python does: without the frames of the recorder and of torch's dispatch to it."""
    hidden = f"{FOLDER}/", torch.overrides.__file__
    described = traceback.TracebackException.from_exception(error)
    chain = [described]
    for link in chain:
        chain += filter(None, (link.__cause__, link.__context__))
        link.stack[:] = (frame for frame in link.stack if not frame.filename.startswith(hidden))
    described.print()
