"""Sharing what is shown: its short link, and the link as a QR code for those who sit in the room."""

from __future__ import annotations

import json

import gradio as gr
import segno

from kernels.knobs import ConfigError
from visualize.widgets import assets
from visualize.widgets.link import asked_link

# A QR code of more characters could not be read off a projector, and no address of the page is as long.
LONGEST_LINK = 1200


def share() -> gr.HTML:
    """The button and its dialog. To open it fires `select`, with what `qr` reads; its answer is the next value."""
    return gr.HTML(
        value="",
        html_template=(
            '<button type="button" class="open-share" title="Link and QR code (Q)">Share</button>'
            '<dialog class="share" aria-labelledby="share-title"><h2 id="share-title">Share what is shown</h2>'
            '<div class="qr" role="img" aria-label="QR code of the link"></div>'
            '<p><input type="text" readonly aria-label="Link"></p>'
            '<form method="dialog"><button type="button" class="copy">Copy</button><button>Close</button></form>'
            "</dialog>"
        ),
        js_on_load=assets.script("share.js"),
        apply_default_css=False,
        elem_id="share",
    )


def qr(value: str) -> str:
    """The component's value that shows a link as a QR code.

    Args:
        value: JSON with the `link` that was asked for.

    Raises:
        ConfigError: where it is no link, or too long.
    """
    link = asked_link(value, "link", LONGEST_LINK)
    if not link.startswith(("http://", "https://")):
        raise ConfigError("not_a_link", "What was asked for is no link.", "")
    return json.dumps({"link": link, "svg": drawn_qr(link)})


def drawn_qr(link: str) -> str:
    """A link as an SVG that takes the size of its place; black on white whatever the theme, as scanners expect."""
    return segno.make(link, error="m", micro=False).svg_inline(border=4, dark="#000", light="#fff", omitsize=True)
