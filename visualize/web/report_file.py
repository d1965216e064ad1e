"""A script's launches as one HTML file: the page's views, scripts and styles, with all updates they can request.

The file needs neither a server nor the network: `report_file.js` replies to the page's messages.
"""

import base64
import json
import posixpath
import re
import zlib
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

from markupsafe import Markup

from tilescope.declare.experiment import Json
from tilescope.reports import text
from tilescope.reports.launch import Launches
from visualize.views import theme
from visualize.views.inside.view import INSIDE
from visualize.views.launches import (
    LaunchView,
    clip,
    draw_launch,
    launches_table,
)
from visualize.views.memory.compiler import CompilerPanel
from visualize.views.memory.view import RequestsPanel
from visualize.views.order.view import ProgramOrderPanel
from visualize.views.panel import Slots
from visualize.views.prose import glossary_dialog
from visualize.views.slots import template
from visualize.web.assets import PLOTLY_JS, SCRIPTS, STYLES

_RESULT = template(
    """
{{ slot("result") }}{{ slot("predicted-time") }}
<div class="row picture">
{{ plot("predicted-plot", "The time that each resource would take alone", headline="predicted-time") }}
</div>
"""
)

# Each picture's HTML, and the fields of a LaunchView on which its slots depend.
_PICTURES: dict[str, tuple[Markup, tuple[str, ...]]] = {
    "requests": (RequestsPanel().render_layout(), ("operation", "model")),
    "compiler": (CompilerPanel().render_layout(), ("operation",)),
    "program-order": (ProgramOrderPanel().render_layout(), ()),
    "result": (_RESULT(), ()),
    **{name: (panel.render_layout(), ()) for name, panel in INSIDE.items()},
}
_TITLES = {name: name.replace("-", " ").capitalize() for name in _PICTURES}
_VIEWS = {
    **{title: (name,) for name, title in _TITLES.items() if name not in INSIDE},
    "Inside": tuple(INSIDE),
}

# Long values that begin alike share pieces of this many characters.
_PIECE = 4096

_IMPORT = re.compile(r'(?<=from "|port ")(\.[^"]+)')

# The browser sends nothing to any host.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' data:; style-src 'unsafe-inline'; "
    "img-src data: blob:"
)

_PAGE = template(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="generator" content="Tilescope">
<title>{{ script }}: Tilescope</title><style>{{ styles | safe }}</style>
<script type="importmap">{{ {"imports": modules} | tojson }}</script></head>
<body data-shows="script"><div class="gradio-container"><main class="main"><div id="stage">
{% call slot("awaited") %}<div role="progressbar" hidden></div>{% endcall %}
{{ slot("settings", "settings") }}
<div id="header" class="bar">
{% call slot("title") %}<h1>{{ script }}</h1>{% endcall %}
{{ views(views_of_pictures) }}
<button type="button" class="library" popovertarget="glossary">Glossary</button>
</div>
<div id="results" class="column">
{{ slot("elsewhere") }}
{{ slot("launches") }}
{% for names in views_of_pictures.values() %}
{% for name in names %}
{% call picture(name, titles, names) %}{{ pictures[name][0] }}{% endcall %}
{% endfor %}
{% endfor %}
</div>
{{ slot("link", "link") }}{{ glossary }}
</div></main></div>
<noscript><style>#stage { display: none; }</style><pre>{{ table }}</pre></noscript>
<script type="text/plain" id="plotly">{{ plotly }}</script><script type="text/plain" id="report">{{ report }}</script>
<script type="module">import "web/report_file.js";</script></body></html>
"""
)


def render_report(launches: Launches) -> str:
    """Return launches as an HTML file."""
    script = launches.content.script
    opened = {}
    updates = {}
    pieces: dict[str, int] = {}
    for (number, *_), _ in launches.report().distinct:
        view = clip(launches, LaunchView(launch=number))
        opened[number] = asdict(view)
        for key, update in _draw_views(launches, view):
            updates[key] = {name: _divide(value, pieces) for name, value in update.items()}
    report = {
        "script": script,
        "launches": launches_table(launches, {}),
        "opened": opened,
        "updates": updates,
        "pieces": list(pieces),
        "given": {
            "is_file": True,
            "needs_gpu": [],
            **theme.FOR_SCRIPTS,
        },
    }
    return _PAGE(
        policy=_POLICY,
        script=script,
        styles=STYLES + _read(".css"),
        modules=dict(_modules()),
        titles=_TITLES,
        views_of_pictures=_VIEWS,
        pictures=_PICTURES,
        glossary=glossary_dialog(),
        table=text.table(launches.report()),
        plotly=_pack(PLOTLY_JS.read_bytes()),
        report=_pack(json.dumps(report).encode()),
    )


def _draw_views(launches: Launches, opened: LaunchView) -> Iterator[tuple[str, Slots]]:
    """Yield the slots of each view of a launch, by the view and the values on which they depend."""
    operations = len(launches.report().launches[opened.launch].ops)
    choices: Json = {
        "operation": range(max(1, operations)),
        "model": ("compiled", "textbook"),
    }
    for tab, (_, fields) in _PICTURES.items():
        for values in product(*(choices[field] for field in fields)):
            view = replace(opened, tab=tab, **dict(zip(fields, values, strict=True)))
            address = {"launch": view.launch, "model": view.model}
            key = ",".join(map(str, (tab, view.launch, *values)))
            yield key, draw_launch(launches, view, address)


def _divide(value: str, pieces: dict[str, int]) -> list[int]:
    """Return the numbers of the pieces of a value. Equal pieces are stored once."""
    return [
        pieces.setdefault(value[at : at + _PIECE], len(pieces))
        for at in range(0, len(value), _PIECE)
    ]


def _modules() -> Iterator[tuple[str, str]]:
    """Yield each script by its path, as a URL. It imports the others by their paths."""
    for path, code in {**SCRIPTS, "web/report_file.js": _read(".js")}.items():
        folder = posixpath.dirname(path)
        parts = _IMPORT.split(code)  # every second part is a path
        parts[1::2] = [posixpath.normpath(f"{folder}/{part}") for part in parts[1::2]]
        yield path, f"data:text/javascript;base64,{_encode(''.join(parts).encode())}"


def _encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _read(suffix: str) -> str:
    return Path(__file__).with_suffix(suffix).read_text(encoding="utf-8")


def _pack(content: bytes) -> str:
    return _encode(zlib.compress(content, 9))
