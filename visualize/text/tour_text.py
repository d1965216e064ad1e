"""What a tour says: its bar at the lower edge of the window, its question, and the menu of all tours."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from visualize.views.numbers import mark

# What stands for a number until it is known.
PENDING = "…"


@dataclass(frozen=True)
class Number:
    """A fact as it is written, and its mark; "" where it follows from others of several sources."""

    text: str
    source: str


@dataclass(frozen=True)
class Answer:
    """A choice of a question; `is_right` is None until the facts are known."""

    text: str
    is_right: bool | None


@dataclass(frozen=True)
class Place:
    """Where a tour stands.

    Attributes:
        stop: from 1.
        stops: how many there are.
    """

    name: str
    title: str
    stop: int
    stops: int


def bar(place: Place, said: Markup, question: Markup, note: str) -> Markup:
    """The bar.

    Args:
        said: the sentence.
        question: what is asked first; "" where nothing is.
        note: what a reader must know of the numbers here, or "".
    """
    number, last = place.stop, place.stops
    back = _link("back", place.name, number - 1, "Back") if number > 1 else Markup()
    onward = _link("next", place.name, number + 1, "Next") if number < last else _END
    dots = Markup("").join(
        Markup("<i{}></i>").format(Markup(' class="now"') if n == number else "") for n in range(1, last + 1)
    )
    beside = Markup('<p class="note">{}</p>').format(note) if note else Markup()
    return Markup(
        '<section class="tour" aria-label="Guided tour: {}"><p class="where"><b>{}</b> <span>{} of {}</span>'
        '<span class="dots" aria-hidden="true">{}</span></p><p class="said" aria-live="polite">{}</p>{}'
        '<div class="go">{}{}<button type="button" class="leave" aria-label="Leave the tour">✕</button>'
        "</div></section>{}"
    ).format(place.title, place.title, number, last, dots, said, beside, back, onward, question)


_END = Markup('<button type="button" class="leave next">End</button>')


def _link(style: str, name: str, stop: int, shown: str) -> Markup:
    return Markup('<a class="{}" href="?tour={}&stop={}">{}</a>').format(style, name, stop, shown)


def question(ask: str, answers: Sequence[Answer]) -> Markup:
    """The card that asks for a prediction before the picture is shown."""
    button = Markup('<button type="button" class="choice"{}><kbd>{}</kbd> {}</button>')
    right = {True: Markup(' data-right="yes"'), False: Markup(' data-right="no"'), None: Markup(" disabled")}
    choices = Markup("").join(
        button.format(right[answer.is_right], letter, answer.text)
        for letter, answer in zip(string.ascii_uppercase, answers, strict=False)
    )
    return Markup(
        '<section class="question" aria-label="Question"><p class="lead">What do you think?</p><p class="ask">{}</p>'
        '<div class="choices">{}</div><button type="button" class="reveal">Show me</button></section>'
    ).format(ask, choices)


def sentence(template: str, numbers: Mapping[str, Number] | None) -> Markup:
    """A sentence with its numbers in it, and one mark for each source of them after it.

    Args:
        numbers: by name; None while they are not known.
    """
    said = Markup("")
    sources: list[str] = []
    for text, name, _, _ in string.Formatter().parse(template):
        said += escape(text)
        if name is None:
            continue
        number = numbers[name] if numbers else Number(PENDING, "")
        said += Markup("<b>{}</b>").format(number.text)
        if number.source and number.source not in sources:
            sources.append(number.source)
    marks = Markup(" ").join(mark(source) for source in sources)
    return said + Markup(' <span class="marks">{}</span>').format(marks) if marks else said


def plain(template: str, numbers: Mapping[str, Number] | None) -> str:
    """The same as plain text."""
    stand_in = {name: PENDING for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    return template.format(**({name: number.text for name, number in numbers.items()} if numbers else stand_in))


def words(text: str) -> int:
    """The words of a plain text; a number and its unit are one.

    >>> words("It takes 3.56 ms instead of 3.70 ms, 1.04 × less.")
    8
    """
    joined = re.sub(r"([\d.,]+) (ms|µs|GB|MB|kB|bytes|×|%)", r"\1", text)
    return sum(any(letter.isalnum() for letter in word) for word in joined.split())


def menu(tours: Iterable[tuple[str, str, str]]) -> Markup:
    """The menu in the page's head.

    Args:
        tours: name, title, and what it teaches.
    """
    item = Markup('<li><a href="?tour={}&stop=1"><b>{}</b><span>{}</span></a></li>')
    items = Markup("").join(item.format(*one) for one in tours)
    return Markup('<details class="tours"><summary>Tours</summary><ul>{}</ul></details>').format(items)
