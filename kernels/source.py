"""Where a jitted function's memory operations stand in its source."""

from __future__ import annotations

import ast
import functools
import inspect
from pathlib import Path
from typing import Any

_OPERATIONS = ("load", "store", "atomic_add")
_ROOT = Path(__file__).resolve().parent.parent


@functools.cache
def memory_lines(jitted: Any) -> tuple[tuple[str, int], ...]:
    """(file, line) of each load, store and atomic of one jitted function, in source order.

    With pointers (`tl.load`), or of a descriptor, which is an argument (`a.load`). Files are relative to the
    repository's root; lines count from 1.
    """
    text, first_line = inspect.getsourcelines(jitted.fn)
    owners = {"tl", *inspect.signature(jitted.fn).parameters}
    calls = [
        node
        for node in ast.walk(ast.parse("".join(text)))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in owners
        and node.func.attr in _OPERATIONS
    ]
    name = file_of(jitted)
    return tuple((name, first_line + call.lineno - 1) for call in sorted(calls, key=lambda c: (c.lineno, c.col_offset)))


def file_of(jitted: Any) -> str:
    """The file of a jitted function, relative to the repository's root."""
    file = Path(inspect.getsourcefile(jitted.fn) or "").resolve()
    return str(file.relative_to(_ROOT)) if file.is_relative_to(_ROOT) else file.name


@functools.cache
def shown_path(path: str) -> str:
    """A path as a reader should see it: relative to the repository, or the file's name alone.

    A cache that several checkouts share can hold the paths of another one.
    """
    whole = Path(path)
    if "site-packages" in whole.parts:
        return whole.name
    if whole.is_relative_to(_ROOT):
        return whole.relative_to(_ROOT).as_posix()
    tails = (Path(*whole.parts[place:]) for place, part in enumerate(whole.parts) if part == "kernels")
    return next((tail.as_posix() for tail in tails if (_ROOT / tail).is_file()), whole.name)


@functools.cache
def last_line(source: tuple[str, int]) -> int:
    """The line on which the operation ends that `memory_lines` says begins at (file, line)."""
    file, line = source
    tree = ast.parse((_ROOT / file).read_text(encoding="utf-8"))
    ends = (node.end_lineno or line for node in ast.walk(tree) if isinstance(node, ast.Call) and node.lineno == line)
    return max(ends, default=line)


def lines_of(file: str) -> list[str]:
    """The lines of a source file that `memory_lines` named."""
    return (_ROOT / file).read_text(encoding="utf-8").splitlines()
