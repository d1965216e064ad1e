"""The What-if panel: one change, one varying dimension, or another GPU."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest

from kernels.knobs import ConfigError
from tests.figure_values import decode
from visualize.views.memory import whatif
from visualize.views.tabs import SETTINGS

pytestmark = pytest.mark.xdist_group("compiled")

# Compiled in a fraction of the time that the kernels' own tiles take.
SMALL = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "num_stages": 2}

# As quick, and more than the shared memory of an A10G holds; with tiles of twice the sides, than that of an H200.
DEEP = {"dtype": "float32", "BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 128, "num_stages": 5}


def ask(question, session, kernel, **flat):
    """The last answer: its text, its figure, and the first row of each change by the change's name, without tags."""
    action = whatif.WhatIfPanel().actions()[question]
    *_, slots = action.question(session, SETTINGS.state({"kernel": kernel, **flat}, None), "page")
    lines = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(<td>.*?)</tr>", slots["whatif"])]
    rows = {row[0]: [re.sub(r"<.*?>", "", cell) for cell in row] for row in lines if row[0]}
    return slots["whatif"], slots["cliff-plot"], rows


def test_constant_or_padded_sizes_bring_back_what_unknown_divisibility_costs(session):
    text, figure, rows = ask("faults", session, "transpose.tiled", M=1000, N=1000)
    assert figure == ""
    assert rows["unchanged"][2] == "4 B"
    constant = rows["sizes and strides as constants"]
    assert (constant[2], constant[4], constant[6]) == ("16 B", "0.25 ×", "same")
    assert rows["sizes padded to multiples of 16: M 1000 → 1008, N 1000 → 1008"][2] == "16 B"
    assert "Fewer requests with <b>sizes and strides as constants</b>" in text


def test_unknown_divisibility_costs_requests_and_a_transposed_operand_is_tried(session):
    flat = {**SMALL, "dtype": "float32", "BLOCK_M": 64, "BLOCK_N": 64}
    text, _, rows = ask("faults", session, "matmul.grouped", **flat)
    assert rows["sizes not known to be divisible by 16"][2] == "4 B"
    assert {"A transposed", "B transposed", "num_warps 4 → 2", "num_warps 4 → 8"} <= set(rows)
    assert "×</b>" in text
    for row in rows.values():  # of each change, the load of A
        for column in (3, 5):
            now, before = (int(cells[column].replace(",", "")) for cells in (row, rows["unchanged"]))
            expected = f"{now / before:.3g} ×" if now != before else "same" if row[0] != "unchanged" else ""
            assert row[column + 1] == expected
    assert re.search(r"<b>B transposed</b> \([\d.]+ × fewer\)", text)


def test_boxes_need_no_requests_at_a_divisible_size(session):
    text, _, _ = ask("faults", session, "matmul.persistent", K=1001, **SMALL)
    assert re.search(r"padded to multiples of 16: K 1001 → 1008</b> \(none: boxes are copied\)", text)
    assert "<b>none</b>" in text
    text, _, _ = ask("cliff", session, "matmul.persistent", K=1024, dimension="K", **SMALL)
    assert "at the sizes without requests, boxes are copied" in text


@pytest.mark.all_combinations
def test_a_launch_that_cannot_be_compiled_has_no_comparison(session):
    text, _, rows = ask("faults", session, "matmul.grouped", gpu="A10G", **DEEP)
    assert "nothing to compare with" in text
    assert "shared memory" in rows["unchanged"][1]


def test_the_cliff_falls_at_the_sizes_that_16_divides(session):
    _, figure, rows = ask("cliff", session, "transpose.tiled", M=1024, N=1024, dimension="N")
    kinds = {"1,000": "nothing known", "1,008": "divisible by 16", "1,009": "nothing known", "1,024": "divisible by 16"}
    assert list(rows) == [f"from N = {size}, {kind}" for size, kind in kinds.items()]
    assert [row[1:3] for row in rows.values()] == [["load A", width] for width in ("4 B", "16 B", "4 B", "16 B")]
    curve = decode(figure)["data"][0]
    assert curve["x"] == list(range(1000, 1025))
    requests = dict(zip(curve["x"], curve["y"], strict=True))
    assert requests[1024] < requests[1023] / 1.5
    assert requests[1008] < requests[1007] / 1.5


def test_two_gpus_and_the_recorded_compiler_stand_one_below_the_other(session):
    text, _, rows = ask("across", session, "matmul.grouped", other_gpu="A100-80GB")
    own = f"Triton {version('triton')}"
    expected = [f"H200, {own}", f"A100-80GB, {own}", "H200, Triton 3.6.0"]
    assert list(rows) == list(dict.fromkeys(expected)), "this Triton, and the one of the recording if it is another"
    for row in rows.values():
        assert row[7].isdigit(), "registers"
        assert re.fullmatch(r"\d+ %, limited by .+", row[10])
    assert "same" in rows[f"A100-80GB, {own}"]
    text, _, _ = ask("across", session, "matmul.grouped", **{**DEEP, "BLOCK_M": 64, "BLOCK_N": 64})
    assert re.search(r'role="alert">H200: .*shared memory', text)


@pytest.mark.parametrize(
    ("question", "field", "flat"),
    [
        ("cliff", "dimension", {"kernel": "transpose.tiled", "dimension": "K"}),
        ("across", "other_gpu", {"kernel": "matmul.grouped", "other_gpu": "H200"}),
        ("across", "other_gpu", {"kernel": "matmul.grouped", "other_gpu": "A100-80GB", "dtype": "float8_e5m2"}),
    ],
)
def test_a_dimension_or_gpu_that_cannot_be_compared_is_refused_beside_its_control(session, question, field, flat):
    with pytest.raises(ConfigError) as error:
        ask(question, session, **flat)
    assert error.value.field == field


def test_only_changes_that_save_requests_are_named():
    totals = {"unchanged": 8, "same": 8, "more": 9}
    assert str(whatif.best_changes(totals)).startswith("None of these changes saves requests")
    assert str(whatif.best_changes({**totals, "fewer": 2})) == "Fewer requests with fewer (4 × fewer)."
