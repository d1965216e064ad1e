"""Tours: one TOML file each, read and checked when the page starts. A stop is a state of the page and a sentence."""

import json
import operator
import string
import tomllib
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from kernels.knobs import ConfigError
from visualize.tours.fact import OF_RESULTS, OF_STATES, Fact, steps_of
from visualize.views.state import State
from visualize.views.tabs import SETTINGS

MOST_WORDS = 25
_RELATIONS = {"<": operator.lt, ">": operator.gt, "==": operator.eq}


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

    @property
    def fact(self) -> str:
        """The name of the fact in the condition."""
        return self.when.split()[0]

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
        texts = [self.say, *([self.ask.ask, *(choice.text for choice in self.ask.choices)] if self.ask else ())]
        in_texts = {name for text in texts for name in facts_named(text)}
        in_choices = {choice.fact for choice in self.ask.choices} if self.ask else set()
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
        content = tomllib.loads(text)
        # As JSON: in strict mode, pydantic makes dataclasses from no other mappings.
        (tour,) = _ADAPTER.validate_json(json.dumps([{**content, "name": name}], default=str))
    except tomllib.TOMLDecodeError as error:
        raise BadTour(f"{name}.toml: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"][1:])
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
        raise ValueError(f"{unknown[0]!r} is not one of the stop's facts: {', '.join(stop.facts) or 'it has none'}.")
    for name, fact in stop.facts.items():
        if fact.ratio:
            if len(fact.ratio) != 2 or fact.endpoint or fact.path or fact.set:
                raise ValueError(f"fact {name} is a ratio, which takes two other facts and no other field.")
            if nested := [part for part in fact.ratio if stop.facts[part].ratio]:
                raise ValueError(f"fact {name} is a ratio of {nested[0]}, which is itself a ratio.")
            continue
        if fact.endpoint not in (*OF_STATES, *OF_RESULTS):
            allowed = ", ".join((*OF_STATES, *OF_RESULTS))
            raise ValueError(f"The endpoint of fact {name} must be one of {allowed} (got {fact.endpoint!r}).")
        steps_of(fact.path)
        check_state(fact.fields(stop.fields))


def facts_named(text: str) -> list[str]:
    """Return the names of the facts in a text."""
    return [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
