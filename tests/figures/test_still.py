"""A figure's maps as SVG: each cell where Plotly draws it, in the colour that Plotly gives it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np

from visualize.web.first_reply import still

PICTURE = {
    "data": [
        {"type": "heatmap", "x": [0, 1, 3, 4], "y": [0, 1, 2], "z": np.ma.masked_equal([[0, 1, 9], [9, 2, 4]], 9)},
        {"type": "heatmap", "x": [0, 2, 4], "y": [0, 2], "z": np.array([[4, 0]]), "xaxis": "x2", "yaxis": "y2"},
    ],
    "layout": {
        "coloraxis": {"cmin": 0, "cmax": 4, "colorscale": [[0, "#000000"], [1, "#c86432"]]},
        "xaxis": {"range": [0, 4], "domain": [0, 0.4]},
        "xaxis2": {"range": [0, 4], "domain": [0.5, 1]},
        "yaxis": {"range": [2, 0]},
        "yaxis2": {"range": [2, 0]},
        "annotations": [
            {"text": "a <b>bold</b> name", "xref": "x2 domain", "x": 0.5, "yref": "y2 domain", "y": 1},
            {"text": "C", "xref": "x domain", "x": 1, "yref": "y domain", "y": 0},
            {"text": "A", "xref": "x", "x": 0, "yref": "y", "y": 0},
        ],
    },
}


def parts():
    return ElementTree.fromstring(f"<figure>{still(PICTURE)}</figure>")


def cells():
    """(left, top, right, bottom) → colour."""
    found = {}
    for path in parts().iter("path"):
        for corners in re.findall(r"M(\d+) (\d+)H(\d+)V(\d+)H\d+z", path.attrib["d"]):
            found[tuple(map(int, corners))] = path.attrib["fill"]
    return found


def test_each_cell_that_is_not_masked_lies_between_its_edges_and_has_the_colour_of_its_value():
    assert cells() == {
        (0, 0, 100, 500): "rgb(0, 0, 0)",
        (100, 0, 300, 500): "rgb(50, 25, 12)",
        (100, 500, 300, 1000): "rgb(100, 50, 25)",
        (300, 500, 400, 1000): "rgb(200, 100, 50)",
        (500, 0, 750, 1000): "rgb(200, 100, 50)",
        (750, 0, 1000, 1000): "rgb(0, 0, 0)",
    }


def test_a_title_stands_over_its_map_and_is_text():
    (title,) = parts().iter("b")
    assert (title.text, title.attrib["style"]) == ("a <b>bold</b> name", "left: 50.0%; width: 50.0%")
