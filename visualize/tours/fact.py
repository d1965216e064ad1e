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
from visualize.views.memory.compiler import compile_reply
from visualize.views.memory.view import compiled_reply, textbook_reply
from visualize.views.numbers import format_number
from visualize.views.numbers import source as source_of
from visualize.views.order import view as order_view
from visualize.views.panel import Reply
from visualize.views.result.view import run_json
from visualize.views.state import Snapshot, take_snapshot
from visualize.views.tabs import SETTINGS


def _textbook_reply(snapshot: Snapshot) -> Reply:
    return textbook_reply(snapshot, dataclasses.asdict(snapshot.state.view.of(Textbook)))


# Replies of models and the compiler to a state, and their mark, by the endpoint's name.
OF_STATES: dict[str, tuple[Callable[[Snapshot], Reply], str]] = {
    "schedule": (order_view.schedule_json, "predicted"),
    "reuse": (order_view.reuse_json, "predicted"),
    "coalescing": (compiled_reply, "compiled"),
    "textbook": (_textbook_reply, "textbook"),
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

_STEP = re.compile(r"(?:^|\.)(\w+)|\[(\d+)\]|\[(\w+)=([\w.-]+)\]|\[(median|count)\]")


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
        unit: its format: 4,288; 0.0503 ms; 45.7 µs; 8.53 GB; 1.8 ×; 41 %.
    """

    shown: str
    endpoint: str = ""
    path: str = ""
    set: str = ""
    ratio: list[str] = field(default_factory=list)
    unit: Literal["", "ms", "ns", "bytes", "times", "share"] = ""

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
    numbers = {name: _find_number(fact, address, session) for name, fact in facts.items() if not fact.ratio}
    for name, fact in facts.items():
        if fact.ratio:
            (over, over_source), (under, under_source) = (numbers[part] for part in fact.ratio)
            if not under:
                raise NoFact(f"{fact.ratio[1]} is 0, so there is no ratio to it.")
            numbers[name] = over / under, over_source if over_source == under_source else ""
    return {
        name: Value(number, format_number(number, facts[name].unit), source)
        for name, (number, source) in numbers.items()
    }


def _find_number(fact: Fact, address: Mapping[str, str], session: Session) -> tuple[float, str]:
    """Return a number of a reply, and its source."""
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
        reply = compiled if isinstance(compiled, Failure) else body(take_snapshot(session, state, compiled))
    if isinstance(reply, Failure):
        raise NoFact(reply.message)
    return _follow(reply, fact.path), source


def steps_of(path: str) -> list[re.Match[str]]:
    """Split a path into steps: a field, an index, a row with a value in a column, or the median or count of a list.

    >>> [step[0] for step in steps_of("rows[group_size=8].times_ms[median]")]
    ['rows', '[group_size=8]', '.times_ms', '[median]']

    Raises:
        ValueError: the text is not a path.
    """
    steps = list(_STEP.finditer(path))
    if not path or "".join(step[0] for step in steps) != path:
        raise ValueError(f"{path!r} is not a path, such as loads[8].")
    return steps


def _follow(reply: Any, path: str) -> float:
    value = reply
    for step in steps_of(path):
        field_name, index, column, key, statistic = step.groups()
        if field_name:
            value = value[field_name]
        elif index:
            value = value[int(index)]
        elif column:
            value = next(row for row in value if str(row[column]) == key)
        else:
            value = statistics.median(value) if statistic == "median" else len(value)
    if not isinstance(value, int | float):
        raise NoFact(f"{path} is {type(value).__name__}, not a number.")
    return value
