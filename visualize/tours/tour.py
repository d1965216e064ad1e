"""Tours: one TOML file each, read and checked when the page starts. A stop is a state of the page and a sentence."""

import json
import tomllib
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from tilescope.declare.knobs import ConfigError
from tilescope.numbers import SOURCES
from visualize.views.state import State
from visualize.views.tabs import SETTINGS


class BadTour(ValueError):
    """A file is not a valid tour. The message names the file, the place and the reason."""


@dataclass(frozen=True)
class Choice:
    """One answer to a question."""

    text: str
    right: bool = False


@dataclass(frozen=True)
class Question:
    """A question before the stop's result appears. Exactly one choice is right."""

    ask: str
    choices: Annotated[list[Choice], Field(min_length=2, max_length=4)]


@dataclass(frozen=True)
class Stop:
    """One stop: a state of the page, and a sentence.

    Attributes:
        address: the page's query.
        say: the sentence, with its numbers between pairs of asterisks: "**54** blocks".
        sources: the sources of these numbers, of `numbers.SOURCES`.
        ask: a question that comes first.
    """

    address: str
    say: str
    sources: list[str] = field(default_factory=list)
    ask: Question | None = None

    @property
    def fields(self) -> dict[str, str]:
        """The address as flat fields."""
        return dict(urllib.parse.parse_qsl(self.address, strict_parsing=True))


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
    if unknown := [source for source in stop.sources if source not in SOURCES]:
        raise ValueError(f"sources must be of {', '.join(SOURCES)} (got {unknown[0]!r}).")
    if stop.ask and sum(choice.right for choice in stop.ask.choices) != 1:
        raise ValueError("exactly one choice must have right = true.")
