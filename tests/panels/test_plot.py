"""The live plot's value: arrays come out of it as they went in, and maps are small."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import plotly
import plotly.graph_objects as go
import pytest

from tests.figure_values import decode
from visualize.views.slots import PLOTLY_JS, plot_value


def sent(**trace):
    """Return a heatmap's arrays as the browser decodes them."""
    return decode(plot_value(go.Figure(go.Heatmap(**trace)), about="x"))["data"][0]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (4, 3, 2), (0, 3)])
def test_integers_arrive_unchanged(dtype, shape):
    bounds = np.iinfo(dtype)
    values = np.random.default_rng(1).integers(bounds.min, bounds.max, shape, dtype=dtype, endpoint=True)
    assert np.array_equal(sent(customdata=values)["customdata"], values)


def test_floats_arrive_unchanged_and_masked_elements_as_nan():
    values = np.array([[1.5, np.nan], [np.inf, -2]], dtype=np.float32)
    assert np.array_equal(sent(z=values)["z"], values, equal_nan=True)
    masked = np.ma.masked_equal(np.array([[7, 0], [3, 5]], dtype=np.uint16), 0)
    picture = {"data": [{"type": "heatmap", "z": masked}], "layout": {}}
    assert np.array_equal(decode(plot_value(picture, about="x"))["data"][0]["z"], [[7, np.nan], [3, 5]], equal_nan=True)


def test_integers_of_more_than_32_bits_are_refused():
    with pytest.raises(ValueError, match="must fit in 32 bits, not 5 to 4294967296"):
        sent(z=np.array([[1 << 32, 5]]))


def test_a_map_of_a_million_cells_takes_less_than_20_kb():
    rows = np.arange(1 << 20, dtype=np.uint32).reshape(1024, 1024)
    picture = {"data": [{"type": "heatmap", "z": rows}, {"type": "heatmap", "z": rows.T}], "layout": {}}
    assert len(plot_value(picture, about="x")) < 20_000


def test_a_figures_meta_arrives_and_zoom_stays_while_the_revision_does():
    figure = go.Figure(go.Heatmap(z=np.zeros((2, 2), dtype=np.uint8)))
    meta = {"places": np.array([7, 3, 5], dtype=np.uint32), "words": np.array(["<b>ü</b>", ""]), "name": "wave"}
    same, again, other = (decode(plot_value(figure, key, meta, about="x"))["layout"] for key in ("a", "a", "b"))
    assert same["meta"]["places"].tolist() == [7, 3, 5]
    assert (same["meta"]["words"], same["meta"]["name"]) == (["<b>ü</b>", ""], "wave")
    assert same["uirevision"] == again["uirevision"] != other["uirevision"]


def released(bundle: Path) -> str:
    """The version that a bundle of plotly.js says it is."""
    with bundle.open(encoding="utf-8") as text:
        head = text.read(200)
    return re.search(r"plotly\.js .*?v([\d.]+)", head)[1]


def test_the_bundle_is_of_the_version_that_plotly_py_writes_for():
    assert released(PLOTLY_JS) == released(Path(plotly.__file__).parent / "package_data" / "plotly.min.js")
    assert "MIT" in (PLOTLY_JS.parent / "LICENSE").read_text(encoding="utf-8")
