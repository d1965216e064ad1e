"""Tours: one TOML file each, read and checked when the page starts. A stop is a state of the page and a sentence."""

import json
import re
import string
import tomllib
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError

from kernels.knobs import ConfigError
from visualize.tours.fact import OF_RESULTS, OF_STATES, Fact, Unit, steps_of
from visualize.views.state import State
from visualize.views.tabs import SETTINGS

FEWEST_STOPS, MOST_STOPS = 4, 8
MOST_WORDS = 25
MOST_CHOICES = 4
_COMPARED = re.compile(r"(\w+) (<|>|==) ([0-9.]+)")


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
    when: str

    def is_right(self, values: Mapping[str, float]) -> bool:
        name, relation, bound = self.condition
        value = values[name]
        return {"<": value < bound, ">": value > bound, "==": value == bound}[relation]

    @property
    def condition(self) -> tuple[str, str, float]:
        """The fact's name, "<", ">" or "==", and the bound."""
        matched = _COMPARED.fullmatch(self.when)
        if matched is None:
            raise ConfigError("not_a_condition", f'when is {self.when!r}; write it as "fact > 1.5".', "when")
        return matched[1], matched[2], float(matched[3])


@dataclass(frozen=True)
class Question:
    """A question before the stop's picture appears. The facts make exactly one choice right."""

    ask: str
    choices: list[Choice]


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

    def state(self) -> State:
        """The page as the stop shows it, on a machine without a GPU.

        Raises:
            ConfigError: the address is not valid, or has an unknown field.
        """
        return checked_state(self.fields)


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
    stops: list[Stop]


def checked_state(fields: Mapping[str, str]) -> State:
    """Return the State of flat fields. Raise ConfigError for unknown ones."""
    state = SETTINGS.state(fields, None)
    if unknown := fields.keys() - state.to_address().keys() - {"gpu"}:
        raise ConfigError("unknown_field", f"the address has {', '.join(sorted(unknown))}, which it may not have.", "")
    return state


# Pydantic accepts no settings for a dataclass, but applies a tuple's settings to its elements.
_ADAPTER = TypeAdapter(tuple[Tour], config=ConfigDict(strict=True, extra="forbid"))


def read(text: str, name: str) -> Tour:
    """Parse and check a file's text.

    Raises:
        BadTour: the message names the place and the reason.
    """
    try:
        plain: dict[str, Any] = tomllib.loads(text)
        # As JSON: in strict mode, pydantic makes dataclasses from no other mappings.
        (tour,) = _ADAPTER.validate_json(json.dumps([{**plain, "name": name}], default=str))
    except tomllib.TOMLDecodeError as error:
        raise BadTour(f"{name}.toml: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        raise BadTour(f"{name}.toml: {place}: {first['msg']}.") from error
    if not FEWEST_STOPS <= len(tour.stops) <= MOST_STOPS:
        raise BadTour(f"{name}.toml: it has {len(tour.stops)} stops; {FEWEST_STOPS} to {MOST_STOPS} are allowed.")
    for number, stop in enumerate(tour.stops, start=1):
        try:
            _check(stop)
        except (ConfigError, ValueError) as error:
            raise BadTour(f"{name}.toml, stop {number}: {error}") from error
    return tour


def _check(stop: Stop) -> None:
    stop.state()
    texts = [stop.say]
    if stop.ask:
        if not 2 <= len(stop.ask.choices) <= MOST_CHOICES:
            raise ValueError(f"a question has 2 to {MOST_CHOICES} choices, not {len(stop.ask.choices)}.")
        texts += [stop.ask.ask, *(choice.text for choice in stop.ask.choices)]
        for choice in stop.ask.choices:
            _require_fact(choice.condition[0], stop)
    for text in texts:
        for name in facts_named(text):
            _require_fact(name, stop)
    for name, fact in stop.facts.items():
        _check_fact(name, fact, stop)


def _check_fact(name: str, fact: Fact, stop: Stop) -> None:
    if fact.unit not in get_args(Unit):
        units = ", ".join(unit for unit in get_args(Unit) if unit)
        raise ValueError(f"The unit of fact {name} must be one of {units} (got {fact.unit!r}).")
    if fact.ratio:
        if len(fact.ratio) != 2 or fact.endpoint or fact.path or fact.set:
            raise ValueError(f"fact {name} is a ratio, which takes two other facts and no other field.")
        for other in fact.ratio:
            _require_fact(other, stop)
            if stop.facts[other].ratio:
                raise ValueError(f"fact {name} is a ratio of {other}, which is itself a ratio.")
        return
    if fact.endpoint not in (*OF_STATES, *OF_RESULTS):
        allowed = ", ".join((*OF_STATES, *OF_RESULTS))
        raise ValueError(f"The endpoint of fact {name} must be one of {allowed} (got {fact.endpoint!r}).")
    steps_of(fact.path)
    checked_state(fact.fields(stop.fields))


def _require_fact(name: str, stop: Stop) -> None:
    if name not in stop.facts:
        raise ValueError(f"{name!r} is not one of the stop's facts: {', '.join(stop.facts) or 'it has none'}.")


def facts_named(text: str) -> list[str]:
    """Return the names of the facts in a text."""
    return [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
