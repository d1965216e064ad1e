"""Latency of ordinary clients while one client sends the most expensive requests allowed: `python -m benchmarks.load`.

Starts the page. Clients move a slider every few seconds, half of them on the page and half through /schedule. One more
client keeps as many compiles, predictions and schedules in flight as it may. Prints the latency of the other
clients (the limit is 500 ms for 95 % of requests), the failures, and the memory of the page's process.
"""

from __future__ import annotations

import argparse
import asyncio
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
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import httpx

MAX_P95_MS, MAX_GROWTH = 500, 0.05
MAX_CONCURRENCY = 12
TIMEOUT_S = 120.0

# uvicorn closes a connection that was idle for 5 s, possibly just before the next request. A browser would retry.
LIMITS = httpx.Limits(keepalive_expiry=2.0)

# The share of a run after which memory is compared: at first, imports, compiles and Gradio's caches take memory.
WARM_UP = 0.3


@dataclass
class Observed:
    """Measurements of one run.

    Attributes:
        ms: latencies by kind of client.
        failed: errors.
        megabytes: resident memory of the page's process, every two seconds.
        core_s: CPU time of the page's process.
    """

    ms: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: list[str] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    core_s: float = 0.0

    @contextmanager
    def time(self, kind: str) -> Iterator[None]:
        """Add the latency of a request, or its error."""
        began = time.perf_counter()
        try:
            yield
        except (httpx.HTTPError, RuntimeError) as error:
            self.failed.append(f"{kind}: {type(error).__name__} {error}")
        self.ms[kind].append(1000 * (time.perf_counter() - began))


def connect(url: str) -> httpx.AsyncClient:
    """Return a client of a page's API."""
    return httpx.AsyncClient(base_url=f"{url}gradio_api/", timeout=TIMEOUT_S, limits=LIMITS)


async def call(client: httpx.AsyncClient, name: str, experiment: dict[str, Any]) -> dict[str, Any]:
    """Return the reply of an endpoint.

    Raises:
        RuntimeError: Gradio reports an error.
    """
    data = [experiment, *(["compiled", None] if name == "coalescing" else [])]
    begun = (await client.post(f"call/{name}", json={"data": data})).raise_for_status().json()
    text = (await client.get(f"call/{name}/{begun['event_id']}")).text
    *_, event, last = ["", *filter(None, text.splitlines())]
    if event != "event: complete":
        raise RuntimeError(f"{name} ended without a reply: {last}")
    reply: dict[str, Any] = json.loads(last.removeprefix("data:"))[0]
    return reply


async def move_slider(url: str, event: int, is_page: bool, every_s: float, until: float, observed: Observed) -> None:
    """Move a slider every few seconds, on the page or through /schedule."""
    from tests.messages import settings_of

    draw, session, kind = random.Random(), uuid.uuid4().hex, "page" if is_page else "/schedule"
    async with connect(url) as client:
        await asyncio.sleep(draw.uniform(0, every_s))
        while time.monotonic() < until:
            problem = {name: draw.randrange(512, 8192, 64) for name in "MNK"}
            config = {name: draw.choice((64, 128)) for name in ("BLOCK_M", "BLOCK_N")}
            config["GROUP_SIZE"] = draw.randint(1, 8)
            message = settings_of({"kernel": "matmul.grouped", **problem, **config}) if is_page else ""
            with observed.time(kind):
                if is_page:
                    body = {"fn_index": event, "session_hash": session, "data": [message]}
                    (await client.post("run/predict", json=body)).raise_for_status()
                elif "failure" in (reply := await call(client, "schedule", _product(problem, **config))):
                    raise RuntimeError(reply["failure"]["message"])
            await asyncio.sleep(max(0.0, every_s - observed.ms[kind][-1] / 1000))


def expensive_requests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield distinct requests forever: slow compiles, predictions of seconds, schedules of two million tiles."""
    for number in itertools.count():
        depth = 16 * (1 + number % 1000)
        yield "reuse", _product({"M": 16384, "N": 16384, "K": depth}, BLOCK_M=32, BLOCK_N=32, BLOCK_K=16)
        yield "compile", _product({"M": 512 + number}, gpu="T4", BLOCK_M=256, BLOCK_N=256, BLOCK_K=16, num_warps=4)
        yield "schedule", _product({"M": 16384, "N": 16384, "K": depth}, BLOCK_M=16, BLOCK_N=16, GROUP_SIZE=7)
        yield "coalescing", _product({"M": 16384, "N": 16383, "K": depth}, BLOCK_M=256, BLOCK_N=128, num_warps=2)


def _product(problem: dict[str, int], gpu: str = "H200", **config: int) -> dict[str, Any]:
    return {"kernel": "matmul.grouped", "gpu": gpu, "problem": problem, "config": config}


async def send_expensive(url: str, until: float, observed: Observed) -> None:
    """Keep expensive requests in flight; a refusal does not count as a failure."""
    requests = expensive_requests()

    async def send_in_turn(client: httpx.AsyncClient) -> None:
        for name, experiment in requests:
            with observed.time("expensive"):
                if "failure" in await call(client, name, experiment):
                    await asyncio.sleep(0.2)

    async with connect(url) as client:
        tasks = [asyncio.create_task(send_in_turn(client)) for _ in range(MAX_CONCURRENCY)]
        await asyncio.wait(tasks, timeout=until - time.monotonic())
        for task in tasks:
            task.cancel()


async def watch_memory(process: int, until: float, observed: Observed) -> None:
    while time.monotonic() < until:
        observed.megabytes.append(resident_megabytes(process))
        await asyncio.sleep(2)


def resident_megabytes(process: int) -> float:
    """Return the resident memory of a process. Linux only."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def core_seconds(process: int) -> float:
    """Return the CPU time of a process. Linux only."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def serve(log: IO[str] | None = None) -> AsyncIterator[tuple[str, int, dict[str, Any]]]:
    """Serve a page until the block ends; yield its address, process and Gradio's config once its workers have started.

    Args:
        log: a file for its output; by default only errors are shown.
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
            transport = httpx.AsyncHTTPTransport(retries=8)  # in the first minute
            async with httpx.AsyncClient(timeout=TIMEOUT_S, transport=transport) as client:
                config = (await client.get(f"{url}config")).json()
            await asyncio.sleep(15)
            yield url, process.pid, config
        finally:
            process.terminate()
            process.wait(20)


async def measure(clients: int, seconds: float, every_s: float) -> Observed:
    """Let all clients send requests to a new page."""
    observed = Observed()
    async with serve() as (url, process, config):
        event, until, used_s = _event_of_change(config), time.monotonic() + seconds, core_seconds(process)
        await asyncio.gather(
            send_expensive(url, until, observed),
            watch_memory(process, until, observed),
            *(move_slider(url, event, place % 2 == 0, every_s, until, observed) for place in range(clients)),
        )
        observed.core_s = core_seconds(process) - used_s
    return observed


def _event_of_change(config: dict[str, Any]) -> int:
    """The id of the event of a changed experiment."""
    (outbox,) = (each["id"] for each in config["components"] if each["props"].get("elem_id") == "outbox")
    return next(int(each["id"]) for each in config["dependencies"] if [outbox, "input"] in each["targets"])


def main(clients: int, minutes: float, every_s: float) -> None:
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    observed = asyncio.run(measure(clients, 60 * minutes, every_s))
    for kind, ms in sorted(observed.ms.items()):
        p95 = sorted(ms)[int(0.95 * (len(ms) - 1))]
        over = f"  over {MAX_P95_MS} ms" if kind != "expensive" and p95 > MAX_P95_MS else ""
        print(f"{kind:10} {len(ms):6} requests, p50 {statistics.median(ms):7.0f} ms, p95 {p95:7.0f} ms{over}")
    print(f"{len(observed.failed)} failed", *sorted(set(observed.failed))[:10], sep="\n  ")
    print(f"page: {observed.core_s:.1f} s of CPU time in {60 * minutes:.0f} s")
    settled = observed.megabytes[int(WARM_UP * len(observed.megabytes)) :]
    quarter = max(1, len(settled) // 4)
    first, last = statistics.median(settled[:quarter]), statistics.median(settled[-quarter:])
    over = f"  over {MAX_GROWTH:.0%}" if last / first - 1 > MAX_GROWTH else ""
    print(f"page: {observed.megabytes[0]:.0f} MB at first, {first:.0f} then {last:.0f}: {last / first - 1:+.1%}{over}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--every", type=float, default=5, help="seconds between two moves of a client's slider")
    flags = parser.parse_args()
    main(flags.clients, flags.minutes, flags.every)
