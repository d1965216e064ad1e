"""The pipes of instructions, the trace of an average warp, and the time of launches with shorter traces."""

from types import SimpleNamespace

import pytest

from tests.listings import make_listing
from tests.tables import read_table
from tilescope.declare.gpus import GPUS
from tilescope.sass.instructions import find_opcode, parse_sass
from tilescope.timing.constants import H100
from tilescope.timing.launches import find_spilled_bytes
from tilescope.timing.model import Execution, Traffic, time_launch
from tilescope.timing.steps import PIPES, Step, count_issue_cycles, read_steps, trace_warp

NO_TRAFFIC = Traffic({}, {}, 0.0, 0.0, 0.0, 0.0)


PIPE_OF = """
I2FP | alu
I2F | xu
UIADD3 | uniform
UTMALDG | control
UTCHMMA | tensor
LDTM | lsu
FHADD | fma
"""


@pytest.mark.parametrize(("name", "pipe"), read_table(PIPE_OF))
def test_instructions_have_the_pipe_of_their_documented_rate(name, pipe):
    assert find_opcode(name).pipe == pipe
    assert pipe in PIPES


@pytest.mark.parametrize("name", ["MATCH", "STAS", "UBLKCP", "FFMA9"])
def test_instructions_of_unknown_rate_have_no_pipe(name):
    assert find_opcode(name).pipe == ""


def test_a_listing_with_an_unknown_instruction_has_a_step_for_each():
    sass = make_listing("FADD R0, R1, R2\nLDTM.x32 R4, tmem[UR4]\nEXIT")
    assert len(read_steps(sass)) == 3


LOOP = parse_sass(
    make_listing(
        """
        .L_x_0:
        IADD3
        @P0 BRA `(.L_x_1)
        BAR
        @UP0 UTMASTG
        .L_x_1:
        @P1 BRA `(.L_x_0)
        """
    )
)


@pytest.mark.parametrize("in_branch", [2, 8], ids=["in a branch", "with a predicate"])
def test_a_copy_runs_as_often_as_it_is_executed_though_only_by_one_of_four_warps(in_branch):
    trace, _ = trace_warp(LOOP, [8, 8, in_branch, 0.5, 8], budget=100, copies={3: 2})
    assert [trace.count(number) for number in range(len(LOOP))] == [8, 8, in_branch, 2, 8]


# A loop over groups that contains a loop over tiles, which contains a loop over blocks. Most groups have no tile.
GROUPS, TILES, BLOCKS = 8, 2, 512
NESTED = parse_sass(
    make_listing(
        """
        .L_x_0:
        IADD3
        @P0 BRA `(.L_x_3)
        .L_x_1:
        FADD
        .L_x_2:
        MUFU
        @P1 BRA `(.L_x_2)
        @P2 BRA `(.L_x_1)
        .L_x_3:
        @P3 BRA `(.L_x_0)
        EXIT
        """
    )
)


def count_executions(blocks):
    return [GROUPS, GROUPS, TILES, TILES * blocks, TILES * blocks, TILES, GROUPS, 1]


def time_nested(blocks, most_steps):
    step = Step("", PIPES.index("fma"), 1, 4, (), ())
    slow = Step("", PIPES.index("xu"), 8, 36, (1,), (1,))
    steps = [slow if each.name == "MUFU" else step for each in NESTED]
    warps = GPUS["H100"].sms * 4
    executed = [each * warps for each in count_executions(blocks)]
    execution = Execution(NESTED, steps, executed, NO_TRAFFIC, GPUS["H100"].sms, 4, 1)
    time_us, _ = time_launch(execution, H100, most_steps)
    return time_us - H100.launch_us


@pytest.mark.parametrize("budget", [1, 20, 300, 10_000])
def test_weights_of_a_short_trace_sum_to_the_executions_of_each_instruction(budget):
    executions = count_executions(BLOCKS)
    trace, weights = trace_warp(NESTED, executions, budget, copies={})
    for number, times in enumerate(executions):
        represented = [
            weight for each, weight in zip(trace, weights, strict=True) if each == number
        ]
        assert sum(represented) == pytest.approx(times)


def test_a_loop_that_no_warp_enters_at_its_start_is_no_loop():
    trace, _ = trace_warp(NESTED, [0, 0, 0, 2, 2, 0, 1, 1], budget=100, copies={})
    assert trace == [3, 4, 3, 4, 6, 7]


def test_partitions_take_as_long_as_the_slowest_one_because_they_run_at_the_same_time():
    step = Step("", PIPES.index("fma"), 1, 4, (), ())
    code = parse_sass(make_listing("FADD")) * 400
    sms = GPUS["H100"].sms

    def time(*partitions):
        executed = [
            sum(each) for each in zip(*(executed for executed, _ in partitions), strict=True)
        ]
        warps = sum(warps for _, warps in partitions)
        execution = Execution(
            code, [step] * 400, executed, NO_TRAFFIC, sms, warps, 1, partitions=partitions
        )
        return time_launch(execution, H100)[0]

    long = [4 * sms] * 300 + [0] * 100, 4
    short = [0] * 300 + [sms] * 100, 1
    assert time(long, short) == pytest.approx(time(long))
    assert time(short) < time(long)


def test_a_launch_takes_as_long_as_its_longest_program():
    def time(blocks, **more):
        step = Step("", PIPES.index("fma"), 1, 4, (1,), (1,))
        executed = [each * GPUS["H100"].sms * 4 for each in count_executions(blocks)]
        execution = Execution(
            NESTED, [step] * len(NESTED), executed, NO_TRAFFIC, GPUS["H100"].sms, 4, 1, **more
        )
        return time_launch(execution, H100)[0]

    assert time(BLOCKS, longest=4.0) == pytest.approx(time(4 * BLOCKS), rel=0.1)


@pytest.mark.parametrize(
    ("length", "cycles"), [(2000, 1), (2048 + 256, 1.9), (4000, 2.8), (20_000, 6.2)]
)
def test_instructions_of_a_loop_that_overflows_the_instruction_cache_are_late(length, cycles):
    inner = ".L_x_0:\nFADD R0, R0, R0\n.L_x_1:\nFADD R0, R0, R0\n@P0 BRA `(.L_x_1)\n"
    rest = "FADD R0, R0, R0\n" * (length - 4)
    code = parse_sass(make_listing(f"{inner}{rest}@P1 BRA `(.L_x_0)"))
    for sharing in (1, 2):
        issue = count_issue_cycles(code, [10.0] * len(code), sharing)
        assert issue[-1] == pytest.approx(max(1, cycles / sharing))
        assert issue[1:3] == [1, 1]


@pytest.mark.parametrize("most_steps", [30, 300, 3000])
def test_a_short_simulation_of_nested_loops_predicts_the_time_of_a_full_one(most_steps):
    assert time_nested(BLOCKS, most_steps) == pytest.approx(time_nested(BLOCKS, 30_000), rel=0.25)


def test_more_iterations_take_longer_however_short_the_simulation_is():
    times = [time_nested(blocks, 300) for blocks in (128, 500, 512, 2048, 1 << 20)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(times[-2] * 512, rel=0.25)


@pytest.mark.parametrize(("programs", "at_once"), [(32, 1), (133, 2), (10_000, 4)])
def test_an_sm_holds_the_spilled_registers_of_the_programs_that_run_on_it(programs, at_once):
    kernel = SimpleNamespace(num_warps=2, spilled_bytes=632)
    assert find_spilled_bytes(kernel, programs, 4, GPUS["H200"]) == at_once * 2 * 32 * 632
