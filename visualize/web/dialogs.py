"""The page's dialogs: keyboard shortcuts, the glossary, and a link with its QR code for people in the same room.

Shortcuts also work without the dialog. Talk mode is `?talk=1` in the URL, and the embed view `?embed=1`.
"""

import json
from collections.abc import Mapping
from typing import Any

import segno
from markupsafe import Markup

from visualize.views.glossary import glossary
from visualize.views.slots import slot

# Longer than the page's addresses. A projector could not show a QR code of more characters legibly.
MAX_LINK = 1200

# An entry of a list.
_ITEM = Markup("<div><dt>{}</dt><dd>{}</dd></div>")

KEYS = (
    ("← →", "one step of the player; in a tour, the previous and the next stop"),
    ("Space", "play and pause"),
    ("T", "talk mode: the headline and the picture fill the window"),
    ("F", "full screen"),
    ("Q", "link and QR code of the current page"),
    ("1 2 3 4 5", "the views and the Library"),
    ("A B C D", "the choices of a question"),
    ("Esc", "leave the tour, then talk mode"),
    ("?", "this list"),
)


def keys() -> Markup:
    """Return the slot of the shortcuts and their dialog. The player follows `tilescope:play` and `tilescope:step`."""
    listed = Markup("").join(
        _ITEM.format(Markup(" ").join(Markup("<kbd>{}</kbd>").format(key) for key in pressed.split(" ")), action)
        for pressed, action in KEYS
    )
    return slot(
        "keys",
        "keys",
        (
            '<button type="button" class="open-keys" aria-label="Keys" title="Keys (?)">?</button>'
            '<h1 class="on-stage"></h1><a class="open-whole" target="_blank" rel="noopener">Open in Tilescope</a>'
            '<dialog class="keys" aria-labelledby="keys-title"><h2 id="keys-title">Keys</h2>'
            f'<dl>{listed}</dl><form method="dialog"><button type="button" class="to-talk">Talk mode</button>'
            "<button>Close</button></form></dialog>"
        ),
    )


def glossary_dialog() -> Markup:
    """Return the glossary as a popover: `<button popovertarget="glossary">` opens it, without a script."""
    sections = Markup()
    for heading, terms in glossary().items():
        rows = Markup("").join(_ITEM.format(*entry) for entry in terms.items())
        sections += Markup("<h3>{}</h3><dl>{}</dl>").format(heading, rows)
    return Markup(
        '<dialog popover id="glossary" class="keys" aria-labelledby="glossary-title">'
        '<h2 id="glossary-title">Glossary</h2>'
        '<button type="button" popovertarget="glossary" autofocus>Close</button>{}</dialog>'
    ).format(sections)


def share() -> Markup:
    """Return the slot of the Share button and its dialog. Opening the dialog starts the action "share"."""
    return slot(
        "share",
        "share",
        (
            '<button type="button" class="open-share" title="Link and QR code (Q)">Share</button>'
            '<dialog class="share" aria-labelledby="share-title"><h2 id="share-title">Share this page</h2>'
            '<div class="qr" role="img" aria-label="QR code of the link"></div>'
            '<p><input type="text" readonly aria-label="Link"></p>'
            '<form method="dialog"><button type="button" class="copy">Copy</button><button>Close</button></form>'
            "</dialog>"
        ),
    )


def qr(message: Mapping[str, Any]) -> str:
    """Return the value of the slot "share": a QR code, or "" if the message contains no link.

    Args:
        message: the page's, with the `link`.
    """
    link = str(message.get("link"))
    is_link = len(link) <= MAX_LINK and link.startswith(("http://", "https://"))
    return json.dumps({"link": link, "svg": draw_qr(link)}) if is_link else ""


def draw_qr(link: str) -> str:
    """Return a link as an SVG without a size. Scanners expect black on white, so it ignores the theme."""
    return segno.make(link, error="m", micro=False).svg_inline(border=4, dark="#000", light="#fff", omitsize=True)
