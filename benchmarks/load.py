"""Measure ordinary clients' latency under attack: `python -m benchmarks.load --attack lists`, or `--attack all`.

Starts the page. Each client has its own address and moves a slider every few seconds: three in five on the page, two in
five through /schedule. Each attacker has its own address, too (see `attackers`). Prints the clients' latency and failed
calls, the page process's memory, CPU time and log size, and the replies to the attackers.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import httpx

from benchmarks.attackers import ATTACKS, TIMEOUT_S, Target, attack, call, product
from visualize.web.assets import MESSAGES

# Limits: 95th percentile of the latency by kind of call, memory of the page's process during an attack, its growth
# afterwards, and bytes of log.
MAX_P95_MS = {"page": 500, "/schedule": 1000}
MAX_MEGABYTES, MAX_GROWTH, MAX_LOG_BYTES = 600, 0.10, 1_000_000

# Seconds to wait after an attack before memory is compared. By then abandoned jobs have ended, and the page has dropped
# unread replies and returned free memory.
_REST_S = 30.0


@dataclass
class Observed:
    """Measurements of one run.

    Attributes:
        ms: latencies by kind of call, including failed calls.
        failed: error messages of failed calls.
        megabytes: resident memory of the page's process, every second.
        core_s: CPU time of the page's process.
        log_bytes: length of the page's output.
        statuses: replies to the attackers by HTTP status.
    """

    ms: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    failed: list[str] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    core_s: float = 0.0
    log_bytes: int = 0
    statuses: Counter[int] = field(default_factory=Counter)

    @contextmanager
    def time(self, kind: str) -> Iterator[None]:
        """Record a request's latency, and its error if any."""
        began = time.perf_counter()
        try:
            yield
        except (httpx.HTTPError, RuntimeError) as error:
            self.failed.append(f"{kind}: {type(error).__name__} {error}")
        self.ms[kind].append(1000 * (time.perf_counter() - began))


async def move_slider(
    target: Target, place: int, every_s: float, until: float, observed: Observed
) -> None:
    """Move a slider every few seconds, on the page or through /schedule."""
    from tests.messages import settings_of

    rng, page = random.Random(place), uuid.uuid4().hex
    kind = "page" if place % 5 < 3 else "/schedule"
    async with target.connect(f"127.0.1.{1 + place % 250}") as client:
        await asyncio.sleep(rng.uniform(0, every_s))
        while time.monotonic() < until:
            problem = {name: rng.randrange(512, 8192, 64) for name in "MNK"}
            config = {name: rng.choice((64, 128)) for name in ("BLOCK_M", "BLOCK_N")}
            config["GROUP_SIZE"] = rng.randint(1, 8)
            message = (
                settings_of({"kernel": "matmul.grouped", **problem, **config}, page=page)
                if kind == "page"
                else {}
            )
            with observed.time(kind):
                if kind == "page":
                    (await client.post(MESSAGES, json=message)).raise_for_status()
                elif "failure" in (
                    reply := await call(client, "schedule", product(problem, **config))
                ):
                    raise RuntimeError(reply["failure"]["message"])
            await asyncio.sleep(max(0.0, every_s - observed.ms[kind][-1] / 1000))


async def watch_memory(process: int, until: float, observed: Observed) -> None:
    while time.monotonic() < until:
        observed.megabytes.append(resident_megabytes(process))
        await asyncio.sleep(1)


def resident_megabytes(process: int) -> float:
    """Return the resident memory of a process. Linux only."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return (
        int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
        / 1024
    )


def core_seconds(process: int) -> float:
    """Return the CPU time of a process. Linux only."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def serve(log: IO[str] | None = None) -> AsyncIterator[tuple[str, int, dict[str, Any]]]:
    """Serve a page for the duration of the block. Yield its URL, its process id and Gradio's config.

    Args:
        log: a file for its output; by default stdout is discarded.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        environment = {**os.environ, "TILESCOPE_CACHE": cache, "TILESCOPE_DB": f"{cache}/kept.db"}
        command = [sys.executable, "app.py", "--port", str(port)]
        process = subprocess.Popen(
            command, env=environment, stdout=log or subprocess.DEVNULL, stderr=log
        )
        try:
            url = f"http://127.0.0.1:{port}/"
            transport = httpx.AsyncHTTPTransport(retries=8)  # for about a minute
            async with httpx.AsyncClient(timeout=TIMEOUT_S, transport=transport) as client:
                config = (await client.get(f"{url}config")).json()
            await asyncio.sleep(15)  # until the workers have started
            yield url, process.pid, config
        finally:
            process.terminate()
            process.wait(20)


async def measure(attacks: list[str], clients: int, seconds: float, every_s: float) -> Observed:
    """Start a page, and measure it under ordinary clients and attackers."""
    from tests.messages import settings_of

    observed = Observed()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        async with serve(log) as (url, process, _):
            target = Target(url, MESSAGES, settings_of({"kernel": "matmul.grouped"}))
            until, used_s = time.monotonic() + seconds, core_seconds(process)
            # In another process, so that the clients' latency does not include the attackers' own work.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as attackers:
                replies = asyncio.get_running_loop().run_in_executor(
                    attackers, attack, target, attacks, seconds
                )
                await asyncio.gather(
                    watch_memory(process, until, observed),
                    *(
                        move_slider(target, place, every_s, until, observed)
                        for place in range(clients)
                    ),
                )
                observed.core_s = core_seconds(process) - used_s
                observed.statuses = await replies
            await asyncio.sleep(_REST_S)
            observed.megabytes.append(resident_megabytes(process))
        observed.log_bytes = log.seek(0, os.SEEK_END)
    return observed


def report(title: str, observed: Observed, seconds: float) -> None:
    print(f"{title} (load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores)")
    for kind, ms in sorted(observed.ms.items()):
        p95 = sorted(ms)[int(0.95 * (len(ms) - 1))]
        over = f"  over {MAX_P95_MS[kind]} ms" if p95 > MAX_P95_MS[kind] else ""
        print(
            f"  {kind:10} {len(ms):6} calls, p50 {statistics.median(ms):6.0f} ms, p95 {p95:6.0f} ms{over}"
        )
    print(f"  {len(observed.failed)} failed calls", *sorted(set(observed.failed))[:5], sep="\n    ")
    first, highest, last = observed.megabytes[0], max(observed.megabytes), observed.megabytes[-1]
    over = f"  over {MAX_MEGABYTES} MB" if highest > MAX_MEGABYTES else ""
    over += f"  grew by {last / first - 1:.0%}" if last / first - 1 > MAX_GROWTH else ""
    print(
        f"  page: {first:.0f} MB at first, at most {highest:.0f}, {last:.0f} after the attack{over}"
    )
    over = "  too long" if observed.log_bytes > MAX_LOG_BYTES else ""
    print(
        f"  page: {observed.core_s:.0f} s of CPU time in {seconds:.0f} s; {observed.log_bytes:,} bytes of log{over}"
    )
    print(
        f"  replies to attackers by status: {dict(sorted(observed.statuses.items()))}", flush=True
    )


def main(names: list[str], clients: int, minutes: float, every_s: float) -> None:
    for name in names:
        attacks = list(ATTACKS) if name == "all" else [name] if name in ATTACKS else []
        report(name, asyncio.run(measure(attacks, clients, 60 * minutes, every_s)), 60 * minutes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    choices = ["none", *ATTACKS, "all"]
    attack_help = "attacks, each on a new page; all: all at the same time"
    parser.add_argument("--attack", nargs="*", choices=choices, default=choices, help=attack_help)
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument(
        "--every", type=float, default=4, help="seconds between a client's slider moves"
    )
    flags = parser.parse_args()
    main(flags.attack, flags.clients, flags.minutes, flags.every)
