"""The live plot's value: arrays come out of it as they went in, and maps are small."""

from __future__ import annotations

import base64
import json
import zlib

import numpy as np
import plotly.graph_objects as go
import pytest

from visualize.views.plot import drawn


def unpacked(content, packed):
    """What plot.js does."""
    stream = zlib.decompress(zlib.decompress(base64.b64decode(content["packed"])))
    count = int(np.prod(packed["shape"]))
    raw = np.frombuffer(stream, dtype=f"<{packed['dtype']}", count=count, offset=packed["packed_at"])
    if packed["dtype"] == "f4":
        return raw.reshape(packed["shape"])
    flat = np.cumsum(raw, dtype=np.uint32)
    if len(packed["shape"]) == 3:
        rows, columns, depth = packed["shape"]
        return np.moveaxis(flat.reshape(depth, rows, columns), 0, -1)
    return flat.reshape(packed["shape"])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (4, 3, 2)])
def test_integers_survive_packing(dtype, shape):
    values = np.random.default_rng(1).integers(0, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)
    content = json.loads(
        drawn(go.Figure(go.Heatmap(customdata=values, z=np.zeros(shape[:2], dtype=np.uint8))), about="x")
    )
    assert np.array_equal(unpacked(content, content["data"][0]["customdata"]), values)


def test_floats_that_are_not_numbers_survive_packing():
    values = np.array([[1.5, np.nan], [np.inf, -2]], dtype=np.float32)
    content = json.loads(drawn(go.Figure(go.Heatmap(z=values)), about="x"))
    assert np.array_equal(unpacked(content, content["data"][0]["z"]), values, equal_nan=True)


@pytest.mark.parametrize("values", [np.array([[-1]], dtype=np.int16), np.array([[1 << 32]], dtype=np.float64)])
def test_what_would_not_survive_is_refused_or_kept_as_a_float(values):
    figure = go.Figure(go.Heatmap(z=values))
    if values.dtype.kind == "i":
        with pytest.raises(ValueError, match="negative"):
            drawn(figure, about="x")
    else:
        content = json.loads(drawn(figure, about="x"))
        assert unpacked(content, content["data"][0]["z"])[0, 0] == values[0, 0]


def test_what_another_component_wants_to_know_is_packed_too():
    figure = go.Figure(go.Heatmap(z=np.zeros((2, 2), dtype=np.uint8)))
    content = json.loads(
        drawn(figure, meta={"places": np.array([7, 3, 5], dtype=np.uint32), "name": "wave"}, about="x")
    )
    assert content["layout"]["meta"]["name"] == "wave"
    assert unpacked(content, content["layout"]["meta"]["places"]).tolist() == [7, 3, 5]


@pytest.mark.parametrize("texts", [["a", "", "b × c"], [""], ["<b>ü</b>"]])
def test_a_row_of_strings_survives_packing_and_so_does_what_follows(texts):
    content = json.loads(
        drawn(
            go.Figure(go.Heatmap(z=np.zeros((2, 2), dtype=np.uint8))),
            meta={"words": np.array(texts), "places": np.array([7, 3], dtype=np.uint32)},
            about="x",
        )
    )
    packed = content["layout"]["meta"]["words"]
    stream = zlib.decompress(zlib.decompress(base64.b64decode(content["packed"])))
    begin, (length,) = packed["packed_at"], packed["shape"]
    assert packed["dtype"] == "text"
    assert stream[begin : begin + length].decode().split("\n") == texts
    assert content["layout"]["meta"]["places"]["packed_at"] % 4 == 0
    assert unpacked(content, content["layout"]["meta"]["places"]).tolist() == [7, 3]


def test_zoom_is_kept_while_the_key_stays_the_same():
    figure = go.Figure(go.Heatmap(z=np.zeros((2, 2), dtype=np.uint8)))
    same, other = (json.loads(drawn(figure, anew, about="x"))["layout"]["uirevision"] for anew in ("a", "b"))
    assert same != other
    assert json.loads(drawn(figure, "a", about="x"))["layout"]["uirevision"] == same
