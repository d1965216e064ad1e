"""Textbook, compiled and counted side by side: what the page says of them, and why."""

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
from visualize.figures.memory_figure import title_of
from visualize.panels.memory_picture import Execution
from visualize.predict import coalescing, textbook
from visualize.predict.agreement import Verdicts, compare_costs
from visualize.predict.textbook import Textbook
from visualize.predict.traffic import Matrix
from visualize.text import bank_conflicts, coalescing_text, verdicts, why
from visualize.views.prose import html, plain


def found(session, payload, gpu="H200", board=None):
    experiment = from_json({**payload, "gpu": gpu})
    made = session.compile(experiment).result()
    assert isinstance(made, Compiled), made
    launch = Launch(experiment.problem, experiment.config, GPUS[gpu])
    counted = records.find(COUNTERS.form, experiment, gpu)
    return Verdicts(discover()[experiment.kernel], launch, made, counted, board or Textbook())


def reasons(session, payload, gpu="H200"):
    all_of_it = found(session, payload, gpu)
    return [
        why.compiled(
            op, all_of_it.gpu_board[op.number], all_of_it.kernel, all_of_it.launch, all_of_it.code.shared_bytes
        )
        for op in all_of_it.compiled
    ]


def test_the_default_was_counted_and_is_marked_equal(session):
    default = found(session, {"kernel": "matmul.grouped"})
    table = verdicts.table(default)
    assert table.count("✓") == 3
    assert "≠" not in table + verdicts.totals(default)
    assert "Nsight Compute counted the same on H200" in plain(verdicts.claim(default))
    assert '<b>the same</b> on H200 <span class="mark recorded"' in html(verdicts.claim(default))
    assert "DRAM moved" in verdicts.funnel(default)
    assert re.search(r"loads</td><td>([\d,]+)</td><td>\1</td>", verdicts.totals(default))


def test_what_was_not_counted_has_no_row_for_it(session):
    odd = found(session, {"kernel": "matmul.grouped", "problem": {"M": 513}})
    assert ">counted" not in verdicts.table(odd)
    assert verdicts.totals(odd) == ""


def test_before_the_compiler_answers_the_recorded_code_is_predicted():
    experiment = from_json({"kernel": "matmul.grouped", "gpu": "H200"})
    launch = Launch(experiment.problem, experiment.config, GPUS["H200"])
    counted = records.find(COUNTERS.form, experiment, "H200")
    early = Verdicts(discover()[experiment.kernel], launch, None, counted)
    table = verdicts.table(early)
    assert table.count(f"compiled, Triton {counted.device.triton}") == 3
    assert table.count("✓") == 3
    assert verdicts.claim(early) == ()


def test_missing_divisibility_is_told_from_a_row_that_is_not_aligned(session):
    aligned, odd = (
        reasons(session, {"kernel": "transpose.tiled", "problem": {"M": n, "N": n}})[0] for n in (1000, 1001)
    )
    assert "a multiple of 16. The launcher only records whether 1,000 is divisible by 16." in aligned
    assert "moves 4 bytes instead of 16" in aligned
    assert "4,004 bytes (1,001 × 4), not a multiple of 16" in odd


def test_a_transposed_tile_goes_through_shared_memory(session):
    _, store = reasons(session, {"kernel": "transpose.tiled"})
    assert re.search(r"through shared memory \([\d,]+ bytes per program\)", store)


def test_tf32s_b_is_copied_in_4_bytes_because_of_the_matrix_unit(session):
    payload = {"kernel": "matmul.grouped", "problem": {"dtype": "float32"}}
    a, b, _ = reasons(session, payload)
    assert "K-major only, and B is not K-major" in b
    assert "K-major" not in a
    k_major = reasons(session, {**payload, "problem": {"dtype": "float32", "layout": "NT"}})
    assert "K-major" not in k_major[1]
    assert "K-major" not in reasons(session, payload, "A100-80GB")[1]


def test_copies_are_said_to_be_loaded_by_all_and_stored_by_one(session):
    tile = {"BLOCK_M": 4, "BLOCK_N": 8, "num_warps": 4}
    load, store = reasons(session, {"kernel": "transpose.tiled", "problem": {"M": 64, "N": 64}, "config": tile})
    assert "4 lanes hold each element, and all of them load it" in load
    assert "4 lanes hold each element, and one of them issues it" in store


def test_a_descriptor_asks_for_nothing(session):
    payload = {"kernel": "matmul.persistent"}
    assert all("Tensor Memory Accelerator" in reason for reason in reasons(session, payload))
    assert all(op.launch.requests == 0 for op in found(session, payload).compiled)
    totals = verdicts.totals(found(session, payload))
    assert re.search(r"TMA loads</td><td>0</td><td></td><td>([\d,]+)</td><td>\1</td>", totals)
    assert re.search(r"TMA stores</td><td>0</td><td></td><td>([\d,]+)</td><td>\1</td>", totals)
    assert totals.count("✓") == 2


EDGE = {
    "kernel": "matmul.fused_add_relu",
    "problem": {"M": 64, "N": 16, "K": 872, "dtype": "bfloat16", "layout": "NT", "precision": "ieee"},
    "config": {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_SIZE": 5, "num_warps": 8, "num_stages": 4},
}


def test_boxes_past_the_edge_were_counted_as_predicted_and_say_what_lies_there(session):
    edge = found(session, EDGE)
    load_a, _, load_c, store_left, _, store_right = reasons(session, EDGE)
    # 14 box rows for each of 128 rows: below A's 64 rows 4 sectors each; the last one of each row above lacks 48 bytes.
    assert "Each box row of 128 bytes" in load_a
    assert "3,712 of the sectors lie past the edge of A: they arrive as zeros, and are counted." in load_a
    assert "192 of the sectors lie past the edge of C" in load_c
    assert "past the edge" not in store_left + store_right, "a store leaves them out"
    assert why.in_short(edge.compiled[0]) == "its boxes reach past the edge of A"
    assert re.search(r"TMA loads</td><td>0</td><td></td><td>11,864</td><td>11,864</td>", verdicts.totals(edge))
    assert verdicts.totals(edge).count("✓") == 2
    assert "Nsight Compute counted the same on H200" in plain(verdicts.claim(edge))
    assert compare_costs(edge, 2)[0] == ("A", "B", "C")


def test_counters_of_boxes_that_differ_are_said_to(session):
    edge = found(session, EDGE)
    counters = replace(edge.counters, launch={**edge.counters.launch, "tma_ld_sectors": 11_865.0})
    wrong = replace(edge, counters=counters)
    assert "≠" in verdicts.totals(wrong)
    assert "Nsight Compute counted different numbers" in plain(verdicts.claim(wrong))


@pytest.mark.parametrize(
    ("payload", "number", "name"), [(EDGE, 0, "one TMA box"), ({"kernel": "matmul.fused_add_relu"}, 1, "4 TMA boxes")]
)
def test_the_picture_of_a_block_says_what_its_box_rows_cost(session, payload, number, name):
    launch = found(session, payload)
    op = launch.compiled[number]
    tensor = launch.kernel.family.tensors(launch.launch.problem)[op.access.tensor]
    matrix = Matrix(*tensor.stored, 2)
    block = coalescing.requests(op.access, matrix, (0, 0), op.compiled)
    board = textbook.requests(op.access, matrix, (0, 0), Textbook())
    shown = Execution(op.access, (0, 0), tensor, Textbook(), 2, 2, board, block, launch.code, number, False)
    drawn = shown.compiled_lines(np.array([0, 0]))
    assert shown.compiled_name == f"Compiled: {name}"
    assert drawn.sectors.tolist() == [op.tile.sectors] * 2
    assert drawn.wanted_bytes.tolist() == [op.tile.bytes_wanted] * 2
    assert f"{op.tile.sectors:,} sectors" in title_of(drawn, 0, name)


def test_an_atomic_without_an_instruction_is_a_load_and_a_loop(session):
    payload = {"kernel": "matmul.split_k_atomic", "problem": {"N": 500}}
    *_, loading, swapping = reasons(session, payload)
    assert "compare-and-swap" in loading
    assert "This is the first iteration" in swapping
    assert "≥" in verdicts.table(found(session, payload))


def test_a_flat_store_has_no_neighbours(session):
    _, store = reasons(session, {"kernel": "transpose.flat"})
    assert "Each element goes to a different row of B" in store


def test_bank_conflicts_of_a_conversion_stand_beside_what_was_counted(session):
    default = found(session, {"kernel": "transpose.tiled"})
    table = bank_conflicts.table(default.code, default.counters)
    assert "128 × 64 of 4 B: 32,768 bytes" in table
    assert table.count("✓") == 2
    assert bank_conflicts.table(found(session, {"kernel": "matmul.persistent"}).code, None) == ""


def test_what_was_counted_is_found_again_where_lines_have_moved_since(session):
    default = found(session, {"kernel": "transpose.tiled"})
    (conversion,) = default.counters.compiled.conversions
    moved = tuple(replace(one, source=("tiled.py", one.source[1] + 7)) for one in default.code.conversions)
    shared = tuple(replace(one, source=("tiled.py", one.source[1] + 7)) for one in default.code.shared)
    later = replace(default.code, conversions=moved, shared=shared)
    assert bank_conflicts.table(later, default.counters).count("✓") == 2
    other = replace(default.counters.compiled, conversions=(replace(conversion, shape=(64, 64)),))
    assert "✓" not in bank_conflicts.table(later, replace(default.counters, compiled=other))


def text_of(markup):
    return re.sub(r"<[^>]*>", "", markup)


def test_the_claim_says_how_much_is_wasted_by_which_operation_where_and_why(session):
    flat = found(session, {"kernel": "transpose.flat"})
    claim = text_of(coalescing_text.of_compiled(flat, 1, 1))
    assert claim.startswith("8 × the sectors needed: not coalesced predicted")
    sentence = r"Only 12.5 % of the bytes moved by the store of B \(flat.py:\d+\) are wanted: "
    assert re.search(sentence + "adjacent lanes access different rows of B", claim)
    assert "wastes" not in claim
    other = text_of(coalescing_text.of_compiled(flat, 0, 1))
    assert other.startswith("100 % of the bytes moved are wanted: coalesced")
    assert "The store of B wastes the most sectors." in other


def test_good_news_reads_as_good_news(session):
    default = found(session, {"kernel": "matmul.grouped"})
    claim = text_of(coalescing_text.of_compiled(default, 1, 1))
    assert claim.startswith("100 % of the bytes moved are wanted: coalesced predicted")
    assert "No byte moved by the load of B" in claim
    assert "No operation of this launch wastes a sector." in claim


def test_where_the_compiler_beats_the_textbook_the_claim_says_so(session):
    tiled = found(session, {"kernel": "transpose.tiled"}, board=Textbook(lanes="loaded"))
    claim = text_of(coalescing_text.of_compiled(tiled, 1, 1))
    assert "The textbook predicts 8 × the sectors for the store of B" in claim
    assert "Compiled, it wastes none: the compiler transposes the tile through shared memory." in claim


def test_while_nothing_is_compiled_the_claim_is_the_textbooks(session):
    early = replace(found(session, {"kernel": "transpose.flat"}), code=None)
    claim = text_of(coalescing_text.of_compiled(early, 1, 1))
    assert claim.startswith("8 × the sectors needed: not coalesced textbook")


def test_a_tf32_b_that_is_not_k_major_uses_a_quarter_of_each_sector(session):
    tf32 = found(session, {"kernel": "matmul.grouped", "problem": {"dtype": "float32"}})
    claim = text_of(coalescing_text.of_compiled(tf32, 1, 1))
    assert claim.startswith("4 × the sectors needed")
    assert "contiguous runs of a request are only 4 bytes long" in claim


@pytest.mark.parametrize("payload", [{"kernel": name} for name in discover()], ids=lambda payload: payload["kernel"])
def test_no_sentence_of_the_claim_is_longer_than_25_words(session, payload):
    made = found(session, payload)
    for number in range(len(made.board)):
        sentence = re.search(r'<p class="claim">(.*?)</p>', coalescing_text.of_compiled(made, number, number))
        for one in text_of(sentence.group(1)).split(". "):
            assert len(one.split()) <= 25, one


def test_a_table_has_no_empty_heading(session):
    default = found(session, {"kernel": "transpose.tiled"})
    tables = (verdicts.table(default), verdicts.totals(default), bank_conflicts.table(default.code, default.counters))
    for table in tables:
        assert not re.search(r"<th[^>]*></th>", table)


def test_counts_that_differ_are_said_to_differ(session):
    default = found(session, {"kernel": "transpose.tiled"})
    more = tuple(replace(row, lines=row.lines + 1) for row in default.counters.ops)
    other = replace(default, counters=replace(default.counters, ops=more))
    assert "Nsight Compute counted different numbers: see the rows marked ≠." in plain(verdicts.claim(other))
    assert verdicts.table(other).count("≠") == 2


def test_code_with_other_widths_is_not_the_code_that_was_counted(session):
    default = found(session, {"kernel": "transpose.tiled"})
    assert default.counted_is_compiled
    first, *rest = default.code.operations
    other = replace(default, code=replace(default.code, operations=(replace(first, width_bytes=8), *rest)))
    assert not other.counted_is_compiled
    triton = default.counters.device.triton
    assert f"Nsight Compute counted different code, from Triton {triton}: " in plain(verdicts.claim(other))
    assert verdicts.table(other).count(f"compiled, Triton {triton}") == 2
