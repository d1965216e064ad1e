"""The values of live plots, read as the browser reads them."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np


def decode(value: str) -> dict[str, Any]:
    """Return a figure that `plot_value` encoded: data, layout, `about`; as plot.js decodes it."""
    stream = zlib.decompress(zlib.decompress(base64.b64decode(value, validate=True)))
    size = int.from_bytes(stream[:4], "little")

    def array(item: dict[str, Any]) -> Any:
        if "lag" not in item:
            return item
        words = np.frombuffer(stream, "<u4", np.prod(item["shape"], dtype=int), 4 + 4 * item["first"])
        if item["lag"]:
            words = np.cumsum(words.reshape(-1, item["lag"]), axis=0, dtype=np.uint32)
        return words.view(f"{item['kind']}4").reshape(item["shape"])

    return json.loads(stream[4 + size :], object_hook=array)
