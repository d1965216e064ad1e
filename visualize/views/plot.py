"""Live plots: Plotly figures that are redrawn in place, so that zoom survives and sliders stay smooth.

Gradio's plot remounts at every update and ignores dark mode. A live plot keeps its node and takes its colours from
`views.theme`. It uses plotly.js's bundle of cartesian traces (`plotly_js`, from npm, in plotly.py's version), which has
a third of the size and parse time of the full library.
"""

import base64
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

# The value that hides a plot. "" means that its first figure is still to come.
NONE = "none"

PLOTLY_JS = Path(__file__).parents[1] / "web" / "plotly_js" / "plotly-cartesian.min.js"


def plot_value(
    figure: go.Figure | Mapping[str, Any], revision: str = "", meta: Mapping[str, Any] | None = None, *, about: str
) -> str:
    """The value that makes a live plot draw `figure`.

    Arrays of numbers travel as 32-bit words before the figure's JSON; masked elements become NaN. Deflated, maps shrink
    to some ‰.

    Args:
        figure: or its data and layout: what is redrawn at each move of a slider does without Plotly's checks, which
            take tens of milliseconds.
        about: what a saved picture says below the figure: `prose.picture_caption`.
        revision: zoom is kept for as long as this stays the same (say, the axes' extents).
        meta: what another component wants to know of the figure; becomes the layout's `meta`.
    """
    if isinstance(figure, go.Figure):
        # The JSON of the whole figure has its arrays in base64.
        traces = [trace.to_plotly_json() for trace in figure.data]
        figure = {"data": traces, "layout": figure.layout.to_plotly_json()}
    layout = {**figure["layout"], "uirevision": revision or "same", **({"meta": meta} if meta else {})}
    content = {"data": figure["data"], "layout": layout, "about": about}
    words = bytearray()

    def refer(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iuf":
            return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)
        kind = value.dtype.kind
        # Neighbours in a map differ by the same integers again and again, which deflate to some ‰ of their bytes.
        lag = 0 if kind == "f" else value.shape[2] if value.ndim == 3 else 1
        if np.ma.is_masked(value):
            value, kind = np.ma.filled(value.astype(np.float32), np.nan), "f"
        numbers = value.astype(f"<{kind}4", order="C")
        if kind != "f" and not np.array_equal(numbers, value):
            raise ValueError(f"A figure's integers must fit in 32 bits, not {value.min()} to {value.max()}.")
        reference = {"first": len(words) // 4, "kind": kind, "lag": lag, "shape": value.shape}
        numbers = numbers.view("<u4").reshape(-1)
        if lag:
            numbers[lag:] -= numbers[:-lag].copy()
        words.extend(numbers.tobytes())
        return reference

    text = json.dumps(content, separators=(",", ":"), default=refer).encode()
    stream = len(words).to_bytes(4, "little") + words + text
    # Quickly first: repeats in a map still repeat after that, in a hundredth of the bytes.
    return base64.b64encode(zlib.compress(zlib.compress(stream, 3), 9)).decode()
