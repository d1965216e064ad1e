"""The bar of a tour at the bottom of the window, with its question, and the menu of all tours.

The bar follows the page's address (`?tour=why-grouping&stop=3`).
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup, escape

from tilescope.declare.gpus import Gpu
from visualize.glossary import mark
from visualize.tours import tours
from visualize.tours.tour import Question, Stop, Tour
from visualize.views.state import query
from visualize.views.tabs import SETTINGS

_BAR = Markup(
    '<section class="tour" aria-label="Guided tour: {title}"><p class="where quiet">'
    "<b>{title}</b> <span>{number} of {count}</span></p>"
    '{question}<p class="said" aria-live="polite">{said}</p><div class="go">{back}{next}'
    '<button type="button" class="leave quiet" aria-label="Leave the tour">✕</button></div></section>'
)
_QUESTION = Markup(
    '<section class="question" aria-label="Question"><p>{} <b class="verdict" role="status"></b></p>'
    '<div class="choices">{}</div></section>'
)
_CHOICE = Markup(
    '<button type="button" class="control choice" data-right="{}"><kbd>{}</kbd> {}</button>'
)
_LINK = Markup('<a class="button {}" href="?tour={}&stop={}">{}</a>')
_END = Markup('<button type="button" class="button primary leave next">End</button>')


def menu(tours: Mapping[str, Tour]) -> Markup:
    """Return the menu in the page's header."""
    item = Markup('<li><a href="?tour={}&stop=1"><b>{}</b><span class="quiet">{}</span></a></li>')
    items = Markup("").join(
        item.format(tour.name, tour.title, tour.about) for tour in tours.values()
    )
    return Markup('<details class="tours"><summary>Tours</summary><ul>{}</ul></details>').format(
        items
    )


def show_stop(message: Mapping[str, Any], this: Gpu | None) -> dict[str, str]:
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
    state = SETTINGS.state(tour.stops[number - 1].fields, this)
    value = {
        "tour": tour.name,
        "stop": requested,
        "html": bar(tour, number),
        "query": query(SETTINGS.short_address(state)),
    }
    return {"tour": json.dumps(value)}


def expand_stop(flat: Mapping[str, object]) -> Mapping[str, object]:
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
    count = len(tour.stops)
    return _BAR.format(
        title=tour.title,
        number=number,
        count=count,
        question=_question(stop.ask) if stop.ask else "",
        said=sentence(stop),
        back=_LINK.format("back", tour.name, number - 1, "Back") if number > 1 else "",
        next=_LINK.format("primary next", tour.name, number + 1, "Next")
        if number < count
        else _END,
    )


def _question(question: Question) -> Markup:
    choices = Markup("").join(
        _CHOICE.format("yes" if choice.right else "no", letter, choice.text)
        for letter, choice in zip("abcd", question.choices, strict=False)
    )
    return _QUESTION.format(question.ask, choices)


def sentence(stop: Stop) -> Markup:
    """Return a stop's sentence with its numbers in bold, followed by a mark for each of their sources."""
    escaped = str(escape(stop.say))
    text = Markup(re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escaped))  # noqa: S704
    marks = Markup(" ").join(map(mark, stop.sources))
    return text + Markup(' <span class="marks">{}</span>').format(marks) if marks else text
