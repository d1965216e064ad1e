"""Textbook, compiled and counted cost of one operation, whether they agree, and the most wasteful operation."""

from dataclasses import replace

import pytest

from tests.experiments import experiment_of
from tilescope.declare.experiment import launch_of
from tilescope.declare.gpus import GPUS
from tilescope.evaluate.counts import Cost
from tilescope.measure.counters import COUNTERS
from tilescope.results import records
from visualize.predict.agreement import LaunchCosts, agreement, count_together, worst
from visualize.predict.textbook import Textbook


def recorded(text, board=None):
    """Return the costs on a recorded launch, with its recorded code as the code compiled here."""
    experiment = experiment_of(text, gpu="H200")
    counters = records.find(COUNTERS.form, experiment, "H200")
    assert counters is not None
    kernel, launch = launch_of(experiment, GPUS["H200"])
    return LaunchCosts(kernel, launch, counters.compiled, counters, board or Textbook())


@pytest.mark.parametrize(
    ("counted", "expected"),
    [
        ({}, "equal"),
        ({"sectors": 9}, "different"),
        ({"sectors": 7}, "different"),
        ({"lines": 3}, "different"),
        ({"sectors": 7, "opcodes": ("LDGSTS.E.BYPASS.128",)}, "undercounted"),
        ({"sectors": 9, "opcodes": ("LDGSTS.E.BYPASS.128",)}, "overcounted"),
        ({"sectors": 7, "lines": 3, "opcodes": ("LDGSTS.E.BYPASS.128",)}, "different"),
        ({"requests": 3}, "different"),
        ({"requests": 3, "has_requests": False}, "equal"),
    ],
)
def test_costs_agree_only_if_they_are_equal(counted, expected):
    cost = Cost(2, 8, 4, 8)
    assert agreement(cost, replace(cost, **{"opcodes": ("LDG.E.128",), **counted})) == expected


@pytest.mark.parametrize(("sectors", "expected"), [(8, "equal"), (9, "at least"), (7, "different")])
def test_a_loop_that_retries_costs_at_least_its_first_iteration(sectors, expected):
    assert agreement(Cost(2, 8, 4, 8, is_lower_bound=True), Cost(2, sectors, 4, 8)) == expected


def test_two_stores_of_one_output_are_added_up():
    found = recorded("transpose.flat")
    load, store = found.kernel.accesses(found.launch)
    compiled = found.code.operations
    rows = [replace(row, operation=2) for row in found.counters.ops if row.operation == 1]
    counters = replace(
        found.counters,
        compiled=replace(found.code, operations=(*compiled, compiled[1])),
        ops=(*found.counters.ops, *rows),
    )
    kernel = replace(found.kernel, accesses=lambda launch: (load, store, store))
    twice = replace(found, kernel=kernel, counters=counters)
    for number in (1, 2):
        tensors, counted = count_together(twice, number)
        assert (tensors, counted.sectors) == (("B",), 2 * 1024 * 1024)


def test_the_most_wasteful_operation_is_not_the_one_that_moves_most():
    """Rows of A begin inside a sector; B, of which more is moved, is read in whole ones."""
    found = recorded(
        "matmul.fused_add_relu M=900 N=512 K=124 dtype=float16 precision=tf32_rounded BLOCK_M=16 BLOCK_N=64 "
        "BLOCK_K=128 GROUP_SIZE=4 num_warps=8 num_stages=4 PROGRAMS_PER_SM=1"
    )
    a, b = found.compiled[:2]
    assert a.launch.sectors < b.launch.sectors
    assert worst(found) == 0
    assert worst(recorded("transpose.flat")) == 1


def test_without_waste_the_transposed_store_or_the_textbooks_worst_is_chosen():
    assert worst(recorded("transpose.tiled")) == 1
    found = recorded("transpose.tiled", Textbook(lanes="loaded"))
    assert worst(found) == worst(found, is_textbook=True) == 1
    assert found.textbook[1].launch.efficiency == 0.125
    assert found.compiled[1].launch.efficiency == 1
