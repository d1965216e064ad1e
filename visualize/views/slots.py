"""Slots: named places in the page's HTML that an update fills. Their markup, and the values of forms of knobs.

`page.js` mounts each slot by its kind: the script of that name in `assets` gets the slot's element and its values.

Gradio's slider can't step by powers of two. In a form, a knob with choices is a slider over them, a range is a slider
with a number field, and a list of words is a menu. All are native inputs, so keys and screen readers work.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping
from typing import Any

from markupsafe import Markup

from kernels.knobs import Knob, knobs

# Values of a button's and a fold's slot.
ENABLED, DISABLED = "enabled", "disabled"
OPEN, CLOSED = "open", "closed"


def slot(name: str, kind: str = "html", content: str = "", classes: str = "") -> Markup:
    """Return an element with the DOM id `name`.

    Args:
        kind: "html", or the script that takes its values.
        content: its HTML before the first value.
        classes: further CSS classes.
    """
    style = f"slot {classes}".strip()
    return Markup('<div id="{}" class="{}" data-kind="{}">{}</div>').format(name, style, kind, Markup(content))  # noqa: S704


def plot(name: str, label: str) -> Markup:
    """Return a live plot. `label` is its name for screen readers. `plot.plot_value` makes its values."""
    return slot(name, "plot", Markup('<div class="live-plot" role="figure" aria-label="{}"></div>').format(label))


def form(name: str, label: str) -> Markup:
    """Return a form of knobs, whose values become part of the page's settings. `form_value` fills it."""
    return slot(name, "form", Markup('<div class="knobs" role="group" aria-label="{}"></div>').format(label))


def button(name: str, label: str, primary: bool = False, is_enabled: bool = True) -> Markup:
    """Return a button that starts the page's action of the same name."""
    style, state = " primary" if primary else "", Markup("") if is_enabled else Markup(" disabled")
    tag = Markup('<button type="button" id="{}" class="slot button{}" data-kind="button"{}>{}</button>')
    return tag.format(name, style, state, label)


def fold(name: str, title: str, *content: Markup) -> Markup:
    """Return a closed fold. Its values are OPEN and CLOSED."""
    tag = Markup('<details id="{}" class="slot folded" data-kind="fold"><summary>{}</summary>{}</details>')
    return tag.format(name, title, row(*content, classes="content"))


def row(*content: Markup, name: str = "", classes: str = "row") -> Markup:
    """Return slots side by side, with a DOM id if `name` is given."""
    place = Markup(' id="{}"').format(name) if name else Markup()
    return Markup('<div{} class="{}">{}</div>').format(place, classes, Markup("").join(content))


def picture(*content: Markup, name: str = "") -> Markup:
    """Return the view's picture, which fills the window's remaining height."""
    return row(*content, name=name, classes="row picture")


def problems_value(sentences: Mapping[str, str]) -> str:
    """Return the value of the slot "problems": sentences by field name; under "", those of no single field."""
    return json.dumps(dict(sentences), ensure_ascii=False)


def form_value(fields: list[dict[str, Any]], values: Mapping[str, Any], presets: tuple[str, ...] = ()) -> str:
    """Return a form's value: its controls (see `control`), their values, and the titles of preset buttons."""
    return json.dumps({"fields": fields, "values": dict(values), "presets": presets}, ensure_ascii=False)


def form_of(declared: Any, hidden: Collection[str] = ()) -> str:
    """Return the value of a form of a dataclass of knobs, set to `declared`.

    Args:
        hidden: fields without effect on the current view. They keep their values and have no controls.
    """
    fields = [field for field in controls(type(declared)) if field["name"] not in hidden]
    return form_value(fields, dataclasses.asdict(declared))


def controls(declared: type, labels: Mapping[str, list[str]] | None = None, group: str = "") -> list[dict[str, Any]]:
    """Return the controls of a dataclass of knobs. A knob without a group has no control.

    Args:
        labels: by field name, words to show for the numbers 0, 1, ….
        group: the heading, if not the knobs' own.
    """
    words = labels or {}
    return [control(name, knob, words.get(name), group) for name, knob in knobs(declared).items() if knob.group]


def control(name: str, knob: Knob, labels: list[str] | None = None, group: str = "") -> dict[str, Any]:
    """Return the description of one control for `form.js`."""
    words = {"label": knob.label or name, "group": group or knob.group, "help": knob.help}
    shared: dict[str, Any] = {"name": name, **words}
    if knob.only_with:
        shared["only_with"] = {"name": knob.only_with[0], "values": list(knob.only_with[1])}
    if knob.longest is not None:
        return {**shared, "kind": "text", "longest": knob.longest}
    if labels is not None:
        return {**shared, "kind": "menu", "choices": list(range(len(labels))), "labels": labels}
    if knob.choices is None:
        bounds = {"low": knob.low, "high": knob.high, "stops": knob.stops, "cap": knob.cap}
        return {**shared, "kind": "number", **bounds}
    kind = "menu" if isinstance(knob.choices[0], str) else "steps"
    return {**shared, "kind": kind, "choices": list(knob.choices)}
