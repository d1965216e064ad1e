"""The QR code of a link."""

from __future__ import annotations

import json
import re

import pytest
import segno

from kernels.knobs import ConfigError
from visualize.web.share import LONGEST_LINK, qr

LINK = "https://example.org/?kernel=matmul.grouped&M=576"


def modules(svg: str) -> set[tuple[int, int]]:
    """The dark modules that an SVG's path strokes: runs of moves and horizontal lines from the upper left corner."""
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
    shown = json.loads(qr({"link": LINK}))
    assert shown["link"] == LINK
    matrix = segno.make(LINK, error="m", micro=False).matrix
    dark = [(row, column) for row, line in enumerate(matrix) for column, module in enumerate(line) if module & 1]
    wanted = {(row + 4, column + 4) for row, column in dark}
    assert modules(shown["svg"]) == wanted


def test_the_longest_link_has_a_code() -> None:
    link = LINK + "x" * (LONGEST_LINK - len(LINK))
    assert "<svg" in json.loads(qr({"link": link}))["svg"]


@pytest.mark.parametrize("link", [None, "", 3, "javascript:alert(1)", LINK + "x" * LONGEST_LINK])
def test_what_is_no_link_or_too_long_has_none(link: object) -> None:
    with pytest.raises(ConfigError):
        qr({"link": link})
