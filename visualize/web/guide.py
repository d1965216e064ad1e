"""The tours' bar and the QR code of a link, as values of their slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from markupsafe import Markup

from kernels.knobs import ConfigError
from kernels.measuring.session import Session
from visualize.tours import text as tour_text
from visualize.tours import tours
from visualize.tours.fact import Found, NoFact, found
from visualize.tours.text import Answer, Number, Place
from visualize.tours.tour import Stop, Tour
from visualize.views import address as link
from visualize.views.tabs import SETTINGS
from visualize.web import tour_bar
from visualize.web.share import qr


class Guide:
    """The tours, and the dialog that shares a link."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # Facts by tour and stop: the files bound how many there are.
        self._facts: dict[tuple[str, int], dict[str, Found]] = {}

    def share(self, message: Mapping[str, Any]) -> str:
        """Return the value of the slot "share": the link as a QR code; "" for what is no link."""
        try:
            return qr(message)
        except ConfigError:
            return ""

    async def stop(self, message: Mapping[str, Any]) -> AsyncIterator[str]:
        """Yield values of the slot "tour": at once a stop's sentence, then its numbers, which may need the compiler."""
        wanted = tour_bar.requested_stop(message)
        if wanted is None or wanted[0] not in tours():
            return
        name, number = wanted
        tour = tours()[name]
        number = min(max(number, 1), len(tour.stops))
        stop = tour.stops[number - 1]
        if (name, number) not in self._facts:
            yield tour_bar.shown(name, wanted[1], bar(tour, number, None), "")
        query = link.query(SETTINGS.short_address(SETTINGS.state(stop.fields, self._session.gpu)))
        try:
            facts = await asyncio.to_thread(self._known, name, number, stop)
        except NoFact as error:
            yield tour_bar.shown(name, wanted[1], bar(tour, number, None, str(error)), query)
        else:
            yield tour_bar.shown(name, wanted[1], bar(tour, number, facts), query)

    def _known(self, name: str, number: int, stop: Stop) -> dict[str, Found]:
        if (name, number) not in self._facts:
            self._facts[name, number] = found(stop.facts, stop.fields, self._session)
        return self._facts[name, number]


def bar(tour: Tour, number: int, facts: Mapping[str, Found] | None, why_not: str = "") -> Markup:
    """The bar of a stop.

    Args:
        number: the stop, from 1.
        facts: its numbers; None while they are not known.
        why_not: why they can't be, where they can't.
    """
    stop = tour.stops[number - 1]
    numbers = None if facts is None else {name: Number(one.text, one.source) for name, one in facts.items()}
    asked = Markup()
    if stop.ask and not why_not:
        values = None if facts is None else {name: one.value for name, one in facts.items()}
        answers = [
            Answer(tour_text.plain(choice.text, numbers), None if values is None else choice.is_right(values))
            for choice in stop.ask.choices
        ]
        asked = tour_text.question(tour_text.plain(stop.ask.ask, numbers), answers)
    return tour_text.bar(
        Place(tour.name, tour.title, number, len(tour.stops)),
        tour_text.sentence(stop.say, numbers),
        asked,
        why_not or _differs(stop, facts),
    )


def _differs(stop: Stop, facts: Mapping[str, Found] | None) -> str:
    """What is said where a number here is not the one that the sentence was written for."""
    differing = [name for name, one in (facts or {}).items() if one.text != stop.facts[name].shown]
    if not facts or not differing:
        return ""
    told = ", ".join(f"{facts[name].text} (written for {stop.facts[name].shown})" for name in differing)
    return f"Other numbers here: {told}."


def expanded(flat: Mapping[str, object]) -> Mapping[str, object]:
    """Flat fields of an address; those of a tour's stop where it names one and no kernel."""
    tour = tours().get(str(flat.get("tour", "")))
    if tour is None or "kernel" in flat:
        return flat
    stop = str(flat.get("stop", "1"))
    number = int(stop) if stop.isdecimal() and len(stop) < 4 else 1
    return {**flat, **tour.stops[min(max(number, 1), len(tour.stops)) - 1].fields}
