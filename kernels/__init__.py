"""Declare, compile, run, measure and export kernels. `discover` finds every kernel file."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from kernels.spec import Kernel

F = TypeVar("F", bound=Callable[..., Any])


@functools.cache
def discover() -> Mapping[str, Kernel[Any, Any]]:
    """Return every declared kernel by id, in alphabetical order. A package with a `problem.py` is a family."""
    kernels = {}
    for problem in sorted(Path(__file__).parent.glob("*/problem.py")):
        for file in sorted(problem.parent.glob("[!_]*.py")):
            module = importlib.import_module(f"{__name__}.{problem.parent.name}.{file.stem}")
            if kernel := getattr(module, "KERNEL", None):
                kernels[kernel.id] = kernel
    return MappingProxyType(kernels)


def once(function: F) -> F:
    """Cache a function's results and compute each only once, even if several threads request it at the same time.

    `functools.cache` alone lets concurrent first calls each compute the result: when the page starts, forty threads
    would each read all recordings.
    """
    results = dict[tuple[Any, ...], Any]()
    lock = threading.RLock()

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        if arguments not in results:
            with lock:
                if arguments not in results:
                    results[arguments] = function(*arguments)
        return results[arguments]

    call.cache_clear = results.clear  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]
