"""The page's scripts, which are ES modules, and its styles, each beside its view or here.

The server sends the modules unchanged, and one style sheet: Gradio would rewrite it, and so change which rules win. All
URLs contain a hash, so that a browser keeps the files for a year and never mixes two versions. They are relative, so
that they work behind a proxy's path.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from visualize.web.sources import SCRIPTS, STYLES

ICON = Path(__file__).with_name("icon.svg")

# Content of the files, by path.
FILES = {**SCRIPTS, "style.css": STYLES}
PREFIX = "/assets-"  # Gradio's own files are in /assets/
_FOLDER = PREFIX[1:] + hashlib.sha256("".join(FILES.values()).encode()).hexdigest()[:16]
_PAGE = f"{_FOLDER}/web/assets/page.js"

# The route of the page's messages. A page of an older version, whose scripts may send others, gets status 404.
MESSAGES = f"/{_FOLDER}/messages"
_HEADERS = {"cache-control": "public, max-age=31536000, immutable"}


async def _reply(request: Request) -> Response:
    path = request.path_params["path"]
    if path not in FILES:
        return Response("No such file.\n", 404)
    kind = "text/css" if path.endswith(".css") else "text/javascript"
    return Response(FILES[path], media_type=kind, headers=_HEADERS)


ROUTE = Route(f"/{_FOLDER}/{{path:path}}", _reply)

# Modules are fetched with Gradio's own scripts, and not one after the other as they import each other.
HEAD = f'<link rel="stylesheet" href="{_FOLDER}/style.css">' + "".join(
    f'<link rel="modulepreload" href="{_FOLDER}/{path}">' for path in SCRIPTS
)


def start_page(constants: dict[str, Any]) -> str:
    """Return the script of the component that shows the page. Its value is the first update."""
    # Gradio runs the script as a function, where a relative URL would be relative to Gradio's own script.
    return (
        f'import(new URL("{_PAGE}", document.baseURI))'
        f".then(({{ start }}) => start(element, props.value, {json.dumps(constants)}));"
    )
