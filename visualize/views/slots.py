"""Jinja2 templates of the page's HTML, with macros for slots: named places that an update fills; and slots' values.

`page.js` mounts each slot by its kind: the script for it gets the slot's element, and then its values.

Gradio's slider can't step by powers of two. In a form, a knob with choices is a slider over them, a range is a slider
with a number field, and a list of words is a menu. All are native inputs, so keys and screen readers work.

Gradio's plot remounts at every update and ignores dark mode. A live plot is a Plotly figure that keeps its node, so
that zoom survives and sliders stay smooth. It takes its colours from `views.theme`. `plotly_js` has only the traces
that the page draws: a quarter of the full library's size.
"""

import base64
import json
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jinja2 import Environment, Template
from markupsafe import Markup

from tilescope.declare.experiment import Json
from tilescope.declare.knobs import Knob, knobs

_ENVIRONMENT = Environment(autoescape=True)


def template(source: str) -> Callable[..., Markup]:
    """Return a function that renders a template with the values of its keyword arguments.

    Line breaks beside tags, with the spaces around them, are not part of the HTML.
    """
    compiled = _compile(source)
    return lambda **values: Markup(compiled.render(values))  # noqa: S704


def _compile(source: str) -> Template:
    return _ENVIRONMENT.from_string(re.sub(r"\s*\n\s*(?=[<{]|$)|(?<=[>}])\s*\n\s*", "", source))


# slot: an element with the DOM id `name`. Its kind is "html", or the script that takes its values. Its content is shown
#     before its first value.
# plot: a live plot, whose values `slots.plot_value` makes. `label` is its name for screen readers; `legend` is the id
#     of an element with its legend, which is saved, too, as is the headline in the slot `headline`, by default that of
#     the same name. A picture with steps can be saved as an animation.
# form: a form of knobs, whose values become part of the page's settings. `slots.form_value` fills it.
# button: starts the page's action of the same name.
# fold: a closed fold. Its values are slots.OPEN and slots.CLOSED.
# frame: a table that scrolls, with a button that saves its cells as CSV.
# views: buttons that open views. `views` has the names of each view's pictures, by its title.
# picture: a picture of a view, with buttons that switch to the view's other pictures.
_MACROS = """
{% macro slot(name, kind="html") %}
<div id="{{ name }}" class="slot" data-kind="{{ kind }}">{{ caller() if caller }}</div>
{% endmacro %}
{% macro plot(name, label, legend="", has_steps=false, headline="") %}
{% call slot(name, "plot") %}
<div class="live-plot" role="figure" aria-label="{{ label }}"
data-legend="{{ legend }}" data-headline="{{ headline or name | replace("-plot", "-headline") }}"
{{- " data-steps" if has_steps }}></div>
{% endcall %}
{% endmacro %}
{% macro form(name, label) %}
{% call slot(name, "form") %}<div class="knobs" role="group" aria-label="{{ label }}"></div>{% endcall %}
{% endmacro %}
{% macro button(name, label, style="", is_enabled=true) %}
<button type="button" id="{{ name }}" class="slot button{{ style }}"
data-kind="button"{{ " disabled" if not is_enabled }}>{{ label }}</button>
{% endmacro %}
{% macro fold(name, title) %}
<details id="{{ name }}" class="slot folded" data-kind="fold"><summary>{{ title }}</summary>
<div class="content">{{ caller() }}</div></details>
{% endmacro %}
{% macro frame(caption="") %}
<div class="scroll"><button type="button" class="control save-csv" title="Save as CSV">CSV</button>
<table>{% if caption|string %}<caption>{{ caption }}</caption>{% endif %}{{ caller() }}</table></div>
{% endmacro %}
{% macro views(views) %}
{% call slot("tab", "tabs") %}
<nav aria-label="Views">
{% for title, names in views.items() %}
<button type="button" data-tabs="{{ names|join(' ') }}">{{ title }}</button>
{% endfor %}
</nav>
{% endcall %}
{% endmacro %}
{% macro picture(name, titles, others) %}
<section id="{{ name }}-tab" class="tabitem" aria-label="{{ titles[name] }}" hidden>
<nav class="pictures" aria-label="Pictures of this view">
{% for other in others if others|length > 1 %}
<button type="button" data-tab="{{ other }}">{{ titles[other] }}</button>
{% endfor %}
</nav>
{{ caller() }}
</section>
{% endmacro %}
"""
_ENVIRONMENT.globals |= vars(_compile(_MACROS).module)

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

_FORM = template(
    """
{% macro slider(field) %}
<input type="range" id="knob-{{ field.name }}-slider" aria-label="{{ field.label }} slider"
aria-describedby="help-{{ field.name }}" step="1">
{% endmacro %}
{% macro control(field) %}
{% set about = 'id="knob-%s" aria-describedby="help-%s"' | safe | format(field.name, field.name) %}
<div class="field {{ field.kind }}" data-field="{{ field.name }}"><label for="knob-{{ field.name }}">
{# A long name breaks after an underscore. #}
{{ field.label.split("_") | join("_<wbr>" | safe) }}</label>
{% if field.kind == "menu" %}
<select class="control" {{ about }}>
{% for label in field.labels or field.choices %}<option>{{ label }}</option>{% endfor %}
</select>
{% elif field.kind == "text" %}
<input type="text" class="control" {{ about }} maxlength="{{ field.longest }}" spellcheck="false">
{% elif field.kind == "number" %}
{# The box appears where its value is shown, once it has the focus. #}
{{ slider(field) }}<output aria-hidden="true"></output><input type="number" class="control" {{ about }}>
{% else %}
{{ slider(field) }}<output {{ about }} for="knob-{{ field.name }}-slider"></output>
{% endif %}
<p class="problem" role="alert"></p>
{% if field.note %}<p class="note quiet">{{ field.note }}</p>{% endif %}
<p class="help" role="tooltip" id="help-{{ field.name }}">{{ field.help }}
{%- if field.kind == "number" %} {{ field.low }} to {{ field.high }}.{% endif %}</p></div>
{% endmacro %}
{% for title, fields in groups.items() if title != more %}
<fieldset class="knob-group"><legend class="quiet">{{ title }}</legend>
{% for field in fields %}{{ control(field) }}{% endfor %}
</fieldset>
{% endfor %}
{% if more in groups %}
<details class="knob-group more"><summary>More</summary>
{% for field in groups[more] %}{{ control(field) }}{% endfor %}
</details>
{% endif %}
{% if presets %}
<details class="knob-group presets"><summary>Presets</summary>
{% for number in range(presets) %}
<button type="button" class="control" value="{{ number }}"></button>
{% endfor %}
</details>
{% endif %}
"""
)


def plot_value(
    figure: Json,
    revision: str = "",
    meta: Json | None = None,
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


def save_file(name: str, text: str) -> dict[str, str]:
    """Return the slot that makes the browser save a file."""
    return {"saved-file": json.dumps({"name": name, "text": text}, ensure_ascii=False)}


def problems_value(sentences: Mapping[str, str]) -> str:
    """Return the value of the slot "problems": sentences by field name; under "", those of no single field."""
    return json.dumps(dict(sentences), ensure_ascii=False)


def form_value(
    fields: list[Json], values: Json, presets: tuple[str, ...] = (), more: str = ""
) -> str:
    """Return a form's value: its HTML and, for `form.js`, how its controls behave, their values, and changing titles.

    The HTML is the same for all values, so that a control keeps its focus and a slider its drag.

    Args:
        fields: its controls (see `control`). Those of the group MORE are folded.
        presets: the titles of preset buttons.
        more: the title of the folded group.
    """
    groups = dict[str, list[Json]]()
    for field in fields:
        groups.setdefault(field["group"], []).append(field)
    controls = [
        {
            **{name: field[name] for name in _BEHAVIOUR if name in field},
            "stops": _stops(field, values),
            "hidden": is_hidden(field, values),
        }
        for field in fields
    ]
    value = {
        "html": _FORM(groups=groups, more=MORE, presets=len(presets)),
        "fields": controls,
        "values": dict(values),
        "presets": presets,
        "more": more,
    }
    return json.dumps(value, ensure_ascii=False)


def is_hidden(field: Json, values: Json) -> bool:
    """Return whether a knob makes no difference with these values."""
    if field["only_with"] is None:
        return False
    name, allowed = field["only_with"]
    return values.get(name) not in allowed


def _stops(field: Json, values: Json) -> list[Any] | None:
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
