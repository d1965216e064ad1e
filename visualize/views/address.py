"""The page's address, kept in step with the page; links within the page; and the button that copies the address."""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from kernels.experiment import Experiment
from kernels.knobs import ConfigError
from visualize.views.slots import slot


def link() -> Markup:
    """The slot that writes the address and offers to copy it. Its values: `shown`."""
    return slot(
        "link",
        "link",
        '<div class="link"><button type="button" class="copy-link">Copy link</button>'
        '<button type="button" class="theme-switch">Light / dark</button></div>',
    )


def base() -> str:
    """The page's address as a visitor sees it; "" for the browser's. In a Space the page is a frame."""
    space = os.environ.get("SPACE_ID")
    return f"https://huggingface.co/spaces/{space}" if space else ""


# Longer than any address that the page writes.
LONGEST_QUERY = 4000


def shown(full: Mapping[str, object], short: Mapping[str, object], title: str) -> str:
    """The component's value for a state of the page.

    Args:
        full: every field; what results are compared with.
        short: what differs from the defaults; what the address shows.
        title: what is on show, for talk mode.
    """
    return json.dumps({"full": query(full), "short": query(short), "title": title})


def fields(query: str) -> dict[str, str]:
    """Return an address's flat fields."""
    return dict(urllib.parse.parse_qsl(query.removeprefix("?")))


def requested_link(message: Mapping[str, Any], field: str, longest: int = LONGEST_QUERY) -> str:
    """Return the link, or its query, in a field of a page's message.

    Args:
        longest: characters that it may have.

    Raises:
        ConfigError: if there is none, or a longer one.
    """
    requested = message.get(field)
    if not isinstance(requested, str):
        raise ConfigError("not_a_link", "The page sent no link.", "")
    if len(requested) > longest:
        raise ConfigError("too_long", f"A link may have {longest:,} characters here.", "")
    return requested


def query(fields: Mapping[str, object]) -> str:
    """An address' query from flat fields."""
    return urllib.parse.urlencode(fields)


def dated(experiment: Experiment, content: Markup, style: str = "") -> Markup:
    """Markup that says which Experiment it belongs to: the page greys it while another one is set."""
    return Markup('<div class="{}" data-experiment="{}">{}</div>').format(
        style, query(experiment.to_address()), content
    )
