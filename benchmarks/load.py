"""What others notice while one client asks for the most expensive that is allowed: `python -m benchmarks.load`.

Starts the page, and lets clients move a slider every few seconds, half of them on the page and half through /schedule.
One more client keeps as many compiles, predictions and schedules under way as it may. Prints how soon the others are
answered (the bar is 500 ms for 95 % of them), how many requests failed, and what the page's process takes of memory.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import itertools
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any

import httpx

BAR_MS, BAR_GROWTH = 500, 0.05
AT_ONCE = 12
PATIENCE_S = 120.0

# uvicorn closes a connection that was idle for 5 s, a moment before a request that comes then. A browser asks again.
LIMITS = httpx.Limits(keepalive_expiry=2.0)

# Memory is compared from here on: imports, first compiles and Gradio's own caches come before.
WARM_UP = 0.3


@dataclasses.dataclass
class Taken:
    """What the clients saw.

    Attributes:
        ms: how long each answer took, by kind of client.
        failed: what went wrong, by kind.
        megabytes: (share of the run, resident memory of the page's process).
        core_s: seconds of a core that the page's process took.
    """

    ms: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    failed: list[str] = dataclasses.field(default_factory=list)
    megabytes: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    core_s: float = 0.0


class Asking:
    """A client of the page.

    Args:
        changes: the number of the event of a moved control.
    """

    def __init__(self, url: str, changes: int) -> None:
        self._client = httpx.AsyncClient(base_url=f"{url}gradio_api/", timeout=PATIENCE_S, limits=LIMITS)
        self._session, self._changes = uuid.uuid4().hex, changes

    async def change(self, settings: str) -> None:
        """A control of the page was moved: what all of them say then."""
        body = {"fn_index": self._changes, "session_hash": self._session, "data": [settings]}
        (await self._client.post("run/predict", json=body)).raise_for_status()

    async def endpoint(self, name: str, experiment: dict[str, Any]) -> dict[str, Any]:
        """The reply of an endpoint.

        Raises:
            RuntimeError: where Gradio has none.
        """
        body = {"data": [experiment, *(["compiled", None] if name == "coalescing" else [])]}
        begun = (await self._client.post(f"call/{name}", json=body)).raise_for_status().json()
        event = ""
        async with self._client.stream("GET", f"call/{name}/{begun['event_id']}") as lines:
            async for line in lines.aiter_lines():
                if line.startswith("event:"):
                    event = line.removeprefix("event:").strip()
                elif line.startswith("data:") and event == "complete":
                    reply: dict[str, Any] = json.loads(line.removeprefix("data:"))[0]
                    return reply
                elif event == "error":
                    raise RuntimeError(f"{name} ended in an error: {line}")
        raise RuntimeError(f"{name} ended without a reply")

    async def close(self) -> None:
        await self._client.aclose()


async def moves_a_slider(url: str, changes: int, is_page: bool, every_s: float, until: float, taken: Taken) -> None:
    """One client: a new position every few seconds."""
    from tests.panels.sent import set_to

    asking, draw = Asking(url, changes), random.Random(uuid.uuid4().int)
    kind = "page" if is_page else "/schedule"
    await asyncio.sleep(draw.uniform(0, every_s))
    while time.monotonic() < until:
        problem = {name: draw.randrange(512, 8192, 64) for name in "MNK"}
        config = {
            "BLOCK_M": draw.choice((64, 128)),
            "BLOCK_N": draw.choice((64, 128)),
            "GROUP_SIZE": draw.randint(1, 8),
        }
        settings = set_to({"kernel": "matmul.grouped", **problem, **config}) if is_page else ""
        began = time.perf_counter()
        try:
            if is_page:
                await asking.change(settings)
            else:
                reply = await asking.endpoint(
                    "schedule", {"kernel": "matmul.grouped", "problem": problem, "config": config}
                )
                if "failure" in reply:
                    raise RuntimeError(reply["failure"]["message"])
        except (httpx.HTTPError, RuntimeError) as error:
            taken.failed.append(f"{kind}: {type(error).__name__} {error}")
        took = time.perf_counter() - began
        taken.ms.setdefault(kind, []).append(1000 * took)
        await asyncio.sleep(max(0.0, every_s - took))
    await asking.close()


def expensive() -> Iterator[tuple[str, dict[str, Any]]]:
    """Endless different requests: slow compiles, predictions of seconds, schedules of two million tiles."""
    for number in itertools.count():
        depth = 16 * (1 + number % 1000)
        yield "reuse", _product({"M": 16384, "N": 16384, "K": depth}, BLOCK_M=32, BLOCK_N=32, BLOCK_K=16)
        yield "compile", _product({"M": 512 + number}, gpu="T4", BLOCK_M=256, BLOCK_N=256, BLOCK_K=16, num_warps=4)
        yield "schedule", _product({"M": 16384, "N": 16384, "K": depth}, BLOCK_M=16, BLOCK_N=16, GROUP_SIZE=7)
        yield "coalescing", _product({"M": 16384, "N": 16383, "K": depth}, BLOCK_M=256, BLOCK_N=128, num_warps=2)


def _product(problem: dict[str, int], gpu: str = "H200", **config: int) -> dict[str, Any]:
    return {"kernel": "matmul.grouped", "gpu": gpu, "problem": problem, "config": config}


async def asks_for_much(url: str, changes: int, until: float, taken: Taken) -> None:
    """One client that keeps many expensive requests under way; what is refused is none of its failures."""
    asking, requests = Asking(url, changes), expensive()

    async def one_after_the_other() -> None:
        while time.monotonic() < until:
            began = time.perf_counter()
            name, experiment = next(requests)
            try:
                reply = await asking.endpoint(name, experiment)
                if "failure" in reply:
                    await asyncio.sleep(0.2)
            except (httpx.HTTPError, RuntimeError) as error:
                taken.failed.append(f"expensive {name}: {type(error).__name__} {error}")
            taken.ms.setdefault("expensive", []).append(1000 * (time.perf_counter() - began))

    several = [asyncio.create_task(one_after_the_other()) for _ in range(AT_ONCE)]
    await asyncio.wait(several, timeout=until - time.monotonic())
    for one in several:  # it leaves
        one.cancel()
    await asking.close()


async def watches_memory(process: int, began: float, until: float, taken: Taken) -> None:
    while (now := time.monotonic()) < until:
        taken.megabytes.append(((now - began) / (until - began), resident_megabytes(process)))
        await asyncio.sleep(2)


def resident_megabytes(process: int) -> float:
    """Memory of a process that is in RAM. Linux."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def core_seconds(process: int) -> float:
    """Seconds of a core that a process has taken. Linux."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def served(log: IO[str] | None = None) -> AsyncIterator[tuple[str, int]]:
    """A page of its own: its address and process.

    Args:
        log: takes what it prints; by default only errors are shown.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        environment = {**os.environ, "TILESCOPE_CACHE": cache, "TILESCOPE_DB": f"{cache}/kept.db"}
        command = [sys.executable, "app.py", "--port", str(port)]
        process = subprocess.Popen(command, env=environment, stdout=log or subprocess.DEVNULL, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}/"
            async with httpx.AsyncClient() as client:
                for _ in range(240):
                    try:
                        await client.get(url)
                        break
                    except httpx.HTTPError:
                        await asyncio.sleep(0.5)
            yield url, process.pid
        finally:
            process.terminate()
            process.wait(20)


async def measured(clients: int, seconds: float, every_s: float) -> Taken:
    """Let them all ask for so long."""
    taken = Taken()
    async with served() as (url, process):
        async with httpx.AsyncClient() as client:
            config = (await client.get(f"{url}config", timeout=PATIENCE_S)).json()
        changes = _changes(config)
        await asyncio.sleep(15)  # its workers start
        began, used_s = time.monotonic(), core_seconds(process)
        until = began + seconds
        await asyncio.gather(
            asks_for_much(url, changes, until, taken),
            watches_memory(process, began, until, taken),
            *(moves_a_slider(url, changes, place % 2 == 0, every_s, until, taken) for place in range(clients)),
        )
        taken.core_s = core_seconds(process) - used_s
    return taken


def _changes(config: dict[str, Any]) -> int:
    """The number of the event of a changed experiment."""
    (settings,) = (one["id"] for one in config["components"] if one["props"].get("elem_id") == "settings")
    return next(int(one["id"]) for one in config["dependencies"] if [settings, "input"] in one["targets"])


def main(clients: int, minutes: float, every_s: float) -> None:
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    taken = asyncio.run(measured(clients, 60 * minutes, every_s))
    print(f"load average after: {os.getloadavg()[0]:.1f}")
    for kind, ms in sorted(taken.ms.items()):
        ordered = sorted(ms)
        p95 = ordered[int(0.95 * (len(ordered) - 1))]
        over = "  over the bar" if kind != "expensive" and p95 > BAR_MS else ""
        print(f"{kind:10} {len(ms):6} requests, p50 {statistics.median(ms):7.0f} ms, p95 {p95:7.0f} ms{over}")
    print(f"{len(taken.failed)} failed", *sorted(set(taken.failed))[:10], sep="\n  ")
    print(f"page: {taken.core_s:.1f} s of a core in {60 * minutes:.0f} s")
    settled = [megabytes for share, megabytes in taken.megabytes if share >= WARM_UP]
    quarter = max(1, len(settled) // 4)
    first, last = statistics.median(settled[:quarter]), statistics.median(settled[-quarter:])
    over = "  over the bar" if last / first - 1 > BAR_GROWTH else ""
    print(f"page: {taken.megabytes[0][1]:.0f} MB at first, {first:.0f} then {last:.0f}: {last / first - 1:+.1%}{over}")
    tenths = taken.megabytes[:: max(1, len(taken.megabytes) // 10)]
    print("page, MB by tenths:", *(f"{megabytes:.0f}" for _, megabytes in tenths))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=5, help="seconds between two positions of a client's slider")
    given = parser.parse_args()
    main(given.clients, given.minutes, given.every)
