"""Facts: a tour's numbers, computed from replies of the API instead of typed into its sentences."""

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
from visualize.views.endpoint import Reply
from visualize.views.memory.view import compile_reply, compiled_reply, textbook_reply
from visualize.views.numbers import format_number
from visualize.views.numbers import source as source_of
from visualize.views.order import reuse_view
from visualize.views.order import view as order_view
from visualize.views.result.view import run_json
from visualize.views.snapshot import Snapshot, take_snapshot
from visualize.views.tabs import SETTINGS

# Formats: 4,288; 0.0503 ms; 45.7 µs; 8.53 GB; 1.8 ×; 41 %.
Unit = Literal["", "ms", "ns", "bytes", "times", "share"]

# Replies of models and the compiler to a state, and their mark, by the endpoint's name.
OF_STATES: dict[str, tuple[Callable[[Snapshot], Reply], str]] = {
    "schedule": (order_view.schedule_json, "predicted"),
    "reuse": (reuse_view.reply, "predicted"),
    "coalescing": (compiled_reply, "compiled"),
    "textbook": (
        lambda snapshot: textbook_reply(snapshot, dataclasses.asdict(snapshot.state.view.of(Textbook))),
        "textbook",
    ),
    "compile": (compile_reply, "compiled"),
}

# Results, live or recorded, by the endpoint's name ("study": `measured` of /reuse): the measurement's name, the
# mark of a live result, and the endpoint's reply.
OF_RESULTS: dict[str, tuple[str, str, Callable[[Any], Reply]]] = {
    "run": ("run", "measured", run_json),
    "counters": ("counters", "counted", to_json),
    "timeline": ("timeline", "measured", order_view.timeline_json),
    "study": ("reuse", "counted", to_json),
}


class NoFact(ValueError):
    """A fact can't be computed on this machine. The message says why."""


@dataclass(frozen=True)
class Fact:
    """The source of a number.

    Attributes:
        shown: the text for which the sentence was written. The page shows the computed one; a test compares them.
        endpoint: an endpoint of the API; "" for a ratio.
        path: the place in its reply, such as "loads[8]", "ops[tensor=B].sectors" or "rows[2].times_ms[median]".
        set: fields that differ from the stop's address, as a query. If they name another kernel, they replace it.
        ratio: two facts of the same stop, of which this fact is the quotient.
        unit: its format.
    """

    shown: str
    endpoint: str = ""
    path: str = ""
    set: str = ""
    ratio: list[str] = field(default_factory=list)
    unit: str = ""

    def fields(self, address: Mapping[str, str]) -> dict[str, str]:
        """Return the flat fields of the fact's state."""
        own = dict(urllib.parse.parse_qsl(self.set, strict_parsing=bool(self.set)))
        return own if "kernel" in own else {**address, **own}


@dataclass(frozen=True)
class Value:
    """A fact's number, text and source mark; the source is "" for a ratio of two sources."""

    number: float
    text: str
    source: str


def compute_facts(facts: Mapping[str, Fact], address: Mapping[str, str], session: Session) -> dict[str, Value]:
    """Return the values of a stop's facts. May wait for the compiler.

    Raises:
        NoFact: a fact can't be computed on this machine.
    """
    values = {name: _compute(fact, address, session) for name, fact in facts.items() if not fact.ratio}
    for name, fact in facts.items():
        if fact.ratio:
            over, under = (values[other] for other in fact.ratio)
            if not under.number:
                raise NoFact(f"{fact.ratio[1]} is 0, so there is no ratio to it.")
            source = over.source if over.source == under.source else ""
            value = over.number / under.number
            values[name] = Value(value, format_number(value, fact.unit), source)
    return values


def _compute(fact: Fact, address: Mapping[str, str], session: Session) -> Value:
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
        compiled: Compiled | Failure | None = None
        if source == "compiled":
            compiled = session.compile(state.experiment).result()
            if isinstance(compiled, Failure):
                raise NoFact(compiled.message)
        reply = body(take_snapshot(session, state, compiled))
    if isinstance(reply, Failure):
        raise NoFact(reply.message)
    value = _at(reply, fact.path)
    return Value(value, format_number(value, fact.unit), source)


_STEP = re.compile(r"(?:^|\.)(\w+)|\[(\d+)\]|\[(\w+)=([\w.-]+)\]|\[(median|count)\]")

# One step into a reply: a name, a number, (name, value) of a row, or "median" or "count" of a list.
Step = tuple[Literal["name", "number", "row", "of"], str, str]


def steps_of(path: str) -> list[Step]:
    """Split a path into steps.

    >>> steps_of("rows[group_size=8].times_ms[median]")
    [('name', 'rows', ''), ('row', 'group_size', '8'), ('name', 'times_ms', ''), ('of', 'median', '')]

    Raises:
        ValueError: the text is not a path.
    """
    steps: list[Step] = []
    place = 0
    while place < len(path):
        matched = _STEP.match(path, place)
        if matched is None:
            raise ValueError(f"{path!r} is not a path: it fails at {path[place:]!r}.")
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
    value = reply
    for kind, name, key in steps_of(path):
        if kind == "name":
            value = value[name]
        elif kind == "number":
            value = value[int(name)]
        elif kind == "row":
            value = next(row for row in value if str(row[name]) == key)
        else:
            value = statistics.median(value) if name == "median" else len(value)
    if not isinstance(value, int | float):
        raise NoFact(f"{path} is {type(value).__name__}, not a number.")
    return value
