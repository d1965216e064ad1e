"""The route of the page's messages: the sender of a message, how its reply streams, and how it ends."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from gradio.context import LocalContext
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tilescope.declare.knobs import ConfigError
from tilescope.measure.fair_queue import MAX_REQUESTS
from visualize.views.panel import current_client
from visualize.web.actions import Actions
from visualize.web.assets import MESSAGES


class Page(Actions):
    """Replies to messages in place of the redraws and the actions."""

    def __init__(self):
        redraw = SimpleNamespace(
            session=None, all_panels=(), change=self.change, stream=self.stream
        )
        super().__init__(redraw)
        self.is_left = asyncio.Event()

    def change(self, message):
        request = LocalContext.request.get()
        client = current_client()
        return {
            "address": client.address,
            "page": client.page,
            "token": request.headers["x-ip-token"],
        }

    async def stream(self, message):
        yield {"card": "running"}
        raise ZeroDivisionError

    async def start(self, message, page):
        yield {"card": "0 s"}
        if message["action"] == "refuse":
            raise ConfigError("busy", "A sweep runs.", "M")
        try:
            await asyncio.Event().wait()
        finally:
            self.is_left.set()


def send(**message):
    """Return the updates of the reply to a message."""
    client = TestClient(Starlette(routes=[Page().route]))
    reply = client.post(MESSAGES, json=message, headers={"x-ip-token": "visitor"})
    return [json.loads(line) for line in reply.text.splitlines()]


def test_a_message_is_the_clients_and_carries_the_headers_that_zerogpus_hub_needs():
    assert send(page="p" * 100, settings={}) == [
        {"address": "testclient", "page": "p" * 64, "token": "visitor"}
    ]


@pytest.mark.parametrize(
    ("message", "first", "problems"),
    [
        ({"action": "refuse"}, {"card": "0 s"}, {"M": "A sweep runs."}),
        (
            {"watch": "enabled", "page": "p"},
            {"card": "running"},
            {"": "Tilescope had an internal error: ZeroDivisionError."},
        ),
    ],
)
def test_a_reply_that_fails_ends_with_a_sentence(message, first, problems):
    shown, refused = send(**message)
    assert shown == first
    assert json.loads(refused["problems"]) == problems


class Connection:
    """A client's connection: it sends one message, and leaves once it has read `count` messages of the reply."""

    def __init__(self, message, count=10):
        self.unsent = [json.dumps(message).encode()]
        self.count = count
        self.has_left = asyncio.Event()

    async def receive(self):
        if self.unsent:
            return {"type": "http.request", "body": self.unsent.pop()}
        await self.has_left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.count -= 1
        if self.count == 0:
            self.has_left.set()
        if self.count < 0:
            await asyncio.Event().wait()

    async def open(self, page):
        request = {"method": "POST", "path": MESSAGES, "headers": [(b"x-ip-token", b"")]}
        scope = {"type": "http", **request, "query_string": b"", "client": ("10.0.0.1", 1)}
        await Starlette(routes=[page.route])(scope, self.receive, self.send)


async def test_an_action_ends_when_its_client_leaves():
    page = Page()
    await Connection({"action": "run"}, count=2).open(page)
    await page.is_left.wait()


async def test_clients_that_read_no_reply_hold_no_slot():
    page = Page()
    slow = [
        asyncio.create_task(Connection({}, count=0).open(page)) for _ in range(2 * MAX_REQUESTS)
    ]
    reading = Connection({}, count=3)
    await reading.open(page)
    assert reading.count == 0
    for task in slow:
        task.cancel()
