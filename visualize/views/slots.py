"""Slots: named places in the page's HTML that an update fills. Their markup, and the values of forms of knobs.

`page.js` mounts each slot by its kind: the script for it gets the slot's element, and then its values.

Gradio's slider can't step by powers of two. In a form, a knob with choices is a slider over them, a range is a slider
with a number field, and a list of words is a menu. All are native inputs, so keys and screen readers work.

Gradio's plot remounts at every update and ignores dark mode. A live plot is a Plotly figure that keeps its node, so
that zoom survives and sliders stay smooth. It takes its colours from `views.theme`. `plotly_js` has only the traces
that the page draws: a quarter of the full library's size.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from tilescope.declare.experiment import Json
from tilescope.declare.knobs import Knob, knobs

# Values of a button's and a fold's slot.
ENABLED = "enabled"
DISABLED = "disabled"
OPEN = "open"
CLOSED = "closed"

# Slots without an element. REDRAW makes the page request a redraw. WATCH makes it request a stream of what follows, and
# send the slot's value, unless that is "".
REDRAW = "redraw"
WATCH = "watch"

# The value that hides a plot. "" means that its first figure is still to come.
NONE = "none"

# The group of a form whose controls are folded.
MORE = "more"

# The fields of a control that `form.js` reads.
_BEHAVIOUR = ("name", "kind", "choices", "low", "high")

_GROUP = Markup('<fieldset class="knob-group"><legend class="quiet">{}</legend>{}</fieldset>')
_FOLD = Markup('<details class="knob-group {}"><summary>{}</summary>{}</details>')
_PRESET = Markup('<button type="button" class="control" value="{}"></button>')
_FIELD = Markup(
    '<div class="field {kind}" data-field="{name}"><label for="knob-{name}">{words}</label>{inputs}'
    '<p class="problem" role="alert"></p>{note}<p class="help" role="tooltip" id="help-{name}">{help}</p></div>'
)
_ABOUT = 'id="knob-{name}" aria-describedby="help-{name}"'
_RANGE = (
    '<input type="range" id="knob-{name}-slider" aria-label="{label} slider" '
    'aria-describedby="help-{name}" step="1">'
)
# The inputs of a control, by its kind.
_INPUTS = {
    "menu": Markup(f'<select class="control" {_ABOUT}>{{options}}</select>'),  # noqa: S704
    "text": Markup(  # noqa: S704
        f'<input type="text" class="control" {_ABOUT} maxlength="{{longest}}" spellcheck="false">'
    ),
    "number": Markup(f'{_RANGE}<input type="number" class="control" {_ABOUT}>'),  # noqa: S704
    "steps": Markup(f'{_RANGE}<output {_ABOUT} for="knob-{{name}}-slider"></output>'),  # noqa: S704
}


def slot(name: str, kind: str = "html", content: str = "") -> Markup:
    """Return an element with the DOM id `name`.

    Args:
        kind: "html", or the script that takes its values.
        content: its HTML before the first value.
    """
    slot = Markup('<div id="{}" class="slot" data-kind="{}">{}</div>')
    return slot.format(name, kind, Markup(content))  # noqa: S704


def plot(name: str, label: str, has_steps: bool = False, legend: str = "") -> Markup:
    """Return a live plot. `plot_value` makes its values.

    Args:
        label: its name for screen readers.
        has_steps: whether a player steps through it, so that it can be saved as an animation.
        legend: the DOM id of an element with its legend, which is saved, too.
    """
    steps = Markup(" data-steps") if has_steps else ""
    content = Markup(
        '<div class="live-plot" role="figure" aria-label="{}" data-legend="{}"{}></div>'
    )
    return slot(name, "plot", content.format(label, legend, steps))


def plot_value(
    figure: Mapping[str, Any],
    revision: str = "",
    meta: Mapping[str, Any] | None = None,
    *,
    about: str,
) -> str:
    """Return the value that makes a live plot draw `figure`.

    Arrays of numbers travel as 32-bit words before the figure's JSON; masked elements become NaN. Deflated, maps shrink
    to some ‰.

    Args:
        figure: a figure's data and layout. Plotly for Python would validate them for tens of milliseconds.
        about: the line below a saved picture, from `prose.picture_caption`.
        revision: the zoom survives while this stays the same, for example the axes' extents.
        meta: values for other scripts; they become the layout's `meta`.
    """
    layout = {
        **figure["layout"],
        "uirevision": revision or "same",
        **({"meta": meta} if meta else {}),
    }
    content = {"data": figure["data"], "layout": layout, "about": about}
    words = bytearray()
    text = json.dumps(
        content, separators=(",", ":"), default=lambda value: _pack(value, words)
    ).encode()
    stream = len(words).to_bytes(4, "little") + words + text
    # The output of a fast first pass still repeats, and the slow second pass gets a hundredth of the bytes.
    return base64.b64encode(zlib.compress(zlib.compress(stream, 3), 9)).decode()


def _pack(value: Any, words: bytearray) -> Any:
    """Append an array of numbers to `words`, and return where it is. Return other values as JSON."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
        return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
    kind = value.dtype.kind
    # Neighbours in a map differ by the same integers again and again, which deflate to some ‰ of their bytes.
    lag = 0 if kind == "f" else value.shape[2] if value.ndim == 3 else 1
    if np.ma.is_masked(value):
        value = np.ma.filled(value.astype(np.float32), np.nan)
        kind = "f"
    numbers = value.astype(f"<{kind}4", order="C")
    if kind != "f" and not np.array_equal(numbers, value):
        raise ValueError(
            f"A figure's integers must fit in 32 bits, not {value.min()} to {value.max()}."
        )
    reference = {"first": len(words) // 4, "kind": kind, "lag": lag, "shape": value.shape}
    numbers = numbers.view("<u4").reshape(-1)
    if lag:
        numbers[lag:] -= numbers[:-lag].copy()
    words.extend(numbers.tobytes())
    return reference


def form(name: str, label: str) -> Markup:
    """Return a form of knobs, whose values become part of the page's settings. `form_value` fills it."""
    return slot(
        name, "form", Markup('<div class="knobs" role="group" aria-label="{}"></div>').format(label)
    )


def button(name: str, label: str, primary: bool = False, is_enabled: bool = True) -> Markup:
    """Return a button that starts the page's action of the same name."""
    style = " primary" if primary else ""
    state = Markup("") if is_enabled else Markup(" disabled")
    tag = Markup(
        '<button type="button" id="{}" class="slot button{}" data-kind="button"{}>{}</button>'
    )
    return tag.format(name, style, state, label)


def fold(name: str, title: str, *content: Markup) -> Markup:
    """Return a closed fold. Its values are OPEN and CLOSED."""
    tag = Markup(
        '<details id="{}" class="slot folded" data-kind="fold"><summary>{}</summary>{}</details>'
    )
    return tag.format(name, title, row(*content, classes="content"))


def row(*content: Markup, name: str = "", classes: str = "row") -> Markup:
    """Return slots side by side, with a DOM id if `name` is given."""
    place = Markup(' id="{}"').format(name) if name else Markup()
    return Markup('<div{} class="{}">{}</div>').format(place, classes, Markup("").join(content))


def picture(*content: Markup, name: str = "") -> Markup:
    """Return the view's picture, which fills the window's remaining height."""
    return row(*content, name=name, classes="row picture")


def pictures(titles: Mapping[str, str]) -> Markup:
    """Return buttons that switch between a view's pictures, given their titles by tab name."""
    button = Markup('<button type="button" data-tab="{}">{}</button>')
    buttons = Markup("").join(button.format(*tab) for tab in titles.items())
    return Markup('<nav class="pictures" aria-label="Pictures of this view">{}</nav>').format(
        buttons
    )


def save_file(name: str, text: str) -> dict[str, str]:
    """Return the slot that makes the browser save a file."""
    return {"saved-file": json.dumps({"name": name, "text": text}, ensure_ascii=False)}


def problems_value(sentences: Mapping[str, str]) -> str:
    """Return the value of the slot "problems": sentences by field name; under "", those of no single field."""
    return json.dumps(dict(sentences), ensure_ascii=False)


def form_value(
    fields: list[Json], values: Mapping[str, Any], presets: tuple[str, ...] = (), more: str = ""
) -> str:
    """Return a form's value: its HTML and, for `form.js`, how its controls behave, their values, and changing titles.

    The HTML is the same for all values, so that a control keeps its focus and a slider its drag.

    Args:
        fields: its controls (see `control`). Those of the group MORE are folded.
        presets: the titles of preset buttons.
        more: the title of the folded group.
    """
    groups = dict[str, Markup]()
    for field in fields:
        groups[field["group"]] = groups.get(field["group"], Markup()) + _field(field)
    folded = {"more": groups.pop(MORE, "")}
    folded["presets"] = Markup("").join(map(_PRESET.format, range(len(presets))))
    html = Markup("").join(_GROUP.format(*group) for group in groups.items())
    html += Markup("").join(
        _FOLD.format(name, name.title(), content) for name, content in folded.items() if content
    )
    controls = [
        {
            **{name: field[name] for name in _BEHAVIOUR if name in field},
            "stops": _stops(field, values),
            "hidden": is_hidden(field, values),
        }
        for field in fields
    ]
    value = {
        "html": html,
        "fields": controls,
        "values": dict(values),
        "presets": presets,
        "more": more,
    }
    return json.dumps(value, ensure_ascii=False)


def _field(field: Json) -> Markup:
    """Return the HTML of a control."""
    name = field["name"]
    labels = field.get("labels") or field.get("choices") or ()
    options = Markup("").join(map(Markup("<option>{}</option>").format, labels))
    inputs = _INPUTS[field["kind"]].format(
        name=name,
        label=field["label"],
        options=options,
        longest=field.get("longest"),
    )
    bounds = f" {field['low']} to {field['high']}." if field["kind"] == "number" else ""
    # A long name breaks after an underscore.
    words = Markup("_<wbr>").join(field["label"].split("_"))
    note = Markup('<p class="note quiet">{}</p>').format(field["note"]) if field.get("note") else ""
    return _FIELD.format(
        name=name,
        kind=field["kind"],
        words=words,
        inputs=inputs,
        note=note,
        help=field["help"] + bounds,
    )


def is_hidden(field: Json, values: Mapping[str, Any]) -> bool:
    """Return whether a knob makes no difference with these values."""
    if field["only_with"] is None:
        return False
    name, allowed = field["only_with"]
    return values.get(name) not in allowed


def _stops(field: Json, values: Mapping[str, Any]) -> list[Any] | None:
    """Return the values at which a slider stops; None for all. Powers of two beyond a cap would change nothing."""
    if field["kind"] == "steps":
        return list(field["choices"])
    if field.get("stops") != "powers":
        return None
    high = field["high"]
    if field["cap"]:
        size, block = field["cap"]
        high = min(high, -(-values[size] // values[block]))
    zero = [0] if field["low"] == 0 else []
    return zero + [2**power for power in range(high.bit_length()) if field["low"] <= 2**power]


def controls(declared: type) -> list[Json]:
    """Return the controls of a dataclass of knobs. A knob without a group has no control."""
    return [control(name, knob) for name, knob in knobs(declared).items() if knob.group]


def control(name: str, knob: Knob) -> Json:
    """Return the description of one control for `form_value`."""
    shared: Json = {
        "name": name,
        "label": knob.label or name,
        "group": knob.group,
        "help": knob.help,
        "only_with": knob.only_with,
    }
    if knob.longest is not None:
        return {**shared, "kind": "text", "longest": knob.longest}
    if knob.choices is None:
        bounds = {"low": knob.low, "high": knob.high, "stops": knob.stops, "cap": knob.cap}
        return {**shared, "kind": "number", **bounds}
    kind = "menu" if isinstance(knob.choices[0], str) else "steps"
    return {**shared, "kind": kind, "choices": list(knob.choices)}
