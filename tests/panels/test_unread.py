"""Messages that no client reads are bounded: per client, in clients, and in the numbers of their events."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import gradio as gr
import pytest

from tests.waiting import run_coroutine
from visualize.web.unread import MAX_CLIENTS, MAX_UNREAD, bound_unread


@pytest.fixture
def queue():
    with gr.Blocks() as blocks:
        pass
    bound_unread(blocks._queue)
    return blocks._queue


def add_event(queue, client):
    """Do what Gradio does for each event that a client sends, and return the client's messages."""
    if client not in queue.pending_messages_per_session:
        queue.pending_messages_per_session[client] = asyncio.Queue()
    if client not in queue.pending_event_ids_session:
        queue.pending_event_ids_session[client] = set()
    queue.pending_event_ids_session[client].add("event")
    return queue.pending_messages_per_session[client]


def add_clients(queue, count):
    for number in range(count):
        add_event(queue, f"client {number}")


def test_a_client_that_never_reads_keeps_the_latest_messages(queue):
    messages = add_event(queue, "client")
    for number in range(MAX_UNREAD + 50):
        messages.put_nowait(number)
    assert [messages.get_nowait() for _ in range(messages.qsize())] == list(range(50, MAX_UNREAD + 50))


def test_the_least_recently_active_clients_are_evicted_with_their_events(queue):
    for number in range(3 * MAX_CLIENTS):
        add_event(queue, f"client {number}")
        queue.pending_messages_per_session["client 0"].put_nowait("message")
    kept = {"client 0", *(f"client {number}" for number in range(2 * MAX_CLIENTS + 1, 3 * MAX_CLIENTS))}
    assert set(queue.pending_messages_per_session) == set(queue.pending_event_ids_session) == kept


def test_a_client_that_waits_for_a_message_is_not_evicted(queue):
    async def wait():
        messages = add_event(queue, "waiting")
        reading = asyncio.create_task(messages.get())
        await asyncio.wait([reading], timeout=0)
        add_clients(queue, 2 * MAX_CLIENTS)
        queue.pending_messages_per_session["waiting"].put_nowait("message")
        return await reading

    assert run_coroutine(wait()) == "message"
    assert len(queue.pending_messages_per_session) == MAX_CLIENTS


def test_a_client_between_two_reads_is_not_evicted(queue):
    async def wait():
        messages = add_event(queue, "waiting")
        add_clients(queue, MAX_CLIENTS - 1)
        with suppress(TimeoutError):
            await asyncio.wait_for(messages.get(), 0.01)
        add_event(queue, "another")

    run_coroutine(wait())
    assert "waiting" in queue.pending_messages_per_session


def test_messages_to_an_evicted_client_are_dropped(queue):
    queue.pending_messages_per_session["evicted"].put_nowait("message")
    queue.pending_event_ids_session["evicted"].add("event")
    del queue.pending_messages_per_session["evicted"]
    assert "evicted" not in queue.pending_messages_per_session
    assert "evicted" not in queue.pending_event_ids_session
