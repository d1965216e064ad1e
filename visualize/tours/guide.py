"""The bar of a tour at the bottom of the window, with its question, and the menu of all tours.

The bar follows the page's address (`?tour=why-grouping&stop=3`).
"""

import asyncio
import json
import string
from collections.abc import AsyncIterator, Mapping
from typing import Any

from markupsafe import Markup, escape

from kernels.measuring.session import Session
from visualize.tours import tours
from visualize.tours.fact import NoFact, Value, compute_facts
from visualize.tours.tour import Stop, Tour, facts_named
from visualize.views import address as link
from visualize.views.numbers import mark
from visualize.views.slots import slot
from visualize.views.tabs import SETTINGS

# Placeholder for a number that is not known yet.
PENDING = "…"
_BAR = Markup(
    '<section class="tour" aria-label="Guided tour: {0}"><p class="where"><b>{0}</b> <span>{1} of {2}</span>'
    '<span class="dots" aria-hidden="true">{3}</span></p>{8}<p class="said" aria-live="polite">{4}</p>{5}'
    '<div class="go">{6}{7}<button type="button" class="leave" aria-label="Leave the tour">✕</button></div></section>'
)
_QUESTION = Markup(
    '<section class="question" aria-label="Question"><p>{} <b class="verdict" role="status"></b></p>'
    '<div class="choices">{}</div></section>'
)
_CHOICE = Markup('<button type="button" class="choice"{}><kbd>{}</kbd> {}</button>')
_CHOICE_STATE = {True: Markup(' data-right="yes"'), False: Markup(' data-right="no"'), None: Markup(" disabled")}
_END = Markup('<button type="button" class="leave next">End</button>')


def tour_bar() -> Markup:
    """Return the bar's slot. If the page's address names a stop, it starts the action "tour"."""
    return slot("tour", "tour", Markup('<div class="tour-bar"></div>'))


def menu(tours: Mapping[str, Tour]) -> Markup:
    """Return the menu in the page's header."""
    item = Markup('<li><a href="?tour={}&stop=1"><b>{}</b><span>{}</span></a></li>')
    items = Markup("").join(item.format(tour.name, tour.title, tour.about) for tour in tours.values())
    return Markup('<details class="tours"><summary>Tours</summary><ul>{}</ul></details>').format(items)


class Guide:
    """Shows the stops of tours, with their facts for one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._facts: dict[tuple[str, int], dict[str, Value]] = {}  # by tour and stop: the files bound their number

    async def show_stop(self, message: Mapping[str, Any]) -> AsyncIterator[str]:
        """Yield values of the slot "tour": the stop's sentence at once, then its numbers, which may need the compiler.

        Args:
            message: the page's, with the `tour` and the `stop`.
        """
        name, requested = message.get("tour"), message.get("stop")
        if not isinstance(name, str) or not isinstance(requested, int) or name not in tours():
            return
        tour = tours()[name]
        number = _clip(requested, tour)
        stop = tour.stops[number - 1]
        query = link.query(SETTINGS.short_address(SETTINGS.state(stop.fields, self._session.gpu)))

        def value(facts: Mapping[str, Value] | None, problem: str = "", query: str = query) -> str:
            html = bar(tour, number, facts, problem)
            return json.dumps({"tour": name, "stop": requested, "html": str(html), "query": query})

        if (name, number) not in self._facts:
            yield value(None, query="")
            try:
                facts = await asyncio.to_thread(compute_facts, stop.facts, stop.fields, self._session)
            except NoFact as error:
                yield value(None, str(error))
                return
            self._facts[name, number] = facts
        yield value(self._facts[name, number])


def expand_stop(flat: Mapping[str, object]) -> Mapping[str, object]:
    """Return an address's fields. Add a stop's fields if the address names a tour but no kernel."""
    tour = tours().get(str(flat.get("tour", "")))
    if tour is None or "kernel" in flat:
        return flat
    stop = str(flat.get("stop", "1"))
    number = int(stop) if stop.isdecimal() and len(stop) < 4 else 1
    return {**flat, **tour.stops[_clip(number, tour) - 1].fields}


def _clip(stop: int, tour: Tour) -> int:
    return min(max(stop, 1), len(tour.stops))


def bar(tour: Tour, number: int, facts: Mapping[str, Value] | None, problem: str = "") -> Markup:
    """Return the HTML of a stop: its sentence and, while the page shows it, its question.

    Args:
        number: the stop, from 1.
        facts: its facts; None if they are not known yet.
        problem: why the facts can't be known, or "".
    """
    stop = tour.stops[number - 1]

    def go_to(style: str, number: int) -> Markup:
        anchor = Markup('<a class="{}" href="?tour={}&stop={}">{}</a>')
        return anchor.format(style, tour.name, number, style.capitalize())

    dots = (Markup('<i class="now"></i>' if each is stop else "<i></i>") for each in tour.stops)
    note = problem or _differences(stop, facts or {})
    return _BAR.format(
        tour.title,
        number,
        len(tour.stops),
        Markup("").join(dots),
        sentence(stop.say, facts),
        Markup('<p class="note">{}</p>').format(note) if note else "",
        go_to("back", number - 1) if number > 1 else "",
        go_to("next", number + 1) if number < len(tour.stops) else _END,
        _question(stop, facts) if not problem else "",
    )


def _question(stop: Stop, facts: Mapping[str, Value] | None) -> Markup:
    if stop.ask is None:
        return Markup()
    values = None if facts is None else {name: value.number for name, value in facts.items()}
    choices = (
        _CHOICE.format(
            _CHOICE_STATE[None if values is None else choice.is_right(values)], letter, plain(choice.text, facts)
        )
        for letter, choice in zip(string.ascii_uppercase, stop.ask.choices, strict=False)
    )
    return _QUESTION.format(plain(stop.ask.ask, facts), Markup("").join(choices))


def _differences(stop: Stop, facts: Mapping[str, Value]) -> str:
    texts = {value.text: stop.facts[name].shown for name, value in facts.items()}
    listed = ", ".join(f"{text} (written for {shown})" for text, shown in texts.items() if text != shown)
    return listed and f"Other numbers here: {listed}."


def sentence(template: str, facts: Mapping[str, Value] | None) -> Markup:
    """Return a sentence with its numbers in bold, followed by a mark for each of their sources."""
    names = facts_named(template)
    bold = {name: Markup("<b>{}</b>").format(facts[name].text if facts else PENDING) for name in names}
    text = Markup(escape(template)).format(**bold)
    sources = dict.fromkeys(facts[name].source for name in names if facts and facts[name].source)
    marks = Markup(" ").join(map(mark, sources))
    return text + Markup(' <span class="marks">{}</span>').format(marks) if marks else text


def plain(template: str, facts: Mapping[str, Value] | None) -> str:
    """Return a sentence with its numbers as plain text."""
    return template.format(**{name: facts[name].text if facts else PENDING for name in facts_named(template)})
