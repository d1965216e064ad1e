"""Scripts and styles that the panels hand to the browser."""

import json
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parent


def text(name: str) -> str:
    """The content of one asset."""
    return (DIRECTORY / name).read_text(encoding="utf-8")


def script(name: str, /, **given: Any) -> str:
    """A script with `given` in front, as constants.

    A component's own props would carry them too, but those of one in a tab that is not open yet get lost.
    """
    return f"const given = {json.dumps(given)};\n{text(name)}"


def styles() -> str:
    """All style sheets, one after the other by name."""
    return "".join(path.read_text(encoding="utf-8") for path in sorted(DIRECTORY.glob("*.css")))


def head() -> str:
    """What of the styles the page's head must hold, as HTML."""
    return f"<style>{text('head/narrow.css')}</style>"
