"""The page: its head and theme, and its HTML with slots, in one component of Gradio's."""

import os

import gradio as gr
from gradio.themes.utils.fonts import LocalFont
from markupsafe import Markup

from tilescope.declare.discovery import setting
from visualize.tours import tours
from visualize.views import theme
from visualize.views.panel import Api, Endpoint
from visualize.views.prose import glossary_dialog
from visualize.views.slots import template
from visualize.views.tabs import LIBRARY, TITLES, VIEWS
from visualize.web import assets
from visualize.web.actions import Actions, encode
from visualize.web.api import register_endpoints
from visualize.web.redraw import Redraw

# Gradio ships both typefaces whole in these two weights only; with 600 declared it serves a file of a few letters.
_WEIGHTS = (400, 700)

# One typeface with full weights. The style sheets beside the views have the rest.
THEME = gr.themes.Default(
    primary_hue="indigo",
    neutral_hue="slate",
    radius_size="sm",
    font=[LocalFont("IBM Plex Sans", weights=_WEIGHTS), "system-ui", "sans-serif"],
    font_mono=[LocalFont("IBM Plex Mono", weights=_WEIGHTS), "ui-monospace", "monospace"],
)

TITLE = "Tilescope: see what a Triton kernel really does"
HEAD = (
    '<link rel="icon" href="favicon.ico"><meta name="description" content="Pick a Triton kernel, set its tiles, and '
    "see which blocks it loads, which bytes each warp fetches, and what reaches DRAM: predicted, beside what the "
    'hardware counted.">'
)

# Visible until the page has its first values.
OPENING = (
    '<p id="opening" role="status">Opening Tilescope. The first compile can take some seconds.</p>'
)

_PAGE = template(
    """
{# Visible while the page waits for a reply. #}
{% call slot("awaited") %}
<div role="progressbar" aria-label="Waiting for a reply" hidden></div>
{% endcall %}
{{ slot("settings", "settings") }}
<div id="header" class="bar">
{% call slot("title") %}
<a class="skip" href="#results">Skip to the picture</a>
{% set where = "Live on this machine's " ~ gpu.name ~ "." if gpu else
"No GPU here: predictions, recordings and Triton's interpreter." %}
<h1 title="What your Triton kernel really does. {{ where }}">Tilescope</h1>
{% endcall %}
{{ views(views_of_page) }}
{{ button("run", "Run", " primary") }}{{ button("cancel", "Cancel", is_enabled=false) }}
<div id="outcome" class="row">{{ slot("card", "result") }}{{ slot("status") }}</div>
{% call slot("tours") %}
<details class="tours"><summary>Tours</summary><ul>
{% for tour in tours.values() %}
<li><a href="?tour={{ tour.name }}&stop=1"><b>{{ tour.title }}</b><span class="quiet">{{ tour.about }}</span></a></li>
{% endfor %}
</ul></details>
{% endcall %}
<details class="more"><summary aria-label="More" title="More">⋯</summary>
<div><nav aria-label="Where to begin">
{% for question, query in starting_points.items() %}<a href="?{{ query }}">{{ question }}</a>{% endfor %}
</nav>
<button type="button" data-tabs="{{ library }}">Library</button>
{% call slot("link", "link") %}<button type="button" class="theme-switch">Light / dark</button>{% endcall %}
<button type="button" popovertarget="share-dialog">Share: link and QR code</button>
<button type="button" popovertarget="glossary">Glossary</button>
<button type="button" popovertarget="keys-dialog">Keys and talk mode</button></div></details>
{% call slot("drawer") %}<button type="button" popovertarget="controls">Controls</button>{% endcall %}
</div>
<div id="body" class="row">
{# On a narrow screen, the controls are a drawer at the bottom, so that the picture stays visible. #}
<div id="controls" class="column" popover>
{{ form("experiment", "Kernel, problem and config") }}{{ form("script", "Launch and case") }}
</div>
<div id="results" class="column">
{{ slot("compare") }}
{# Errors of settings whose control is not visible. #}
{% call slot("elsewhere") %}<p class="problem" role="alert"></p>{% endcall %}
{{ slot("launches") }}
{% for name, panels in panels.items() %}
{% call picture(name, titles, others[name]) %}
{% for panel in panels %}{{ panel.render_layout() }}{% endfor %}
{% endcall %}
{% endfor %}
</div>
</div>
{{ slot("problems", "problems") }}{{ slot("saved-file", "saved_file") }}
{# If the URL names a stop of a tour, this slot starts the action "tour". #}
{% call slot("tour", "tour") %}<div class="tour-bar"></div>{% endcall %}
{# Opening the dialog starts the action "share". #}
{% call slot("share", "share") %}
<dialog popover id="share-dialog" aria-labelledby="share-title"><h2 id="share-title">Share this page</h2>
<div class="qr" role="img" aria-label="QR code of the link"></div>
<p><input type="text" readonly aria-label="Link"><button type="button" class="copy">Copy link</button></p>
<p><input type="text" readonly aria-label="Embed code for a slide or a web page">
<button type="button" class="copy">Copy embed code</button></p>
<p><button type="button" popovertarget="share-dialog">Close</button></p></dialog>
{% endcall %}
{% call slot("keys", "keys") %}
<button type="button" class="open-keys quiet" popovertarget="keys-dialog" aria-label="Keys" title="Keys (?)">?</button>
<h1 class="on-stage quiet"></h1><a class="open-whole" target="_blank" rel="noopener">Open in Tilescope</a>
<dialog popover id="keys-dialog" aria-labelledby="keys-title"><h2 id="keys-title">Keys</h2>
<dl>
<div><dt><kbd>←</kbd> <kbd>→</kbd></dt><dd>step back or forward; in a tour, go to the previous or next stop</dd></div>
<div><dt><kbd>Space</kbd></dt><dd>play and pause</dd></div>
<div><dt><kbd>Ctrl+Enter</kbd></dt><dd>Run</dd></div>
<div><dt><kbd>T</kbd></dt><dd>talk mode: the headline and the picture fill the window</dd></div>
<div><dt><kbd>F</kbd></dt><dd>full screen</dd></div>
<div><dt><kbd>Q</kbd></dt><dd>link and QR code of the current page</dd></div>
<div><dt><kbd>1</kbd> <kbd>2</kbd> <kbd>3</kbd> <kbd>4</kbd> <kbd>5</kbd> <kbd>6</kbd></dt>
<dd>the views and the Library</dd></div>
<div><dt><kbd>A</kbd> <kbd>B</kbd> <kbd>C</kbd> <kbd>D</kbd></dt><dd>answer a question</dd></div>
<div><dt><kbd>Esc</kbd></dt><dd>leave the tour, then talk mode</dd></div>
<div><dt><kbd>?</kbd></dt><dd>this list</dd></div>
</dl>
<p><button type="button" class="to-talk" popovertarget="keys-dialog">Talk mode</button>
<button type="button" popovertarget="keys-dialog">Close</button></p></dialog>
{% endcall %}
{{ glossary }}
"""
)


def page(redraw: Redraw, actions: Actions, with_tools: bool = False) -> gr.Blocks:
    """Return the whole page and its API.

    Args:
        with_tools: for an MCP server, too.
    """
    scripts = redraw.scripts
    space = os.environ.get("SPACE_ID")
    # In a Space, the page is a frame
    base = f"https://huggingface.co/spaces/{space}" if space else ""
    given = {
        "base": base,
        "tours": list(tours()),
        "needs_gpu": actions.missing_gpu(),
        **theme.FOR_SCRIPTS,
    }
    with gr.Blocks(title=TITLE, fill_width=True, analytics_enabled=False) as blocks:
        gr.HTML(
            value="" if scripts.opened else encode(redraw.initial_slots()),
            html_template=layout(redraw),
            js_on_load=assets.start_page(given),
            head=f'<script src="{assets.PLOTLY}"></script>',
            apply_default_css=False,
            elem_id="stage",
        )
        api = Api(redraw.session, redraw.predictions)
        requests = Endpoint(
            "requests",
            scripts.requests,
            launches=bool(scripts.opened),
            others={"script": {"type": "string"}},
        )
        register_endpoints(blocks, api, redraw.all_panels, with_tools, [requests])
    return blocks


def layout(redraw: Redraw) -> Markup:
    """Return the page's HTML: a header, the controls, and one section for each picture of a view."""
    return _PAGE(
        gpu=redraw.session.gpu,
        panels=redraw.panels,
        views_of_page=VIEWS,
        library=LIBRARY,
        titles=TITLES,
        others={name: names for names in VIEWS.values() for name in names},
        tours=tours(),
        starting_points=setting("STARTING_POINTS", {}),
        glossary=glossary_dialog(),
    )
