"""The bundle that the browser draws with."""

from __future__ import annotations

import re
from pathlib import Path

import plotly

from visualize.views.slots import PLOTLY_JS


def released(bundle: Path) -> str:
    """The version that a bundle of plotly.js says it is."""
    with bundle.open(encoding="utf-8") as text:
        head = text.read(200)
    return re.search(r"plotly\.js .*?v([\d.]+)", head)[1]


def test_the_bundle_is_of_the_version_that_plotly_py_writes_for():
    assert released(PLOTLY_JS) == released(Path(plotly.__file__).parent / "package_data" / "plotly.min.js")
    assert "MIT" in (PLOTLY_JS.parent / "LICENSE").read_text(encoding="utf-8")
