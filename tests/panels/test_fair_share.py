"""One address' redraws take turns; those of another don't wait for them, and what is too much is refused."""

from __future__ import annotations

import asyncio

from visualize.page.fair_share import AT_ONCE, MOST_UNDER_WAY, FairShare

REDRAW = "/gradio_api/run/predict"


class Server:
    """What stands behind it: each request ends when it is told to."""

    def __init__(self):
        self.at_work, self.go = [], asyncio.Event()

    async def __call__(self, scope, receive, send):
        self.at_work.append(scope["client"][0])
        await self.go.wait()
        self.at_work.remove(scope["client"][0])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


async def asked(share, address, path=REDRAW, method="POST", root_path=""):
    """The status, and the body."""
    sent = []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": root_path,
        "client": (address, 1),
        "headers": [],
    }
    await share(scope, None, send)
    return sent[0]["status"], sent[1]["body"]


def run(scene):
    async def whole():
        server = Server()
        share = FairShare(server)
        tasks = []

        def ask(address, count=1, **how):
            tasks.extend(asyncio.create_task(asked(share, address, **how)) for _ in range(count))

        async def settled():
            for _ in range(5):
                await asyncio.sleep(0)

        await scene(server, ask, settled)
        server.go.set()
        replies = await asyncio.gather(*tasks)
        assert not share._under_way
        assert not share._turns
        return replies

    return asyncio.run(whole())


def test_of_one_address_a_few_are_at_work_and_another_does_not_wait_for_them():
    async def scene(server, ask, settled):
        ask("10.0.0.1", 20)
        ask("10.0.0.2")
        await settled()
        assert sorted(server.at_work) == ["10.0.0.1"] * AT_ONCE + ["10.0.0.2"]

    assert [status for status, _ in run(scene)] == [200] * 21


def test_more_than_are_taken_are_refused_with_the_bound():
    async def scene(server, ask, settled):
        ask("10.0.0.1", MOST_UNDER_WAY + 3)
        await settled()

    replies = run(scene)
    assert [status for status, _ in replies].count(429) == 3
    assert f"{MOST_UNDER_WAY} requests of this address are under way".encode() in replies[-1][1]


def test_what_is_queued_or_read_is_not_counted():
    async def scene(server, ask, settled):
        ask("10.0.0.1", 5, path="/gradio_api/queue/join")
        ask("10.0.0.1", 5, method="GET", path="/")
        await settled()
        assert len(server.at_work) == 10

    run(scene)


def test_redraws_below_a_root_path_take_turns():
    async def scene(server, ask, settled):
        ask("10.0.0.1", 5, path=f"/tools/x{REDRAW}", root_path="/tools/x")
        await settled()
        assert len(server.at_work) == AT_ONCE

    run(scene)
