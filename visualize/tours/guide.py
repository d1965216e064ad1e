"""The bar of a tour at the bottom of the window, with its question, and the menu of all tours.

The bar follows the page's address (`?tour=why-grouping&stop=3`).
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from markupsafe import Markup, escape

from tilescope.measure.session import Session
from visualize.glossary import mark
from visualize.tours import tours
from visualize.tours.tour import NoFact, Stop, Tour, Value, compute_facts, facts_named
from visualize.views.state import query
from visualize.views.tabs import SETTINGS

Facts = Mapping[str, Value]

_BAR = Markup(
    '<section class="tour" aria-label="Guided tour: {title}"><p class="where quiet">'
    "<b>{title}</b> <span>{number} of {count}</span>"
    '<span class="dots" aria-hidden="true">{dots}</span></p>{question}<p class="said" aria-live="polite">{said}'
    '</p>{note}<div class="go">{back}{next}<button type="button" class="leave" aria-label="Leave the tour">✕</button>'
    "</div></section>"
)
_QUESTION = Markup(
    '<section class="question" aria-label="Question"><p>{} <b class="verdict" role="status"></b></p>'
    '<div class="choices">{}</div></section>'
)
_CHOICE = Markup('<button type="button" class="control choice"{}><kbd>{}</kbd> {}</button>')
_LINK = Markup('<a class="{}" href="?tour={}&stop={}">{}</a>')
_END = Markup('<button type="button" class="leave next">End</button>')


def menu(tours: Mapping[str, Tour]) -> Markup:
    """Return the menu in the page's header."""
    item = Markup('<li><a href="?tour={}&stop=1"><b>{}</b><span>{}</span></a></li>')
    items = Markup("").join(
        item.format(tour.name, tour.title, tour.about) for tour in tours.values()
    )
    return Markup('<details class="tours"><summary>Tours</summary><ul>{}</ul></details>').format(
        items
    )


class Guide:
    """Shows the stops of tours, with their facts for one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._facts: dict[
            tuple[str, int], Facts
        ] = {}  # by tour and stop: the files bound their number

    async def show_stop(self, message: Mapping[str, Any]) -> AsyncIterator[dict[str, str]]:
        """Yield updates of the slot "tour": the stop with the numbers that its file ships, then with this machine's.

        Then compute the next stop's numbers, which may need the compiler.

        Args:
            message: the page's, with the `tour` and the `stop`.
        """
        tour = tours().get(str(message.get("tour")))
        requested = message.get("stop")
        if tour is None or not isinstance(requested, int):
            return
        number = tour.clip(requested)
        key = (tour.name, number)
        stop = tour.stops[number - 1]
        address = query(SETTINGS.short_address(SETTINGS.state(stop.fields, self._session.gpu)))

        def update(problem: str = "") -> dict[str, str]:
            html = bar(tour, number, self._facts.get(key, {}), problem)
            value = {"tour": tour.name, "stop": requested, "html": html, "query": address}
            return {"tour": json.dumps(value)}

        yield update()
        try:
            if await self._compute(tour, number):
                yield update()
        except NoFact as error:
            yield update(str(error))
        with suppress(NoFact):
            await self._compute(tour, tour.clip(number + 1))

    async def _compute(self, tour: Tour, number: int) -> bool:
        """Compute a stop's facts. Return whether they were not known before.

        Raises:
            NoFact: a fact can't be computed on this machine.
        """
        key = (tour.name, number)
        stop = tour.stops[number - 1]
        if key in self._facts:
            return False
        self._facts[key] = await asyncio.to_thread(
            compute_facts, stop.facts, stop.fields, self._session
        )
        return True


def expand_stop(flat: Mapping[str, object]) -> Mapping[str, object]:
    """Return an address's fields. Add a stop's fields if the address names a tour but no kernel."""
    tour = tours().get(str(flat.get("tour", "")))
    if tour is None or "kernel" in flat:
        return flat
    stop = str(flat.get("stop", "1"))
    number = int(stop) if stop.isdecimal() and len(stop) < 4 else 1
    return {**flat, **tour.stops[tour.clip(number) - 1].fields}


def bar(tour: Tour, number: int, facts: Facts, problem: str = "") -> Markup:
    """Return the HTML of a stop: its sentence and, while the page shows it, its question.

    Args:
        number: the stop, from 1.
        facts: its facts; {} if they are not known yet. The sentence then has the numbers that its file ships.
        problem: why the facts can't be known, or "".
    """
    stop = tour.stops[number - 1]
    count = len(tour.stops)
    dot = Markup("<i></i>")
    current_dot = Markup('<i class="now"></i>')
    note = problem or _differences(stop, facts)
    return _BAR.format(
        title=tour.title,
        number=number,
        count=count,
        dots=Markup("").join(current_dot if each is stop else dot for each in tour.stops),
        question="" if problem else _question(stop, facts),
        said=sentence(stop, facts),
        note=Markup('<p class="note">{}</p>').format(note) if note else "",
        back=_LINK.format("back", tour.name, number - 1, "Back") if number > 1 else "",
        next=_LINK.format("next", tour.name, number + 1, "Next") if number < count else _END,
    )


def _question(stop: Stop, facts: Facts) -> Markup:
    if stop.ask is None:
        return Markup()
    numbers = {name: value.number for name, value in facts.items()}
    choices = Markup()
    for letter, choice in zip("abcd", stop.ask.choices, strict=False):
        state = Markup(" disabled")
        if numbers:
            state = Markup(' data-right="{}"').format("yes" if choice.is_right(numbers) else "no")
        choices += _CHOICE.format(state, letter, plain(choice.text, stop, facts))
    return _QUESTION.format(plain(stop.ask.ask, stop, facts), choices)


def _differences(stop: Stop, facts: Facts) -> str:
    texts = {value.text: stop.facts[name].shown for name, value in facts.items()}
    listed = ", ".join(
        f"{text} (written for {shown})" for text, shown in texts.items() if text != shown
    )
    return listed and f"Other numbers here: {listed}."


def sentence(stop: Stop, facts: Facts) -> Markup:
    """Return a stop's sentence with its numbers in bold, followed by a mark for each of their sources."""
    names = facts_named(stop.say)
    text = escape(stop.say).format(
        **{name: Markup("<b>{}</b>").format(_text(name, stop, facts)) for name in names}
    )
    sources = dict.fromkeys(facts[name].source for name in names if facts and facts[name].source)
    marks = Markup(" ").join(map(mark, sources))
    return text + Markup(' <span class="marks">{}</span>').format(marks) if marks else text


def plain(template: str, stop: Stop, facts: Facts) -> str:
    """Return a sentence of a stop with its numbers as plain text."""
    return template.format(**{name: _text(name, stop, facts) for name in facts_named(template)})


def _text(name: str, stop: Stop, facts: Facts) -> str:
    return facts[name].text if facts else stop.facts[name].shown
