"""Messages that no client reads are bounded: per client, in clients, and in the numbers of their events."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import gradio as gr
import pytest

from visualize.web.unread import MAX_CLIENTS, MAX_UNREAD, bound_unread


@pytest.fixture
def queue():
    with gr.Blocks() as blocks:
        pass
    bound_unread(blocks._queue)
    return blocks._queue


def add_event(queue, client):
    """Do what Gradio does for each event that a client sends."""
    if client not in queue.pending_messages_per_session:
        queue.pending_messages_per_session[client] = asyncio.Queue()
    if client not in queue.pending_event_ids_session:
        queue.pending_event_ids_session[client] = set()
    queue.pending_event_ids_session[client].add("event")


def test_a_client_that_never_reads_keeps_the_latest_messages(queue):
    add_event(queue, "client")
    messages = queue.pending_messages_per_session["client"]
    for number in range(MAX_UNREAD + 50):
        messages.put_nowait(number)
    assert [messages.get_nowait() for _ in range(messages.qsize())] == list(range(50, MAX_UNREAD + 50))


def test_the_least_recently_active_clients_are_evicted_with_their_events(queue):
    for number in range(3 * MAX_CLIENTS):
        add_event(queue, f"client {number}")
        queue.pending_messages_per_session["client 0"].put_nowait("message")
    kept = {"client 0", *(f"client {number}" for number in range(2 * MAX_CLIENTS + 1, 3 * MAX_CLIENTS))}
    assert set(queue.pending_messages_per_session) == set(queue.pending_event_ids_session) == kept


def test_a_client_that_waits_for_a_message_is_kept(queue):
    async def wait():
        add_event(queue, "waiting")
        reading = asyncio.create_task(queue.pending_messages_per_session["waiting"].get())
        await asyncio.wait([reading], timeout=0)
        for number in range(2 * MAX_CLIENTS):
            add_event(queue, f"client {number}")
        queue.pending_messages_per_session["waiting"].put_nowait("message")
        return await reading

    assert asyncio.run(wait()) == "message"
    assert len(queue.pending_messages_per_session) == MAX_CLIENTS


def test_a_client_between_two_reads_is_kept(queue):
    async def wait():
        add_event(queue, "waiting")
        messages = queue.pending_messages_per_session["waiting"]
        for number in range(MAX_CLIENTS - 1):
            add_event(queue, f"client {number}")
        with suppress(TimeoutError):
            await asyncio.wait_for(messages.get(), 0.01)
        add_event(queue, "another")
        return "waiting" in queue.pending_messages_per_session

    assert asyncio.run(wait())


def test_messages_to_an_evicted_client_are_dropped(queue):
    queue.pending_messages_per_session["evicted"].put_nowait("message")
    queue.pending_event_ids_session["evicted"].add("event")
    del queue.pending_messages_per_session["evicted"]
    assert "evicted" not in queue.pending_messages_per_session
    assert "evicted" not in queue.pending_event_ids_session
