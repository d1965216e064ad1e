"""What is made once for all threads. Standard library only."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def once(function: F) -> F:
    """`functools.cache`, for several threads: those that ask while a value is made wait for it.

    functools' own lets each of them make it: of a page that has just started, forty threads would read all recordings.
    """
    made, lock = functools.cache(function), threading.RLock()

    @functools.wraps(function)
    def kept(*arguments: Any) -> Any:
        with lock:
            return made(*arguments)

    kept.cache_clear = made.cache_clear  # type: ignore[attr-defined]
    return kept  # type: ignore[return-value]
