"""A number of a tour: where the API gives it, and how it is written. It is asked for, never typed."""

from __future__ import annotations

import dataclasses
import re
import statistics
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kernels.measuring.session import Session
from kernels.results import Compiled, Failure
from kernels.results.codec import to_json
from visualize.predict.textbook import Textbook
from visualize.views.endpoint import Reply, known
from visualize.views.memory import coalescing_tab, compiler_tab
from visualize.views.numbers import source as source_of
from visualize.views.numbers import written
from visualize.views.order import reuse_view
from visualize.views.order import view as order_view
from visualize.views.result.view import run_json
from visualize.views.snapshot import Known
from visualize.views.tabs import SETTINGS

# How a number is written: 4,288; 0.0503 ms; 8.53 GB; 1.8 ×; 41 %.
Unit = Literal["", "ms", "ns", "bytes", "times", "share"]

# What models and the compiler say of a state, by the name of the API's endpoint, and the mark of it.
OF_STATES: dict[str, tuple[Callable[[Known], Reply], str]] = {
    "schedule": (order_view.schedule_json, "predicted"),
    "reuse": (reuse_view.reply, "predicted"),
    "coalescing": (coalescing_tab.compiled_reply, "compiled"),
    "textbook": (
        lambda known: coalescing_tab.textbook_reply(known, dataclasses.asdict(known.state.view.of(Textbook))),
        "textbook",
    ),
    "compile": (compiler_tab.reply, "compiled"),
}

# Results, measured here or recorded, by the endpoint ("study": /reuse's field `measured`): the measurement's name, the
# mark of a result measured here, and the endpoint's reply.
OF_RESULTS: dict[str, tuple[str, str, Callable[[Any], Reply]]] = {
    "run": ("run", "measured", run_json),
    "counters": ("counters", "counted", to_json),
    "timeline": ("timeline", "measured", order_view.timeline_json),
    "study": ("reuse", "counted", to_json),
}


class NoFact(ValueError):
    """A number that isn't known on this machine, and why."""


@dataclass(frozen=True)
class Fact:
    """Where a number is from.

    Attributes:
        endpoint: of the API; "" for a ratio.
        path: the place in its reply, such as "loads[8]", "ops[tensor=B].sectors" or "rows[2].times_ms[median]".
        set: fields that differ from the stop's address, as a query; one that names another kernel starts from its
            defaults.
        ratio: two facts of the stop instead; the first over the second.
        unit: how it is written.
        shown: what the sentence was written for. The page shows what is asked; a test holds the two together.
    """

    shown: str
    endpoint: str = ""
    path: str = ""
    set: str = ""
    ratio: list[str] = field(default_factory=list)
    unit: str = ""

    def fields(self, address: Mapping[str, str]) -> dict[str, str]:
        """The flat fields of the state that is asked about."""
        own = dict(urllib.parse.parse_qsl(self.set, strict_parsing=bool(self.set)))
        return own if "kernel" in own else {**address, **own}


@dataclass(frozen=True)
class Found:
    """A number, as it is written, and its mark; "" for a ratio of two sources."""

    value: float
    text: str
    source: str


def found(facts: Mapping[str, Fact], address: Mapping[str, str], session: Session) -> dict[str, Found]:
    """All facts of a stop. Waits for the compiler where one needs it.

    Raises:
        NoFact: where one isn't known here.
    """
    values = {name: _asked(fact, address, session) for name, fact in facts.items() if not fact.ratio}
    for name, fact in facts.items():
        if fact.ratio:
            over, under = (values[other] for other in fact.ratio)
            if not under.value:
                raise NoFact(f"{fact.ratio[1]} is 0, and nothing is a multiple of it.")
            source = over.source if over.source == under.source else ""
            value = over.value / under.value
            values[name] = Found(value, written(value, fact.unit), source)
    return values


def _asked(fact: Fact, address: Mapping[str, str], session: Session) -> Found:
    state = SETTINGS.state(fact.fields(address), session.gpu)
    reply: Reply
    if fact.endpoint in OF_RESULTS:
        name, source, reply_of = OF_RESULTS[fact.endpoint]
        measured = session.find_value(state.experiment, name)
        if measured is None:
            raise NoFact(f"No {name} of this experiment on {state.gpu.name} was measured here or recorded.")
        reply = reply_of(measured)
        source = source_of(measured.backend, source)
    else:
        body, source = OF_STATES[fact.endpoint]
        made: Compiled | Failure | None = None
        if source == "compiled":
            made = session.compile(state.experiment).result()
            if isinstance(made, Failure):
                raise NoFact(made.message)
        reply = body(known(session, state, made))
    if isinstance(reply, Failure):
        raise NoFact(reply.message)
    value = _at(reply, fact.path)
    return Found(value, written(value, fact.unit), source)


_STEP = re.compile(r"(?:^|\.)(\w+)|\[(\d+)\]|\[(\w+)=([\w.-]+)\]|\[(median|count)\]")

# One step into a reply: a name, a number, (name, value) of a row, or "median" or "count" of a list.
Step = tuple[Literal["name", "number", "row", "of"], str, str]


def steps_of(path: str) -> list[Step]:
    """A path's steps.

    >>> steps_of("rows[group_size=8].times_ms[median]")
    [('name', 'rows', ''), ('row', 'group_size', '8'), ('name', 'times_ms', ''), ('of', 'median', '')]

    Raises:
        ValueError: where it is no path.
    """
    steps: list[Step] = []
    place = 0
    while place < len(path):
        matched = _STEP.match(path, place)
        if matched is None:
            raise ValueError(f"{path!r} is no path: at {path[place:]!r}.")
        name, number, field_name, value, of = matched.groups()
        if name:
            steps.append(("name", name, ""))
        elif number:
            steps.append(("number", number, ""))
        elif field_name:
            steps.append(("row", field_name, value))
        else:
            steps.append(("of", of, ""))
        place = matched.end()
    if not steps:
        raise ValueError("a fact needs a path, such as loads[8].")
    return steps


def _at(reply: Any, path: str) -> float:
    here = reply
    for kind, name, wanted in steps_of(path):
        if kind == "name":
            here = here[name]
        elif kind == "number":
            here = here[int(name)]
        elif kind == "row":
            here = next(row for row in here if str(row[name]) == wanted)
        else:
            here = statistics.median(here) if name == "median" else len(here)
    if not isinstance(here, int | float):
        raise NoFact(f"{path} is {type(here).__name__}, and no number.")
    return here
