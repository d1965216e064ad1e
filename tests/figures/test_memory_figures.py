"""Pictures of memory hold what the models say: each byte's state, each lane's number where there is room, each cost."""

from __future__ import annotations

import numpy as np
import pytest

from visualize.figures.memory_figure import frames, labels_of, memory_figure, title_of
from visualize.figures.sectors_figure import sectors_figure
from visualize.predict.request_lines import request_lines
from visualize.predict.traffic import Cost, Matrix, Requests

ROWS = Matrix(1 << 32, 64, 4)


def laid(addresses, width=4, numbers=None):
    address = np.atleast_2d(np.array(addresses, dtype=np.int64))
    everyone = np.ones(address.shape, dtype=bool)
    lanes = Requests(address // width // 64, address // width % 64, address, everyone, width, ROWS)
    return request_lines(lanes, np.arange(len(address)) if numbers is None else numbers)


def written(drawn, request=0):
    """Every number that stands somewhere, with its arrow, by row and cell."""
    text = memory_figure(drawn, request, "").data[0].text
    return {place: text[place] for place in zip(*np.nonzero(text != ""), strict=True)}


def test_a_request_stands_on_the_lines_that_it_touches():
    drawn = laid([[0, 4, 8], [4096, 4100, 8192]])
    picture, layout = memory_figure(drawn, 1, "Compiled: request {} of 2", tensor="B").data[0], None
    assert np.array_equal(picture.z, drawn.state[1])
    assert picture.z.shape == (8, 32)
    layout = memory_figure(drawn, 1, "Compiled: request {} of 2", tensor="B").layout
    assert layout.yaxis.ticktext[:2] == ("4,096", "8,192")
    assert layout.yaxis.range[0] > layout.yaxis.range[1], "lines run down"
    assert "B" in layout.yaxis.title.text
    assert layout.title.text == "<b>Compiled: request 2 of 2</b><br>2 sectors: 12 of 64 bytes wanted"
    assert [line.x0 for line in layout.shapes] == [0, 32, 64, 96, 128]


def test_what_no_lane_asks_for_is_not_issued():
    drawn = laid([[0]])
    inactive = Requests(*np.zeros((3, 1, 1), dtype=np.int64), np.zeros((1, 1), dtype=bool), 4, ROWS)
    nobody = request_lines(inactive, np.array([0]))
    assert "not issued" in title_of(nobody, 0, "request {}")
    assert "1 sector: 4 of 32 bytes" in title_of(drawn, 0, "request {}")
    assert "4 sectors: all 128 bytes wanted" in title_of(laid([range(0, 128, 4)]), 0, "request {}")


def test_wide_lanes_all_have_their_numbers_and_narrow_ones_every_fourth():
    assert written(laid([range(0, 512, 16)], width=16)) == {(i // 8, i % 8): str(i) for i in range(32)}
    assert written(laid([range(0, 128, 4)])) == {(0, i): str(i) for i in range(0, 32, 4)}


def test_a_lane_that_is_alone_in_its_sector_has_its_number_beside_it():
    texts = written(laid([[0, 4096 + 28, 8192]]))
    assert list(texts.values()) == ["◂ 0", "1 ▸", "◂ 2"]
    assert all(0 < cell < 8 for _, cell in texts), "inside the sector"


def test_a_lane_with_little_room_beside_it_has_its_number_there_without_an_arrow():
    assert written(laid([range(0, 128, 16)])) == {(0, 4 * i + 2): str(i) for i in range(8)}


def test_a_run_of_lanes_keeps_its_numbers_on_its_own_bytes():
    run = [32 * sector + byte for sector in range(4) for byte in range(0, 16, 4)]
    assert written(laid([run])) == {(0, 8 * sector): str(4 * sector) for sector in range(4)}


def test_many_lines_have_fewer_numbers_and_very_many_none():
    rows = {row for row, _ in written(laid([range(0, 32 * 4096, 4096)]))}
    assert rows == set(range(0, 32, 2))
    assert written(laid([range(0, 64 * 128, 16)], width=16)) == {}


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_the_browser_is_told_of_every_request_what_the_figure_shows(width):
    drawn = laid(np.arange(0, 4096, width).reshape(8, -1), width=width)
    told = frames(drawn, 3, "request {}", 0, 8, width, 64)["requests"]
    assert (told["place"], told["first"], told["total"], len(told["titles"])) == (3, 0, 8, 8)
    for request in range(8):
        figure = memory_figure(drawn, request, "request {}")
        shape = figure.data[0].z.shape
        assert np.array_equal(told["state"][request].reshape(shape), figure.data[0].z)
        assert told["titles"][request] == figure.layout.title.text
        numbers = told["label"][request].reshape(shape)
        assert np.array_equal(numbers, labels_of(drawn)[request])
        assert np.array_equal(told["lane"][request].reshape(shape).astype(int) - 1, drawn.lane[request])
        assert np.array_equal(told["line"][request].astype(int) - 1, drawn.line[request])


def test_bars_have_one_scale_and_what_is_not_known_says_why():
    costs = {"textbook": Cost(10, 40, 40, 40), "compiled": Cost(10, 160, 160, 40)}
    figure = sectors_figure(["B"], costs, {"compiled": "predicted"}, {"counted": "not counted yet"})
    wanted, wasted = figure.data
    assert list(wanted.x) == [1280, 1280, 0]
    assert list(wasted.x) == [0, 3840, 0]
    assert figure.layout.xaxis.range == (0, 5120)
    assert "10 × 16 sectors, 25 % wanted" in figure.layout.annotations[1].text
    assert "not counted yet" in figure.layout.annotations[2].text


def test_counted_numbers_carry_their_mark_and_whether_they_agree():
    counted = Cost(0, 4, 4, 4, has_requests=False, agreement="different")
    figure = sectors_figure(["A", "B"], {"counted": counted}, {"counted": "recorded, H200"}, {})
    said = figure.layout.annotations[2].text
    assert said == "<b>counted</b> ≠ (recorded, H200)<br>4 sectors, 100 % wanted"
    assert "A and B" in figure.layout.title.text
