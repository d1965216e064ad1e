"""Triton where it is installed, and a stand-in where it is not (macOS).

Kernel files take `triton` and `tl` from here. With the stand-in a jitted function keeps its Python
original in `.fn`, so that schedules and textbook models still work, and refuses to launch.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, cast

import numpy as np


class ArrayLanguage:
    """The few names of `triton.language` that index arithmetic uses, on NumPy arrays."""

    constexpr = int

    @staticmethod
    def arange(start: int, stop: int) -> np.ndarray:
        return np.arange(start, stop, dtype=np.int64)

    @staticmethod
    def cdiv(x: Any, y: Any) -> Any:
        return -(-x // y)


class RefusesToLaunch:
    """A jitted function on a machine without Triton: its Python original, and no launch."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        functools.update_wrapper(cast("Any", self), fn)

    def __getitem__(self, grid: Any) -> Any:
        raise RuntimeError(f"{self.fn.__name__} can't be launched: Triton is not installed on this machine.")


class _StandIn:
    jit = RefusesToLaunch
    cdiv = staticmethod(ArrayLanguage.cdiv)


try:
    import triton
    import triton.language as tl

    HAS_TRITON = True
except ImportError:
    triton, tl = _StandIn, ArrayLanguage
    HAS_TRITON = False


@functools.cache
def on_arrays(jitted: Any) -> Callable[..., Any]:
    """Return the Python original of a jitted function, ready for NumPy arrays.

    The names that it uses are rebound: `tl` to a NumPy stand-in, `min` and `max` to their elementwise
    forms, and every jitted function that it calls to the same treatment. So a model evaluates the very
    formula that the kernel compiles, for a million pids at once.
    """
    original = jitted.fn
    names: dict[str, Any] = {"tl": ArrayLanguage, "min": np.minimum, "max": np.maximum}
    for name in original.__code__.co_names:
        value = original.__globals__.get(name)
        if hasattr(value, "fn") and callable(value.fn):
            names[name] = on_arrays(value)
    return types.FunctionType(
        original.__code__, {**original.__globals__, **names}, original.__name__, original.__defaults__
    )
