"""Sharing what is shown: its short link, and the link as a QR code for those who sit in the room."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import segno
from markupsafe import Markup

from kernels.knobs import ConfigError
from visualize.views.address import requested_link
from visualize.views.slots import slot

# A QR code of more characters could not be read off a projector, and no address of the page is as long.
LONGEST_LINK = 1200


def share() -> Markup:
    """The button and its dialog. Opening it starts the action "share", which `qr` answers."""
    return slot(
        "share",
        "share",
        (
            '<button type="button" class="open-share" title="Link and QR code (Q)">Share</button>'
            '<dialog class="share" aria-labelledby="share-title"><h2 id="share-title">Share what is shown</h2>'
            '<div class="qr" role="img" aria-label="QR code of the link"></div>'
            '<p><input type="text" readonly aria-label="Link"></p>'
            '<form method="dialog"><button type="button" class="copy">Copy</button><button>Close</button></form>'
            "</dialog>"
        ),
    )


def qr(message: Mapping[str, Any]) -> str:
    """Return the slot's value that shows a link as a QR code.

    Args:
        message: the page's, with the `link`.

    Raises:
        ConfigError: if it is no link, or too long.
    """
    link = requested_link(message, "link", LONGEST_LINK)
    if not link.startswith(("http://", "https://")):
        raise ConfigError("not_a_link", "The page sent no link.", "")
    return json.dumps({"link": link, "svg": drawn_qr(link)})


def drawn_qr(link: str) -> str:
    """A link as an SVG that takes the size of its place; black on white whatever the theme, as scanners expect."""
    return segno.make(link, error="m", micro=False).svg_inline(border=4, dark="#000", light="#fff", omitsize=True)
