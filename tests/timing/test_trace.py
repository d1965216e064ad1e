"""The trace of a mean warp."""

from kernels.inside.sass import Instruction
from kernels.timing.trace import trace_warp

LOOP = (
    Instruction("", "IADD3", (), ()),
    Instruction("P0", "BRA", (), (), target=4),
    Instruction("", "BAR", (), ()),
    Instruction("UP0", "UTMASTG", (), ()),
    Instruction("P1", "BRA", (), (), target=0),
)


def test_a_copy_in_a_branch_runs_as_often_as_the_branch_though_one_of_four_warps_executes_it():
    trace = trace_warp(LOOP, [8, 8, 2, 0.5, 8], budget=100, copies={3: 2})
    assert [trace.count(number) for number in range(len(LOOP))] == [8, 8, 2, 2, 8]


def test_a_copy_with_a_predicate_runs_as_often_as_one_warp_executes_it():
    trace = trace_warp(LOOP, [8, 8, 8, 0.5, 8], budget=100, copies={3: 2})
    assert [trace.count(number) for number in range(len(LOOP))] == [8, 8, 8, 2, 8]
