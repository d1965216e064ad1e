"""Jinja2 templates of the page's HTML, and the macros for slots: named places that an update fills.

`page.js` mounts each slot by its kind: the script for it gets the slot's element, and then its values.
"""

import re
from collections.abc import Callable

from jinja2 import Environment, Template
from markupsafe import Markup

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
#     of an element with its legend, which is saved, too. A picture with steps can be saved as an animation.
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
{% macro plot(name, label, legend="", has_steps=false) %}
{% call slot(name, "plot") %}
<div class="live-plot" role="figure" aria-label="{{ label }}"
data-legend="{{ legend }}"{{ " data-steps" if has_steps }}></div>
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
