"""The page's scripts and styles, each beside the view that it is of, or here."""

import json
from pathlib import Path
from typing import Any

_VISUALIZE = Path(__file__).parents[2]

ICON = Path(__file__).with_name("icon.svg")

# The page's own scripts, and those of each kind of slot, one after the other.
PAGE = (
    "web/assets/page.js",
    "web/assets/figures.js",
    "web/assets/gif.js",
    "web/assets/files.js",
    "views/tune/points.js",
)
KINDS = {
    "plot": ("web/assets/cells.js", "web/assets/plot.js"),
    "player": tuple(
        f"views/order/{name}.js" for name in ("playback", "launch", "marks", "touch", "player")
    ),
    "replay": ("views/order/playback.js", "views/order/replay.js"),
    "scrubber": ("views/memory/script.js",),
    "listing": ("views/memory/listing.js",),
    "result": ("views/result/script.js",),
    "take": ("views/result/export.js",),
    "tabs": ("web/assets/header.js",),
    "link": ("web/assets/address.js",),
    **{name: (f"web/assets/{name}.js",) for name in ("form", "keys", "share", "tour")},
}


def text(name: str) -> str:
    """Return the content of a file, by its path in this package's parent."""
    return (_VISUALIZE / name).read_text(encoding="utf-8")


def page_script(given: dict[str, Any]) -> str:
    """Return the page's script, with `given` in front as constants and a function for each kind of slot."""
    kinds = "\n".join(
        f"{json.dumps(kind)}: (element, props, watch, send) => {{\n{''.join(map(text, names))}\n}},"
        for kind, names in KINDS.items()
    )
    return f"const given = {json.dumps(given)};\nconst kinds = {{\n{kinds}\n}};\n{''.join(map(text, PAGE))}"


def styles() -> str:
    """Return all style sheets: the page's own, then each view's."""
    sheets = [
        *sorted(Path(__file__).parent.glob("*.css")),
        *sorted(_VISUALIZE.glob("views/*/*.css")),
    ]
    return "".join(path.read_text(encoding="utf-8") for path in sheets)
