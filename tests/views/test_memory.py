"""The Memory view: its headlines, tables and reasons for compiled kernels, its figures, and What-if."""

import re
from dataclasses import replace
from importlib.metadata import version

import numpy as np
import pytest

from kernels import discover
from kernels.evaluate.declared import Matrix, Requests
from kernels.gpus import GPUS
from kernels.instructions import Instruction
from kernels.knobs import ConfigError
from kernels.measuring.counters import COUNTERS
from kernels.results import records
from kernels.spec import Launch
from tests.messages import decode
from visualize.predict.agreement import Verdicts
from visualize.predict.textbook import Textbook
from visualize.views.memory import tables, text, whatif
from visualize.views.memory.flow import (
    Flow,
    find_contrast,
    flow_plot,
    make_flow,
    request_titles,
    tile_figure,
)
from visualize.views.prose import html, plain
from visualize.views.tabs import SETTINGS

GROUPED, TILED, FLAT = (
    {"kernel": name} for name in ("matmul.grouped", "transpose.tiled", "transpose.flat")
)
TINY = {**GROUPED, "M": 1, "N": 1, "K": 1}
TF32 = {**GROUPED, "dtype": "float32"}
EDGE = {
    "kernel": "matmul.fused_add_relu",
    "M": 64,
    "N": 16,
    "K": 872,
    "dtype": "bfloat16",
    "layout": "NT",
    "precision": "ieee",
    "BLOCK_M": 128,
    "BLOCK_N": 64,
    "BLOCK_K": 64,
    "GROUP_SIZE": 5,
    "num_warps": 8,
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
COALESCED = "100 % of the moved bytes are used: fully coalesced predicted"


@pytest.fixture
def verdicts_of(compile_kernel):
    """A function that compiles a kernel and returns its costs beside the recorded counts."""

    def make(flat, gpu="H200"):
        state = SETTINGS.state({**flat, "gpu": gpu}, None)
        code = compile_kernel(state.experiment)
        counters = records.find(COUNTERS.form, state.experiment, gpu)
        return Verdicts(state.kernel, state.launch, code, counters, state.view.of(Textbook))

    return make


def reasons(verdicts):
    return [text.explain(op, verdicts) for op in verdicts.compiled]


def headline(verdicts, number, worst=1):
    return re.sub(r"<[^>]*>", "", text.memory_headline(verdicts, number, worst))


def test_a_recorded_launch_is_marked_equal(verdicts_of):
    verdicts = verdicts_of(GROUPED)
    table = tables.operations_table(verdicts)
    section = tables.traffic_section(verdicts)
    assert table.count("✓") == 3
    assert "≠" not in table + section
    assert '<b>the same</b> on H200 <span class="mark recorded"' in html(
        text.launch_sentences(verdicts)
    )
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
    assert headline(verdicts, 0).startswith(
        "100 % of the moved bytes are used: fully coalesced textbook"
    )
    assert "once the kernel is compiled" in tables.conversions_table(verdicts)
    assert "once the kernel is compiled" in tables.traffic_section(replace(verdicts, counters=None))


@pytest.mark.parametrize(
    ("flat", "number", "expected"),
    [
        (
            {**TILED, "M": 1000, "N": 1000},
            0,
            "16. The launcher only records whether 1,000 is divisible by 16.",
        ),
        ({**TILED, "M": 1000, "N": 1000}, 0, "moves 4 bytes instead of 16"),
        ({**TILED, "M": 1001, "N": 1001}, 0, "4,004 bytes (1,001 × 4), not a multiple of 16"),
        (
            TILED,
            1,
            "bytes per program), so that adjacent lanes store adjacent bytes. Each lane stores",
        ),
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
    if flat is TF32:  # no other GPU needs K-major operands, and in NT both are
        for other in (verdicts_of({**TF32, "layout": "NT"}), verdicts_of(TF32, "A100-80GB")):
            assert "K-major" not in reasons(other)[1]


def test_boxes_have_no_requests_and_their_sectors_past_the_edge_were_counted_as_predicted(
    verdicts_of,
):
    verdicts = verdicts_of(EDGE)
    load_a, _, load_c, store_left, _, store_right = reasons(verdicts)
    # 14 box rows for each of 128 rows: below A's 64 rows 4 sectors each; the last one of each row above lacks 48 bytes.
    assert "Each box row of 128 bytes" in load_a
    assert (
        "3,712 of the sectors lie past the edge of A: they arrive as zeros, and are counted."
        in load_a
    )
    assert "192 of the sectors lie past the edge of C" in load_c
    assert "past the edge" not in store_left + store_right, "a store omits them"
    assert text.cause(verdicts.compiled[0]) == "its boxes reach past the edge of A"
    assert "for A, B and C: " in str(text.count_sentence(verdicts, 2))
    section = tables.traffic_section(verdicts)
    assert re.search(r"TMA loads</td><td>0</td><td></td><td>11,864</td><td>11,864</td>", section)
    assert re.search(r"TMA stores</td><td>0</td><td></td><td>([\d,]+)</td><td>\1</td>", section)
    assert section.count("✓") == 2
    assert "Nsight Compute counted the same on H200" in plain(text.launch_sentences(verdicts))


@pytest.mark.parametrize(
    "flat", [TINY, TF32, EDGE, SMALL_TILE, {**FLAT, "M": 577, "N": 577}, ROW_STRIP]
)
def test_the_picture_shows_the_bytes_and_sectors_of_the_cost(verdicts_of, flat):
    verdicts = verdicts_of(flat)
    for op in verdicts.compiled:
        picture = make_flow(verdicts.kernel, verdicts.launch, op.number, op.compiled)
        lines = picture.lines(np.arange(len(picture.lanes.row)))
        assert text.used_bytes(replace(op, launch=op.tile)) == lines.wanted_bytes.sum()
        assert lines.sectors.sum() == op.tile.sectors
        if flat is EDGE and op.number == 0:
            assert picture.title == "Compiled: one TMA box"
            assert f"{op.tile.sectors:,} sectors" in request_titles(lines, picture.title)[0]


@pytest.mark.parametrize(
    ("flat", "number", "start", "parts"),
    [
        (
            TINY,
            0,
            "6.25 % of the moved bytes are used predicted",
            "uses only 6.25 % of their bytes.",
        ),
        (
            FLAT,
            1,
            "8 × the sectors needed predicted",
            f"{ALIKE}…, adjacent lanes access different rows of B.",
        ),
        (FLAT, 0, COALESCED, "The store of B wastes the most sectors."),
        (
            TF32,
            1,
            "4 × the sectors needed predicted",
            "contiguous runs of a request are only 4 bytes long",
        ),
        (
            GROUPED,
            1,
            COALESCED,
            "In the load of B (tile.py:…No operation of this launch wastes a byte.",
        ),
        (
            {**TILED, "lanes": "loaded"},
            1,
            COALESCED,
            f"{RESCUED}…No operation of this launch wastes a byte.",
        ),
    ],
)
def test_the_headline_says_how_much_an_operation_wastes_and_why(
    verdicts_of, flat, number, start, parts
):
    words = headline(verdicts_of(flat), number)
    assert words.startswith(start)
    for part in parts.split("…"):
        assert part in words
    assert ("wastes a byte" in words) == ("wastes a byte" in parts)
    assert ("wastes the most" in words) == ("wastes the most" in parts)


def test_bank_conflicts_of_a_conversion_stand_beside_their_counts_even_if_its_line_has_moved(
    verdicts_of,
):
    verdicts = verdicts_of(TILED)
    table = tables.conversions_table(verdicts)
    assert "128 × 64 of 4 B: 32,768 bytes" in table
    assert table.count("✓") == 2
    assert "No block changes its layout." in tables.conversions_table(
        verdicts_of({"kernel": "matmul.persistent"})
    )
    moved = {
        name: tuple(
            replace(part, source=("tiled.py", part.source[1] + 7))
            for part in getattr(verdicts.code, name)
        )
        for name in ("conversions", "shared")
    }
    later = replace(verdicts, code=replace(verdicts.code, **moved))
    assert tables.conversions_table(later).count("✓") == 2
    compiled = verdicts.counters.compiled
    other = replace(
        compiled, conversions=tuple(replace(each, shape=(64, 64)) for each in compiled.conversions)
    )
    later = replace(later, counters=replace(verdicts.counters, compiled=other))
    assert "✓" not in tables.conversions_table(later)


def test_counts_that_differ_or_are_of_different_code_are_marked(verdicts_of):
    verdicts = verdicts_of(TILED)
    more = tuple(replace(row, lines=row.lines + 1) for row in verdicts.counters.ops)
    other = replace(verdicts, counters=replace(verdicts.counters, ops=more))
    assert "Nsight Compute counted different numbers: see the rows marked ≠." in plain(
        text.launch_sentences(other)
    )
    assert tables.operations_table(other).count("≠") == 2
    first, *rest = verdicts.code.operations
    other = replace(
        verdicts, code=replace(verdicts.code, operations=(replace(first, width_bytes=8), *rest))
    )
    assert not other.counted_is_compiled
    triton = verdicts.counters.device.triton
    assert f"Nsight Compute counted different code, from Triton {triton}: " in plain(
        text.launch_sentences(other)
    )
    assert tables.operations_table(other).count(f"compiled, Triton {triton}") == 2


def test_the_launchs_bar_shows_used_bytes_and_what_was_counted(verdicts_of):
    verdicts = verdicts_of(FLAT)
    load = verdicts.compiled[:1]
    store = verdicts.compiled[1:]
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
        ({**FLAT, "M": 1000}, 1, None),
        ({"kernel": "matmul.persistent"}, 0, "matmul.grouped"),
        (FLAT, 0, "alike"),
        # Stream-K accesses other tensors here than where its code was recorded.
        ({**GROUPED, "M": 16384, "N": 16384, "K": 4096}, 0, "matmul.persistent"),
    ],
)
def test_a_picture_stands_beside_the_kernel_that_differs_most(verdicts_of, flat, number, expected):
    state = SETTINGS.state({**flat, "gpu": "H200"}, None)
    own = verdicts_of(flat).compiled[number]
    contrast = find_contrast(state, own)
    assert (contrast and ("alike" if contrast.is_alike else contrast.kernel.id)) == expected
    if contrast:
        assert contrast.experiment.problem == state.experiment.problem
        assert contrast.operation.access.tensor == own.access.tensor


SHAPE = (1 << 20, 64)
BOX = Instruction("descriptor", ("", 0), None, 0, 0)


def flow_of(addresses, width=4, active=True):
    """A flow of requests at these byte addresses of a tensor of 4-byte elements."""
    address = np.atleast_2d(np.array(addresses, dtype=np.int64))
    mask = np.broadcast_to(active, address.shape)
    lanes = Requests(address, mask, width, Matrix(*SHAPE, 4))
    return Flow("load", "B", (0,), address.size, lanes, is_compiled=False)


def figure_of(flow, request=0):
    figure = decode(flow_plot(flow, request, "about"))
    return figure["layout"], figure["layout"]["meta"]["requests"]


@pytest.mark.parametrize("width", [1, 16])
def test_a_figure_carries_the_first_byte_of_each_lane_and_the_state_of_each_cell(width):
    rng = np.random.default_rng(width)
    addresses = rng.integers(0, 4096 // width, (3, 32)) * width  # some lanes share bytes
    flow = flow_of(addresses, width)
    _, requests = figure_of(flow, request=2)
    assert requests["place"] == 2
    assert requests["total"] == 3
    assert requests["titles"][2].startswith("<b>Blackboard: request 3 of 3</b>")
    drawn = flow.lines(np.arange(3))
    rows = requests["state"].shape[1]
    assert np.array_equal(requests["state"], drawn.state[:, :rows])
    assert np.array_equal(requests["lane"] - 1, drawn.lane[:, :rows])
    row, cell = np.divmod(requests["target"] - 1, 128 // width)
    line = np.take_along_axis(requests["line"], row, axis=1) - 1
    assert np.array_equal(line * 128 + cell * width, addresses)


def test_an_inactive_lane_has_no_target_and_untouched_lines_below_are_left_out():
    _, requests = figure_of(flow_of([[0, 4, 8]], active=[True, False, True]))
    assert requests["state"].shape == (1, 4, 32)
    assert requests["target"].tolist() == [[1, 0, 3]]
    for addresses, active, expected in (
        ([0], False, "not issued"),
        ([0], True, "1 sector: 4 of 32 bytes used"),
        (range(0, 128, 4), True, "4 sectors: all 128 bytes used"),
    ):
        assert expected in figure_of(flow_of(addresses, active=active))[1]["titles"][0]


def test_a_box_flows_from_one_node_to_each_of_its_rows():
    kernel = discover()["matmul.persistent"]
    flow = make_flow(
        kernel, Launch(kernel.family.problem(M=1024), kernel.config(), GPUS["H200"]), 0, BOX
    )
    figure = decode(flow_plot(flow, 0, "about"))
    _, _, node = figure["data"]
    requests = figure["layout"]["meta"]["requests"]
    assert node["text"] == ["TMA"]
    assert node["y"].tolist() == [0.5]
    rows, cells = requests["state"].shape[1:]
    assert rows == 64
    assert cells == 8
    assert np.array_equal(requests["target"], [1 + cells * np.arange(rows)])
    assert requests["holder"] == "16-byte piece"
    assert figure["layout"]["xaxis"]["title"]["text"] == "first 64 of 128 lines"


@pytest.mark.parametrize("color", ["request", "warp", "lane", "register"])
def test_a_tiles_elements_have_their_colours_and_those_outside_none(color):
    board = Textbook(warp_size=4, line_bytes=16)
    kernel = discover()["transpose.tiled"]
    launch = Launch(kernel.family.problem(M=7, N=6), kernel.config(4, 4), GPUS["H200"])
    flow = make_flow(kernel, launch, 0, board, program=3)
    (picture,) = tile_figure(flow.pattern.tile(flow.first), "A", color, board.sector_bytes).data
    row, column = np.indices((4, 4))
    expected = {"request": row, "warp": row, "lane": column, "register": 0 * row}[color]
    assert np.array_equal(
        picture.z, np.where((row < 3) & (column < 2), expected, np.nan), equal_nan=True
    )
    assert picture.x0 == 4
    assert picture.y0 == 4
    byte = (5 * 6 + 5) * 4
    assert picture.customdata[1, 1].tolist() == [expected[1, 1], 1, 1, 1, 0, byte, byte // 16]


# Compiled in a fraction of the time that the kernels' own tiles take.
SMALL = {"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32, "num_stages": 2}

# As quick, and more than the shared memory of an A10G holds; with tiles of twice the sides, than that of an H200.
DEEP = {"dtype": "float32", "BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 128, "num_stages": 5}


def ask(question, session, kernel, **flat):
    """The last answer: its text, its figure, and the first row of each change by the change's name, without tags."""
    action = whatif.WhatIfPanel().actions()[question]
    *_, slots = action.question(session, SETTINGS.state({"kernel": kernel, **flat}, None), "page")
    lines = [
        re.findall(r"<td>(.*?)</td>", row)
        for row in re.findall(r"<tr>(<td>.*?)</tr>", slots["whatif"])
    ]
    rows = {row[0]: [re.sub(r"<.*?>", "", cell) for cell in row] for row in lines if row[0]}
    return slots["whatif"], slots["cliff-plot"], rows


def test_constant_or_padded_sizes_bring_back_what_unknown_divisibility_costs(session):
    text, figure, rows = ask("faults", session, "transpose.tiled", M=1000, N=1000)
    assert figure == ""
    assert rows["unchanged"][2] == "4 B"
    constant = rows["sizes and strides as constants"]
    assert constant[2] == "16 B"
    assert constant[4] == "0.25 ×"
    assert constant[6] == "same"
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
            now, before = (
                int(cells[column].replace(",", "")) for cells in (row, rows["unchanged"])
            )
            expected = (
                f"{now / before:.3g} ×"
                if now != before
                else "same"
                if row[0] != "unchanged"
                else ""
            )
            assert row[column + 1] == expected
    assert re.search(r"<b>B transposed</b> \([\d.]+ × fewer\)", text)


def test_boxes_need_no_requests_at_a_divisible_size(session):
    text, _, _ = ask("faults", session, "matmul.persistent", K=1001, **SMALL)
    assert re.search(
        r"padded to multiples of 16: K 1001 → 1008</b> \(none: boxes are copied\)", text
    )
    assert "<b>none</b>" in text


def test_the_cliff_falls_at_the_sizes_that_16_divides(session):
    _, figure, rows = ask("cliff", session, "transpose.tiled", M=1024, N=1024, dimension="N")
    kinds = {
        "1,000": "nothing known",
        "1,008": "divisible by 16",
        "1,009": "nothing known",
        "1,024": "divisible by 16",
    }
    assert list(rows) == [f"from N = {size}, {kind}" for size, kind in kinds.items()]
    assert [row[1:3] for row in rows.values()] == [
        ["load A", width] for width in ("4 B", "16 B", "4 B", "16 B")
    ]
    curve = decode(figure)["data"][0]
    assert curve["x"] == list(range(1000, 1025))
    requests = dict(zip(curve["x"], curve["y"], strict=True))
    assert requests[1024] < requests[1023] / 1.5
    assert requests[1008] < requests[1007] / 1.5


def test_two_gpus_and_the_recorded_compiler_stand_one_below_the_other(session):
    text, _, rows = ask("across", session, "matmul.grouped", other_gpu="A100-80GB")
    own = f"Triton {version('triton')}"
    expected = [f"H200, {own}", f"A100-80GB, {own}", "H200, Triton 3.6.0"]
    assert list(rows) == list(dict.fromkeys(expected)), (
        "this Triton, and the one of the recording if it is another"
    )
    for row in rows.values():
        assert row[7].isdigit(), "registers"
        assert re.fullmatch(r"\d+ %, limited by .+", row[10])
    assert "same" in rows[f"A100-80GB, {own}"]
    text, _, _ = ask("across", session, "matmul.grouped", **{**DEEP, "BLOCK_M": 64, "BLOCK_N": 64})
    assert re.search(r'role="alert">H200: .*shared memory', text)


def test_a_dimension_or_gpu_that_cannot_be_compared_is_refused_beside_its_control(session):
    for question, kernel, field, flat in (
        ("cliff", "transpose.tiled", "dimension", {"dimension": "K"}),
        ("across", "matmul.grouped", "other_gpu", {"other_gpu": "H200"}),
        (
            "across",
            "matmul.grouped",
            "other_gpu",
            {"other_gpu": "A100-80GB", "dtype": "float8_e5m2"},
        ),
    ):
        with pytest.raises(ConfigError) as error:
            ask(question, session, kernel, **flat)
        assert error.value.field == field
    totals = {"unchanged": 8, "same": 8, "more": 9}
    assert str(whatif.best_changes(totals)).startswith("None of these changes saves requests")
    assert (
        str(whatif.best_changes({**totals, "fewer": 2})) == "Fewer requests with fewer (4 × fewer)."
    )
