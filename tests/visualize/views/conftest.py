"""Approved texts of the views."""

import re
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import pytest
from plotly.basedatatypes import BasePlotlyType

from tests.messages import text_of

# Properties that only affect how a figure looks.
STYLE = {
    "template", "margin", "font", "hoverlabel", "opacity", "automargin", "tickangle", "constrain", "thickness", "xpad",
    "legendgroup",
}  # fmt: skip


def describe_text(markup):
    """Return the visible text of HTML: a line for each block and sentence, without line numbers of source code."""
    blocks = re.sub("</(tr|p|caption|div|details)>", " ¶ ", re.sub(r"\.py:\d+", ".py", markup))
    return filter(None, re.split(r"[ ¶]*¶[ ¶]*|(?<=\.) (?=[A-Z])", text_of(blocks)))


def describe_figure(value, path=""):
    """Return a line for each property of a figure, with numbers of four digits."""
    if isinstance(value, go.Figure):
        value = {"data": value.data, "layout": value.layout}
    if isinstance(value, BasePlotlyType):
        value = value.to_plotly_json()
    if isinstance(value, dict):
        items = [(name, item) for name, item in value.items() if name not in STYLE]
    elif isinstance(value, list | tuple) and any(
        isinstance(item, dict | BasePlotlyType) for item in value
    ):
        items = enumerate(value)
    else:
        array = np.array2string(
            np.ma.filled(value, 0), precision=4, threshold=200, max_line_width=10_000
        )
        text = re.sub(r"\d+\.\d{5,}", lambda number: f"{float(number[0]):.4g}", array)
        return [f"{path} {' '.join(text.split())}"]
    return [line for name, item in items for line in describe_figure(item, f"{path}.{name}")]


@pytest.fixture
def approve(request):
    """Return a function that compares texts and figures by name with a file. `--approve` writes the file."""

    def compare(file, shown):
        path = Path(__file__).with_name("approved") / f"{file}.txt"
        parts = []
        for name, value in shown.items():
            lines = describe_text(value) if isinstance(value, str) else describe_figure(value)
            parts.append("\n".join([f"# {name}", *lines, ""]))
        if request.config.option.approve:
            path.write_text("\n".join(parts))
        assert "\n".join(parts) == path.read_text("utf-8"), "rerun with --approve and read the diff"

    return compare
