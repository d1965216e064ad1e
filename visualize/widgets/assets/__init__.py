"""Scripts and styles that the panels hand to the browser."""

import json
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parent


def text(name: str) -> str:
    """The content of one asset."""
    return (DIRECTORY / name).read_text(encoding="utf-8")


# The scripts of each kind of slot, one after the other.
KINDS = {
    "plot": ("twin.js", "cells.js", "plot.js"),
    "player": ("launch.js", "player.js"),
    "link": ("link.js", "save.js", "tables.js"),
    **{
        name: (f"{name}.js",)
        for name in (
            *("awaited", "drawer", "form", "keys", "kept", "listing", "problems", "replay", "result", "saved_file"),
            *("scrubber", "settings", "share", "sortable", "tabs", "take", "tour"),
        )
    },
}


def page_script(given: dict[str, Any]) -> str:
    """Return the page's script, with `given` in front as constants and a function for each kind of slot."""
    kinds = "\n".join(
        f"{json.dumps(kind)}: (element, props, watch, send) => {{\n{''.join(map(text, names))}\n}},"
        for kind, names in KINDS.items()
    )
    return f"const given = {json.dumps(given)};\nconst kinds = {{\n{kinds}\n}};\n{text('page.js')}{text('points.js')}"


def styles() -> str:
    """All style sheets, one after the other by name."""
    return "".join(path.read_text(encoding="utf-8") for path in sorted(DIRECTORY.glob("*.css")))


def head() -> str:
    """What of the styles the page's head must hold, as HTML."""
    return f"<style>{text('head/narrow.css')}</style>"
