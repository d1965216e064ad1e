"""Clients that try to slow down, crowd out or lock out the others; see SECURITY.md. `benchmarks.load` runs them.

Each attacker sends requests from one address until it is cancelled. It ignores refusals and broken connections. It
sends as many requests per second as the proxy in docs/operating.md passes on: only a proxy can stop floods and slow
requests.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

TIMEOUT_S = 120.0
# Messages and API calls per second that the proxy passes on from one address.
MESSAGES_PER_S = 40
CALLS_PER_S = 10

LIMITS = httpx.Limits(max_connections=None, keepalive_expiry=2.0)


@dataclass
class Target:
    """The page under attack.

    Attributes:
        url: ends with a slash.
        route: the path of the page's messages.
        message: a valid one.
        statuses: number of replies by HTTP status, to all clients of `connect`.
    """

    url: str
    route: str
    message: dict[str, Any]
    statuses: Counter[int] = field(default_factory=Counter)

    def connect(self, address: str) -> httpx.AsyncClient:
        """Return a client that connects from a loopback address, such as 127.0.0.9."""

        async def count(response: httpx.Response) -> None:
            self.statuses[response.status_code] += 1

        transport = httpx.AsyncHTTPTransport(local_address=address, limits=LIMITS)
        hooks = {"response": [count]}
        return httpx.AsyncClient(
            base_url=self.url, timeout=TIMEOUT_S, transport=transport, event_hooks=hooks
        )


Attack = Callable[[Target, str], Awaitable[None]]


async def _repeat(
    target: Target,
    address: str,
    connections: int,
    send: Callable[[httpx.AsyncClient], Any],
    per_s: float = CALLS_PER_S,
) -> None:
    """Call `send` forever, `connections` at a time, and at most `per_s` times per second."""
    pace = asyncio.Lock()

    async def send_forever(client: httpx.AsyncClient) -> None:
        while True:
            async with pace:
                await asyncio.sleep(1 / per_s)
            with suppress(httpx.HTTPError, RuntimeError):
                await send(client)

    async with target.connect(address) as client:
        await asyncio.gather(*(send_forever(client) for _ in range(connections)))


async def send_long_hashes(target: Target, address: str) -> None:
    """Redraw pages whose names are new and long."""

    async def send(client: httpx.AsyncClient) -> None:
        name = uuid.uuid4().hex + "x" * 50_000
        await client.post(target.route, json={**target.message, "page": name})

    await _repeat(target, address, 4, send, MESSAGES_PER_S)


async def request_lists(target: Target, address: str) -> None:
    """Request the longest reply of the API, and read it."""

    async def send(client: httpx.AsyncClient) -> None:
        begun = (
            (await client.post("gradio_api/call/scoreboard", json={"data": []}))
            .raise_for_status()
            .json()
        )
        await client.get(f"gradio_api/call/scoreboard/{begun['event_id']}")

    await _repeat(target, address, 15, send)


async def redraw_large_launches(target: Target, address: str) -> None:
    """Redraw launches of half a million and of a million tiles, Tune's predictions, and QR codes."""
    from tests.messages import settings_of

    tiles = {"kernel": "matmul.grid_2d", "BLOCK_M": 16, "BLOCK_N": 16, "M": 16384}
    large = [
        {**tiles, "N": columns, "K": depth, "tab": tab}
        for depth in range(16, 4096, 16)
        for columns in (8192, 16384)
        for tab in ("program-order", "sweep")
    ]
    shared = {"action": "share", "link": f"http://localhost/?{'x' * 1000}"}
    bodies = itertools.cycle(
        body for fields in large for body in (settings_of(fields), {**target.message, **shared})
    )
    await _repeat(
        target,
        address,
        24,
        lambda client: client.post(target.route, json=next(bodies)),
        MESSAGES_PER_S,
    )


async def open_pages(target: Target, address: str) -> None:
    """Request the page, its config and its API description."""
    paths = itertools.cycle(("", "config", "gradio_api/info"))
    await _repeat(target, address, 15, lambda client: client.get(next(paths)))


async def join_without_reading(target: Target, address: str) -> None:
    """Call a quick endpoint under new session hashes, and never read a reply."""

    async def send(client: httpx.AsyncClient) -> None:
        await client.post(
            "gradio_api/call/kernels", json={"data": [], "session_hash": uuid.uuid4().hex}
        )

    await _repeat(target, address, 4, send)


async def leave_replies_unread(target: Target, address: str) -> None:
    """Call the endpoints with the largest replies, and never read them."""
    replies = itertools.cycle(("scoreboard", "schedule"))
    experiment = product({"M": 16384, "N": 16384}, BLOCK_M=16, BLOCK_N=16)

    async def send(client: httpx.AsyncClient) -> None:
        name = next(replies)
        data = [experiment] if name == "schedule" else []
        await client.post(
            f"gradio_api/call/{name}", json={"data": data, "session_hash": uuid.uuid4().hex}
        )

    await _repeat(target, address, 8, send)


async def abandon_runs(target: Target, address: str) -> None:
    """Start runs of about 20 s in the interpreter, and leave after 4 s."""
    shapes = itertools.cycle(range(256, 1024, 16))

    async def send(client: httpx.AsyncClient) -> None:
        experiment = {
            "kernel": "matmul.grouped",
            "problem": {"M": next(shapes), "N": 1024, "K": 1024},
        }
        begun = (
            (await client.post("gradio_api/call/run", json={"data": [experiment]}))
            .raise_for_status()
            .json()
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(4):
                await client.get(f"gradio_api/call/run/{begun['event_id']}")

    await _repeat(target, address, 40, send)


async def send_malformed(target: Target, address: str) -> None:
    """Send random values, types and paths to endpoints, page events and Gradio's own routes."""
    rng = random.Random(1)
    values = [
        None,
        -1,
        1e400,
        "x" * 300,
        [],
        {},
        [[[]]],
        {"kernel": 3},
        {"kernel": "matmul.grouped", "problem": []},
    ]
    paths = (
        "call/schedule", "call/v2/schedule", "call/v2/none", "call/none", "queue/join", "run/predict", "api/none",
        "cancel", "reset", "call/compile", "call/scoreboard", "component_server", "upload", "login", "queue/data",
    )  # fmt: skip
    names = (
        "data",
        "fn_index",
        "session_hash",
        "event_id",
        "experiment",
        "trigger_id",
        "batched",
        "event_data",
    )

    async def send(client: httpx.AsyncClient) -> None:
        body: Any = {name: rng.choice(values) for name in names if rng.random() < 0.5}
        if rng.random() < 0.5:
            body["data"] = [rng.choice(values) for _ in range(rng.randrange(4))]
        text = json.dumps(rng.choice((body, body, body, *values)))
        content = rng.choice((text, text, text, text[:-1], "\x00" + text)).encode()
        kind = rng.choice(
            ("application/json", "application/json", "text/plain", "multipart/form-data")
        )
        prefix = rng.choice(("gradio_api/", "gradio_api/", ""))
        path = prefix + rng.choice(paths) + rng.choice(("", "", "/", "/%00", "//..%2f"))
        if rng.random() < 0.1:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await client.get(path, params={"session_hash": "x", "x": text[:100]})
        else:
            await client.post(path, content=content, headers={"content-type": kind})

    await _repeat(target, address, 8, send)


async def send_expensive(target: Target, address: str) -> None:
    """Keep slow compiles, slow predictions and schedules of a million tiles in flight."""
    requests = expensive_requests()

    async def send(client: httpx.AsyncClient) -> None:
        name, experiment = next(requests)
        if "failure" in await call(client, name, experiment):
            await asyncio.sleep(0.2)

    await _repeat(target, address, 12, send)


ATTACKS: dict[str, Attack] = {
    "expensive": send_expensive,
    "hashes": send_long_hashes,
    "lists": request_lists,
    "redraws": redraw_large_launches,
    "pages": open_pages,
    "joins": join_without_reading,
    "unread": leave_replies_unread,
    "runs": abandon_runs,
    "malformed": send_malformed,
}


def attack(target: Target, names: Sequence[str], seconds: float) -> Counter[int]:
    """Attack from one address per name. Return the number of replies by status."""

    async def attack_together() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(
                    *(
                        ATTACKS[name](target, f"127.0.9.{1 + place}")
                        for place, name in enumerate(names)
                    )
                )

    asyncio.run(attack_together())
    return target.statuses


async def call(client: httpx.AsyncClient, name: str, experiment: dict[str, Any]) -> dict[str, Any]:
    """Return the reply of an endpoint.

    Raises:
        RuntimeError: the event did not complete.
        httpx.HTTPError: the request failed or was refused.
    """
    data = [experiment, *(["compiled", None] if name == "coalescing" else [])]
    begun = (
        (await client.post(f"gradio_api/call/{name}", json={"data": data}))
        .raise_for_status()
        .json()
    )
    text = (await client.get(f"gradio_api/call/{name}/{begun['event_id']}")).text
    *_, event, last = ["", *filter(None, text.splitlines())]
    if event != "event: complete":
        raise RuntimeError(f"{name} ended without a reply: {last}")
    reply: dict[str, Any] = json.loads(last.removeprefix("data:"))[0]
    return reply


def expensive_requests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield distinct requests forever: slow compiles, slow predictions, schedules of a million tiles."""
    for number in itertools.count():
        depth = 16 * (1 + number % 1000)
        yield (
            "reuse",
            product({"M": 16384, "N": 16384, "K": depth}, BLOCK_M=32, BLOCK_N=32, BLOCK_K=16),
        )
        yield (
            "compile",
            product(
                {"M": 512 + number}, gpu="T4", BLOCK_M=256, BLOCK_N=256, BLOCK_K=16, num_warps=4
            ),
        )
        yield (
            "schedule",
            product({"M": 16384, "N": 16384, "K": depth}, BLOCK_M=16, BLOCK_N=16, GROUP_SIZE=7),
        )
        yield (
            "coalescing",
            product({"M": 16384, "N": 16383, "K": depth}, BLOCK_M=256, BLOCK_N=128, num_warps=2),
        )


def product(problem: dict[str, int], gpu: str = "H200", **config: int) -> dict[str, Any]:
    """Return a matmul experiment in JSON."""
    return {"kernel": "matmul.grouped", "gpu": gpu, "problem": problem, "config": config}
