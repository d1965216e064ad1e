"""Values that are kept up to a number and a size: the one that was used least recently is forgotten first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedCache(Generic[K, V]):
    """A dictionary of at most `most` values, for several threads.

    Args:
        size: of a value; all that are kept have at most `largest` together. The last one is kept, however large.
    """

    def __init__(self, most: int, size: Callable[[V], int] = lambda _: 0, largest: int = 0) -> None:
        self._most, self._size, self._largest = most, size, largest
        self._total = 0
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value, which counts as used now; or None."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: K, value: V) -> None:
        with self._lock:
            if key in self._values:
                self._total -= self._size(self._values.pop(key))
            self._values[key] = value
            self._total += self._size(value)
            while len(self._values) > self._most or (self._total > self._largest and len(self._values) > 1):
                self._total -= self._size(self._values.popitem(last=False)[1])

    def __len__(self) -> int:
        return len(self._values)
