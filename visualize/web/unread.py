"""Bound the messages that Gradio keeps for clients that never read them.

Gradio 6.31 releases ended events (gradio-app/gradio issues 13154 and 11602, fixed by 13156 and 13756). But it keeps an
event's messages for 2,000 clients until they are read, and the event numbers of clients that never read, forever. A
client that only sends requests would fill the memory. This is not reported as of gradio 6.31. Remove this file when
`Queue` bounds `pending_messages_per_session` and `pending_event_ids_session`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from gradio.queueing import Queue
from gradio.utils import LRUCache

# Maximum clients with unread messages. Each open page and each call of an endpoint is one.
MAX_CLIENTS = 200

# Maximum unread messages of one client. An open page reads each message immediately.
MAX_UNREAD = 30


class _Messages(asyncio.Queue[Any]):
    """One client's messages, of which the oldest is dropped first.

    Args:
        on_read: called after each attempt to read, which the client may soon repeat.

    Attributes:
        readers: number of readers that wait for a message.
    """

    def __init__(self, on_read: Callable[[], None]) -> None:
        super().__init__()
        self.readers, self._on_read = 0, on_read

    async def get(self) -> Any:
        self.readers += 1
        try:
            return await super().get()
        finally:
            self.readers -= 1
            self._on_read()

    def put_nowait(self, item: Any) -> None:
        if self.qsize() >= MAX_UNREAD:
            self.get_nowait()
        super().put_nowait(item)


class _Clients(LRUCache[str, Any]):
    """An LRU cache of messages by client. Clients with a waiting reader are evicted last."""

    def __init__(self, event_ids: dict[str, set[str]]) -> None:
        super().__init__(MAX_CLIENTS)
        self._event_ids = event_ids

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _Messages(lambda: self._touch(key)))

    def __getitem__(self, key: str) -> Any:
        self._touch(key)
        return super().__getitem__(key)

    def _touch(self, key: str) -> None:
        if key in self:
            self.move_to_end(key)

    def __missing__(self, key: str) -> Any:
        """Return a queue without a reader: an event of an evicted client may still report."""
        return _Messages(lambda: None)

    def __delitem__(self, key: str) -> None:
        """Ignore a missing key: a stream may end after its client was evicted."""
        self.pop(key, None)

    def popitem(self, last: bool = True) -> tuple[str, Any]:
        key = next((key for key, messages in self.items() if not messages.readers), next(iter(self)))
        self._event_ids.pop(key, None)
        return key, self.pop(key)


class _EventIds(dict[str, set[str]]):
    """Numbers of unfinished events by client."""

    def __missing__(self, key: str) -> set[str]:
        """Return an empty set: a stream may end after its client was evicted."""
        return set()


def bound_unread(queue: Queue) -> None:
    """Bound what a queue keeps. Call it before the first request."""
    queue.pending_event_ids_session = _EventIds()
    queue.pending_messages_per_session = _Clients(queue.pending_event_ids_session)
    queue.ANALYTICS_MAX_EVENTS = 200  # whose durations Gradio keeps
