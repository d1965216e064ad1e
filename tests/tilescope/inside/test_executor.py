"""Executions of small listings, and instructions whose results are compared with Python's integers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.listings import make_listing
from tests.tables import read_table
from tilescope.captures.listings import UnsupportedOperation
from tilescope.inside import execution
from tilescope.inside.banks import Wavefronts
from tilescope.inside.execution import execute
from tilescope.inside.threads import LaunchInputs
from tilescope.sass import semantics
from tilescope.sass.decoding import decode
from tilescope.sass.instructions import parse_sass
from tilescope.sass.registers import split_operands

WORDS = st.integers(0, 2**32 - 1)


def run(text, grid=(1, 1, 1), threads=32, constants=None, table=()):
    def load(address, width, stored):
        return np.zeros(address.shape, np.int64), np.zeros(address.shape, bool)

    return execute(
        parse_sass(make_listing(text)),
        LaunchInputs(grid, threads, (constants or {}).get, load, table),
    )


def times(text, **launch):
    return run(text, **launch).times.tolist()


def test_a_loop_runs_as_often_as_the_argument_says():
    text = """
        ULDC UR4, c[0x0][0x210]
        MOV R0, RZ
        .L_x_0:
        IADD3 R0, R0, 0x20, RZ
        ISETP.GE.AND P0, PT, R0, UR4, PT
        @!P0 BRA `(.L_x_0)
        EXIT
    """
    assert times(text, grid=(3, 1, 1), threads=64, constants={0x210: 100}) == [6, 6, 24, 24, 24, 6]


def test_programs_after_the_end_exit_early():
    text = """
        S2R R0, SR_CTAID.X
        ISETP.GE.U32.AND P0, PT, R0, 0x3, PT
        @P0 EXIT
        NOP
        EXIT
    """
    assert times(text, grid=(5, 2, 1)) == [10, 10, 10, 6, 6]


def test_divergent_lanes_run_one_after_the_other_until_they_reconverge():
    text = """
        S2R R0, SR_TID.X
        ISETP.LT.U32.AND P0, PT, R0, 0x8, PT
        BSSY B0, `(.L_x_1)
        @P0 BRA `(.L_x_0)
        NOP
        BRA `(.L_x_2)
        .L_x_0:
        NOP
        .L_x_2:
        NOP
        .L_x_1:
        BSYNC B0
        EXIT
    """
    # The first warp takes both sides, the second one does not.
    assert times(text, threads=64) == [2, 2, 2, 2, 2, 2, 1, 3, 3, 2]


def test_a_function_returns_to_its_caller():
    text = """
        MOV R2, 0x20
        CALL.REL.NOINC `($f)
        MOV R2, 0x40
        CALL.REL.NOINC `($f)
        EXIT
        $f:
        NOP
        RET.REL.NODEC R2 `(k)
    """
    assert times(text) == [1, 1, 1, 1, 1, 2, 2]


def test_a_slow_path_for_unknown_values_is_uncertain_and_the_rest_is_known():
    text = """
        LDG.E R0, desc[UR4][R2.64]
        FSETP.GT.AND P0, PT, R0, RZ, PT
        @!P0 BRA `(.L_x_0)
        NOP
        .L_x_0:
        NOP
        EXIT
    """
    executions = run(text)
    assert executions.uncertain == {3}
    assert executions.times.tolist() == [1, 1, 1, 0, 1, 1]
    assert executions.why_uncertain.startswith("Whether 1 of 6 instructions are executed depends")


def test_a_branch_on_a_quotient_that_all_threads_share_is_known():
    text = """
        MOV R0, 0x5
        I2F.U32.RP R1, R0
        MUFU.RCP R1, R1
        F2I.FTZ.U32.TRUNC.NTZ R2, R1
        ISETP.GT.U32.AND P0, PT, R2, 0x7, PT
        @P0 BRA `(.L_x_0)
        NOP
        .L_x_0:
        EXIT
    """
    assert times(text) == [1, 1, 1, 1, 1, 1, 1, 1]


def test_after_an_exit_on_an_unknown_value_all_counts_are_uncertain_and_assume_that_no_warp_exited():
    text = """
        LDG.E R0, desc[UR4][R2.64]
        ISETP.NE.AND P0, PT, R0, RZ, PT
        @P0 EXIT
        STS [R4], R0
        EXIT
    """
    executions = run(text)
    assert executions.uncertain == {3, 4}
    assert executions.times.tolist() == [1, 1, 1, 1, 1]
    assert set(executions.refused) == {3}


def test_a_loop_that_ends_at_an_unknown_value_is_refused():
    text = """
        .L_x_0:
        LDG.E R0, desc[UR4][R2.64]
        ISETP.NE.AND P0, PT, R0, RZ, PT
        @P0 EXIT
        BRA `(.L_x_0)
    """
    with pytest.raises(UnsupportedOperation, match="A branch depends on a value that is unknown"):
        run(text)


def test_an_infinite_loop_is_refused(monkeypatch):
    monkeypatch.setattr(execution, "_MOST_WORK", 1_000_000)
    with pytest.raises(UnsupportedOperation, match="too large to execute"):
        run(".L_x_0:\nBRA `(.L_x_0)")


@pytest.mark.parametrize(
    ("vote", "expected"),
    [("VOTE.ANY P0, P1", 2), ("VOTE.ALL P0, P1", 1), ("VOTE.ANY R1, P0, P1", 2)],
)
def test_a_warp_votes(vote, expected):
    text = f"""
        S2R R0, SR_TID.X
        ISETP.LT.U32.AND P1, PT, R0, 0x30, PT
        {vote}
        @!P0 EXIT
        NOP
        EXIT
    """
    # All lanes of the first warp and half of the second one's are below 48.
    assert times(text, threads=96) == [3, 3, 3, 3, expected, expected]


def test_each_warp_runs_the_partition_whose_number_the_first_warp_stores_for_it():
    text = """
        S2R R0, SR_TID.X
        SHF.R.U32.HI R2, RZ, 0x5, R0
        ISETP.NE.AND P0, PT, R2, RZ, PT
        @!P0 BRA `(.L_x_0)
        .L_x_1:
        USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0x40
        BRA.U !UP0, `(.L_x_1)
        BAR.SYNC.DEFER_BLOCKING 0x1
        LDS.U8 R4, [R2+0x40]
        IMAD.SHL.U32 R4, R4, 0x4, RZ
        LDC R4, c[0x2][R4]
        BRX R4 -0xb0
        NOP
        BAR.SYNC.DEFER_BLOCKING 0x1
        BRA `(.L_x_1)
        NOP
        NOP
        BAR.SYNC.DEFER_BLOCKING 0x1
        BRA `(.L_x_1)
        .L_x_0:
        MOV R6, 0x1000100
        STS [RZ+0x40], R6
        BAR.SYNC.DEFER_BLOCKING 0x1
        BAR.SYNC.DEFER_BLOCKING 0x1
        MOV R6, 0x2020202
        STS [RZ+0x40], R6
        BAR.SYNC.DEFER_BLOCKING 0x1
        EXIT
    """
    executions = run(text, grid=(5, 1, 1), threads=128, table=(0xB0, 0xE0, 0x190))
    first, second = (
        [1] * 4 + [2] * 7 + partitions + [0] * 7 + [1]
        for partitions in ([0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0, 0])
    )
    expected = [[1] * 4 + [0] * 14 + [1] * 8, first, second, first]
    assert executions.by_warp.tolist() == [[5 * times for times in row] for row in expected]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ((0x30,), "A branch depends on a value that is unknown"),
        ((), "The capture lacks the targets of a branch. Capture the launch again."),
    ],
)
def test_an_index_outside_the_table_of_a_branch_is_refused(table, sentence):
    with pytest.raises(UnsupportedOperation, match=sentence):
        run("MOV R4, 0x4\nLDC R4, c[0x2][R4]\nBRX R4 -0x30\nEXIT", table=table)


def test_lanes_that_leave_a_convergence_barrier_do_not_wait_for_the_others():
    text = """
        S2R R0, SR_TID.X
        BSSY B0, `(.L_x_1)
        .L_x_0:
        IADD3 R0, R0, 0x20, RZ
        ISETP.GE.AND P0, PT, R0, 0x50, PT
        BREAK P0, B0
        @P0 BRA `(.L_x_2)
        BRA `(.L_x_0)
        .L_x_1:
        BSYNC B0
        .L_x_2:
        EXIT
    """
    # Lanes 16 to 31 leave the loop after two iterations, the others after three.
    for form in ("BREAK P0, B0", "@P0 BREAK B0"):
        assert times(text.replace("BREAK P0, B0", form)) == [1, 1, 3, 3, 3, 3, 2, 0, 2]


SHUFFLE = """
    S2R R0, SR_TID.X
    ISETP.GE.AND P0, PT, R0, 0x20, PT
    @P0 BRA `(.L_x_0)
    BRA.DIV UR6, `(.L_x_1)
    SHFL.BFLY PT, R1, R0, 0x10, 0x1f
    .L_x_0:
    EXIT
    .L_x_1:
    WARPSYNC.COLLECTIVE R4, `(.L_x_2)
    SHFL.BFLY P0, R1, R0, R6, R7
    .L_x_2:
    BRA `(.L_x_0)
"""


def test_only_warps_whose_lanes_diverge_take_the_branch_before_a_shuffle():
    assert times(SHUFFLE, threads=64) == [2, 2, 2, 1, 1, 2, 0, 0, 0]
    with pytest.raises(UnsupportedOperation, match="Lanes of a warp diverge before they exchange"):
        run(SHUFFLE.replace("0x20", "0x8"))


def test_lanes_reconverge_where_a_warp_synchronizes():
    text = """
        ELECT P0, URZ, PT
        @!P0 BRA `(.L_x_0)
        NOP
        .L_x_0:
        WARPSYNC.ALL
        EXIT
    """
    assert times(text) == [1, 1, 1, 2, 1]


@pytest.mark.parametrize("place", ["[R2.64+0x8]", "[R2+0x8]", "desc[UR4][R2.64+0x8]"])
def test_a_load_uses_all_64_bits_of_an_address_from_the_constant_bank(place):
    addresses = set()

    def load(address, width, stored):
        addresses.update(address.ravel().tolist())
        return np.zeros(address.shape, np.int64), np.ones(address.shape, bool)

    text = f"""
        IMAD.WIDE R2, RZ, RZ, c[0x0][0x160]
        LDG.E R0, {place}
        ISETP.NE.AND P0, PT, R0, RZ, PT
        @P0 EXIT
        EXIT
    """
    words = {0x160: 0x10, 0x164: 0x3}
    executions = execute(
        parse_sass(make_listing(text)), LaunchInputs((1, 1, 1), 32, words.get, load)
    )
    assert addresses == {0x3_0000_0018}
    assert not executions.uncertain


def test_a_loop_of_one_block_that_ends_at_an_unknown_value_is_uncertain():
    text = """
        .L_x_0:
        LDG.E R0, desc[UR4][R2.64]
        ISETP.NE.AND P0, PT, R0, RZ, PT
        @P0 BRA `(.L_x_0)
        EXIT
    """
    assert run(text).uncertain == {0, 1, 2}


def test_a_branch_reads_the_bits_that_an_atomic_set():
    text = """
        MOV R0, 0x5
        STS [RZ], R0
        ELECT P0, URZ, PT
        MOV R1, 0x2
        @P0 ATOMS.OR RZ, [RZ], R1
        LDS R2, [RZ]
        ISETP.NE.AND P1, PT, R2, 0x7, PT
        @P1 EXIT
        NOP
        EXIT
    """
    assert times(text, threads=64)[-2:] == [2, 2]


def test_a_warp_elects_a_lane():
    text = """
        ELECT P0, URZ, PT
        @P0 STS [RZ], R0
        EXIT
    """
    executions = run(text, threads=64)
    assert executions.accesses[1].active.sum(axis=2).tolist() == [[1, 1]]


def test_predicates_survive_packing_into_a_byte_of_a_register():
    text = """
        S2R R0, SR_TID.X
        ISETP.LT.U32.AND P3, PT, R0, 0x20, PT
        P2R.B1 R4, PR, RZ, 0x8
        STL [R1+0x8], R4
        PLOP3.LUT P3, PT, PT, PT, PT, 0x8, 0x80
        LDL R5, [R1+0x8]
        R2P PR, R5.B1, 0x8
        @!P3 EXIT
        NOP
        EXIT
    """
    assert times(text, threads=96)[-3:] == [3, 1, 1]


def test_a_branch_reads_what_another_thread_stored():
    text = """
        S2R R0, SR_TID.X
        SHF.L.U32 R1, R0, 0x2, RZ
        STS [R1], R0
        LDS R2, [RZ]
        ISETP.NE.AND P0, PT, R2, RZ, PT
        @P0 EXIT
        NOP
        EXIT
    """
    executions = run(text, grid=(2, 1, 1), threads=64)
    assert executions.times.tolist() == [4, 4, 4, 4, 4, 4, 4, 4]
    assert executions.wavefronts == {2: Wavefronts(4, 4), 3: Wavefronts(4, 4)}


def test_tensor_memory_is_free_at_the_start():
    text = """
        UMOV UR5, 0x40
        LDS.U8 R0, [UR5+0x1c]
        ISETP.NE.AND P1, PT, R0, RZ, PT
        @P1 EXIT
        UTCATOMSWS.FIND_AND_SET.ALIGN UP0, UR6, UR6
        BRA.U UP0, `(.L_x_0)
        NANOSLEEP 0x64
        .L_x_0:
        EXIT
    """
    executions = run(text)
    assert executions.times.tolist() == [1, 1, 1, 1, 1, 1, 0, 1]
    assert not executions.uncertain


def test_wavefronts_at_an_unknown_address_are_refused():
    text = """
        LDG.E R0, desc[UR4][R2.64]
        STS [R0], R1
        EXIT
    """
    assert run(text).refused == {
        1: "The address of an access depends on a value that is unknown until the kernel runs."
    }


def signed(value):
    return value - 2**32 if value >> 31 else value


def low(value):
    return value % 2**32


def compute(text, *values):
    """Return an instruction's results, once of Python's integers and once of arrays."""
    (instruction,) = parse_sass(make_listing(text))
    step = decode(instruction, *split_operands(instruction))
    registers = {f"R{number}": value for number, value in enumerate(values)}
    results = []
    for make in (int, lambda value: np.array([value])):
        operands = [
            source.combine(*(make(registers[name]) for name in source.registers))
            for source in step.sources
        ]
        results.append([int(np.ravel(value)[0]) for value in step.compute(*operands)])
    assert results[0] == results[1]
    return results[0]


# An instruction, and its results for the words a, b and c in R0, R1 and R2.
INSTRUCTIONS = """
IADD3 R9, R0, -R1, R2 -> low(a - b + c)
IADD3 R9, P0, R0, R1, R2 -> (low(a + b + c), a + b + c >= 2**32)
IMAD R9, R0, R1, R2 -> low(a * b + c)
IMAD.HI.U32 R9, R0, R1, RZ -> a * b >> 32
IMAD.WIDE R9, R0, R1, RZ -> (low(signed(a) * signed(b)), low(signed(a) * signed(b) >> 32))
LEA R9, R0, R1, 0x3 -> low(8 * a + b)
LEA.HI R9, R0, R1, R2, 0x4 -> low((c << 4 | a >> 28) + b)
LEA.HI.SX32 R9, R0, R1, 0x1c -> low((signed(a) >> 4) + b)
SHF.L.U32 R9, R0, R1, RZ -> low(a << min(b, 32))
SHF.R.U32.HI R9, RZ, R1, R0 -> a >> min(b, 32)
SHF.R.S32.HI R9, RZ, R1, R0 -> low(signed(a) >> min(b, 32))
SHF.R.U64 R9, R0, R1, R2 -> low((c << 32 | a) >> min(b, 63))
SHF.R.S64 R9, R0, R1, R2 -> low((signed(c) << 32 | a) >> min(b, 63))
SHF.L.U64.HI R9, R0, R1, R2 -> low((c << 32 | a) << min(b, 63) >> 32)
LOP3.LUT R9, R0, R1, R2, 0xf8, !PT -> a | b & c
LOP3.LUT R9, R0, R1, R2, 0x96, !PT -> a ^ b ^ c
LOP3.LUT P0, R9, R0, R1, RZ, 0xc0, !PT -> (a & b != 0, a & b)
ISETP.LT.AND P0, P1, R0, R1, PT -> (signed(a) < signed(b), signed(a) >= signed(b))
ISETP.GE.U32.AND P0, PT, R0, R1, PT -> (a >= b, a < b)
VIMNMX R9, R0, R1, PT -> low(min(signed(a), signed(b)))
VIMNMX.U32 R9, R0, R1, !PT -> max(a, b)
IABS R9, R0 -> abs(signed(a))
POPC R9, R0 -> a.bit_count()
FLO.U32 R9, R0 -> low(a.bit_length() - 1)
SGXT R9, R0, 0x8 -> low((a + 128) % 256 - 128)
SGXT.U32 R9, R0, 0x8 -> a % 256
PRMT R9, R0, 0x5410, R1 -> b % 2**16 << 16 | a % 2**16
PRMT R9, R0, 0x9991, R1 -> (a >> 8) % 256 | (a >> 15 & 1) * 0xFFFFFF00
"""


@pytest.mark.parametrize("row", INSTRUCTIONS.strip().splitlines())
@given(a=WORDS, b=WORDS | st.integers(0, 70), c=WORDS)
def test_an_instruction_computes_what_pythons_integers_give(row, a, b, c):
    text, expected = row.split(" -> ")
    result = eval(expected, globals(), {"a": a, "b": b, "c": c})
    assert compute(text, a, b, c) == [int(each) for each in np.atleast_1d(result)]


# The last one has segments of 8 lanes.
SHUFFLES = """
BFLY | 16 | 31 | lane ^ 16
UP | 1 | 0 | max(lane - 1, 0)
DOWN | 2 | 31 | lane + 2 if lane < 30 else lane
IDX | 5 | 31 | 5
IDX | 1 | 0x181F | lane // 8 * 8 + 1
"""


@pytest.mark.parametrize(("mode", "by", "clamp", "expected"), read_table(SHUFFLES))
def test_a_shuffle_reads_another_lane_of_the_warp(mode, by, clamp, expected):
    value = np.arange(64)[None]
    shuffled = semantics.shuffle(mode, value, by, clamp)[0].tolist()
    assert shuffled == [
        thread // 32 * 32 + eval(str(expected), {"lane": thread % 32}) for thread in range(64)
    ]
