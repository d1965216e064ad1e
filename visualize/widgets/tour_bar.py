"""The bar of a guided tour. It follows the page's address (`?tour=why-grouping&stop=3`) by itself."""

from __future__ import annotations

import json
from collections.abc import Iterable

import gradio as gr
from markupsafe import Markup

from visualize.widgets import assets


def tour_bar(tours: Iterable[str]) -> gr.HTML:
    """The component. Where the address names a stop of one of these tours it fires `select`, for `asked` to read."""
    return gr.HTML(
        value="",
        html_template='<div class="tour-place"></div>',
        js_on_load=assets.script("tour.js", tours=list(tours)),
        apply_default_css=False,
        elem_id="tour",
    )


def asked(value: str) -> tuple[str, int] | None:
    """The tour and the stop that are wanted; None where it is no such value."""
    try:
        wanted = json.loads(value)
        name, stop = wanted["tour"], wanted["stop"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return (name, stop) if isinstance(name, str) and isinstance(stop, int) else None


def shown(tour: str, stop: int, html: Markup, query: str) -> str:
    """The component's value that shows a stop.

    Args:
        query: the short address of the stop's state, by which the page knows that nothing was changed since.
    """
    return json.dumps({"tour": tour, "stop": stop, "html": str(html), "query": query})
