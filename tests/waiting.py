"""Wait for another thread, process or event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], timeout_s: float = 60.0) -> T:
    """Call `condition` until it returns a true value, and return that value.

    Raises:
        AssertionError: the condition is still false after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"the condition was still false after {timeout_s:g} s"
        time.sleep(0.02)
    return value


def run_coroutine(coroutine: Coroutine[Any, Any, T], timeout_s: float = 100.0) -> T:
    """Return a coroutine's result. After browser tests, the main thread already has a running loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(coroutine)).result(timeout_s)
