"""The page's address: its slot, queries, and links within the page."""

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
    """Return the slot that updates the address and offers to copy it. `link_value` makes its values."""
    copy = '<button type="button" class="copy-link">Copy link</button>'
    switch = '<button type="button" class="theme-switch">Light / dark</button>'
    return slot("link", "link", f'<div class="link">{copy}{switch}</div>')


def base() -> str:
    """Return the page's public address, or "" for the browser's. In a Space, the page is a frame."""
    space = os.environ.get("SPACE_ID")
    return f"https://huggingface.co/spaces/{space}" if space else ""


# Maximum characters of a query; the page's own are shorter.
LONGEST_QUERY = 4000


def link_value(full: Mapping[str, object], short: Mapping[str, object], title: str) -> str:
    """Return the slot's value for a state of the page.

    Args:
        full: every field, to detect results of other experiments.
        short: the fields that differ from their defaults, for the address.
        title: kernel, problem and GPU, for talk mode.
    """
    return json.dumps({"full": query(full), "short": query(short), "title": title})


def fields(query: str) -> dict[str, str]:
    """Return an address's flat fields."""
    return dict(urllib.parse.parse_qsl(query.removeprefix("?")))


def requested_link(message: Mapping[str, Any], field: str, longest: int = LONGEST_QUERY) -> str:
    """Return the link, or its query, in a field of a page's message.

    Args:
        longest: maximum characters.

    Raises:
        ConfigError: there is no link, or it is longer.
    """
    requested = message.get(field)
    if not isinstance(requested, str):
        raise ConfigError("not_a_link", "The page sent no link.", "")
    if len(requested) > longest:
        raise ConfigError("too_long", f"A link may have {longest:,} characters here.", "")
    return requested


def query(fields: Mapping[str, object]) -> str:
    """Return the query of flat fields."""
    return urllib.parse.urlencode(fields)


def tag_experiment(experiment: Experiment, content: Markup, style: str = "") -> Markup:
    """Wrap the markup of an Experiment's result, which the page greys while the settings differ."""
    address = query(experiment.to_address())
    return Markup('<div class="{}" data-experiment="{}">{}</div>').format(style, address, content)
