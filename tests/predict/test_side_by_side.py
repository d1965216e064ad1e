"""One operation by textbook, compiler and counters, and the one that is worth looking at."""

from __future__ import annotations

from dataclasses import replace

from kernels import discover, records
from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.measuring.measurements.counters_measurement import COUNTERS
from kernels.spec import Launch
from visualize.predict.agreement import verdicts
from visualize.predict.side_by_side import side_by_side, worst
from visualize.predict.textbook import Textbook


def recorded(payload, board=None):
    """What is known of a recorded launch, its code taken for what is compiled here."""
    experiment = from_json({**payload, "gpu": "H200"}, discover())
    counters = records.find(COUNTERS.form, experiment, "H200")
    assert counters is not None
    launch = Launch(experiment.problem, experiment.config, GPUS["H200"])
    found = verdicts(discover()[experiment.kernel], launch, board or Textbook(), None, counters)
    return replace(found, compiled=found.predicted, code=counters.compiled)


def of(source, found, number, *sector_bytes):
    (cost,) = (cost for cost in side_by_side(found, number, *sector_bytes).costs if cost.source == source)
    return cost


def test_a_flat_store_wastes_most_and_all_three_say_so():
    found = recorded({"kernel": "transpose.flat"})
    assert worst(found) == 1
    costs = side_by_side(found, 1)
    assert costs.tensors == ("B",)
    assert [(cost.source, cost.mark) for cost in costs.costs] == [
        ("textbook", "textbook"),
        ("compiled", "predicted"),
        ("counted", "recorded"),
    ]
    assert {(cost.sectors, cost.efficiency) for cost in costs.costs} == {(1024 * 1024, 0.125)}
    counted = of("counted", found, 1)
    assert (counted.agreement, counted.requests, counted.note) == ("equal", 32768, "H200")
    assert (counted.wanted_bytes, counted.wasted_bytes) == (4 * 1024 * 1024, 28 * 1024 * 1024)


def test_an_output_that_is_written_in_halves_is_told_as_a_whole():
    kernel = discover()["matmul.fused_add_relu"]
    launch = Launch(kernel.family.problem(), kernel.config(BLOCK_N=256), GPUS["H200"])
    found = verdicts(kernel, launch, Textbook(), None, None)
    halves = [op for op in found.board if op.access.tensor == "D"]
    assert len(halves) == 2
    for half in halves:
        assert of("textbook", found, half.number).sectors == 512 * 512 * 2 // 32
        assert half.launch.sectors == 512 * 512 // 32


def test_what_wastes_most_is_not_what_moves_most():
    """Rows of A begin inside a sector; B, of which more is moved, is read in whole ones."""
    problem = {"M": 900, "N": 512, "K": 124, "dtype": "float16", "precision": "tf32_rounded"}
    tile = {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128, "GROUP_SIZE": 4, "num_warps": 8, "num_stages": 4}
    config = {**tile, "PROGRAMS_PER_SM": 1}
    found = recorded({"kernel": "matmul.fused_add_relu", "problem": problem, "config": config})
    a, b = found.compiled[:2]
    assert a.launch.sectors < b.launch.sectors
    assert worst(found) == 0


def test_where_nothing_is_wasted_the_transposed_store_is_worth_looking_at():
    assert worst(recorded({"kernel": "transpose.tiled"})) == 1


def test_the_blackboards_worst_is_chosen_before_another_that_wastes_nothing_either():
    found = recorded({"kernel": "transpose.tiled"}, Textbook(lanes="loaded"))
    assert worst(found) == worst(found, on_the_board=True) == 1
    assert [of(source, found, 1).efficiency for source in ("textbook", "compiled")] == [0.125, 1]


def test_boxes_that_are_read_share_one_counter():
    found = recorded({"kernel": "matmul.persistent"})
    assert side_by_side(found, 0).tensors == ("A", "B")
    compiled, counted = of("compiled", found, 0), of("counted", found, 0)
    assert (compiled.requests, counted.requests) == (0, 0)
    assert compiled.sectors == counted.sectors
    assert counted.agreement == "equal"


def test_a_load_beside_another_has_no_counted_requests_of_its_own():
    counted = of("counted", recorded({"kernel": "matmul.grouped"}), 0)
    assert counted.requests is None
    assert counted.sectors > 0


def test_the_blackboards_bytes_are_those_of_its_own_sectors():
    board = Textbook(warp_size=4, line_bytes=16)
    textbook = of("textbook", recorded({"kernel": "transpose.tiled"}, board), 0, board.sector_bytes)
    assert (textbook.sector_bytes, textbook.sectors) == (16, 4 * 1024 * 1024 // 16)
    assert (textbook.wanted_bytes, textbook.wasted_bytes) == (4 * 1024 * 1024, 0)
