"""The Memory view's headlines, tables and reasons, for compiled kernels and their recorded counts."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from kernels.measuring.counters import COUNTERS
from kernels.results import Compiled, records
from visualize.predict.agreement import Verdicts
from visualize.predict.textbook import Textbook
from visualize.views.memory import flow, tables, text
from visualize.views.prose import html, plain
from visualize.views.tabs import SETTINGS

GROUPED, TILED, FLAT = ({"kernel": name} for name in ("matmul.grouped", "transpose.tiled", "transpose.flat"))
TINY = {**GROUPED, "M": 1, "N": 1, "K": 1}
TF32 = {**GROUPED, "dtype": "float32"}
EDGE = {
    **{"kernel": "matmul.fused_add_relu", "M": 64, "N": 16, "K": 872, "dtype": "bfloat16", "layout": "NT"},
    **{"precision": "ieee", "BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_SIZE": 5, "num_warps": 8},
    "num_stages": 4,
}
ATOMIC = {"kernel": "matmul.split_k_atomic", "N": 500}
ROW_STRIP = {"kernel": "transpose.row_strip", "M": 1023, "N": 129}
SMALL_TILE = {**TILED, "M": 63, "N": 65, "BLOCK_M": 4, "BLOCK_N": 4, "num_warps": 4}
ALIKE = "32 lanes touch 32 different sectors and use 4 bytes of each. In the store of B (flat.py:"
RESCUED = (
    "The blackboard predicts 8 × the sectors needed for the store of B…As compiled, it uses every byte: the compiler "
    "transposes the tile through shared memory."
)
COALESCED = "100 % of the bytes in its sectors are used: fully coalesced predicted"


@pytest.fixture
def verdicts_of(session):
    """A function that compiles a kernel and returns its costs beside the recorded counts."""

    def make(flat, gpu="H200"):
        state = SETTINGS.state({**flat, "gpu": gpu}, None)
        code = session.compile(state.experiment).result()
        assert isinstance(code, Compiled), code
        counters = records.find(COUNTERS.form, state.experiment, gpu)
        return Verdicts(state.kernel, state.launch, code, counters, state.view.of(Textbook))

    return make


def reasons(verdicts):
    return [text.explain(op, verdicts) for op in verdicts.compiled]


def headline(verdicts, number, worst=1):
    return re.sub(r"<[^>]*>", "", text.memory_headline(verdicts, number, worst))


def test_a_recorded_launch_is_marked_equal(verdicts_of):
    verdicts = verdicts_of(GROUPED)
    table, section = tables.operations_table(verdicts), tables.traffic_section(verdicts)
    assert table.count("✓") == 3
    assert "≠" not in table + section
    assert '<b>the same</b> on H200 <span class="mark recorded"' in html(text.launch_sentences(verdicts))
    assert "DRAM moved" in section
    assert re.search(r"loads</td><td>([\d,]+)</td><td>\1</td>", section)
    uncounted = verdicts_of({**GROUPED, "M": 513})
    assert ">counted" not in tables.operations_table(uncounted) + tables.traffic_section(uncounted)


def test_before_the_compiler_answers_the_recorded_code_is_predicted(verdicts_of):
    verdicts = replace(verdicts_of(GROUPED), code=None)
    table = tables.operations_table(verdicts)
    assert table.count(f"compiled, Triton {verdicts.counters.device.triton}") == 3
    assert table.count("✓") == 3
    assert text.launch_sentences(verdicts) == ()
    assert headline(verdicts, 0).startswith("100 % of the bytes in its sectors are used: fully coalesced textbook")
    assert "once the kernel is compiled" in tables.conversions_table(verdicts)
    assert "once the kernel is compiled" in tables.traffic_section(replace(verdicts, counters=None))


@pytest.mark.parametrize(
    ("flat", "number", "expected"),
    [
        ({**TILED, "M": 1000, "N": 1000}, 0, "16. The launcher only records whether 1,000 is divisible by 16."),
        ({**TILED, "M": 1000, "N": 1000}, 0, "moves 4 bytes instead of 16"),
        ({**TILED, "M": 1001, "N": 1001}, 0, "4,004 bytes (1,001 × 4), not a multiple of 16"),
        (TILED, 1, "bytes per program), so that adjacent lanes store adjacent bytes. Each lane stores"),
        (FLAT, 1, "Each element goes to a different row of B"),
        (TF32, 1, "K-major only, and B is not K-major"),
        (SMALL_TILE, 0, "8 lanes hold each element, and all of them load it"),
        (SMALL_TILE, 1, "8 lanes hold each element, and one of them issues it"),
        (ATOMIC, -2, "compare-and-swap"),
        (ATOMIC, -1, "This is the first iteration"),
        ({"kernel": "matmul.persistent"}, 0, "Tensor Memory Accelerator"),
    ],
)
def test_each_cost_has_its_reason(verdicts_of, flat, number, expected):
    verdicts = verdicts_of(flat)
    assert expected in reasons(verdicts)[number]
    assert ("≥" in tables.operations_table(verdicts)) == ("retries" in reasons(verdicts)[-1])


def test_only_hopper_needs_k_major_operands_and_only_where_they_are_not(verdicts_of):
    for verdicts in (verdicts_of({**TF32, "layout": "NT"}), verdicts_of(TF32, "A100-80GB")):
        assert "K-major" not in reasons(verdicts)[1]


def test_boxes_have_no_requests_and_their_sectors_past_the_edge_were_counted_as_predicted(verdicts_of):
    verdicts = verdicts_of(EDGE)
    load_a, _, load_c, store_left, _, store_right = reasons(verdicts)
    # 14 box rows for each of 128 rows: below A's 64 rows 4 sectors each; the last one of each row above lacks 48 bytes.
    assert "Each box row of 128 bytes" in load_a
    assert "3,712 of the sectors lie past the edge of A: they arrive as zeros, and are counted." in load_a
    assert "192 of the sectors lie past the edge of C" in load_c
    assert "past the edge" not in store_left + store_right, "a store omits them"
    assert text.cause(verdicts.compiled[0]) == "its boxes reach past the edge of A"
    assert "for A, B and C: " in str(text.count_sentence(verdicts, 2))
    section = tables.traffic_section(verdicts)
    assert re.search(r"TMA loads</td><td>0</td><td></td><td>11,864</td><td>11,864</td>", section)
    assert re.search(r"TMA stores</td><td>0</td><td></td><td>([\d,]+)</td><td>\1</td>", section)
    assert section.count("✓") == 2
    assert "Nsight Compute counted the same on H200" in plain(text.launch_sentences(verdicts))
    launch = {**verdicts.counters.launch, "tma_ld_sectors": 11_865.0}
    wrong = replace(verdicts, counters=replace(verdicts.counters, launch=launch))
    assert "≠" in tables.traffic_section(wrong)
    assert "Nsight Compute counted different numbers" in plain(text.launch_sentences(wrong))


@pytest.mark.parametrize(
    "flat",
    [
        TINY,
        TF32,
        EDGE,
        SMALL_TILE,
        {**FLAT, "M": 577, "N": 577},
        {"kernel": "transpose.row_strip", "M": 1023, "N": 129},
    ],
)
def test_the_picture_shows_the_bytes_and_sectors_of_the_cost(verdicts_of, flat):
    verdicts = verdicts_of(flat)
    for op in verdicts.compiled:
        picture = flow.make_flow(verdicts.kernel, verdicts.launch, op.number, op.compiled)
        lines = picture.lines(np.arange(len(picture.lanes.row)))
        assert text.used_bytes(replace(op, launch=op.tile)) == lines.wanted_bytes.sum()
        assert lines.sectors.sum() == op.tile.sectors
        if flat is EDGE and op.number == 0:
            assert picture.title == "Compiled: one TMA box"
            assert f"{op.tile.sectors:,} sectors" in flow.request_titles(lines, picture.title)[0]


@pytest.mark.parametrize(
    ("flat", "number", "start", "parts"),
    [
        (TINY, 0, "6.25 % of the bytes in its sectors are used predicted", "uses only 6.25 % of their bytes."),
        (FLAT, 1, "8 × the sectors needed predicted", f"{ALIKE}…, adjacent lanes access different rows of B."),
        (FLAT, 0, COALESCED, "The store of B wastes the most sectors."),
        (TF32, 1, "4 × the sectors needed predicted", "contiguous runs of a request are only 4 bytes long"),
        (GROUPED, 1, COALESCED, "The load of B (tile.py:…No operation of this launch wastes a byte."),
        ({**TILED, "lanes": "loaded"}, 1, COALESCED, f"{RESCUED}…No operation of this launch wastes a byte."),
    ],
)
def test_the_headline_says_how_much_an_operation_wastes_and_why(verdicts_of, flat, number, start, parts):
    words = headline(verdicts_of(flat), number)
    assert words.startswith(start)
    for part in parts.split("…"):
        assert part in words
    assert ("wastes a byte" in words) == ("wastes a byte" in parts)
    assert ("wastes the most" in words) == ("wastes the most" in parts)


def test_bank_conflicts_of_a_conversion_stand_beside_their_counts_even_if_its_line_has_moved(verdicts_of):
    verdicts = verdicts_of(TILED)
    table = tables.conversions_table(verdicts)
    assert "128 × 64 of 4 B: 32,768 bytes" in table
    assert table.count("✓") == 2
    assert "No block changes its layout." in tables.conversions_table(verdicts_of({"kernel": "matmul.persistent"}))
    moved = {
        name: tuple(replace(part, source=("tiled.py", part.source[1] + 7)) for part in getattr(verdicts.code, name))
        for name in ("conversions", "shared")
    }
    later = replace(verdicts, code=replace(verdicts.code, **moved))
    assert tables.conversions_table(later).count("✓") == 2
    (conversion,) = verdicts.counters.compiled.conversions
    other = replace(verdicts.counters.compiled, conversions=(replace(conversion, shape=(64, 64)),))
    later = replace(later, counters=replace(verdicts.counters, compiled=other))
    assert "✓" not in tables.conversions_table(later)


def test_counts_that_differ_or_are_of_different_code_are_marked(verdicts_of):
    verdicts = verdicts_of(TILED)
    more = tuple(replace(row, lines=row.lines + 1) for row in verdicts.counters.ops)
    other = replace(verdicts, counters=replace(verdicts.counters, ops=more))
    assert "Nsight Compute counted different numbers: see the rows marked ≠." in plain(text.launch_sentences(other))
    assert tables.operations_table(other).count("≠") == 2
    first, *rest = verdicts.code.operations
    other = replace(verdicts, code=replace(verdicts.code, operations=(replace(first, width_bytes=8), *rest)))
    assert not other.counted_is_compiled
    triton = verdicts.counters.device.triton
    assert f"Nsight Compute counted different code, from Triton {triton}: " in plain(text.launch_sentences(other))
    assert tables.operations_table(other).count(f"compiled, Triton {triton}") == 2


def test_the_launchs_bar_shows_used_bytes_and_what_was_counted(verdicts_of):
    verdicts = verdicts_of(FLAT)
    load, store = verdicts.compiled[:1], verdicts.compiled[1:]
    bar = text.launch_bar(store, store, text.count_sentence(verdicts, 1))
    assert "Whole launch: 1,048,576 sectors, 12.5 % used. Counted on H200" in bar
    assert "1,048,576 sectors, as predicted ✓." in bar
    assert re.findall(r"width: ([\d.]+)%", bar) == ["100.00", "12.50"]
    assert re.findall(r"width: ([\d.]+)%", text.launch_bar(load, store)) == ["12.50", "100.00"]
    more = tuple(replace(row, sectors=row.sectors + 1) for row in verdicts.counters.ops)
    different = replace(verdicts, counters=replace(verdicts.counters, ops=more))
    assert "not as predicted ≠" in str(text.count_sentence(different, 1))
    assert text.count_sentence(replace(verdicts, counters=None), 1) == ""


@pytest.mark.parametrize(
    ("flat", "number", "expected"),
    [
        (FLAT, 1, "transpose.tiled"),
        ({**FLAT, "M": 4096}, 1, "transpose.tiled"),
        ({**FLAT, "M": 1000}, 1, None),
        (TILED, 1, "transpose.flat"),
        (GROUPED, 0, "matmul.persistent"),
        ({"kernel": "matmul.persistent"}, 0, "matmul.grouped"),
        (TF32, 1, None),
        (FLAT, 0, "alike"),
    ],
)
def test_a_picture_stands_beside_the_kernel_that_differs_most(verdicts_of, flat, number, expected):
    state, own = SETTINGS.state({**flat, "gpu": "H200"}, None), verdicts_of(flat).compiled[number]
    contrast = flow.find_contrast(state, own)
    assert (contrast and ("alike" if contrast.is_alike else contrast.kernel.id)) == expected
    if contrast:
        assert contrast.experiment.problem == state.experiment.problem
        assert contrast.operation.access.tensor == own.access.tensor
