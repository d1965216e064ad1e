"""Tours: one TOML file each, read and checked when the page starts. A stop is a state of the page and a sentence.

A sentence's numbers are facts: they are computed from replies of the API instead of typed into it.
"""

import json
import operator
import re
import statistics
import string
import tomllib
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from tilescope import numbers
from tilescope.declare.knobs import ConfigError
from tilescope.measure.session import Session
from tilescope.results import Failure
from tilescope.results.codec import to_json
from visualize.predict.textbook import Textbook
from visualize.views.memory.compiler import compile_reply
from visualize.views.memory.view import compiled_reply, textbook_reply
from visualize.views.order import view as order_view
from visualize.views.panel import Reply
from visualize.views.result.view import run_json
from visualize.views.state import Snapshot, State, take_snapshot
from visualize.views.tabs import SETTINGS

_RELATIONS = {"<": operator.lt, ">": operator.gt, "==": operator.eq}


# Replies of models and the compiler to a state, and their mark, by the endpoint's name.
OF_STATES: dict[str, tuple[Callable[[Snapshot], Reply], str]] = {
    "schedule": (order_view.schedule_json, "predicted"),
    "reuse": (order_view.reuse_json, "predicted"),
    "coalescing": (compiled_reply, "compiled"),
    "textbook": (
        lambda snapshot: textbook_reply(snapshot, snapshot.state.view.of(Textbook)),
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


class BadTour(ValueError):
    """A file is not a valid tour. The message names the file, the place and the reason."""


@dataclass(frozen=True)
class Choice:
    """One answer to a question.

    Attributes:
        text: may contain "{name}" for a fact.
        when: the condition that makes it right, such as "grouped == 54" or "gain < 0.05".
    """

    text: str
    when: Annotated[str, Field(pattern=r"^\w+ (<|>|==) [0-9.]+$")]

    def is_right(self, values: Mapping[str, float]) -> bool:
        name, relation, bound = self.when.split()
        return _RELATIONS[relation](values[name], float(bound))


@dataclass(frozen=True)
class Question:
    """A question before the stop's result appears. The facts make exactly one choice right."""

    ask: str
    choices: Annotated[list[Choice], Field(min_length=2, max_length=4)]


@dataclass(frozen=True)
class Stop:
    """One stop: a state of the page, and a sentence.

    Attributes:
        address: the page's query.
        say: the sentence, with "{name}" for a fact. Only names and shapes contain digits.
        facts: its numbers by name.
        ask: a question that comes first.
    """

    address: str
    say: str
    facts: dict[str, Fact] = field(default_factory=dict)
    ask: Question | None = None

    @property
    def fields(self) -> dict[str, str]:
        """The address as flat fields."""
        return dict(urllib.parse.parse_qsl(self.address, strict_parsing=True))

    def used_facts(self) -> set[str]:
        """Return the names of the facts in the sentence, the question, its choices and the ratios."""
        texts = [
            self.say,
            *([self.ask.ask, *(choice.text for choice in self.ask.choices)] if self.ask else ()),
        ]
        in_texts = {name for text in texts for name in facts_named(text)}
        in_choices = {choice.when.split()[0] for choice in self.ask.choices} if self.ask else set()
        return in_texts | in_choices | {part for fact in self.facts.values() for part in fact.ratio}


@dataclass(frozen=True)
class Tour:
    """A tour, as one file declares it.

    Attributes:
        name: the file's name, used in URLs.
        about: a sentence for the menu.
        order: the position in the menu.
    """

    name: str
    title: str
    about: str
    order: int
    stops: Annotated[list[Stop], Field(min_length=4, max_length=8)]

    def clip(self, stop: int) -> int:
        """Return the number of the nearest stop, from 1."""
        return min(max(stop, 1), len(self.stops))


def check_state(fields: Mapping[str, str]) -> State:
    """Return the State of flat fields on a machine without a GPU.

    Raises:
        ConfigError: a value is not valid, or a field is unknown.
    """
    state = SETTINGS.state(fields, None)
    if unknown := fields.keys() - state.to_address().keys() - {"gpu"}:
        raise ConfigError(
            "unknown_field",
            f"the address has {', '.join(sorted(unknown))}, which it may not have.",
            "",
        )
    return state


# Pydantic accepts no settings for a dataclass, but applies a tuple's settings to its elements.
_ADAPTER = TypeAdapter(tuple[Tour], config=ConfigDict(strict=True, extra="forbid"))


def read(text: str, name: str) -> Tour:
    """Parse and check a file's text.

    Raises:
        BadTour: the message names the place and the reason.
    """
    try:
        content = tomllib.loads(text)
        # As JSON: in strict mode, pydantic makes dataclasses from no other mappings.
        (tour,) = _ADAPTER.validate_json(json.dumps([{**content, "name": name}], default=str))
    except tomllib.TOMLDecodeError as error:
        raise BadTour(f"{name}.toml: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(
            str(part + 1 if isinstance(part, int) else part) for part in first["loc"][1:]
        )
        given = f" (got {first['input']!r})" if isinstance(first["input"], str | int) else ""
        raise BadTour(f"{name}.toml: {place}: {first['msg']}{given}.") from error
    for number, stop in enumerate(tour.stops, start=1):
        try:
            _check(stop)
        except ValueError as error:
            raise BadTour(f"{name}.toml, stop {number}: {error}") from error
    return tour


def _check(stop: Stop) -> None:
    check_state(stop.fields)
    if unknown := sorted(stop.used_facts() - stop.facts.keys()):
        raise ValueError(
            f"{unknown[0]!r} is not one of the stop's facts: {', '.join(stop.facts) or 'it has none'}."
        )
    for name, fact in stop.facts.items():
        if fact.ratio:
            is_nested = any(stop.facts[part].ratio for part in fact.ratio)
            if len(fact.ratio) != 2 or is_nested or fact.endpoint or fact.path or fact.set:
                takes = "which takes two facts that are no ratios, and no other field"
                raise ValueError(f"fact {name} is a ratio, {takes}.")
            continue
        if fact.endpoint not in (*OF_STATES, *OF_RESULTS):
            allowed = ", ".join((*OF_STATES, *OF_RESULTS))
            raise ValueError(
                f"The endpoint of fact {name} must be one of {allowed} (got {fact.endpoint!r})."
            )
        steps_of(fact.path)
        check_state(fact.fields(stop.fields))


def facts_named(text: str) -> list[str]:
    """Return the names of the facts in a text."""
    return [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]


def compute_facts(
    facts: Mapping[str, Fact], address: Mapping[str, str], session: Session
) -> dict[str, Value]:
    """Return the values of a stop's facts. May wait for the compiler.

    Raises:
        NoFact: a fact can't be computed on this machine.
    """
    values = dict[str, Value]()
    for name, fact in sorted(facts.items(), key=lambda item: len(item[1].ratio)):  # ratios last
        if fact.ratio:
            over, under = (values[part] for part in fact.ratio)
            if not under.number:
                raise NoFact(f"{fact.ratio[1]} is 0, so there is no ratio to it.")
            number = over.number / under.number
            source = over.source if over.source == under.source else ""
        else:
            number, source = _find_number(fact, address, session)
        values[name] = Value(number, numbers.format_number(number, fact.unit), source)
    return values


def _find_number(fact: Fact, address: Mapping[str, str], session: Session) -> tuple[float, str]:
    """Return a number of a reply, and its source."""
    state = SETTINGS.state(fact.fields(address), session.gpu)
    if fact.endpoint in OF_RESULTS:
        name, source, reply_of = OF_RESULTS[fact.endpoint]
        measured = session.find_value(state.experiment, name)
        if measured is None:
            raise NoFact(
                f"No {name} of this experiment on {state.gpu.name} was measured here or recorded."
            )
        reply = reply_of(measured)
        source = numbers.source(measured.backend, source)
    else:
        body, source = OF_STATES[fact.endpoint]
        compiled = session.compile(state.experiment).result() if source == "compiled" else None
        reply = (
            compiled
            if isinstance(compiled, Failure)
            else body(take_snapshot(session, state, compiled))
        )
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
