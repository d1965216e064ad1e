"""Limit the memory of unread replies in Gradio's queue, and end the events of clients that have left.

Gradio 6.31 keeps unread replies of any size for up to 2,000 clients, and never forgets a client whose replies were all
read; no upstream issue reports it. Remove this module when Gradio's `Queue` bounds `pending_messages_per_session` and
`pending_event_ids_session`, and cancels the events of disconnected clients.
"""

import asyncio
from typing import Any

import orjson
from gradio.queueing import Queue

# Maximum bytes of unread replies of all clients, and number of added bytes after which they are counted.
MAX_UNREAD_BYTES = 64 << 20
CHECK_BYTES = 1 << 20

# Seconds after which the events of a client end, and its replies are dropped: after the end of its stream, and without
# a stream. Gradio's clients close their stream when they have no unfinished event, possibly just as they start one.
LEFT_S = 2.0
UNREAD_S = 20.0


class _Messages(asyncio.Queue[Any]):
    """One client's unread messages.

    Attributes:
        readers: number of pending reads.
        size: bytes of the messages.
    """

    readers = 0
    size = 0

    def __init__(self, mailboxes: "Mailboxes") -> None:
        super().__init__()
        self._mailboxes = mailboxes

    async def get(self) -> Any:
        self.readers += 1
        try:
            return await super().get()
        finally:
            self.readers -= 1

    def _get(self) -> Any:
        size, item = super()._get()
        self.size -= size
        return item

    def put_nowait(self, item: Any) -> None:
        size = len(orjson.dumps(getattr(item, "output", None), default=str))
        super().put_nowait((size, item))
        self.size += size
        self._mailboxes.limit_bytes(size)


class Mailboxes(dict[str, Any]):
    """Unread messages by client, in order of the client's first event."""

    _unchecked_bytes = 0

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, _Messages(self))

    def __missing__(self, key: str) -> Any:
        """Return an unregistered queue: an event may still send to a client whose mailbox was dropped."""
        return asyncio.Queue()

    def limit_bytes(self, added: int) -> None:
        """Drop the oldest mailboxes that exceed MAX_UNREAD_BYTES. Visits all of them, but only for each CHECK_BYTES."""
        self._unchecked_bytes += added
        if self._unchecked_bytes < CHECK_BYTES:
            return
        self._unchecked_bytes = 0
        unread = {client: messages.size for client, messages in self.items() if messages.size}
        total = sum(unread.values())
        for client, size in unread.items():
            if total > MAX_UNREAD_BYTES:
                del self[client]
                total -= size


def limit_queue(queue: Queue, left_s: float = LEFT_S, unread_s: float = UNREAD_S) -> None:
    """Limit a queue's unread replies, and end the events of clients that do not read. Call it before any request."""
    mailboxes = queue.pending_messages_per_session = Mailboxes()  # type: ignore[assignment]
    event_ids = queue.pending_event_ids_session
    queue.ANALYTICS_MAX_EVENTS = 200  # Gradio keeps the durations of this many events
    clean_events = queue.clean_events
    push = queue.push
    watches = set[asyncio.Task[None]]()

    async def watch(client: str, event_id: object) -> None:
        """End the client's events if it reads nothing while this one is unfinished. Then forget the client."""
        unread_for_s = 0.0
        while event_id in event_ids.get(client, ()):
            await asyncio.sleep(left_s)
            messages = mailboxes.get(client)
            unread_for_s = 0.0 if messages and messages.readers else unread_for_s + left_s
            if unread_for_s > (unread_s if messages else left_s):
                await end_events(client)
        if not event_ids.get(client):
            mailboxes.pop(client, None)
            event_ids.pop(client, None)

    async def end_events(client: str) -> None:
        await clean_events(session_hash=client)
        event_ids.pop(client, None)
        for task in [*queue._asyncio_tasks]:
            # `gradio.utils.set_task_name` joins the hash, the event's number and its id.
            if task.get_name().rpartition("<gradio-sep>")[0].rpartition("_")[0] == client:
                task.cancel()

    async def push_and_watch(body: Any, *args: Any, **kwargs: Any) -> Any:
        result = await push(body, *args, **kwargs)
        watches.add(task := asyncio.create_task(watch(body.session_hash, result[1])))
        task.add_done_callback(watches.discard)
        return result

    async def keep_events(*, session_hash: str | None = None, event_id: str | None = None) -> None:
        """Gradio 6.31 drops a client's queued events as soon as its stream closes, even if it opens another at once."""
        if session_hash is None:
            await clean_events(event_id=event_id)

    queue.push = push_and_watch  # type: ignore[method-assign]
    queue.clean_events = keep_events  # type: ignore[method-assign]
