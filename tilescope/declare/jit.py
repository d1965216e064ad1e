"""Jitted functions: compiled by Triton, evaluated on NumPy arrays, or read as source.

Kernel files import `triton` and `tl` from here. Where Triton is not installed (macOS), a stand-in replaces it: a jitted
function keeps its Python original in `.fn`, so schedules and textbook models still work, but it can't be launched.
"""

import ast
import functools
import inspect
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tilescope.declare.discovery import package_folder


class ArrayLanguage:
    """The few names of `triton.language` that index arithmetic uses, on NumPy arrays."""

    constexpr = int

    @staticmethod
    def arange(start: int, stop: int) -> np.ndarray:
        return np.arange(start, stop, dtype=np.int64)

    @staticmethod
    def cdiv(x: Any, y: Any) -> Any:
        return -(-x // y)


class _StandIn:
    """The names of `triton` that kernel files use. A jitted function only keeps its Python original."""

    class jit:
        def __init__(self, fn: Callable[..., Any]) -> None:
            self.fn = fn


def _keep_source_lines(*arguments: Any) -> tuple[str, str]:
    from tilescope.record.compiled import keep_source_lines  # imports torch

    return keep_source_lines(*arguments)


try:
    import triton
    import triton.language as tl

    HAS_TRITON = True
    # Triton calls this hook only in processes that compile.
    triton.knobs.runtime.add_stages_inspection_hook = _keep_source_lines
except ImportError:
    triton = _StandIn
    tl = ArrayLanguage
    HAS_TRITON = False


@functools.cache
def on_arrays(jitted: Any) -> Callable[..., Any]:
    """Return the Python original of a jitted function, adapted to NumPy arrays.

    Its globals are rebound: `tl` to a NumPy stand-in, `min` and `max` to their elementwise versions, and each jitted
    function that it calls to its own adapted original. Models therefore evaluate the formula that the kernel compiles,
    for a million pids at once.
    """
    original = jitted.fn
    names: dict[str, Any] = {"tl": ArrayLanguage, "min": np.minimum, "max": np.maximum}
    for name in original.__code__.co_names:
        value = original.__globals__.get(name)
        if hasattr(value, "fn") and callable(value.fn):
            names[name] = on_arrays(value)
    rebound = {**original.__globals__, **names}
    return types.FunctionType(original.__code__, rebound, original.__name__, original.__defaults__)


@functools.cache
def memory_lines(jitted: Any) -> tuple[tuple[str, int], ...]:
    """Return (file, line) of each load, store and atomic of a jitted function, in source order.

    These are operations on pointers (`tl.load`) and on descriptors, which are arguments (`a.load`). Operations inside
    called functions are excluded. Files are relative to the folder of the package of kernels; lines count from 1.
    Triton 3.7 locates a call at its last positional argument, which therefore begins on the call's first line.
    """
    text, first_line = inspect.getsourcelines(jitted.fn)
    owners = {"tl", *inspect.signature(jitted.fn).parameters}
    places = []
    for node in ast.walk(ast.parse("".join(text))):
        match node:
            case ast.Call(ast.Attribute(ast.Name(owner), "load" | "store" | "atomic_add")) if (
                owner in owners
            ):
                places.append((node.lineno, node.col_offset))
    name = source_file(jitted)
    return tuple((name, first_line + line - 1) for line, _ in sorted(places))


def source_file(jitted: Any) -> str:
    """Return the file of a jitted function: see `display_path`."""
    return display_path(str(Path(inspect.getsourcefile(jitted.fn) or "").resolve()))


@functools.cache
def display_path(path: str) -> str:
    """Return a path relative to the folder that holds the package of kernels, or only the file name if it lies outside.

    Several installations may share a compile cache, so a path in another one is mapped to this one.
    """
    whole = Path(path)
    package = package_folder()
    if whole.is_relative_to(package.parent):
        inside = whole.relative_to(package.parent)
        return whole.name if "site-packages" in inside.parts else inside.as_posix()
    tails = (
        Path(*whole.parts[place:]) for place, part in enumerate(whole.parts) if part == package.name
    )
    return next(
        (tail.as_posix() for tail in tails if (package.parent / tail).is_file()), whole.name
    )


@functools.cache
def call_lines(source: tuple[str, int]) -> range:
    """Return the lines of the operation that begins at (file, line)."""
    file, line = source
    tree = ast.parse("\n".join(source_lines(file)))
    ends = (
        node.end_lineno or line
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.lineno == line
    )
    return range(line, max(ends, default=line) + 1)


def source_lines(file: str) -> list[str]:
    """Return the lines of a file, given its `display_path`."""
    return (package_folder().parent / file).read_text(encoding="utf-8").splitlines()
