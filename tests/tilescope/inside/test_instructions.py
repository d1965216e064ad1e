"""Instructions by source line and kind, and the sentence that explains a launch which became slower."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels.examples import EXAMPLES
from tests.listings import make_listing
from tilescope.captures.reader import Capture
from tilescope.inside.inspect import sum_instructions
from tilescope.inside.report import LineInstructions
from tilescope.reports.comparison import compare
from tilescope.reports.launch import Launches, LaunchReport, OperationReport, Report
from tilescope.reports.text import table
from tilescope.sass.instructions import parse_sass

CAPTURES = [Path(path).with_suffix(".tilescope") for path in EXAMPLES]
LAUNCH = LaunchReport(
    "k", "k.py", 1, (1, 1, 1), 32, 0, 0, (), programs_per_sm=2, limited_by=("registers",)
)


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_all_instructions_of_a_launch_belong_to_a_line_and_a_kind(path):
    launches = Launches(Capture(path))
    inside, executions = launches.inspections(0)
    code = parse_sass(launches.capture.read_code(launches.content.launches[0].kernel, "sass"))
    rows = inside.instructions_by_line
    assert sum(row.compiled for row in rows) == len(code)
    assert sum(row.executed for row in rows) == inside.instructions_executed
    shuffles = sum(each.opcode.startswith("SHFL") for each in code)
    assert sum(row.compiled for row in rows if row.kind == "shuffles") == shuffles
    assert executions


def test_kinds_follow_from_opcodes_and_their_suffixes():
    opcodes = {
        "barriers": "BAR.SYNC.DEFER_BLOCKING",
        "mbarrier operations": "SYNCS.PHASECHK.TRANS64.TRYWAIT",
        "shuffles": "SHFL.BFLY",
        "shared loads": "LDSM.16.M88.4",
        "shared stores": "STS.128",
        "shared atomics": "ATOMS.ADD",
        "async copies": "LDGSTS.E.BYPASS.128",
        "global atomics": "REDG.E.ADD.F32",
        "descriptor loads": "UTMALDG.2D",
        "local stores": "STL.64",
        "HGMMA": "HGMMA.64x128x16.F32",
        "special functions": "MUFU.EX2",
        "type conversions": "F2FP.F16.F32.PACK_AB",
        "float arithmetic": "HFMA2.BF16_V2",
        "integer arithmetic": "IMAD.WIDE",
        "control and others": "BRA",
    }
    code = parse_sass(make_listing("\n".join(f"4 {name} R2, R4" for name in opcodes.values())))
    assert [each.kind for each in code] == list(opcodes)
    (flo,) = parse_sass(make_listing("4 FLO.U32 R2, R4"))
    assert flo.kind == "integer arithmetic"


def test_executions_that_depend_on_unknown_values_are_unknown_for_their_line_and_kind_only():
    code = parse_sass(make_listing("4 FADD R2, R2, R4\n4 IADD3 R5, R6, R7, RZ\n5 FADD R3, R3, R4"))
    rows = sum_instructions(code, {}, executed=np.full(3, 8), uncertain={1})
    assert [(row.line, row.kind, row.executed) for row in rows] == [
        (4, "float arithmetic", 8), (4, "integer arithmetic", None), (5, "float arithmetic", 8),
    ]  # fmt: skip


def instructions(**numbers):
    return tuple(
        LineInstructions("k.py", 4, kind.replace("_", " "), number)
        for kind, number in numbers.items()
    )


def test_a_changed_launch_is_described_by_its_cost_then_its_causes():
    load = OperationReport("load", "ld", "x", "k.py", 3, requests=1, sectors=4)
    before = replace(
        LAUNCH,
        ops=(load,),
        predicted_us=57.0,
        instructions_by_line=instructions(barriers=4, float_arithmetic=100, control_and_others=1),
    )
    after = replace(
        before,
        ops=(replace(load, sectors=8),),
        registers=72,
        programs_per_sm=1,
        predicted_us=88.0,
        instructions_by_line=instructions(
            barriers=8, shuffles=16, float_arithmetic=109, control_and_others=9
        ),
    )
    (changed,) = compare([before, before], [after, after])
    assert changed.sentence == (
        "k.py:1 k (2 launches): Predicted 57.0 µs → 88.0 µs (1.54 ×). Registers 32 → 72, so 1 program per SM instead "
        "of 2. Line 3, load x: sectors 4 → 8. Shuffles 0 → 16 (line 4 +16), barriers 4 → 8 (line 4 +4)."
    )
    other = replace(before, kernel="other")
    names = [
        each.kernel for each in compare([other, before], [replace(other, registers=33), after])
    ]
    assert names == ["k", "other"]


def test_the_lines_of_an_edited_script_follow_the_kernel_and_its_operations():
    load = OperationReport("load", "ld", "x", "k.py", 3, requests=1, sectors=4)
    before = replace(LAUNCH, ops=(load,), instructions_by_line=instructions(barriers=4))
    moved = replace(instructions(barriers=5)[0], line=9)
    after = replace(LAUNCH, line=2, ops=(replace(load, line=8),), instructions_by_line=(moved,))
    (changed,) = compare([before], [after])
    assert changed.sentence == "k.py:2 k: Barriers 4 → 5 (line 9 +1)."


def test_a_table_names_the_busiest_lines_where_issuing_instructions_takes_half_of_the_time():
    rows = (
        LineInstructions("k.py", 4, "shuffles", 2, 100),
        LineInstructions("k.py", 4, "special functions", 4, 300),
        LineInstructions("k.py", 5, "global stores", 4, 100),
    )
    launch = replace(
        LAUNCH,
        instructions_executed=500,
        instructions_by_line=rows,
        predicted_us=10.0,
        range_us=(8.0, 12.0),
        by_resource_us={"issue": 6.0},
    )
    text = table(Report("3", "H200", (launch,)))
    busiest = "line 4 (80 %, mostly special functions), line 5 (20 %, mostly global stores)"
    assert f"warp instructions executed: 500; most at {busiest}\n" in text
    idle = replace(launch, by_resource_us={"issue": 4.0})
    assert "warp instructions executed: 500\n" in table(Report("3", "H200", (idle,)))
