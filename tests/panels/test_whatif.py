"""One change, one dimension sliding, another GPU: what the tables say."""

from __future__ import annotations

import json
import re
from importlib.metadata import version

import pytest

from kernels.knobs import ConfigError
from visualize.panels import whatif_panel
from visualize.panels.tabs import SETTINGS

pytestmark = pytest.mark.xdist_group("compiled")

# Compiled in a fraction of the time that the kernels' own tiles take.
SMALL = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "num_stages": 2}

# As quick, and more than the shared memory of an A10G holds; with tiles of twice the sides, than that of an H200.
DEEP = {"dtype": "float32", "BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 128, "num_stages": 5}


def last(answers):
    *_, found = answers
    return found


def rows(table):
    return [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(<td>.*?)</tr>", table)]


def test_a_constant_size_brings_back_what_unknown_divisibility_costs(session):
    page = SETTINGS.state({"kernel": "transpose.tiled", "M": 1000, "N": 1000}, None)
    table, picture = last(whatif_panel.faults(session, page))
    assert picture == ""
    by_name = {row[0]: row for row in rows(table) if row[0]}
    assert by_name["as it is"][2] == "4 B"
    constant = by_name["sizes and strides as constants"]
    assert (constant[2], constant[4], constant[6]) == ("16 B", "<b>1 / 4</b>", '<span class="hint">same</span>')
    padded = next(row for name, row in by_name.items() if "padded" in name)
    assert padded[2] == "16 B"
    assert "Fewer requests with <b>sizes and strides as constants</b>" in table


def test_unknown_divisibility_costs_requests_and_a_transposed_operand_is_tried(session):
    page = SETTINGS.state({"kernel": "matmul.grouped", "dtype": "float32", **SMALL, "BLOCK_M": 64, "BLOCK_N": 64}, None)
    table, _ = last(whatif_panel.faults(session, page))
    by_name = {row[0]: row for row in rows(table) if row[0]}
    assert by_name["sizes not known to be divisible by 16"][2] == "4 B"
    assert {"A transposed", "B transposed", "num_warps 4 → 2", "num_warps 4 → 8"} <= set(by_name)
    assert re.search(r"<b>B transposed</b> \([\d.]+ × fewer\)", table)


def test_the_cliff_falls_at_the_sizes_that_16_divides(session):
    page = SETTINGS.state({"kernel": "transpose.tiled", "M": 1024, "N": 1024, "dimension": "N"}, None)
    table, picture = last(whatif_panel.cliff(session, page))
    assert [row[0] for row in rows(table)] == ["1,000", "1,008", "1,009", "1,024"]
    assert "divisible by 16: load A 16 B" in table
    assert "nothing known: load A 4 B" in table
    drawn = json.loads(picture)["data"]
    assert drawn[0]["x"] == list(range(1000, 1025))
    requests = dict(zip(drawn[0]["x"], drawn[0]["y"], strict=True))
    assert requests[1024] < requests[1023] / 1.5
    assert requests[1008] < requests[1007] / 1.5


def test_a_dimension_that_the_problem_lacks_is_a_sentence(session):
    page = SETTINGS.state({"kernel": "transpose.tiled", "dimension": "K"}, None)
    with pytest.raises(ConfigError, match=r"dimension is K; transpose\.tiled has M and N") as error:
        last(whatif_panel.cliff(session, page))
    assert error.value.field == "dimension"


def test_two_gpus_and_the_recorded_compiler_stand_side_by_side(session):
    page = SETTINGS.state({"kernel": "matmul.grouped", "other_gpu": "A100-80GB"}, None)
    table, _ = last(whatif_panel.across(session, page))
    header = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", table[: table.index("</thead>")])
    own = f"Triton {version('triton')}"
    expected = [f"H200, {own}", f"A100-80GB, {own}", "H200, Triton 3.6.0"]
    assert header[1:-1] == list(dict.fromkeys(expected)), "this Triton, and the one of the recording if it is another"
    assert "differs" in table
    registers = next(row for row in rows(table) if row[0] == "registers per thread")
    assert all(cell.isdigit() for cell in registers[1 : len(header) - 1])


def test_what_does_not_compile_is_a_row_with_the_reason(session):
    page = SETTINGS.state({"kernel": "matmul.grouped", **DEEP, "BLOCK_M": 64, "BLOCK_N": 64}, None)
    table, _ = last(whatif_panel.across(session, page))
    assert 'role="alert"' in table
    assert "shared memory" in table


def test_boxes_that_need_no_request_are_the_better_for_it(session):
    page = SETTINGS.state({"kernel": "matmul.persistent", "K": 1001, **SMALL}, None)
    table, _ = last(whatif_panel.faults(session, page))
    assert re.search(r"padded to multiples of 16: K 1001 → 1008</b> \(none at all: boxes are copied\)", table)
    assert "<b>none</b>" in table


@pytest.mark.all_combinations
def test_what_cannot_be_compiled_as_it_is_has_no_verdict(session):
    page = SETTINGS.state({"kernel": "matmul.grouped", "gpu": "A10G", **DEEP}, None)
    table, _ = last(whatif_panel.faults(session, page))
    assert "nothing to compare with" in table


@pytest.mark.all_combinations
def test_a_loop_that_constants_unroll_is_read_all_the_same(session):
    page = SETTINGS.state({"kernel": "transpose.row_strip"}, None)
    table, _ = last(whatif_panel.faults(session, page))
    assert "occurs" not in table
    assert "expected" not in table


def test_a_cliff_down_to_nothing_has_no_ratio(session):
    page = SETTINGS.state({"kernel": "matmul.persistent", "K": 1024, "dimension": "K", **SMALL}, None)
    table, _ = last(whatif_panel.cliff(session, page))
    assert "where there are none, boxes are copied" in table


@pytest.mark.parametrize("flat", [{"other_gpu": "H200"}, {"other_gpu": "A100-80GB", "dtype": "float8_e5m2"}])
def test_a_gpu_that_cannot_be_compared_is_a_sentence_beside_its_choice(session, flat):
    with pytest.raises(ConfigError) as error:
        last(whatif_panel.across(session, SETTINGS.state({"kernel": "matmul.grouped", **flat}, None)))
    assert error.value.field == "other_gpu"
