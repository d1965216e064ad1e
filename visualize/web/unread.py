"""What Gradio keeps for callers until they read it, bounded: most who never read it never will.

Gradio 6.31 keeps every message of an event for as long as nobody reads it, for 2,000 callers, and the numbers of all
events of all callers for ever. Who only asks, and reads nothing, would fill the memory of the page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gradio.queueing import Queue
from gradio.utils import LRUCache

# Callers for whom something is kept: each call of an endpoint is one, and each open page.
MOST_CALLERS = 200

# Messages of one caller that wait to be read. An open page reads each at once.
MOST_UNREAD = 30

# Events of which Gradio keeps how long they took.
_MOST_TIMED = 200


class _Messages(asyncio.Queue[Any]):
    """The messages of one caller: the oldest one goes where there are too many.

    Args:
        heard: called when a reader has waited, for a message or in vain, and may wait again in a moment.

    Attributes:
        readers: who waits for the next one.
    """

    def __init__(self, heard: Callable[[], None]) -> None:
        super().__init__()
        self.readers, self._heard = 0, heard

    async def get(self) -> Any:
        self.readers += 1
        try:
            return await super().get()
        finally:
            self.readers -= 1
            self._heard()

    def put_nowait(self, item: Any) -> None:
        if self.qsize() >= MOST_UNREAD:
            self.get_nowait()
        super().put_nowait(item)


class _Callers(LRUCache[str, Any]):
    """The messages by caller. Of those who don't read, the one heard of least lately goes first, with all events."""

    def __init__(self, numbers: dict[str, set[str]]) -> None:
        super().__init__(MOST_CALLERS)
        self._numbers = numbers

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _Messages(lambda: self._heard(key)))

    def __getitem__(self, key: str) -> Any:
        self._heard(key)
        return super().__getitem__(key)

    def _heard(self, key: str) -> None:
        if key in self:
            self.move_to_end(key)

    def __missing__(self, key: str) -> Any:
        """An event of a caller who is gone has something to say: nobody reads it."""
        return _Messages(lambda: None)

    def __delitem__(self, key: str) -> None:
        """Whose stream breaks off may be gone already."""
        self.pop(key, None)

    def popitem(self, last: bool = True) -> tuple[str, Any]:
        """Take one out; it is called where there are too many."""
        key = next((key for key, messages in self.items() if not messages.readers), next(iter(self)))
        self._numbers.pop(key, None)
        return key, self.pop(key)


class _Numbers(dict[str, set[str]]):
    """The numbers of the events of each caller that are not answered yet."""

    def __missing__(self, key: str) -> set[str]:
        """A stream ends after its caller is gone."""
        return set()


def bound(queue: Queue) -> None:
    """Bound what a queue keeps. Before anybody has asked it for anything."""
    queue.pending_event_ids_session = _Numbers()
    queue.pending_messages_per_session = _Callers(queue.pending_event_ids_session)
    queue.ANALYTICS_MAX_EVENTS = _MOST_TIMED
