"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(found: Callable[[], T], patience_s: float = 60.0) -> T:
    """Wait for what must come true, and return it.

    Raises:
        AssertionError: it did not, for so long.
    """
    deadline = time.monotonic() + patience_s
    while not (thing := found()):
        assert time.monotonic() < deadline, f"it did not come true in {patience_s:g} s"
        time.sleep(0.02)
    return thing
