"""Wait for another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

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
