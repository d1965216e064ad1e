"""Messages that a browser sends to the page's handlers, and the updates that it gets."""

from __future__ import annotations

import json
from types import SimpleNamespace

from tests.waiting import run_coroutine
from visualize.views.tabs import SETTINGS


def request():
    """Return a request of the only open page."""
    return SimpleNamespace(session_hash="page")


def opened(flat):
    """Return the State of flat fields, on a machine without a GPU."""
    return SETTINGS.state(flat, None)


def settings_of(flat, **message):
    """Return the message of a page that is set to these fields."""
    return json.dumps({"number": 1, "settings": opened(flat).to_settings(), **message})


def slots_of(update):
    """Return an update's values by slot."""
    return json.loads(update)["slots"]


def updates(handler, *values):
    """Return all updates of a streaming handler, by slot."""

    async def collect():
        return [slots_of(update) async for update in handler(request(), *values)]

    return run_coroutine(collect())
