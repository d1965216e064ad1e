"""Messages that a browser sends to the page's handlers, and the updates that it gets."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from visualize.views.tabs import SETTINGS


def request():
    """A request of the one page that is open."""
    return SimpleNamespace(session_hash="page")


def opened(flat):
    """The State of flat fields, on a machine without a GPU."""
    return SETTINGS.state(flat, None)


def settings_of(flat, **message):
    """The message of a page that is set to these fields."""
    return json.dumps({"number": 1, "settings": opened(flat).to_settings(), **message})


def slots_of(update):
    """An update's values by slot."""
    return json.loads(update)["slots"]


def updates(handler, *values):
    """All updates of a streaming handler, by slot."""

    async def collect():
        return [slots_of(update) async for update in handler(request(), *values)]

    # In a new thread: after browser tests, the main thread already has a running loop.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(collect())).result(60)
