"""The one live plot: a Plotly figure that is redrawn in place, so that zoom survives and a slider stays smooth.

Gradio's own plot remounts at every update and does not follow dark mode. This one keeps its node, and takes its colours
from `views.theme`. It draws with plotly.js's own bundle of cartesian traces (`plotly_js`, as released on npm, of the
version that plotly.py ships): a third of the bytes of the whole, and of the time that a browser takes to read it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

# The value of a plot that has nothing to show: its place is given up. "" stands for one that is still to come.
NONE = "none"

PLOTLY_JS = Path(__file__).parents[1] / "web" / "plotly_js" / "plotly-cartesian.min.js"


def drawn(
    figure: go.Figure | Mapping[str, Any], anew: str = "", meta: Mapping[str, Any] | None = None, *, about: str
) -> str:
    """The value that makes a live plot draw `figure`.

    Args:
        figure: or its data and layout: what is redrawn at each move of a slider does without Plotly's checks, which
            take tens of milliseconds.
        about: what a saved picture says below the figure: `prose.picture_caption`.
        anew: zoom is kept for as long as this stays the same (say, the axes' extents).
        meta: what another component wants to know of the figure; becomes the layout's `meta`, its arrays packed too.
    """
    if isinstance(figure, go.Figure):
        # Not the whole figure's: that has its arrays in base64.
        data, layout = [trace.to_plotly_json() for trace in figure.data], figure.layout.to_plotly_json()
    else:
        data, layout = figure["data"], figure["layout"]
    content: dict[str, Any] = {"data": data, "layout": {**layout, "uirevision": anew or "same"}, "about": about}
    if meta:
        content["layout"]["meta"] = dict(meta)
    stream = bytearray()
    content = _packed(content, stream)
    # Quickly first: what repeats in a map still repeats after that, in a hundredth of the bytes.
    content["packed"] = base64.b64encode(zlib.compress(zlib.compress(stream, 3), 9)).decode()
    return json.dumps(content, separators=(",", ":"), default=_plain)


def with_twin(own: str, twin: str) -> str:
    """The value that makes a live plot draw a second figure beside its own.

    Args:
        own, twin: values of it, as from `drawn`; the own one may be NONE or still to come.
    """
    if twin in ("", NONE):
        return own
    # The twin is text of its own: its arrays are packed for themselves.
    beside = f'"twin":{json.dumps(twin)}}}'
    return "{" + beside if own in ("", NONE) else f"{own[:-1]},{beside}"


def _packed(value: Any, stream: bytearray) -> Any:
    """Replace each array of numbers by its place in one stream of differences: deflated, maps shrink to some ‰.

    A row of strings goes into the stream as it is.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "iuf":
        return _packed_array(value, stream)
    if isinstance(value, np.ndarray) and value.dtype.kind == "U" and value.ndim == 1:
        return _packed_text(value, stream)
    if isinstance(value, dict):
        return {key: _packed(item, stream) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(item, stream) for item in value]
    return value


def _packed_array(array: np.ndarray, stream: bytearray) -> dict[str, Any]:
    """An array as {packed_at, dtype, shape}, appended to the stream: little-endian u4 differences, or f4 as they are.

    Integers of which some are masked are g4: each one more than it is, and 0 for what is masked, as u4. The last axis
    of three runs slowest, so that neighbours in the stream are neighbours in the picture.
    """
    if array.dtype.kind == "f":
        raw, kind = array.astype("<f4"), "f4"
    else:
        kind = "u4"
        if isinstance(array, np.ma.MaskedArray):
            array, kind = np.ma.filled(array.astype(np.int64) + 1, 0), "g4"
        if array.dtype.kind == "i" and array.min(initial=0) < 0:
            raise ValueError("A figure's integers must not be negative.")
        if array.max(initial=0) >= 1 << 32:
            raise ValueError("A figure's integers must fit in 32 bits.")
        ordered = np.moveaxis(array, -1, 0) if array.ndim == 3 else array
        raw = ordered.astype("<u4", order="C").reshape(-1)
        raw[1:] -= raw[:-1]
    place = {"packed_at": len(stream), "dtype": kind, "shape": array.shape}
    stream += raw.tobytes()
    return place


def _packed_text(array: np.ndarray, stream: bytearray) -> dict[str, Any]:
    """Strings without line breaks as {packed_at, dtype, shape}: UTF-8, a line each; `shape` has the bytes."""
    raw = "\n".join(array.tolist()).encode()
    place = {"packed_at": len(stream), "dtype": "text", "shape": [len(raw)]}
    # What follows begins at a multiple of 4 bytes, as a browser reads numbers nowhere else.
    stream += raw + bytes(-len(raw) % 4)
    return place


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
