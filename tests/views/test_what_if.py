"""One change, one dimension sliding, another GPU: what the tables say."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest

from kernels.knobs import ConfigError
from kernels.results import Failure
from tests.figure_values import decode
from visualize.views.memory import whatif
from visualize.views.tabs import SETTINGS

pytestmark = pytest.mark.xdist_group("compiled")

# Compiled in a fraction of the time that the kernels' own tiles take.
SMALL = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "num_stages": 2}

# As quick, and more than the shared memory of an A10G holds; with tiles of twice the sides, than that of an H200.
DEEP = {"dtype": "float32", "BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 128, "num_stages": 5}


def last_table(question, session, kernel, **flat):
    """The table and figure of a question's last answer, and the table's rows by their first cell."""
    *_, (table, figure) = question(session, SETTINGS.state({"kernel": kernel, **flat}, None))
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(<td>.*?)</tr>", table)]
    return table, figure, {row[0]: row for row in rows if row[0]}


def test_constant_or_padded_sizes_bring_back_what_unknown_divisibility_costs(session):
    table, figure, rows = last_table(whatif.faults, session, "transpose.tiled", M=1000, N=1000)
    assert figure == ""
    assert rows["unchanged"][2] == "4 B"
    constant = rows["sizes and strides as constants"]
    assert (constant[2], constant[4], constant[6]) == ("16 B", "<b>1 / 4</b>", '<span class="hint">same</span>')
    assert rows["sizes padded to multiples of 16: M 1000 → 1008, N 1000 → 1008"][2] == "16 B"
    assert "Fewer requests with <b>sizes and strides as constants</b>" in table


def test_unknown_divisibility_costs_requests_and_a_transposed_operand_is_tried(session):
    flat = {**SMALL, "dtype": "float32", "BLOCK_M": 64, "BLOCK_N": 64}
    table, _, rows = last_table(whatif.faults, session, "matmul.grouped", **flat)
    assert rows["sizes not known to be divisible by 16"][2] == "4 B"
    assert {"A transposed", "B transposed", "num_warps 4 → 2", "num_warps 4 → 8"} <= set(rows)
    assert "×</b>" in table
    for row in rows.values():  # of each change, the load of A
        for column in (3, 5):
            now, before = (int(cells[column].replace(",", "")) for cells in (row, rows["unchanged"]))
            ratio = f"{now / before:.3g} ×" if now > before else f"1 / {before / now:.3g}"
            expected = ratio if now != before else "same" if row[0] != "unchanged" else ""
            assert re.sub("<.*?>", "", row[column + 1]) == expected
    assert re.search(r"<b>B transposed</b> \([\d.]+ × fewer\)", table)


def test_boxes_need_no_requests_at_a_divisible_size(session):
    table, _, _ = last_table(whatif.faults, session, "matmul.persistent", K=1001, **SMALL)
    assert re.search(r"padded to multiples of 16: K 1001 → 1008</b> \(none: boxes are copied\)", table)
    assert "<b>none</b>" in table
    table, _, _ = last_table(whatif.cliff, session, "matmul.persistent", K=1024, dimension="K", **SMALL)
    assert "at the sizes without requests, boxes are copied" in table


@pytest.mark.all_combinations
def test_a_launch_that_cannot_be_compiled_has_no_comparison(session):
    table, _, _ = last_table(whatif.faults, session, "matmul.grouped", gpu="A10G", **DEEP)
    assert "nothing to compare with" in table


@pytest.mark.all_combinations
def test_a_loop_that_constants_unroll_is_still_read(session):
    table, _, _ = last_table(whatif.faults, session, "transpose.row_strip")
    assert "occurs" not in table
    assert "expected" not in table


def test_the_cliff_falls_at_the_sizes_that_16_divides(session):
    table, figure, rows = last_table(whatif.cliff, session, "transpose.tiled", M=1024, N=1024, dimension="N")
    assert list(rows) == ["1,000", "1,008", "1,009", "1,024"]
    assert "divisible by 16: load A 16 B" in table
    assert "nothing known: load A 4 B" in table
    curve = decode(figure)["data"][0]
    assert curve["x"] == list(range(1000, 1025))
    requests = dict(zip(curve["x"], curve["y"], strict=True))
    assert requests[1024] < requests[1023] / 1.5
    assert requests[1008] < requests[1007] / 1.5


def test_two_gpus_and_the_recorded_compiler_stand_side_by_side(session):
    table, _, rows = last_table(whatif.across, session, "matmul.grouped", other_gpu="A100-80GB")
    header = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", table[: table.index("</thead>")])
    own = f"Triton {version('triton')}"
    expected = [f"H200, {own}", f"A100-80GB, {own}", "H200, Triton 3.6.0"]
    assert header[1:-1] == list(dict.fromkeys(expected)), "this Triton, and the one of the recording if it is another"
    assert all(cell.isdigit() for cell in rows["registers per thread"][1 : len(header) - 1])
    assert all(("differs" in row[-1]) == (len(set(row[1:-1])) > 1) for row in rows.values())
    assert "differs" in table
    table, _, _ = last_table(whatif.across, session, "matmul.grouped", **{**DEEP, "BLOCK_M": 64, "BLOCK_N": 64})
    assert 'role="alert"' in table
    assert "shared memory" in table


def test_a_dimension_or_gpu_that_cannot_be_compared_is_refused_beside_its_control(session):
    matmul = {"kernel": "matmul.grouped", "other_gpu": "A100-80GB", "dtype": "float8_e5m2"}
    for question, flat, field in (
        (whatif.cliff, {"kernel": "transpose.tiled", "dimension": "K"}, "dimension"),
        (whatif.across, {"kernel": "matmul.grouped", "other_gpu": "H200"}, "other_gpu"),
        (whatif.across, matmul, "other_gpu"),
    ):
        with pytest.raises(ConfigError) as error:
            list(question(session, SETTINGS.state(flat, None)))
        assert error.value.field == field


def test_only_changes_that_save_requests_are_named():
    for totals, expected in (
        ((None, 4), "The unchanged launch can't be compiled, so there is nothing to compare with."),
        ((8, 8, 9, None), "None of these changes saves requests"),
        ((8, 2, 8), "Fewer requests with 1 (4 × fewer)."),
        ((8, 0, 4), "Fewer requests with 1 (none: boxes are copied); 2 (2 × fewer)."),
    ):
        named = {str(number): total for number, total in enumerate(totals)}
        assert str(whatif.best_changes(named)).startswith(expected)


def test_a_change_that_failed_is_a_row_with_the_reason():
    (row,) = whatif.change_rows("x", Failure("compile", "timeout", "Too slow."), None, None)
    assert row == ("x", "Too slow.", *("",) * 6)
