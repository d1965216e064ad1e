"""Send hostile requests to a new page: `python -m scripts.hostile_campaign [--requests 20000] [--seed 0]`.

Each request goes to an endpoint or to one of the page's event handlers. It holds at least one value that no browser
sends: of a wrong type, huge, not finite, nested, code as text, too few values, or invalid JSON. Prints every violation:
a status of 500 or more, a traceback in the log, a refusal that took over 2 s, and growth of the page's memory of over
5 %.
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

from benchmarks.attackers import LIMITS, TIMEOUT_S
from benchmarks.load import MAX_GROWTH, resident_megabytes, serve
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import knobs
from visualize.web.assets import MESSAGES

LATE_S, MAX_CONCURRENCY = 2.0, 8

# Memory is read after every STEP requests. The last reading is compared with reading WARM, because bounded caches of
# results, compiles, figures and unread replies fill first.
STEP, WARM = 2000, 3

_LONG = "9" * 5000
_FIELDS = ("M", "N", "kernel", "gpu", "tab", "with", "preset", "form_of", "new")
_SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 3, 2**31, 2**63, 2**200, -(2**200), 0.5, 1e308, -0.0),
    *("", "0", "-1", "4096", "1e999", _LONG, "x" * 30_000, "\0", "\ud7ff", "a\nb", "NaN", "null"),
    *(
        "<script>alert(1)</script>",
        "' OR 1=1 --",
        "../../etc/passwd",
        "{{7*7}}",
        "$(touch x)",
        "__import__('os')",
    ),
)
# Text in place of a JSON value. Python's parser accepts the first three.
_INVALID = ("NaN", "Infinity", "-Infinity", "1" * 5000, "[" * 5000, "{", "")


@dataclass
class Observed:
    """Outcomes of all requests.

    Attributes:
        statuses: HTTP statuses.
        broken: requests that made the server fail.
        late: seconds and description of slow requests. Only refusals must be fast.
        megabytes: resident memory of the page's process: at first, after each STEP, and at the end.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    late: list[tuple[float, str]] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)


class Hostile:
    """Generates random hostile requests.

    Args:
        config: Gradio's config of the page, which lists its events.
    """

    def __init__(self, config: dict[str, Any], seed: int) -> None:
        self._draw = random.Random(seed)
        self._endpoints = sorted(
            {
                each["api_name"]
                for each in config["dependencies"]
                if each["api_visibility"] == "public"
            }
        )

    def request(self) -> tuple[str, str, str]:
        """Return a name for messages, the path below the API, and the body."""
        if self._draw.random() < 0.5:
            name = self._draw.choice(self._endpoints)
            version = self._draw.choice(("call/", "call/v2/"))
            data = (
                {"experiment": self._experiment()}
                if "v2" in version
                else {"data": self._arguments()}
            )
            return f"/{name}", f"gradio_api/{version}{name}", self._text(data)
        return "message", MESSAGES, self._text(self._message())

    def _arguments(self) -> list[Any]:
        extra = self._draw.randrange(4)
        return [self._experiment(), *(self._value() for _ in range(extra))][
            self._draw.random() < 0.05 :
        ]

    def _experiment(self) -> Any:
        """An experiment with a wrong field, or another value."""
        if self._draw.random() < 0.2:
            return self._value()
        kernel = self._draw.choice(list(discover().values()))
        experiment: dict[str, Any] = Experiment(
            kernel.id, kernel.family.problem(), kernel.config()
        ).to_json()
        part = self._draw.choice(("kernel", "problem", "config", "gpu", "run", "new"))
        if isinstance(experiment.get(part), dict) and self._draw.random() < 0.8:
            name = self._draw.choice([*experiment[part], "new", "__class__"])
            experiment[part][name] = self._value()
        else:
            experiment[part] = self._value()
        return experiment

    def _message(self) -> Any:
        """A message of the page with values that no control can send, or another value."""
        from tests.messages import settings_of

        kernel = self._draw.choice(list(discover()))
        names = [*knobs(discover()[kernel].config), *_FIELDS]
        message = settings_of({"kernel": kernel}, page=f"p{self._draw.randrange(50)}")
        message["settings"] |= {
            self._draw.choice(names): self._value() for _ in range(self._draw.randint(1, 3))
        }
        # Actions that start nothing: the campaign is about values, and a sweep would occupy the machine.
        message |= self._draw.choice(
            ({}, {"action": "share"}, {"action": self._value()}, {"follow": self._value()})
        )
        return message if self._draw.random() < 0.7 else self._value()

    def _value(self, depth: int = 0) -> Any:
        kind = self._draw.random()
        if depth > 3 or kind < 0.6:
            return self._draw.choice((*_SCALARS, *GPUS, *discover()))
        if kind < 0.8:
            return [self._value(depth + 1) for _ in range(self._draw.randrange(4))]
        return {
            str(self._draw.choice(_SCALARS))[:40]: self._value(depth + 1)
            for _ in range(self._draw.randrange(4))
        }

    def _text(self, body: Any) -> str:
        """The body as JSON, sometimes invalid."""
        text = json.dumps(body)
        if self._draw.random() < 0.1:
            text = text.replace(
                self._draw.choice(("null", "64", "512", '""')), self._draw.choice(_INVALID), 1
            )
        return text


async def send(
    client: httpx.AsyncClient, request: tuple[str, str, str], observed: Observed
) -> None:
    """Send a request, and wait for its reply."""
    name, path, body = request
    outcome, text, began = "an event", f"{name}: {body[:300]}", time.monotonic()
    try:
        reply = await client.post(path, content=body, headers={"content-type": "application/json"})
        observed.statuses[reply.status_code] += 1
        if reply.status_code >= 500:
            observed.broken.append(f"{reply.status_code} {text} → {reply.text[:200]}")
        elif path.startswith("gradio_api/call/") and reply.status_code == 200:
            # The first version of the API also delivers replies to requests of the second.
            answer = (
                await client.get(
                    f"gradio_api/call/{path.rsplit('/', 1)[-1]}/{reply.json()['event_id']}"
                )
            ).text
            outcome = "refused" if '"failure"' in answer or "event: error" in answer else "accepted"
            if "Tilescope had an internal error" in answer:
                observed.broken.append(f"{text} → {answer[:200]}")
    except httpx.HTTPError as error:
        observed.broken.append(f"{type(error).__name__} {text}")
    if (seconds := time.monotonic() - began) > LATE_S:
        observed.late.append((seconds, f"{outcome} {text}"))


async def attack(requests: int, seed: int, minutes: float) -> tuple[Observed, str]:
    """Send all requests to a new page; return their outcomes and the server's log."""
    observed, left, until = Observed(), iter(range(requests)), time.monotonic() + 60 * minutes
    with tempfile.NamedTemporaryFile("w+", suffix=".log") as log:
        async with (
            serve(log) as (url, process, config),
            httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=LIMITS) as client,
        ):
            hostile = Hostile(config, seed)
            observed.megabytes.append(resident_megabytes(process))

            async def send_in_turn() -> None:
                for number in left:
                    if time.monotonic() > until:
                        return
                    if number and number % max(1, min(STEP, requests // (WARM + 1))) == 0:
                        observed.megabytes.append(resident_megabytes(process))
                    await send(client, hostile.request(), observed)

            await asyncio.gather(*(send_in_turn() for _ in range(MAX_CONCURRENCY)))
            await asyncio.sleep(30)
            observed.megabytes.append(resident_megabytes(process))
            (await client.get(url)).raise_for_status()
        return observed, Path(log.name).read_text(encoding="utf-8", errors="replace")


def main(requests: int, seed: int, minutes: float) -> None:
    began = time.monotonic()
    observed, log = asyncio.run(attack(requests, seed, minutes))
    print(
        f"{requests} requests in {time.monotonic() - began:.0f} s; statuses {dict(observed.statuses)}"
    )
    print(f"{len(observed.broken)} broken", *observed.broken[:10], sep="\n  ")
    refused = [late for late in observed.late if late[1].startswith("refused")]
    print(f"{len(observed.late)} over {LATE_S:.0f} s, of them {len(refused)} refused")
    print(
        *(f"  {seconds:.1f} s {text}" for seconds, text in (*refused[:10], *observed.late[:10])),
        sep="\n",
    )
    skipped = (" ", "*", "Traceback", "During", "The ab")
    errors = Counter(
        line[:160] for line in log.splitlines() if line and not line.startswith(skipped)
    )
    print(f"{log.count('Traceback')} tracebacks in the log", *errors.most_common(12), sep="\n  ")
    print("memory, MB:", *(f"{megabytes:.0f}" for megabytes in observed.megabytes))
    growth = observed.megabytes[-1] / observed.megabytes[min(WARM, len(observed.megabytes) - 1)] - 1
    print(
        f"memory after the caches had filled: {growth:+.1%}{'  over the limit' if growth > MAX_GROWTH else ''}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--minutes", type=float, default=60, help="the longest time to send requests for"
    )
    flags = parser.parse_args()
    main(flags.requests, flags.seed, flags.minutes)
