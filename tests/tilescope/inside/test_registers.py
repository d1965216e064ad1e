"""Registers by source line: live registers as nvdisasm counts them, and the compiler's numbers at the maximum."""

from dataclasses import replace
from pathlib import Path

import pytest

from kernels.examples import EXAMPLES
from tests.listings import make_listing
from tilescope.captures.reader import Capture
from tilescope.inside.inspect import count_live, count_spills, measure_registers
from tilescope.inside.report import HeldRegisters, LineRegisters, LineSpills
from tilescope.reports.comparison import differences
from tilescope.reports.launch import LaunchReport, Report
from tilescope.reports.text import table
from tilescope.sass.instructions import Instruction, parse_sass
from tilescope.sass.registers import find_accesses

CAPTURES = [Path(path).with_suffix(".tilescope") for path in EXAMPLES]
COUNTED = sorted(Path(__file__).with_name("live_registers").iterdir())
LAUNCH = LaunchReport("k", "k.py", 1, (1, 1, 1), 32, 0, 0, ())


def live_by_line(text):
    return {each.line: each.live for each in measure_registers(make_listing(text))[0]}


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_the_maximum_is_the_compilers_number_of_registers_and_spills_sum_to_its_bytes(path):
    capture = Capture(path)
    for launch in capture.content.launches:
        kernel, codes = capture.build(launch.kernel)
        by_line, at_peak = measure_registers(codes["sass"])
        assert max(each.registers for each in by_line) == kernel.registers
        spills = count_spills(parse_sass(codes["sass"]))
        assert sum(each.stored_bytes for each in spills) == kernel.spilled_bytes
        assert 0 < sum(each.registers for each in at_peak) <= by_line[0].live


@pytest.mark.parametrize("path", COUNTED, ids=lambda path: path.stem)
def test_live_registers_are_those_of_nvdisasm(path):
    """The files hold the number of live registers of nvdisasm 12.8 (-plr -lrm count) before each instruction."""
    text = path.read_text()
    expected = [int(line.split()[0]) for line in text.splitlines() if " " in line]
    assert list(count_live(make_listing(text))) == expected


def test_the_sum_of_a_loop_is_held_by_the_line_that_updates_it():
    sass = make_listing(
        """
        1 LDC R1, c[0x0][0x28]
        2 CS2R R8, SRZ
        3 LDC.64 R2, c[0x0][0x210]
        .L_x_0:
        4 LDG.E.128 R4, desc[UR4][R2.64]
        5 DADD R8, R8, R4
        5 DADD R8, R8, R6
        6 ISETP.NE.AND P0, PT, R2, RZ, PT
        6 @P0 BRA `(.L_x_0)
        7 STG.E.64 desc[UR4][R2.64], R8
        7 EXIT
        """
    )
    by_line, at_peak = measure_registers(sass)
    assert by_line[0] == LineRegisters("k.py", 4, 16, 9)
    assert by_line[-1] == LineRegisters("k.py", 1, 16, 1)
    assert [(each.line, each.registers) for each in at_peak] == [(4, 4), (3, 2), (5, 2), (1, 1)]


def test_a_predicated_write_keeps_the_earlier_value_live():
    text = "1 MOV R4, 0x1\n2 {}MOV R4, 0x2\n3 STG.E desc[UR4][R2.64], R4\n3 EXIT"
    assert live_by_line(text.format("")) == {1: 4, 2: 4, 3: 4}
    held = [measure_registers(make_listing(text.format(each)))[1] for each in ("", "@P0 ")]
    assert [[each.line for each in lines] for lines in held] == [[1], [1]]
    assert live_by_line("0 MOV R5, R6\n" + text.format(""))[0] == 5
    assert live_by_line("0 MOV R5, R6\n" + text.format("@P0 "))[0] == 5


def test_a_function_uses_the_registers_that_its_caller_needs_after_the_call():
    text = """
        1 MOV R4, 0x30
        2 MOV R9, 0x7
        3 CALL.REL.NOINC `($__internal_0_$__div)
        4 STG.E desc[UR4][R2.64], R6
        5 STG.E desc[UR4][R2.64], R9
        5 EXIT
        $__internal_0_$__div:
        8 IMAD R6, R7, R7, RZ
        9 MOV R5, 0x0
        9 RET.REL.NODEC R4 `(kernel)
        """
    assert live_by_line(text) == {1: 5, 2: 6, 3: 8, 4: 5, 5: 4, 8: 7, 9: 7}


def test_a_call_of_a_label_in_the_kernel_does_not_return():
    text = """
        1 @P0 CALL.REL.NOINC `(.L_x_1)
        2 MOV R4, R5
        2 STG.E desc[UR4][R2.64], R4
        2 EXIT
        .L_x_1:
        3 STG.E desc[UR4][R2.64], R6
        3 EXIT
        """
    assert live_by_line(text) == {1: 5, 2: 5, 3: 4}


def test_an_indirect_branch_leads_to_the_code_that_nothing_else_reaches():
    text = """
        1 BRX R2 -0x10
        .L_x_1:
        2 STG.E desc[UR4][R4.64], R6
        2 @P0 BRA `(.L_x_1)
        2 EXIT
        3 STG.E desc[UR4][R4.64], R7
        3 EXIT
        """
    assert live_by_line(text) == {1: 7, 2: 4, 3: 4}


# An instruction, and the numbers of the registers that it reads and writes.
ACCESSES = """
FADD R0, R2, -R3 | 2-3 | 0
STS.128 [R18+UR7+0xc000], R20 | 18 20-23 |
LDG.E.128 R20, desc[UR46][R18.64] | 18-19 | 20-23
LDG.E.U16 R25, desc[UR6][R12.64] | 12-13 | 25
LDGSTS.E.BYPASS.128 [R45], desc[UR46][R56.64], P5 | 45 56-57 |
ATOMG.E.CAS.64.STRONG.GPU PT, R6, [R14+0x8], R4, R8 | 4-5 8-9 14-15 | 6-7
ATOMG.E.ADD.F32x4.FTZ.RN PT, R16, desc[UR6][R6.64], R20 | 6-7 20-23 | 16-19
REDG.E.ADD.F64.RN desc[UR6][R2.64], R12 | 2-3 12-13 |
IMAD.WIDE.U32 R22, P0, R18, R27, R24 | 18 24-25 27 | 22-23
IMAD.HI.U32 R0, R2, R4, R6 | 2 4 6-7 | 0
SHF.R.U64 R13, R4, 0x4, R5 | 4-5 | 13
ISETP.GE.AND P0, PT, R35, R16, PT | 16 35 |
LOP3.LUT P0, RZ, R48, 0x1f, RZ, 0xc0, !PT | 48 |
SHFL.BFLY PT, R19, R18, 0x8, 0x1f | 18 | 19
CS2R R72, SRZ |  | 72-73
F2F.F64.F32 R20, R2 | 2 | 20-21
F2F.F32.F64 R14, R16 | 16-17 | 14
F2I.S64.F64.TRUNC R12, R28 | 28-29 | 12-13
F2I.U64.TRUNC R16, R18 | 18 | 16-17
I2F.F64 R50, R0 | 0 | 50-51
I2F.U64.RP R22, R24 | 24-25 | 22
DSETP.GT.AND P1, PT, R30, R26, PT | 26-27 30-31 |
LDSM.16.MT88.2 R18, [R24+0x200] | 24 | 18-19
STSM.16.M88.4 [R0+0x12000], R56 | 0 56-59 |
HMMA.16816.F32.BF16 R0, R8, R12, R4 | 4-13 | 0-3
HMMA.16816.F16 R0, R8, R12, R4 | 4-5 8-13 | 0-1
HMMA.1688.F32.TF32 R0, R8, R12, RZ | 8-13 | 0-3
IMMA.16832.S8.S8.SAT R0, R8.ROW, R12.COL, RZ | 8-13 | 0-3
DMMA.16x8x16 R0, R8, R24, RZ | 8-31 | 0-7
HGMMA.64x128x16.F32 R24, R120, gdesc[UR8].tnspB, R24, gsb0 | 24-87 120-123 | 24-87
HGMMA.64x64x16.F16 R24, gdesc[UR4], RZ, !UPT |  | 24-39
LDTM.x32 R4, tmem[UR5] |  | 4-35
STTM.16dp256bit.x4 tmem[UR5], R4 | 4-19 |
RET.REL.NODEC R4 `(kernel) | 4-5 |
UNKNOWN.64 R4, R8 | 8-9 | 4-5
"""


def to_bits(text):
    """Return a set of registers, such as "4 8-10", as bits."""
    ends = (part.partition("-")[::2] for part in text.split())
    return sum(1 << n for first, last in ends for n in range(int(first), int(last or first) + 1))


@pytest.mark.parametrize("row", ACCESSES.strip().splitlines())
def test_an_opcode_gives_the_widths_of_its_operands(row):
    text, reads, writes = row.split("|")
    opcode, operands = text.strip().split(maxsplit=1)
    instruction = Instruction("", opcode, tuple(operands.split(", ")), ())
    assert find_accesses(instruction) == (to_bits(reads), to_bits(writes))


def test_spills_are_the_stores_to_the_stack_that_are_reloaded():
    """An array on the stack is indexed through other registers."""
    instructions = parse_sass(
        make_listing(
            """
            1 STL.64 [R1+0x8], R4
            2 STL [R1], R6
            3 STL [R1+0x40], R6
            3 STL [R7], R6
            4 LDL R8, [R7+0x4]
            5 LDL.LU R8, [R1]
            5 LDL.LU.64 R4, [R1+0x8]
            """
        )
    )
    spills = count_spills(instructions)
    assert spills == (
        LineSpills("k.py", 1, 1, 0, 8),
        LineSpills("k.py", 2, 1, 0, 4),
        LineSpills("k.py", 5, 0, 2, 0),
    )
    executed = count_spills(instructions, [1, 2, 0, 0, 0, 10, 20])
    assert [each.executed for each in executed] == [1, 2, 30]
    assert [each.moved_bytes for each in executed] == [32 * 8, 2 * 32 * 4, 32 * (40 + 160)]


def test_the_barriers_of_an_instruction_are_not_operands():
    text = "1 MOV R4, R5          &req={1,0}  ?trans5\n1 NOP &req={3}"
    assert [each.operands for each in parse_sass(make_listing(text))] == [("R4", "R5"), ()]


def test_a_launch_that_spills_names_its_lines():
    launch = replace(
        LAUNCH,
        registers_by_line=(LineRegisters("k.py", 5, 32, 30),),
        registers_at_peak=(HeldRegisters("k.py", 4, 20), HeldRegisters("standard.py", 9, 10)),
        spills_by_line=(
            LineSpills("k.py", 5, 2, 0, 8, 4, 1024),
            LineSpills("k.py", 7, 0, 3, 0, 6, 1536),
        ),
    )
    text = table(Report("3", "H100", (LAUNCH, launch)))
    assert text.count("Live registers: ") == 1
    assert "Live registers: 30 at line 5, written at line 4 (20), standard.py:9 (10)\n" in text
    assert text.endswith("Spilled bytes: line 5 (8); reloads: line 7 (3); 2,560 bytes moved")


def test_a_difference_in_registers_names_the_lines():
    spills = [LineSpills("k.py", line, 1, 1, stored) for line, stored in enumerate((4, 8, 40, 80))]
    before = replace(
        LAUNCH,
        registers_by_line=(LineRegisters("k.py", 5, 32, 30),),
        spills_by_line=(LineSpills("k.py", 2, 1, 1, 100), LineSpills("k.py", 3, 1, 1, 80)),
        spilled_bytes=180,
    )
    after = replace(
        LAUNCH,
        registers=40,
        registers_by_line=(LineRegisters("standard.py", 9, 40, 38),),
        spills_by_line=tuple(spills),
        spilled_bytes=132,
    )
    rose, fell = differences([before], [after])
    lines = "(peak before: 30 live at line 5; now: 38 live at standard.py:9)"
    assert rose.sentence == f"k.py:1 k: registers rose from 32 to 40 {lines}."
    assert fell.lines == "line 2 -60, line 1 +8, line 0 +4"
    (unexplained,) = differences([LAUNCH], [replace(LAUNCH, registers=40)])
    assert unexplained.sentence == "k.py:1 k: registers rose from 32 to 40."


@pytest.mark.parametrize(
    ("opcode", "operands"),
    [("MOV", ("R999999999", "RZ")), ("HGMMA.64x99999999999x16.F32", ("R24", "gdesc[UR8]", "R24"))],
)
def test_an_instruction_on_registers_that_no_gpu_has_is_damaged(opcode, operands):
    with pytest.raises(ValueError, match="a thread has 255"):
        find_accesses(Instruction("", opcode, operands, ()))
