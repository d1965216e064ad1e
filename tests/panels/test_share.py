"""The QR code of a link."""

from __future__ import annotations

import json
import re

import pytest
import segno

from visualize.web.redraw import MAX_LINK, qr

LINK = "https://example.org/?kernel=matmul.grouped&M=576"


def modules(svg: str) -> set[tuple[int, int]]:
    """Return the dark modules that an SVG's path draws, as (row, column)."""
    (path,) = re.findall(r'class="qrline" stroke="#000" d="([^"]+)"', svg)
    dark, x, y = set(), 0.0, 0.0
    for kind, numbers in re.findall(r"([Mmh])([^Mmh]*)", path):
        values = [float(number) for number in re.findall(r"-?[\d.]+", numbers)]
        if kind == "h":
            dark |= {(int(y), int(x) + n) for n in range(int(values[0]))}
            x += values[0]
        elif kind == "M":
            x, y = values
        else:
            x, y = x + values[0], y + values[1]
    return dark


def test_the_picture_has_the_modules_of_the_links_code() -> None:
    value = json.loads(qr({"link": LINK}))
    assert value["link"] == LINK
    matrix = segno.make(LINK, error="m", micro=False).matrix
    dark = {(y + 4, x + 4) for y, line in enumerate(matrix) for x, module in enumerate(line) if module & 1}
    assert modules(value["svg"]) == dark
    assert "<svg" in json.loads(qr({"link": LINK.ljust(MAX_LINK, "x")}))["svg"]


@pytest.mark.parametrize("link", [None, "", 3, "javascript:alert(1)", LINK + "x" * MAX_LINK])
def test_other_values_have_none(link: object) -> None:
    assert qr({"link": link}) == ""
