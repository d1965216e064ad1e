"""HTML of a tour: the bar at the bottom of the window, its question, and the menu of all tours."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from visualize.views.numbers import mark

# Placeholder for a number that is not known yet.
PENDING = "…"
_BAR = Markup(
    '<section class="tour" aria-label="Guided tour: {0}"><p class="where"><b>{0}</b> <span>{1} of {2}</span>'
    '<span class="dots" aria-hidden="true">{3}</span></p><p class="said" aria-live="polite">{4}</p>{5}'
    '<div class="go">{6}{7}<button type="button" class="leave" aria-label="Leave the tour">✕</button></div>'
    "</section>{8}"
)
_QUESTION = Markup(
    '<section class="question" aria-label="Question"><p class="lead">What do you think?</p><p class="ask">{}</p>'
    '<div class="choices">{}</div><button type="button" class="reveal">Show me</button></section>'
)
_CHOICE = Markup('<button type="button" class="choice"{}><kbd>{}</kbd> {}</button>')
_CHOICE_STATE = {True: Markup(' data-right="yes"'), False: Markup(' data-right="no"'), None: Markup(" disabled")}
_END = Markup('<button type="button" class="leave next">End</button>')


@dataclass(frozen=True)
class Number:
    """The text of a fact and its source; the source is "" for a ratio of facts with different sources."""

    text: str
    source: str


@dataclass(frozen=True)
class Answer:
    """A choice of a question; `is_right` is None until the facts are known."""

    text: str
    is_right: bool | None


@dataclass(frozen=True)
class Place:
    """A position in a tour.

    Attributes:
        stop: from 1.
        stops: number of stops.
    """

    name: str
    title: str
    stop: int
    stops: int


def bar(place: Place, sentence: Markup, question: Markup, note: str) -> Markup:
    """Return the bar.

    Args:
        question: the result of `question`, or "".
        note: a caveat about the numbers, or "".
    """

    def link(style: str, stop: int) -> Markup:
        anchor = Markup('<a class="{}" href="?tour={}&stop={}">{}</a>')
        return anchor.format(style, place.name, stop, style.capitalize())

    stops = range(1, place.stops + 1)
    return _BAR.format(
        place.title,
        place.stop,
        place.stops,
        Markup("").join(Markup('<i class="now"></i>') if stop == place.stop else Markup("<i></i>") for stop in stops),
        sentence,
        Markup('<p class="note">{}</p>').format(note) if note else "",
        link("back", place.stop - 1) if place.stop > 1 else "",
        link("next", place.stop + 1) if place.stop < place.stops else _END,
        question,
    )


def question(ask: str, answers: Sequence[Answer]) -> Markup:
    """Return the card that asks for a prediction before the picture appears."""
    choices = (
        _CHOICE.format(_CHOICE_STATE[answer.is_right], letter, answer.text)
        for letter, answer in zip(string.ascii_uppercase, answers, strict=False)
    )
    return _QUESTION.format(ask, Markup("").join(choices))


def sentence(template: str, numbers: Mapping[str, Number] | None) -> Markup:
    """Return a sentence with its numbers in bold, followed by a mark for each of their sources.

    Args:
        numbers: by name; None if they are not known yet.
    """
    names = _names(template)
    bold = {name: Markup("<b>{}</b>").format(numbers[name].text if numbers else PENDING) for name in names}
    text = Markup(escape(template)).format(**bold)
    sources = dict.fromkeys(numbers[name].source for name in names if numbers and numbers[name].source)
    marks = Markup(" ").join(map(mark, sources))
    return text + Markup(' <span class="marks">{}</span>').format(marks) if marks else text


def plain(template: str, numbers: Mapping[str, Number] | None) -> str:
    """Return the sentence as plain text."""
    return template.format(**{name: numbers[name].text if numbers else PENDING for name in _names(template)})


def _names(template: str) -> list[str]:
    return [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]


def menu(tours: Iterable[tuple[str, str, str]]) -> Markup:
    """Return the menu in the page's header.

    Args:
        tours: name, title and description of each.
    """
    item = Markup('<li><a href="?tour={}&stop=1"><b>{}</b><span>{}</span></a></li>')
    items = Markup("").join(item.format(*tour) for tour in tours)
    return Markup('<details class="tours"><summary>Tours</summary><ul>{}</ul></details>').format(items)
