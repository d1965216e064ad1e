"""The page's scripts, which are ES modules, and its styles, each beside its view or here.

The server sends the modules unchanged. Their URLs contain a hash of them all, so that a browser keeps them for a year
and never mixes two versions. The URLs are relative, so that they work behind a proxy's path.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

_VISUALIZE = Path(__file__).parents[2]

ICON = Path(__file__).with_name("icon.svg")

# Content of the modules, by path.
SCRIPTS = {
    path.relative_to(_VISUALIZE).as_posix(): path.read_bytes()
    for path in sorted([*_VISUALIZE.glob("web/assets/*.js"), *_VISUALIZE.glob("views/*/*.js")])
}
_FOLDER = "scripts/" + hashlib.sha256(b"".join(SCRIPTS.values())).hexdigest()[:16]
_PAGE = f"{_FOLDER}/web/assets/page.js"
_HEADERS = {"cache-control": "public, max-age=31536000, immutable"}


async def _reply(request: Request) -> Response:
    script = SCRIPTS.get(request.path_params["path"])
    if script is None:
        return Response("No such script.\n", 404)
    return Response(script, media_type="text/javascript", headers=_HEADERS)


ROUTE = Route(f"/{_FOLDER}/{{path:path}}", _reply)

# Modules are fetched with Gradio's own scripts, and not one after the other as they import each other.
PRELOADS = "".join(f'<link rel="modulepreload" href="{_FOLDER}/{path}">' for path in SCRIPTS)


def start_page(constants: dict[str, Any]) -> str:
    """Return the script of the component that shows the page."""
    start = f"start(element, props.value, {json.dumps(constants)})"
    return _import("start, receive", f"{start}; {_RECEIVE}")


def send_messages() -> str:
    """Return the script of the component that sends messages: events, whose value is the message as JSON."""
    trigger_event = "props.value = JSON.stringify(message); trigger(event);"
    return _import("connect", f"connect((event, message) => {{ {trigger_event} }})")


def receive_updates() -> str:
    """Return the script of a component that receives updates."""
    return _import("receive", _RECEIVE)


_RECEIVE = 'watch("value", () => receive(props.value))'


def _import(names: str, body: str) -> str:
    # Gradio runs the script as a function, where a relative URL would be relative to Gradio's own script.
    return f'import(new URL("{_PAGE}", document.baseURI)).then(({{ {names} }}) => {{ {body}; }});'


def text(name: str) -> str:
    """Return the content of a file, by its path in this package's parent."""
    return (_VISUALIZE / name).read_text(encoding="utf-8")


def styles() -> str:
    """Return all style sheets: the page's own, then each view's."""
    sheets = [
        *sorted(Path(__file__).parent.glob("*.css")),
        *sorted(_VISUALIZE.glob("views/*/*.css")),
    ]
    return "".join(path.read_text(encoding="utf-8") for path in sheets)
