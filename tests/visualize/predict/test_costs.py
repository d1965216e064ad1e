"""Requests, sectors and lines against plain counting: every execution, lane and byte, one by one.

The lanes are the textbook's. tests/tilescope/oracle compares the layouts that compilers choose with counts of hardware.
"""

import itertools
import operator
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.experiments import experiment_of, launch_from
from tests.tables import read_table
from tests.visualize.predict.plain_counting import executions, plain_count
from tests.visualize.predict.test_schedule import launches
from tilescope.captures.layouts import Layout
from tilescope.declare.experiment import launch_of
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import ConfigError
from tilescope.declare.spec import Access, Axis, FlatAccess
from tilescope.evaluate import declared
from tilescope.evaluate.counts import Cost
from tilescope.evaluate.instructions import MemoryInstruction
from tilescope.measure.counters import COUNTERS
from tilescope.results import records
from visualize.predict.costs import (
    LaunchCosts,
    Textbook,
    agreement,
    read_textbook,
    worst,
)

MACHINE = Textbook(warp_size=4, line_bytes=16)


BOARDS = st.builds(
    Textbook,
    warp_size=st.sampled_from((2, 4, 8, 32, 64)),
    line_bytes=st.sampled_from((16, 32, 64, 128, 512)),
    element_bytes=st.sampled_from(("dtype", "1", "2", "8", "16")),
    lanes=st.sampled_from(("tile", "loaded")),
)


LAUNCHES = launches(sizes=st.integers(1, 40), least_block=1, most_block=64)


@given(LAUNCHES, BOARDS)
def test_a_launch_and_its_first_tile_cost_what_counting_every_lane_gives(launch, board):
    kernel, launch = launch
    for op in board.count(kernel, launch):
        starts = list(executions(op.access, kernel.extents(launch)))
        assert op.launch == plain_count(op.pattern, starts)
        assert op.tile == plain_count(op.pattern, starts[:1])
        assert op.width_bytes == board.bytes_of(launch.problem.dtype)
        assert 0 < op.launch.efficiency <= 1
        assert op.launch.requests <= op.launch.lines <= op.launch.sectors


@given(LAUNCHES, BOARDS)
def test_lanes_take_consecutive_elements_in_the_order_of_the_tensor_or_of_the_load(launch, board):
    for op in board.count(*launch):
        access = op.access
        places, owner = op.pattern.lanes
        number = np.flatnonzero(owner)
        assert number.tolist() == list(range(access.elements))
        places = places[:, owner]
        if isinstance(access, FlatAccess):
            (index,) = places
        elif access.transposed and board.lanes == "loaded":
            index = places[1] * access.rows.block + places[0]
        else:
            index = places[0] * access.columns.block + places[1]
        assert (index == number).all()


def test_a_textbook_machine_from_json_defaults_to_a_gpus_numbers():
    assert read_textbook(None) == read_textbook({}) == Textbook(32, 128, "dtype", "tile")
    assert read_textbook({"warp_size": "4", "line_bytes": 16.0}) == MACHINE


@pytest.mark.parametrize(
    "options", [[], "abc", True, {"warp_size": 3}, {"element_bytes": 4.5}, {"lane": 1}], ids=str
)
def test_a_textbook_machine_from_other_json_is_refused(options):
    with pytest.raises(ConfigError):
        read_textbook(options)


@pytest.mark.parametrize("kernel_id", ["transpose.flat", "transpose.tiled"])
def test_counting_takes_a_small_part_of_the_memory_that_all_lanes_would(kernel_id):
    """Program classes are counted, not programs."""
    launch = launch_from(f"{kernel_id} M=16384 N=4096")
    tracemalloc.start()
    Textbook().count(*launch)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8 * 16384 * 4096 / 16


# Of registers and lanes. In the last layout, two lanes hold each element.
BASES = """
() | ((1,), (2,), (4,), (8,), (16,))
() | ((16,), (8,), (4,), (2,), (1,))
((16,),) | ((1,), (2,), (4,), (8,), (0,))
"""


@pytest.mark.parametrize(("register", "lane"), read_table(BASES))
def test_a_run_costs_what_counting_every_lane_gives_wherever_the_tensor_ends(register, lane):
    """All small shapes: they end inside a sector, at its end, or in the middle of a request."""
    layout = Layout((32,), register, lane, ())
    made = [MemoryInstruction(op, ("", 0), layout, 4, 4) for op in ("load", "store")]
    for rows, columns in itertools.product(range(1, 15), repeat=2):
        kernel, launch = launch_from(f"transpose.flat M={rows} N={columns} BLOCK=32")
        for op in declared.count_accesses(kernel, launch, made):
            starts = executions(op.access, kernel.extents(launch))
            assert op.launch == plain_count(op.pattern, starts), (rows, columns, op.op)


def test_the_textbooks_requests_of_a_block_need_not_fill_the_compiled_instructions():
    """32 elements in 4 registers of 8 lanes: 4 compiled instructions, and one textbook request."""
    lane = ((4,), (8,), (16,), (0,), (0,))
    layout = Layout((32,), ((1,), (2,)), lane, ())
    assigned = MemoryInstruction("load", ("", 0), layout, 4, 4, "ld.global.b32").textbook
    place, owner = assigned.lanes()
    assert place.tolist() == [[list(range(32))]]
    assert owner.all()
    assert assigned.count == 1


@pytest.mark.parametrize(
    ("rows", "columns", "swizzle_bytes", "boxes"),
    [(2, 128, 32, 8), (2, 128, 64, 4), (2, 128, 128, 2), (512, 64, 0, 2)],
)
def test_a_box_is_as_wide_as_its_swizzle_and_has_at_most_256_rows(
    rows, columns, swizzle_bytes, boxes
):
    axes = (Axis(name, side, operator.mul) for name, side in (("m", rows), ("n", columns)))
    access = Access("descriptor", "A", *axes, ("m", "n"), ("", 0))
    copy = MemoryInstruction("descriptor", ("", 0), None, 0, 0, swizzle_bytes=swizzle_bytes)
    pattern = declared.AccessPattern(access, declared.Matrix(1 << 12, 1 << 12, 2), copy)
    assert pattern.box_count == boxes


def recorded(text, board=None):
    """Return the costs on a recorded launch, with its recorded code as the code compiled here."""
    experiment = experiment_of(text, gpu="H200")
    counters = records.find(COUNTERS.form, experiment, "H200")
    assert counters is not None
    kernel, launch = launch_of(experiment, GPUS["H200"])
    return LaunchCosts(kernel, launch, counters.compiled, counters, board or Textbook())


COUNTED = """
{} | equal
{"sectors": 9} | different
{"sectors": 7} | different
{"lines": 3} | different
{"sectors": 7, "opcodes": ("LDGSTS.E.BYPASS.128",)} | undercounted
{"sectors": 9, "opcodes": ("LDGSTS.E.BYPASS.128",)} | overcounted
{"sectors": 7, "lines": 3, "opcodes": ("LDGSTS.E.BYPASS.128",)} | different
{"requests": 3} | different
{"requests": 3, "has_requests": False} | equal
"""


@pytest.mark.parametrize(("counted", "expected"), read_table(COUNTED))
def test_costs_agree_only_if_they_are_equal(counted, expected):
    cost = Cost(2, 8, 4, 8)
    assert agreement(cost, replace(cost, **{"opcodes": ("LDG.E.128",), **counted})) == expected


@pytest.mark.parametrize(("sectors", "expected"), [(8, "equal"), (9, "at least"), (7, "different")])
def test_a_loop_that_retries_costs_at_least_its_first_iteration(sectors, expected):
    assert agreement(Cost(2, 8, 4, 8, is_lower_bound=True), Cost(2, sectors, 4, 8)) == expected


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
