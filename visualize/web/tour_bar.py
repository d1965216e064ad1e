"""The bar of a guided tour. It follows the page's address (`?tour=why-grouping&stop=3`) by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from visualize.views.slots import slot


def tour_bar() -> Markup:
    """The bar's slot. If the address names a stop, it starts the action "tour", which `requested_stop` reads."""
    return slot("tour", "tour", Markup('<div class="tour-place"></div>'))


def requested_stop(message: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the tour and the stop that a page's message asks for; None if it names none."""
    name, stop = message.get("tour"), message.get("stop")
    return (name, stop) if isinstance(name, str) and isinstance(stop, int) else None


def shown(tour: str, stop: int, html: Markup, query: str) -> str:
    """The component's value that shows a stop.

    Args:
        query: the short address of the stop's state, by which the page knows that nothing was changed since.
    """
    return json.dumps({"tour": tour, "stop": stop, "html": str(html), "query": query})
