"""What a browser sends to the page's handlers, and what it is told."""

from __future__ import annotations

from types import SimpleNamespace

from visualize.panels.controls import experiment_form
from visualize.panels.tabs import SETTINGS
from visualize.state.pin import FIELD
from visualize.widgets import form


def request(**query):
    """A request of the one page that is open, whose address has these fields."""
    return SimpleNamespace(session_hash="page", query_params=query)


def opened(flat):
    """The State of flat fields, on a machine without a GPU."""
    return SETTINGS.state(flat, None)


def set_to(flat):
    """What the forms send: the tab, then each form's value, in the order in which the page has them."""
    current = opened(flat)
    pinned = form.filled([], {FIELD: flat.get(FIELD, "")})
    return [current.view.tab, experiment_form(current, None), pinned, *map(form.of, current.view.options)]


def named(answer):
    """An answer by the DOM ids of its components."""
    return {component.elem_id: value for component, value in answer.items()}
