"""What all controls of the page are set to, as one value: what its events send.

One input instead of a form each: after an event Gradio 6.31 tells each of its inputs of its progress, which takes a
browser milliseconds each time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kernels.knobs import ConfigError, quote

# Characters of a value. The longest that the page sends has some 2,000.
_LONGEST = 64_000


def held(flat: Mapping[str, Any]) -> str:
    """The value that sets all controls: flat fields."""
    return json.dumps(dict(flat), ensure_ascii=False)


def read(value: object) -> dict[str, Any]:
    """Flat fields that a browser has sent; "preset" is the number of a preset that was clicked.

    Args:
        value: anything.

    Raises:
        ConfigError: where they are not the page's.
    """
    try:
        flat = json.loads(value) if isinstance(value, str) and len(value) <= _LONGEST else None
    except (ValueError, RecursionError):
        flat = None
    if not isinstance(flat, dict):
        raise ConfigError("not_settings", f"The settings are {quote(value)}; they must be what the page itself sends.")
    return flat
