"""The page's slots: named places in its HTML that an update fills, and the markup around them.

`page.js` mounts each slot by its kind: the script of that name in `assets` gets the slot's element and its values.
"""

from __future__ import annotations

from markupsafe import Markup

# Values of a button's and a fold's slot.
ENABLED, DISABLED = "enabled", "disabled"
OPEN, CLOSED = "open", "closed"


def slot(name: str, kind: str = "html", content: str = "", classes: str = "") -> Markup:
    """A place with the DOM id `name`.

    Args:
        kind: "html", or the script that takes its values.
        content: HTML that is there before the first value.
        classes: further CSS classes.
    """
    style = f"slot {classes}".strip()
    return Markup('<div id="{}" class="{}" data-kind="{}">{}</div>').format(name, style, kind, Markup(content))


def plot(name: str, label: str) -> Markup:
    """A live plot; `label` is what a screen reader calls it. Its values: `plot.drawn`."""
    return slot(name, "plot", Markup('<div class="live-plot" role="figure" aria-label="{}"></div>').format(label))


def form(name: str, label: str) -> Markup:
    """A form of knobs. Its values: `form.filled`. What is set in it goes into the page's settings."""
    return slot(name, "form", Markup('<div class="knobs" role="group" aria-label="{}"></div>').format(label))


def button(name: str, label: str, primary: bool = False, is_enabled: bool = True) -> Markup:
    """A button that starts the page's action of its name."""
    style, state = " primary" if primary else "", Markup("") if is_enabled else Markup(" disabled")
    tag = '<button type="button" id="{}" class="slot button{}" data-kind="button"{}>{}</button>'
    return Markup(tag).format(name, style, state, label)


def fold(name: str, title: str, *content: Markup) -> Markup:
    """A closed fold; its value opens or closes it."""
    tag = '<details id="{}" class="slot folded" data-kind="fold"><summary>{}</summary><div class="content">{}</div>'
    return Markup(tag + "</details>").format(name, title, Markup("").join(content))


def row(*content: Markup, name: str = "", classes: str = "row") -> Markup:
    """Slots beside one another, with a DOM id if they have a name."""
    place = Markup(' id="{}"').format(name) if name else Markup()
    return Markup('<div{} class="{}">{}</div>').format(place, classes, Markup("").join(content))


def picture(*content: Markup, name: str = "") -> Markup:
    """The view's picture: it takes the height that the window leaves."""
    return row(*content, name=name, classes="row picture")
