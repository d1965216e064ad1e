"""Guided tours of the kernels: read from a TOML file each, and shown in a bar at the bottom of the window.

A new tour needs no code. A stop is a state of the page and a sentence. The bar follows the page's address
(`?tour=why-grouping&stop=3`).
"""

import functools
import json
import re
import tomllib
import urllib.parse
from dataclasses import dataclass, field
from typing import Annotated

from markupsafe import Markup, escape
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from tilescope.declare.discovery import package_folder
from tilescope.declare.experiment import Json
from tilescope.declare.gpus import Gpu
from tilescope.declare.knobs import ConfigError
from tilescope.numbers import SOURCES
from visualize.views.prose import mark
from visualize.views.slots import template
from visualize.views.state import State, query
from visualize.views.tabs import read_state, short_address


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
class TourStop:
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
    stops: Annotated[list[TourStop], Field(min_length=4, max_length=8)]

    def clip(self, stop: int) -> int:
        """Return the number of the nearest stop, from 1."""
        return min(max(stop, 1), len(self.stops))


def check_state(fields: dict[str, str]) -> State:
    """Return the State of flat fields on a machine without a GPU.

    Raises:
        ConfigError: a value is not valid, or a field is unknown.
    """
    state = read_state(fields, None)
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


def _check(stop: TourStop) -> None:
    check_state(stop.fields)
    if unknown := [source for source in stop.sources if source not in SOURCES]:
        raise ValueError(f"sources must be of {', '.join(SOURCES)} (got {unknown[0]!r}).")
    if stop.ask and sum(choice.right for choice in stop.ask.choices) != 1:
        raise ValueError("exactly one choice must have right = true.")


DIRECTORY = package_folder() / "tours"


@functools.cache
def tours() -> dict[str, Tour]:
    """Return all tours by name, sorted by `order`.

    Raises:
        BadTour: a file is not a valid tour.
    """
    parsed = [
        read(path.read_text(encoding="utf-8"), path.stem)
        for path in sorted(DIRECTORY.glob("*.toml"))
    ]
    return {tour.name: tour for tour in sorted(parsed, key=lambda tour: (tour.order, tour.name))}


_BAR = template(
    """
<section class="tour" aria-label="Guided tour: {{ tour.title }}">
<p class="where quiet"><b>{{ tour.title }}</b> <span>{{ number }} of {{ tour.stops|length }}</span></p>
{% if stop.ask %}
<section class="question" aria-label="Question">
<p>{{ stop.ask.ask }} <b class="verdict" role="status"></b></p>
<div class="choices">
{% for choice in stop.ask.choices %}
<button type="button" class="control choice" data-right="{{ "yes" if choice.right else "no" }}">
<kbd>{{ "abcd"[loop.index0] }}</kbd> {{ choice.text }}</button>
{% endfor %}
</div></section>
{% endif %}
<p class="said" aria-live="polite">{{ said }}</p>
<div class="go">
{% if number > 1 %}<a class="button back" href="?tour={{ tour.name }}&stop={{ number - 1 }}">Back</a>{% endif %}
{% if number < tour.stops|length %}
<a class="button primary next" href="?tour={{ tour.name }}&stop={{ number + 1 }}">Next</a>
{% else %}
<button type="button" class="button primary leave next">End</button>
{% endif %}
<button type="button" class="leave quiet" aria-label="Leave the tour">✕</button></div></section>
"""
)


def show_stop(message: Json, this: Gpu | None) -> dict[str, str]:
    """Return the slot "tour" with a stop; {} if there is no such tour.

    Args:
        message: the page's, with the `tour` and the `stop`.
        this: this machine's GPU, or None.
    """
    tour = tours().get(str(message.get("tour")))
    requested = message.get("stop")
    if tour is None or not isinstance(requested, int):
        return {}
    number = tour.clip(requested)
    state = read_state(tour.stops[number - 1].fields, this)
    value = {
        "tour": tour.name,
        "stop": requested,
        "html": bar(tour, number),
        "query": query(short_address(state)),
    }
    return {"tour": json.dumps(value)}


def expand_stop(flat: Json) -> Json:
    """Return an address's fields. Add a stop's fields if the address names a tour but no kernel."""
    tour = tours().get(str(flat.get("tour", "")))
    if tour is None or "kernel" in flat:
        return flat
    stop = str(flat.get("stop", "1"))
    number = int(stop) if stop.isdecimal() and len(stop) < 4 else 1
    return {**flat, **tour.stops[tour.clip(number) - 1].fields}


def bar(tour: Tour, number: int) -> Markup:
    """Return the HTML of a stop: its sentence and, while the page shows it, its question.

    Args:
        number: the stop, from 1.
    """
    stop = tour.stops[number - 1]
    return _BAR(tour=tour, number=number, stop=stop, said=sentence(stop))


def sentence(stop: TourStop) -> Markup:
    """Return a stop's sentence with its numbers in bold, followed by a mark for each of their sources."""
    escaped = str(escape(stop.say))
    text = Markup(re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escaped))  # noqa: S704
    marks = Markup(" ").join(map(mark, stop.sources))
    return text + Markup(' <span class="marks">{}</span>').format(marks) if marks else text
