"""Limit the memory of unread replies in Gradio's queue, and cancel the events of disconnected clients.

Gradio 6.31 keeps unread replies of any size for up to 2,000 clients; no upstream issue reports it. Remove
`Mailboxes` when Gradio's `Queue` bounds `pending_messages_per_session` and `pending_event_ids_session`.
"""

import asyncio
import functools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import orjson
from gradio.queueing import Queue
from gradio.utils import LRUCache

# Maximum clients per address, and bytes of unread replies per address and in total. Each call of an
# endpoint may be a client.
MAX_MAILBOXES = 300
MAX_UNREAD_BYTES = 8 << 20
MAX_TOTAL_UNREAD_BYTES = 64 << 20

# Maximum unread messages of one client. A client with a stream reads each message immediately.
MAX_UNREAD = 30

# Seconds in which a client may open its next stream before its events are cancelled. Gradio's clients close
# their stream when they have no unfinished event, possibly just as they start one.
RECONNECT_S = 3.0

# Seconds after a call within which its client must open a first stream. Otherwise the server cancels the client's
# events and drops its replies.
FIRST_READ_S = 20.0

# The address of the current request.
_ADDRESS: ContextVar[str] = ContextVar("address", default="")


@contextmanager
def set_address(address: str) -> Iterator[None]:
    """Attribute new mailboxes to this address for the duration of the block."""
    token = _ADDRESS.set(address)
    try:
        yield
    finally:
        _ADDRESS.reset(token)


class _Messages(asyncio.Queue[Any]):
    """One client's unread messages. When full, it drops the oldest.

    Args:
        on_change: called with the change of `size` after each message and after each read.

    Attributes:
        address: the address whose request added the client.
        readers: number of pending reads.
        reads: number of reads that have started.
        size: bytes of the messages.
    """

    def __init__(self, on_change: Callable[["_Messages", int], None]) -> None:
        super().__init__()
        self.address = _ADDRESS.get()
        self.readers = 0
        self.reads = 0
        self.size = 0
        self._on_change = on_change

    @property
    def is_read(self) -> bool:
        return self.reads > 0 and self.readers == 0 and self.empty()

    async def get(self) -> Any:
        self.readers += 1
        self.reads += 1
        try:
            return await super().get()
        finally:
            self.readers -= 1
            self._add(0)

    def _get(self) -> Any:
        size, item = super()._get()
        self._add(-size)
        return item

    def put_nowait(self, item: Any) -> None:
        if self.qsize() >= MAX_UNREAD:
            self.get_nowait()
        size = len(orjson.dumps(getattr(item, "output", None), default=str))
        super().put_nowait((size, item))
        self._add(size)

    def _add(self, size: int) -> None:
        self.size += size
        self._on_change(self, size)


class Mailboxes(LRUCache[str, Any]):
    """Unread messages by client. The client whose mailbox changed last is at the end.

    When an address exceeds a limit, its own clients are evicted: those without a pending read first, in order of their
    last change. Only messages and reads are changes; requests are not.

    Adding a client removes those that have read all replies, await none, and have no unfinished events. Gradio 6.31
    keeps them.

    Args:
        event_ids: ids of unfinished events by client.
        drop_events: called with each removed client.
    """

    def __init__(
        self, event_ids: Mapping[str, set[str]], drop_events: Callable[[str], None]
    ) -> None:
        super().__init__(1 << 30)
        self._event_ids = event_ids
        self._drop_events = drop_events
        self._clients = Counter[str]()
        self._sizes = Counter[str]()  # by address

    def __setitem__(self, key: str, value: Any) -> None:
        for client, unread in [*self.items()]:
            if unread.is_read and not self._event_ids[client]:
                self.remove(client)
        super().__setitem__(key, messages := _Messages(functools.partial(self._update, key)))
        self._clients[messages.address] += 1
        self._evict(messages.address)

    def __missing__(self, key: str) -> Any:
        """Return an unregistered queue, because an evicted client's running event may still send."""
        return _Messages(lambda *_: None)

    def __delitem__(self, key: str) -> None:
        """Ignore a missing key: a stream may end after its client was evicted."""
        if messages := self.pop(key, None):
            self._clients[messages.address] -= 1
            self._sizes[messages.address] -= messages.size
            if not self._clients[messages.address]:
                del self._clients[messages.address], self._sizes[messages.address]

    def _update(self, key: str, messages: _Messages, size: int) -> None:
        if self.get(key) is messages:
            self._sizes[messages.address] += size
            self.move_to_end(key)
            self._evict(messages.address)

    def _evict(self, address: str) -> None:
        """Evict this address's clients while it exceeds a limit, then the largest address's while the total does."""
        while True:
            if self._clients[address] <= MAX_MAILBOXES and self._sizes[address] <= MAX_UNREAD_BYTES:
                if self._sizes.total() <= MAX_TOTAL_UNREAD_BYTES:
                    return
                address = max(self._sizes, key=lambda each: self._sizes[each])
            candidates = [key for key, messages in self.items() if messages.address == address]
            key = next((key for key in candidates if not self[key].readers), candidates[0])
            self.remove(key)

    def remove(self, key: str) -> None:
        del self[key]
        self._drop_events(key)


class _EventIds(dict[str, set[str]]):
    """Ids of unfinished events by client."""

    def __missing__(self, key: str) -> set[str]:
        """Return an empty set: a stream may end after its client was evicted."""
        return set()


def _drop_queued_events(queue: Queue, session_hash: str) -> None:
    """Remove a client's events that have not begun."""
    queue.pending_event_ids_session.pop(session_hash, None)
    for event_queue in queue.event_queue_per_concurrency_id.values():
        for event in [*event_queue.queue]:
            if event.session_hash == session_hash:
                event_queue.queue.remove(event)
                queue.event_ids_to_events.pop(event._id, None)


def limit_queue(
    queue: Queue, reconnect_s: float = RECONNECT_S, first_read_s: float = FIRST_READ_S
) -> None:
    """Limit a queue's unread replies, and cancel the events of clients that do not read. Call it before any request.

    Args:
        reconnect_s: seconds after the end of a client's stream in which it may open another one.
        first_read_s: seconds after a call within which a client must open a first stream.
    """
    queue.pending_event_ids_session = _EventIds()
    drop_events = functools.partial(_drop_queued_events, queue)
    queue.pending_messages_per_session = mailboxes = Mailboxes(
        queue.pending_event_ids_session, drop_events
    )
    queue.ANALYTICS_MAX_EVENTS = 200  # Gradio keeps the durations of this many events
    clean_events = queue.clean_events
    push = queue.push
    tasks = set[asyncio.Task[None]]()

    async def cancel_events(
        session_hash: str, mailbox: Callable[[], object], reads: int, delay_s: float
    ) -> None:
        await asyncio.sleep(delay_s)
        current = mailboxes.get(session_hash)
        if current and (current.reads > reads or current is not mailbox()):
            return
        if not reads or any(
            event.session_hash == session_hash for event in queue.event_ids_to_events.values()
        ):
            # This drops unread replies. A later reader of a cancelled event would wait forever.
            mailboxes.remove(session_hash)
        await clean_events(session_hash=session_hash)
        for task in [*queue._asyncio_tasks]:
            # `gradio.utils.set_task_name` joins the hash, the event's number and its id.
            if task.get_name().rpartition("<gradio-sep>")[0].rpartition("_")[0] == session_hash:
                task.cancel()

    def cancel_unless_read(session_hash: str, is_first: bool, delay_s: float) -> None:
        messages = mailboxes.get(session_hash)
        reads = messages.reads if messages and not is_first else 0
        # A weak reference, so that an evicted client's replies are freed.
        mailbox = weakref.ref(messages) if messages else lambda: None
        tasks.add(task := asyncio.create_task(cancel_events(session_hash, mailbox, reads, delay_s)))
        task.add_done_callback(tasks.discard)

    async def push_and_expect_reader(body: Any, *args: Any, **kwargs: Any) -> Any:
        result = await push(body, *args, **kwargs)
        if body.session_hash is not None:
            cancel_unless_read(body.session_hash, True, first_read_s)
        return result

    async def cancel_events_later(
        *, session_hash: str | None = None, event_id: str | None = None
    ) -> None:
        """Gradio 6.31 drops a client's queued events as soon as its stream closes, even if it opens another at once."""
        if session_hash is None:
            await clean_events(event_id=event_id)
            return
        cancel_unless_read(session_hash, False, reconnect_s)

    queue.push = push_and_expect_reader  # type: ignore[method-assign]
    queue.clean_events = cancel_events_later  # type: ignore[method-assign]
