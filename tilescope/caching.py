"""Cache results that several threads request at the same time."""

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


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
