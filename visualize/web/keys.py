"""Keys of the whole page and the dialog that lists them; talk mode (`?talk=1`) and the embed view (`?embed=1`)."""

from __future__ import annotations

from markupsafe import Markup

from visualize.views.slots import slot

# What the dialog lists, in order.
KEYS = (
    ("← →", "one step of the player; in a tour, the stop before and the next one"),
    ("Space", "play and pause"),
    ("T", "talk mode: the claim and the picture fill the window"),
    ("F", "full screen"),
    ("Q", "the link of what is shown, as a QR code"),
    ("1 2 3 4 5", "the views and the Library"),
    ("A B C D", "the choices of a question"),
    ("Esc", "leave the tour, then talk mode"),
    ("?", "this list"),
)

_ROW = Markup("<div><dt>{}</dt><dd>{}</dd></div>")


def keys() -> Markup:
    """The component. What it does to the player are the document's events `tilescope:play` and `tilescope:step`."""
    listed = Markup("").join(
        _ROW.format(Markup(" ").join(Markup("<kbd>{}</kbd>").format(one) for one in pressed.split(" ")), what)
        for pressed, what in KEYS
    )
    return slot(
        "keys",
        "keys",
        (
            '<button type="button" class="open-keys" aria-label="Keys" title="Keys (?)">?</button>'
            '<p class="on-stage"></p><a class="open-whole" target="_blank" rel="noopener">Open in Tilescope</a>'
            '<dialog class="keys" aria-labelledby="keys-title"><h2 id="keys-title">Keys</h2>'
            f'<dl>{listed}</dl><form method="dialog"><button type="button" class="to-talk">Talk mode</button>'
            "<button>Close</button></form></dialog>"
        ),
    )
