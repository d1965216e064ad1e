"""What nobody reads is bounded: the messages of a caller, the callers, and the numbers of their events."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import gradio as gr
import pytest

from visualize.web.unread import MOST_CALLERS, MOST_UNREAD, bound


@pytest.fixture
def queue():
    with gr.Blocks() as blocks:
        pass
    bound(blocks._queue)
    return blocks._queue


def asks(queue, caller, event):
    """What Gradio does for each event that is asked for."""
    if caller not in queue.pending_messages_per_session:
        queue.pending_messages_per_session[caller] = asyncio.Queue()
    if caller not in queue.pending_event_ids_session:
        queue.pending_event_ids_session[caller] = set()
    queue.pending_event_ids_session[caller].add(event)


def test_a_caller_who_reads_nothing_keeps_the_latest_messages(queue):
    asks(queue, "caller", "event")
    messages = queue.pending_messages_per_session["caller"]
    for number in range(MOST_UNREAD + 50):
        messages.put_nowait(number)
    read = [messages.get_nowait() for _ in range(messages.qsize())]
    assert read == list(range(50, MOST_UNREAD + 50))


def test_the_callers_heard_of_last_are_kept_and_nothing_of_the_others(queue):
    for number in range(3 * MOST_CALLERS):
        asks(queue, f"caller {number}", f"event {number}")
        queue.pending_messages_per_session["caller 0"].put_nowait("still there")
    kept = {"caller 0", *(f"caller {number}" for number in range(2 * MOST_CALLERS + 1, 3 * MOST_CALLERS))}
    assert set(queue.pending_messages_per_session) == kept
    assert set(queue.pending_event_ids_session) == kept


def test_who_waits_for_an_answer_is_kept_however_many_ask(queue):
    async def waits():
        asks(queue, "waits", "event")
        reading = asyncio.create_task(queue.pending_messages_per_session["waits"].get())
        await asyncio.wait([reading], timeout=0)
        for number in range(2 * MOST_CALLERS):
            asks(queue, f"caller {number}", f"event {number}")
        queue.pending_messages_per_session["waits"].put_nowait("an answer")
        return await reading

    assert asyncio.run(waits()) == "an answer"
    assert len(queue.pending_messages_per_session) == MOST_CALLERS


def test_who_has_just_waited_in_vain_and_waits_again_is_kept(queue):
    async def waits():
        asks(queue, "waits", "event")
        messages = queue.pending_messages_per_session["waits"]
        for number in range(MOST_CALLERS - 1):
            asks(queue, f"caller {number}", f"event {number}")
        with suppress(TimeoutError):
            await asyncio.wait_for(messages.get(), 0.01)
        asks(queue, "one more", "event")  # while the stream looks whether its reader is still there
        return "waits" in queue.pending_messages_per_session

    assert asyncio.run(waits())


def test_what_is_said_to_a_caller_who_is_gone_is_lost_and_nothing_fails(queue):
    queue.pending_messages_per_session["gone"].put_nowait("an answer")
    queue.pending_event_ids_session["gone"].add("event")
    del queue.pending_messages_per_session["gone"]
    assert "gone" not in queue.pending_messages_per_session
    assert "gone" not in queue.pending_event_ids_session
