"""Send hostile requests to a page of its own: `python -m scripts.hostile_campaign [--requests 20000] [--seed 0]`.

Each goes to an endpoint or to one of the page's own handlers, and holds at least one value that nobody's browser sends:
of another type, huge, not finite, nested, text that tries to be code, too few values, or no JSON at all. Prints what
was over a bar: an answer of the server's own failing (status 500 and above), a trace in its log, a worker that is gone,
a refusal that took over 2 s, memory of its process that did not come back to within 5 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.load import LIMITS, resident_megabytes, served
from kernels import discover
from kernels.experiment import Experiment
from kernels.gpus import GPUS
from kernels.knobs import knobs

LATE_S, BAR_GROWTH = 2.0, 0.05
AT_ONCE = 8

# The memory is looked at after each so many requests. Its base is that of the third time: until then bounded caches
# fill, of results, compiles, figures, and what nobody has read yet.
STEP, WARM = 2000, 3

_LONG = "9" * 5000
_FIELDS = ("M", "N", "kernel", "gpu", "tab", "with", "preset", "form_of", "new")
_SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 3, 2**31, 2**63, 2**200, -(2**200), 0.5, 1e308, -0.0),
    *("", "0", "-1", "4096", "1e999", _LONG, "x" * 30_000, "\0", "\ud7ff", "a\nb", "NaN", "null"),
    *("<script>alert(1)</script>", "' OR 1=1 --", "../../etc/passwd", "{{7*7}}", "$(touch x)", "__import__('os')"),
)
# As they stand in a body: JSON has no such numbers, and Python's reader takes them.
_BARE = ("NaN", "Infinity", "-Infinity", "1" * 5000, "[" * 5000, "{", "")


@dataclass
class Found:
    """What the campaign saw.

    Attributes:
        statuses: how often each status came.
        broken: requests that the server failed on.
        late: seconds, and what became of the request: only a refusal may not take long.
        seconds: of each request.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    late: list[tuple[float, str]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


class Hostile:
    """Draws requests.

    Args:
        config: of the page, which lists its events.
    """

    def __init__(self, config: dict[str, Any], seed: int) -> None:
        self._draw = random.Random(seed)
        self._events = config["dependencies"]
        self._endpoints = sorted({one["api_name"] for one in self._events if one["api_visibility"] == "public"})

    def request(self) -> tuple[str, str, str]:
        """What is asked, for people; the path below the API; the body."""
        if self._draw.random() < 0.5:
            name = self._draw.choice(self._endpoints)
            version = self._draw.choice(("call/", "call/v2/"))
            data = {"experiment": self._experiment()} if "v2" in version else {"data": self._arguments()}
            return f"/{name}", f"{version}{name}", self._text(data)
        event = self._draw.choice(self._events)
        body = {"fn_index": event["id"], "session_hash": f"s{self._draw.randrange(50)}", "data": self._settings(event)}
        path = "queue/join" if event["queue"] is not False else "run/predict"
        return f"event {event['id']} {event['targets']}", path, self._text(body)

    def _arguments(self) -> list[Any]:
        extra = self._draw.randrange(4)
        return [self._experiment(), *(self._value() for _ in range(extra))][self._draw.random() < 0.05 :]

    def _experiment(self) -> Any:
        """One with something wrong in it, or something else."""
        if self._draw.random() < 0.2:
            return self._value()
        kernel = self._draw.choice(list(discover().values()))
        found: dict[str, Any] = Experiment(kernel.id, kernel.family.problem(), kernel.config()).to_json()
        part = self._draw.choice(("kernel", "problem", "config", "gpu", "run", "new"))
        if isinstance(found.get(part), dict) and self._draw.random() < 0.8:
            name = self._draw.choice([*found[part], "new", "__class__"])
            found[part][name] = self._value()
        else:
            found[part] = self._value()
        return found

    def _settings(self, event: dict[str, Any]) -> list[Any]:
        """What the page's events send, with values that no control has, and now and then too few of them."""
        from tests.panels.sent import set_to

        kernel = self._draw.choice(list(discover()))
        names = [*knobs(discover()[kernel].config), *_FIELDS]
        flat = json.loads(set_to({"kernel": kernel}))
        flat |= {self._draw.choice(names): self._value() for _ in range(self._draw.randint(1, 3))}
        settings = self._draw.choice((json.dumps(flat), self._value(), json.dumps(self._value())))
        count = len(event["inputs"])
        before = [self._value()] * max(0, count - 1)  # some begin with what is wanted
        return [*before, settings][: count if self._draw.random() < 0.9 else self._draw.randrange(count + 1)]

    def _value(self, depth: int = 0) -> Any:
        kind = self._draw.random()
        if depth > 3 or kind < 0.6:
            return self._draw.choice((*_SCALARS, *GPUS, *discover()))
        if kind < 0.8:
            return [self._value(depth + 1) for _ in range(self._draw.randrange(4))]
        return {str(self._draw.choice(_SCALARS))[:40]: self._value(depth + 1) for _ in range(self._draw.randrange(4))}

    def _text(self, body: dict[str, Any]) -> str:
        """The body, now and then with what is no JSON in the place of a value."""
        text = json.dumps(body)
        if self._draw.random() < 0.1:
            text = text.replace(self._draw.choice(("null", "64", "512", '""')), self._draw.choice(_BARE), 1)
        return text


async def sent(client: httpx.AsyncClient, asked: tuple[str, str, str], found: Found) -> None:
    """One request, up to its answer."""
    name, path, body = asked
    outcome = ""
    began = time.monotonic()
    try:
        reply = await client.post(f"gradio_api/{path}", content=body, headers={"content-type": "application/json"})
        found.statuses[reply.status_code] += 1
        if reply.status_code >= 500:
            found.broken.append(f"{reply.status_code} {name}: {body[:300]} → {reply.text[:200]}")
        elif path.startswith("call/") and reply.status_code == 200:
            # Where it came from the second version, too, the answer is with the first.
            place = f"gradio_api/call/{path.rsplit('/', 1)[-1]}/{reply.json()['event_id']}"
            answer = (await client.get(place)).text
            outcome = "refused" if '"failure"' in answer or "event: error" in answer else "accepted"
            if "Tilescope failed on this" in answer:
                found.broken.append(f"{name}: {body[:300]} → {answer[:200]}")
    except httpx.HTTPError as error:
        found.broken.append(f"{type(error).__name__} {name}: {body[:300]}")
    took = time.monotonic() - began
    found.seconds.append(took)
    if took > LATE_S:
        found.late.append((took, f"{outcome or 'an event'} {name}: {body[:300]}"))


async def campaign(requests: int, seed: int, minutes: float) -> tuple[Found, list[float], str]:
    """The requests; the memory at first, after each so many requests, and at the end, in MB; the server's log."""
    found = Found()
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        async with served(log) as (url, process), httpx.AsyncClient(base_url=url, timeout=60, limits=LIMITS) as client:
            hostile = Hostile((await client.get("config")).json(), seed)
            await asyncio.sleep(15)  # its workers start
            left, until = iter(range(requests)), time.monotonic() + 60 * minutes
            base = [resident_megabytes(process)]

            async def one_after_the_other() -> None:
                for number in left:
                    if time.monotonic() > until:
                        return
                    if number and number % max(1, min(STEP, requests // (WARM + 1))) == 0:
                        base.append(resident_megabytes(process))
                    await sent(client, hostile.request(), found)

            await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))
            await asyncio.sleep(30)
            base.append(resident_megabytes(process))
            (await client.get("")).raise_for_status()
        return found, base, Path(log.name).read_text(encoding="utf-8", errors="replace")


def main(requests: int, seed: int, minutes: float) -> None:
    began = time.monotonic()
    found, (first, *warm, last), log = asyncio.run(campaign(requests, seed, minutes))
    print(f"{len(found.seconds)} requests in {time.monotonic() - began:.0f} s; statuses {dict(found.statuses)}")
    print(f"{len(found.broken)} broken", *found.broken[:10], sep="\n  ")
    refused = [(s, what) for s, what in found.late if what.startswith("refused")]
    print(f"{len(found.late)} over {LATE_S:.0f} s, of them {len(refused)} refused")
    print(*(f"  {s:.1f} s {what}" for s, what in (*refused[:10], *found.late[:10])), sep="\n")
    ends = [
        line for line in log.splitlines() if line and not line.startswith((" ", "*", "Traceback", "During", "The ab"))
    ]
    traces = Counter(line[:160] for line in ends)
    print(f"{log.count('Traceback')} traces in the log", *traces.most_common(12), sep="\n  ")
    base = warm[WARM - 1] if len(warm) >= WARM else first
    print("memory, MB:", *(f"{megabytes:.0f}" for megabytes in (first, *warm, last)))
    over = "  over the bar" if last > base * (1 + BAR_GROWTH) else ""
    print(f"memory {first:.0f} MB, {base:.0f} warm, {last:.0f} at the end: {last / base - 1:+.1%}{over}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60, help="after which no more are sent")
    given = parser.parse_args()
    main(given.requests, given.seed, given.minutes)
