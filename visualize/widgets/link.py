"""The page's address, kept in step with the page; links within the page; and the button that copies the address."""

from __future__ import annotations

import json
import os
import urllib.parse
from collections.abc import Mapping

import gradio as gr
from markupsafe import Markup

from kernels.experiment import Experiment
from kernels.knobs import ConfigError
from visualize.widgets import assets


def link() -> gr.HTML:
    """The component that writes the address and offers to copy it.

    Its value: `shown`. A link that is followed fires `select`, with what `followed` reads.
    """
    space = os.environ.get("SPACE_ID")
    return gr.HTML(
        value="",
        html_template='<div class="link"><button type="button" class="copy-link">Copy link</button>'
        '<button type="button" class="theme-switch">Light / dark</button>'
        "</div>",
        js_on_load=assets.script(
            # In a Space the page is a frame: its own address is not the one that a visitor sees.
            "link.js",
            base=f"https://huggingface.co/spaces/{space}" if space else "",
        )
        # Here, as this component is on every page and always in place.
        + assets.text("save.js")
        + assets.text("tables.js"),
        apply_default_css=False,
        elem_id="link",
    )


# Longer than any address that the page writes.
_LONGEST_QUERY = 4000


def shown(full: Mapping[str, object], short: Mapping[str, object], title: str) -> str:
    """The component's value for a state of the page.

    Args:
        full: every field; what results are compared with.
        short: what differs from the defaults; what the address shows.
        title: what is on show, for talk mode.
    """
    return json.dumps({"full": query(full), "short": query(short), "title": title})


def shown_query(value: str) -> str:
    """The address with every field, of what `shown` gave."""
    return str(json.loads(value)["full"])


def followed(value: str) -> dict[str, str]:
    """The flat fields of the address that a link within the page points to.

    Raises:
        ConfigError: where it is no address, or too long.
    """
    return fields(asked_link(value, "follow", _LONGEST_QUERY))


def fields(query: str) -> dict[str, str]:
    """The flat fields of an address."""
    return dict(urllib.parse.parse_qsl(query.removeprefix("?")))


def asked_link(value: str, field: str, longest: int) -> str:
    """The link, or its query, that a component asks for in a field of its value.

    Args:
        value: JSON.
        longest: characters that it may have.

    Raises:
        ConfigError: where there is none, or a longer one.
    """
    try:
        wanted = json.loads(value)[field]
    except (ValueError, TypeError, KeyError, RecursionError):
        wanted = None
    if not isinstance(wanted, str):
        raise ConfigError("not_a_link", "What was asked for is no link.", "")
    if len(wanted) > longest:
        raise ConfigError("too_long", f"A link may have {longest:,} characters here.", "")
    return wanted


def query(fields: Mapping[str, object]) -> str:
    """An address' query from flat fields."""
    return urllib.parse.urlencode(fields)


def dated(experiment: Experiment, content: Markup, style: str = "") -> Markup:
    """Markup that says which Experiment it belongs to: the page greys it while another one is set."""
    return Markup('<div class="{}" data-experiment="{}">{}</div>').format(
        style, query(experiment.to_address()), content
    )
