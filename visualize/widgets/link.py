"""The page's address, kept in step with the page, and the button that copies it."""

from __future__ import annotations

import os
import urllib.parse
from typing import Any

import gradio as gr
from markupsafe import Markup

from kernels.experiment import Experiment
from visualize.widgets import assets


def link() -> gr.HTML:
    """The component that writes the address and offers to copy it. Its value: `query`."""
    space = os.environ.get("SPACE_ID")
    return gr.HTML(
        value="",
        html_template='<div class="link"><button type="button" class="copy-link">Copy link</button>'
        '<button type="button" class="theme-switch" aria-label="Switch between light and dark">Light / dark</button>'
        "</div>",
        js_on_load=assets.script(
            # In a Space the page is a frame: its own address is not the one that a visitor sees.
            "link.js",
            base=f"https://huggingface.co/spaces/{space}" if space else "",
        ),
        apply_default_css=False,
        elem_id="link",
    )


def query(fields: dict[str, Any]) -> str:
    """An address' query from flat fields."""
    return urllib.parse.urlencode(fields)


def dated(experiment: Experiment, content: Markup, style: str = "") -> Markup:
    """Markup that says which Experiment it belongs to: the page greys it while another one is set."""
    return Markup('<div class="{}" data-experiment="{}">{}</div>').format(
        style, query(experiment.to_address()), content
    )
