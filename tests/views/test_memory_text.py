"""The Memory view's headlines, tables and reasons, for compiled kernels and their recorded counts."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from kernels import discover
from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.measuring.counters import COUNTERS
from kernels.results import Compiled, records
from kernels.spec import Launch
from visualize.predict import coalescing
from visualize.predict.agreement import Verdicts, compare_costs
from visualize.predict.textbook import Textbook
from visualize.views.memory import tables
from visualize.views.memory.figures import request_title
from visualize.views.memory.flow import find_contrast, make_flow
from visualize.views.memory.text import counted_sentence, launch_bar, launch_sentences, memory_headline, used_bytes
from visualize.views.memory.why import cause, explain
from visualize.views.prose import html, plain
from visualize.views.tabs import SETTINGS

TINY = {"kernel": "matmul.grouped", "problem": {"M": 1, "N": 1, "K": 1}}
TF32 = {"kernel": "matmul.grouped", "problem": {"dtype": "float32"}}
EDGE = {
    "kernel": "matmul.fused_add_relu",
    "problem": {"M": 64, "N": 16, "K": 872, "dtype": "bfloat16", "layout": "NT", "precision": "ieee"},
    "config": {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_SIZE": 5, "num_warps": 8, "num_stages": 4},
}
ROW_STRIP = {"kernel": "transpose.row_strip", "problem": {"M": 1023, "N": 129}}
SMALL_TILE = {
    "kernel": "transpose.tiled",
    "problem": {"M": 63, "N": 65},
    "config": {"BLOCK_M": 4, "BLOCK_N": 4, "num_warps": 4},
}


def square(kernel, size):
    return {"kernel": kernel, "problem": {"M": size, "N": size}}


def launch_of(session, payload, gpu="H200", board=None):
    experiment = from_json({**(payload if isinstance(payload, dict) else {"kernel": payload}), "gpu": gpu})
    code = session.compile(experiment).result()
    assert isinstance(code, Compiled), code
    launch = Launch(experiment.problem, experiment.config, GPUS[gpu])
    counters = records.find(COUNTERS.form, experiment, gpu)
    return Verdicts(discover()[experiment.kernel], launch, code, counters, board or Textbook())


def reasons(found):
    return [explain(op, found) for op in found.compiled]


def headline(found, number, worst=1):
    return re.sub(r"<[^>]*>", "", memory_headline(found, number, worst))


def test_a_recorded_launch_is_marked_equal(session):
    found = launch_of(session, "matmul.grouped")
    table, section = tables.operations_table(found), tables.traffic_section(found)
    assert table.count("✓") == 3
    assert "≠" not in table + section
    assert '<b>the same</b> on H200 <span class="mark recorded"' in html(launch_sentences(found))
    assert "DRAM moved" in section
    assert re.search(r"loads</td><td>([\d,]+)</td><td>\1</td>", section)


def test_a_launch_that_was_not_counted_has_no_rows_of_counts(session):
    found = launch_of(session, {"kernel": "matmul.grouped", "problem": {"M": 513}})
    assert ">counted" not in tables.operations_table(found) + tables.traffic_section(found)


def test_before_the_compiler_answers_the_recorded_code_is_predicted(session):
    found = replace(launch_of(session, "matmul.grouped"), code=None)
    table = tables.operations_table(found)
    assert table.count(f"compiled, Triton {found.counters.device.triton}") == 3
    assert table.count("✓") == 3
    assert launch_sentences(found) == ()
    assert "once the kernel is compiled" in tables.conversions_table(found)
    assert "once the kernel is compiled" in tables.traffic_section(replace(found, counters=None))


@pytest.mark.parametrize(
    ("payload", "number", "expected"),
    [
        (square("transpose.tiled", 1000), 0, "16. The launcher only records whether 1,000 is divisible by 16."),
        (square("transpose.tiled", 1000), 0, "moves 4 bytes instead of 16"),
        (square("transpose.tiled", 1001), 0, "4,004 bytes (1,001 × 4), not a multiple of 16"),
        ("transpose.tiled", 1, "bytes per program), so that adjacent lanes store adjacent bytes. Each lane stores"),
        ("transpose.flat", 1, "Each element goes to a different row of B"),
        (TF32, 1, "K-major only, and B is not K-major"),
        (SMALL_TILE, 0, "8 lanes hold each element, and all of them load it"),
        (SMALL_TILE, 1, "8 lanes hold each element, and one of them issues it"),
        ({"kernel": "matmul.split_k_atomic", "problem": {"N": 500}}, -2, "compare-and-swap"),
        ({"kernel": "matmul.split_k_atomic", "problem": {"N": 500}}, -1, "This is the first iteration"),
        ("matmul.persistent", 0, "Tensor Memory Accelerator"),
    ],
)
def test_each_cost_has_its_reason(session, payload, number, expected):
    found = launch_of(session, payload)
    assert expected in reasons(found)[number]
    assert ("≥" in tables.operations_table(found)) == ("retries" in reasons(found)[-1])


def test_only_hopper_needs_k_major_operands_and_only_where_they_are_not(session):
    turned = {**TF32, "problem": {"dtype": "float32", "layout": "NT"}}
    cases = [(TF32, "H200", 0), (turned, "H200", 1), (TF32, "A100-80GB", 1)]
    assert not any("K-major" in reasons(launch_of(session, payload, gpu))[number] for payload, gpu, number in cases)


def test_boxes_have_no_requests_and_their_sectors_past_the_edge_were_counted_as_predicted(session):
    found = launch_of(session, EDGE)
    load_a, _, load_c, store_left, _, store_right = reasons(found)
    # 14 box rows for each of 128 rows: below A's 64 rows 4 sectors each; the last one of each row above lacks 48 bytes.
    assert "Each box row of 128 bytes" in load_a
    assert "3,712 of the sectors lie past the edge of A: they arrive as zeros, and are counted." in load_a
    assert "192 of the sectors lie past the edge of C" in load_c
    assert "past the edge" not in store_left + store_right, "a store omits them"
    assert cause(found.compiled[0]) == "its boxes reach past the edge of A"
    assert compare_costs(found, 2)[0] == ("A", "B", "C")
    section = tables.traffic_section(found)
    assert re.search(r"TMA loads</td><td>0</td><td></td><td>11,864</td><td>11,864</td>", section)
    assert re.search(r"TMA stores</td><td>0</td><td></td><td>([\d,]+)</td><td>\1</td>", section)
    assert section.count("✓") == 2
    assert "Nsight Compute counted the same on H200" in plain(launch_sentences(found))
    launch = {**found.counters.launch, "tma_ld_sectors": 11_865.0}
    wrong = replace(found, counters=replace(found.counters, launch=launch))
    assert "≠" in tables.traffic_section(wrong)
    assert "Nsight Compute counted different numbers" in plain(launch_sentences(wrong))


@pytest.mark.parametrize("payload", [TINY, TF32, EDGE, SMALL_TILE, square("transpose.flat", 577), ROW_STRIP])
def test_the_picture_shows_the_bytes_and_sectors_of_the_cost(session, payload):
    found = launch_of(session, payload)
    for op in found.compiled:
        flow = make_flow(found.kernel, found.launch, op.number, op.compiled)
        lines = flow.lines(np.arange(len(flow.lanes.row)))
        assert used_bytes(op, op.tile) == lines.wanted_bytes.sum()
        assert lines.sectors.sum() == op.tile.sectors
        if payload is EDGE and op.number == 0:
            assert flow.title == "Compiled: one TMA box"
            assert f"{op.tile.sectors:,} sectors" in request_title(lines, 0, "")


def test_one_element_uses_2_of_32_bytes_wherever_it_is_written(session):
    found = launch_of(session, TINY)
    text = headline(found, 0)
    assert text.startswith("6.25 % of the bytes in its sectors are used predicted")
    assert "touches as few sectors as possible, but uses only 6.25 % of their bytes." in text
    assert "every byte" not in text
    assert "wastes a byte" not in text


def test_the_headline_says_which_operation_wastes_how_much_and_why(session):
    flat = launch_of(session, "transpose.flat")
    text = headline(flat, 1)
    assert text.startswith("8 × the sectors needed predicted")
    assert "32 lanes store into 32 different sectors and use 4 bytes of each. " in text
    assert re.search(r"In the store of B \(flat.py:\d+\), adjacent lanes access different rows of B\.", text)
    assert "wastes" not in text
    assert "The store of B wastes the most sectors." in headline(flat, 0)
    assert headline(replace(flat, code=None), 1).startswith("8 × the sectors needed textbook")
    text = headline(launch_of(session, TF32), 1)
    assert text.startswith("4 × the sectors needed")
    assert "contiguous runs of a request are only 4 bytes long" in text


def test_a_coalesced_launch_wastes_nothing_even_where_the_textbook_says_otherwise(session):
    text = headline(launch_of(session, "matmul.grouped"), 1)
    assert text.startswith("100 % of the bytes in its sectors are used: fully coalesced predicted")
    assert "The load of B (tile.py:" in text
    assert "No operation of this launch wastes a byte." in text
    text = headline(launch_of(session, "transpose.tiled", board=Textbook(lanes="loaded")), 1)
    assert "The blackboard predicts 8 × the sectors needed for the store of B" in text
    assert "As compiled, it uses every byte: the compiler transposes the tile through shared memory." in text


@pytest.mark.parametrize("name", discover())
def test_no_sentence_of_the_headline_is_longer_than_25_words(session, name):
    found = launch_of(session, name)
    for number in range(len(found.board)):
        text = re.search(r'<p class="claim">(.*?)</p>', memory_headline(found, number, number))
        assert all(len(sentence.split()) <= 25 for sentence in re.sub(r"<[^>]*>", "", text[1]).split(". "))


def test_bank_conflicts_of_a_conversion_stand_beside_their_counts(session):
    found = launch_of(session, "transpose.tiled")
    table = tables.conversions_table(found)
    assert "128 × 64 of 4 B: 32,768 bytes" in table
    assert table.count("✓") == 2
    assert "No block changes its layout." in tables.conversions_table(launch_of(session, "matmul.persistent"))
    assert not any(
        re.search(r"<th[^>]*></th>", part)
        for part in (table, tables.operations_table(found), tables.traffic_section(found))
    )


def test_counts_are_matched_to_conversions_whose_lines_have_moved(session):
    found = launch_of(session, "transpose.tiled")
    moved = {
        name: tuple(replace(part, source=("tiled.py", part.source[1] + 7)) for part in getattr(found.code, name))
        for name in ("conversions", "shared")
    }
    later = replace(found, code=replace(found.code, **moved))
    assert tables.conversions_table(later).count("✓") == 2
    (conversion,) = found.counters.compiled.conversions
    other = replace(found.counters.compiled, conversions=(replace(conversion, shape=(64, 64)),))
    later = replace(later, counters=replace(found.counters, compiled=other))
    assert "✓" not in tables.conversions_table(later)


def test_counts_that_differ_or_are_of_different_code_are_marked(session):
    found = launch_of(session, "transpose.tiled")
    more = tuple(replace(row, lines=row.lines + 1) for row in found.counters.ops)
    other = replace(found, counters=replace(found.counters, ops=more))
    assert "Nsight Compute counted different numbers: see the rows marked ≠." in plain(launch_sentences(other))
    assert tables.operations_table(other).count("≠") == 2
    first, *rest = found.code.operations
    other = replace(found, code=replace(found.code, operations=(replace(first, width_bytes=8), *rest)))
    assert not other.counted_is_compiled
    triton = found.counters.device.triton
    assert f"Nsight Compute counted different code, from Triton {triton}: " in plain(launch_sentences(other))
    assert tables.operations_table(other).count(f"compiled, Triton {triton}") == 2


def test_the_launchs_bar_shows_used_bytes_and_what_was_counted(session):
    found = launch_of(session, "transpose.flat")
    store = found.compiled[1:]
    bar = launch_bar(store, store, counted_sentence(found, 1))
    assert "Whole launch: 1,048,576 sectors, 12.5 % used. Counted on H200" in bar
    assert "1,048,576 sectors, as predicted ✓." in bar
    assert re.findall(r"width: ([\d.]+)%", bar) == ["100.00", "12.50"]
    assert re.findall(r"width: ([\d.]+)%", launch_bar(found.compiled[:1], store)) == ["12.50", "100.00"]
    more = tuple(replace(row, sectors=row.sectors + 1) for row in found.counters.ops)
    different = replace(found, counters=replace(found.counters, ops=more))
    assert "not as predicted ≠" in str(counted_sentence(different, 1))
    assert "for A and B: " in str(counted_sentence(launch_of(session, "matmul.persistent"), 0))
    assert counted_sentence(replace(found, counters=None), 1) == ""


@pytest.mark.parametrize(
    ("fields", "number", "expected"),
    [
        ({"kernel": "transpose.flat"}, 1, "transpose.tiled"),
        ({"kernel": "transpose.flat", "M": 4096}, 1, "transpose.tiled"),
        ({"kernel": "transpose.flat", "M": 1000}, 1, None),
        ({"kernel": "transpose.tiled"}, 1, "transpose.flat"),
        ({"kernel": "matmul.grouped"}, 0, "matmul.persistent"),
        ({"kernel": "matmul.persistent"}, 0, "matmul.grouped"),
        ({"kernel": "matmul.grouped", "dtype": "float32"}, 1, None),
    ],
)
def test_a_picture_stands_beside_the_kernel_that_differs_most(session, fields, number, expected):
    state = SETTINGS.state({**fields, "gpu": "H200"}, None)
    code = session.compile(state.experiment).result()
    (own,) = coalescing.operations(state.kernel, state.launch, code.operations)[number : number + 1]
    contrast = find_contrast(state, own)
    assert (contrast and contrast.kernel.id) == expected
    if contrast:
        assert not contrast.is_alike
        assert contrast.experiment.problem == state.experiment.problem
        assert contrast.operation.access.tensor == own.access.tensor


def test_kernels_that_use_the_same_share_are_no_contrast(session):
    state = SETTINGS.state({"kernel": "transpose.flat", "gpu": "H200"}, None)
    code = session.compile(state.experiment).result()
    own = coalescing.operations(state.kernel, state.launch, code.operations)[0]
    assert find_contrast(state, own).is_alike
