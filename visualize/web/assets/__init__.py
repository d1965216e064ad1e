"""The page's scripts, which are ES modules, and its styles, each beside its view or here.

The server sends the modules unchanged, and one style sheet: Gradio would rewrite it, and so change which rules win. All
URLs contain a hash, so that a browser keeps the files for a year and never mixes two versions. They are relative, so
that they work behind a proxy's path.
"""

import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import brotli
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from visualize.web.sources import PLOTLY_JS, SCRIPTS, STYLES

ICON = Path(__file__).with_name("icon.svg")

# Content of the files, by path.
FILES = {**SCRIPTS, "style.css": STYLES, "plotly.js": PLOTLY_JS.read_text("utf-8")}
PREFIX = "/assets-"  # Gradio's own files are in /assets/
_FOLDER = PREFIX[1:] + hashlib.sha256("".join(FILES.values()).encode()).hexdigest()[:16]
_PAGE = f"{_FOLDER}/web/assets/page.js"
PLOTLY = f"{_FOLDER}/plotly.js"

# The route of the page's messages. A page of an older version, whose scripts may send others, gets status 404.
# Gradio 6.31 compresses only replies of paths with such a suffix, and streams, too.
MESSAGES = f"/{_FOLDER}/messages.json"
_HEADERS = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}


async def _reply(request: Request) -> Response:
    path = request.path_params["path"]
    if path not in FILES:
        return Response("No such file.\n", 404)
    kind = "text/css" if path.endswith(".css") else "text/javascript"
    if "br" not in request.headers.get("accept-encoding", ""):
        return Response(FILES[path], media_type=kind, headers=_HEADERS)
    return Response(_compress(path), media_type=kind, headers=_HEADERS | {"content-encoding": "br"})


@functools.cache
def _compress(path: str) -> bytes:
    """Compress a file better than Gradio does, in a tenth of a second at most."""
    return brotli.compress(FILES[path].encode(), quality=9)


ROUTE = Route(f"/{_FOLDER}/{{path:path}}", _reply)

# Fetched with Gradio's own scripts: by default, the browser would fetch modules one after the other as they import each
# other, and Plotly when it shows the first plot.
HEAD = (
    f'<link rel="stylesheet" href="{_FOLDER}/style.css"><link rel="preload" as="script" href="{PLOTLY}">'
    + "".join(f'<link rel="modulepreload" href="{_FOLDER}/{path}">' for path in SCRIPTS)
)


def start_page(constants: dict[str, Any]) -> str:
    """Return the script of the component that shows the page. Its value is the first update."""
    # Gradio runs the script as a function, where a relative URL would be relative to Gradio's own script.
    return (
        f'import(new URL("{_PAGE}", document.baseURI))'
        f".then(({{ start }}) => start(element, props.value, {json.dumps(constants)}));"
    )
