"""What a browser sends to the page's handlers, and what it is told."""

from __future__ import annotations

from types import SimpleNamespace

from visualize.panels.tabs import SETTINGS
from visualize.widgets import settings


def request(**query):
    """A request of the one page that is open, whose address has these fields."""
    return SimpleNamespace(session_hash="page", query_params=query)


def opened(flat):
    """The State of flat fields, on a machine without a GPU."""
    return SETTINGS.state(flat, None)


def set_to(flat):
    """What the page sends where these fields are set."""
    return settings.held(opened(flat).to_settings())


def named(answer):
    """An answer by the DOM ids of its components."""
    return {component.elem_id: value for component, value in answer.items()}
