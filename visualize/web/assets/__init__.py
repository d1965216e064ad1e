"""The page's scripts, which are ES modules, and its styles, each beside its view or here.

The server sends the modules unchanged, and one style sheet: Gradio would rewrite it, and so change which rules win. All
URLs contain a hash, so that a browser keeps the files for a year and never mixes two versions. They are relative, so
that they work behind a proxy's path.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from visualize.views.theme import variables

VISUALIZE = Path(__file__).parents[2]


def _find(suffix: str) -> list[Path]:
    """Return the page's own files, then those of each view."""
    return [
        path
        for folder in ("web/assets", "views/*")
        for path in sorted(VISUALIZE.glob(f"{folder}/*{suffix}"))
    ]


PLOTLY_JS = VISUALIZE / "web" / "plotly_js" / "plotly.min.js"

# Content of the scripts, by path.
SCRIPTS = {path.relative_to(VISUALIZE).as_posix(): path.read_text("utf-8") for path in _find(".js")}
_OUTSIDE, _INSIDE = (
    "".join(
        path.read_text("utf-8") for path in _find(".css") if (path.stem == "outside") == is_outside
    )
    for is_outside in (True, False)
)
# Inside Gradio's container, as specific as Gradio's own rules.
STYLES = f"{variables()}{_OUTSIDE}.gradio-container {{\n{_INSIDE}}}\n"

ICON = Path(__file__).with_name("icon.svg")

# Content of the files, by path.
FILES = {**SCRIPTS, "style.css": STYLES, "plotly.js": PLOTLY_JS.read_text("utf-8")}
PREFIX = "/assets-"  # Gradio's own files are in /assets/
FOLDER = PREFIX[1:] + hashlib.sha256("".join(FILES.values()).encode()).hexdigest()[:16]
_PAGE = f"{FOLDER}/web/assets/page.js"
PLOTLY = f"{FOLDER}/plotly.js"

# The route of the page's messages. A page of an older version, whose scripts may send others, gets status 404.
# Gradio 6.31 compresses only replies of paths with such a suffix, and streams, too.
MESSAGES = f"/{FOLDER}/messages.json"

# Fetched with Gradio's own scripts: by default, the browser would fetch modules one after the other as they import each
# other, and Plotly when it shows the first plot.
HEAD = (
    f'<link rel="stylesheet" href="{FOLDER}/style.css"><link rel="preload" as="script" href="{PLOTLY}">'
    + "".join(f'<link rel="modulepreload" href="{FOLDER}/{path}">' for path in SCRIPTS)
)


def start_page(constants: dict[str, Any]) -> str:
    """Return the script of the component that shows the page. Its value is the first update."""
    # Gradio runs the script as a function, where a relative URL would be relative to Gradio's own script.
    return (
        f'import(new URL("{_PAGE}", document.baseURI))'
        f".then(({{ start }}) => start(element, props.value, {json.dumps(constants)}));"
    )
