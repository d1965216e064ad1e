"""The Inside view: its texts, and pictures that show what was counted."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.messages import decode, opened, text_of
from tilescope.captures.layouts import textbook_layout
from tilescope.inside.banks import BankAccess, count_wavefronts, serve_words
from tilescope.inside.report import (
    Inside,
    LayoutConversion,
    LineRegisters,
    LineSpills,
    MapLoop,
    MapStep,
    SharedAccess,
    SharedBuffer,
    SharedMap,
    StageNeed,
)
from tilescope.results import Failure
from visualize.views.inside.program import captured_program
from visualize.views.inside.view import INSIDE
from visualize.views.memory.shared_memory import inspection_slots
from visualize.views.slots import NONE
from visualize.views.state import Snapshot
from visualize.web.scripts import shipped_scripts

SCRIPTS = ("attention", "gather", "histogram", "layer_norm", "softmax", "vector_add")
STAGES = tuple(
    SharedBuffer("a.py", 20, 16_384 * stage, 16_384, 0, 3, "pipelined operand", stage, 3, "a")
    for stage in range(3)
)
MAP = SharedMap(
    49_152,
    227 * 1024,
    (*STAGES, SharedBuffer("a.py", 30, 0, 12_288, 5, 6, "layout conversion")),
    tuple(MapStep("a.py", line, "ttg.local_load") for line in (20, 20, 22, 22, 25, 30, 30)),
    (MapLoop("a.py", 18, 1, 3),),
    (StageNeed(2, 32_768, 6), StageNeed(3, 49_152, 4), StageNeed(4, 262_144, 0)),
)


@cache
def launches_of(script):
    return shipped_scripts()[f"script.{script}"].launches


def program_of(script="attention", **changes):
    """Return the inside of an example's first launch; `changes` are fields of its report."""
    program = captured_program(launches_of(script), 0)
    return replace(program, inside=replace(program.inside, **changes))


def pipeline_of(program):
    return decode(INSIDE["pipeline"].draw_program(program)["pipeline-plot"])


def words_of(tab, program):
    slots = INSIDE[tab].draw_program(program)
    return text_of(slots[f"{tab}-headline"]), text_of(slots[f"{tab}-table"])


def test_the_texts_are_the_approved_ones(approve):
    texts = {}
    for script in SCRIPTS:
        program = program_of(script)
        texts |= {
            f"{script}: {tab}": slots[f"{tab}-headline"] + slots[f"{tab}-table"]
            for tab, slots in ((tab, panel.draw_program(program)) for tab, panel in INSIDE.items())
        }
        folds = inspection_slots(program.inside, "")
        texts[f"{script}: compiler"] = folds["memory-map-table"] + folds["conversions-table"]
    approve("inside", texts)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_banks_serve_each_warp_in_the_counted_wavefronts(script):
    for access in program_of(script).accesses.values():
        for warp in np.flatnonzero(access.active.any(axis=(0, 2))):
            part = BankAccess(access.opcode, access.address[:, [warp]], access.active[:, [warp]])
            assert len(serve_words(part)) == count_wavefronts(part).actual


def with_access(opcode, address, wavefronts, counted):
    """Return a program with one access to shared memory, and its line and opcode.

    Args:
        wavefronts: those of the banks, in all executions.
        counted: those of the hardware, which include the wavefronts in which a copy reads.
    """
    program = program_of()
    index, instruction = next(
        (index, each) for index, each in enumerate(program.instructions) if each.name == opcode
    )
    reading = counted[0] - counted[1] - (wavefronts[0] - wavefronts[1])
    row = SharedAccess(*instruction.source, opcode, 1, *counted, reading_wavefronts=reading)
    access = BankAccess(instruction.opcode, address, np.ones_like(address, dtype=bool))
    own = replace(
        program,
        inside=Inside(shared=(row,)),
        accesses={index: access},
    )
    return own, row


def test_lanes_two_words_apart_take_two_wavefronts_of_which_one_is_a_conflict():
    words = np.arange(32).reshape(1, 1, 32)
    program, row = with_access("LDGSTS", 1024 + 32 * words, (800, 400), (900, 400))
    slots = INSIDE["shared-memory"].draw_program(program)
    figure = decode(slots["shared-memory-plot"])
    (cells,) = figure["data"]
    assert figure["layout"]["yaxis"]["ticktext"] == [
        *(f"wavefront {n}" for n in range(1, 5)), *(f"conflict {n}" for n in range(5, 9)),
    ]  # fmt: skip
    rows = [[lane for lane in row if lane] for row in cells["text"]]
    assert [sorted(set(map(int, row))) for row in rows] == [
        [0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18, 19], [24, 25, 26, 27],
        [4, 5, 6, 7], [12, 13, 14, 15], [20, 21, 22, 23], [28, 29, 30, 31],
    ]  # fmt: skip
    assert (
        f"{row.opcode}, {row.file}:{row.line}: 8 wavefronts instead of 4."
        in (figure["layout"]["title"]["text"])
    )
    headline, table = words_of("shared-memory", program)
    assert headline.startswith("400 bank conflicts predicted All of them are in")
    assert "LDGSTS 1 900 400" in table


def test_wavefronts_in_which_copies_read_are_no_conflicts_and_have_no_picture():
    words = np.arange(32).reshape(1, 1, 32)
    program, _ = with_access("LDGSTS", 1024 + 16 * words, (400, 400), (500, 400))
    headline, table = words_of("shared-memory", program)
    assert headline.startswith("No bank conflicts predicted No access")
    assert "copies (LDGSTS) take 100 more wavefronts. They are no bank conflicts." in headline
    assert "LDGSTS 1 500 0" in table
    assert INSIDE["shared-memory"].draw_program(program)["shared-memory-plot"] == NONE


def draw_folds(inside):
    slots = inspection_slots(inside, "")
    return slots, text_of(slots["memory-map-table"]), text_of(slots["conversions-table"])


def test_the_memory_map_has_a_bar_per_stage_and_says_what_one_stage_more_needs():
    slots, table, _ = draw_folds(Inside(shared_map=MAP))
    (bars,) = decode(slots["memory-map-plot"])["data"]
    assert bars["base"] == [0, 16_384, 32_768, 0]
    assert bars["y"] == [16_384, 16_384, 16_384, 12_288]
    assert bars["text"][2:] == [
        "line 20: pipelined operand a, stage 2",
        "line 30: layout conversion",
    ]
    assert "2 32,768 6 3 49,152 4 4 262,144 does not fit" in table


def test_a_map_above_the_limit_marks_it():
    slots, *_ = draw_folds(Inside(shared_map=replace(MAP, limit_bytes=40_960)))
    *_, limit = decode(slots["memory-map-plot"])["layout"]["shapes"]
    assert (limit["y0"], limit["label"]["text"]) == (40_960, "limit: 40,960 bytes")


def test_a_map_that_is_not_known_says_why():
    unknown = SharedMap(49_152, why="The capture has no allocation.")
    slots, table, conversions = draw_folds(Inside(shared_map=unknown))
    assert (slots["memory-map-plot"], table) == (NONE, "The capture has no allocation.")
    assert conversions == "This kernel converts no block to another layout."


def test_spills_are_listed_by_line_with_their_cost():
    facts = replace(program_of().facts, spilled_bytes=48)
    lines = (LineRegisters("a.py", 21, 255, 240), LineRegisters("a.py", 20, 255, 235))
    spills = (LineSpills("a.py", 20, 12, 30, 48, 84, 10_752),)
    program = replace(
        program_of(registers_by_line=lines, registers_at_peak=(), spills_by_line=spills),
        facts=facts,
    )
    headline, table = words_of("registers", program)
    assert "Each thread spills 48 bytes. Spills move 10.8 kB in the launch." in headline
    assert "Up to 240 registers are live, at a.py:21 ." in headline
    assert "a.py:21 240 a.py:20 235 12 30 48 10,752" in table


def test_live_registers_are_drawn_along_the_sass_with_their_maximum_and_the_spills():
    program = program_of()
    figure = decode(INSIDE["registers"].draw_program(program)["registers-plot"])
    curve, marks = figure["data"]
    spills = [n for n, each in enumerate(program.instructions) if each.name in ("STL", "LDL")]
    assert len(curve["y"]) == len(program.instructions)
    assert np.array_equal(marks["x"], [*spills, np.argmax(curve["y"])])
    (note,) = figure["layout"]["annotations"]
    assert note["y"] == np.max(curve["y"]) <= program.facts.registers
    assert spills


def test_a_conversion_names_the_operations_that_forced_it_and_its_cost():
    source = textbook_layout((64, 32))
    forced = "the multiplication on line 7", "the store on line 9"
    conversions = (
        LayoutConversion("a.py", 9, 2, source, source, 4096, *forced),
        LayoutConversion("a.py", 8, 2, source, source, 0, "", "the load on line 8"),
    )
    shared = (SharedAccess("a.py", 9, "STS", 8, 32, 32), SharedAccess("a.py", 9, "LDS", 8, 48, 32))
    *_, table = draw_folds(Inside(conversions=conversions, shared=shared))
    assert f"a.py:9 64 × 32 of 2 B 4,096 80 {' '.join(forced)}" in table


def test_copies_in_flight_are_those_of_the_pipeline():
    program = program_of()
    (pipeline,) = program.inside.pipelines
    figure = pipeline_of(program)
    title = figure["layout"]["title"]["text"]
    (flying,) = (bars for bars in figure["data"] if bars["name"] == "in flight")
    starts = np.array(flying["base"])
    ends = starts + flying["x"]
    at_once = [np.sum((starts <= start) & (start < ends)) for start in starts]
    assert title.endswith(f"maximum copies in flight: {max(at_once)}")
    assert {bar.split(",")[0] for bar in flying["y"]} == {
        f"line {load.line}" for load in pipeline.loads if load.ahead
    }


def test_a_load_that_is_not_pipelined_says_why():
    (pipeline,) = program_of().inside.pipelines
    why = "With num_stages = 1, line 22 waits for its load in every step."
    loads = tuple(replace(load, ahead=0, slots=0, why=why) for load in pipeline.loads)
    events = tuple(replace(event, kind="load") for event in pipeline.events if event.loads)
    program = program_of(pipelines=(replace(pipeline, loads=loads, events=events),))
    headline, table = words_of("pipeline", program)
    assert headline == f"0 steps ahead at most compiled {why}"
    assert table.count(f"0 registers {why}") == len(loads)
    title = pipeline_of(program)["layout"]["title"]["text"]
    assert title.endswith("maximum copies in flight: 0")


def test_a_kernel_without_shared_memory_or_loops_says_so():
    program = program_of("vector_add")
    for tab, sentence in {
        "shared-memory": "This kernel uses no shared memory.",
        "pipeline": "No loop in this kernel loads a block.",
    }.items():
        slots = INSIDE[tab].draw_program(program)
        assert text_of(slots[f"{tab}-headline"]) == sentence
        assert (slots[f"{tab}-plot"], slots[f"{tab}-table"]) == (NONE, "")


def test_a_count_that_is_missing_is_unknown_with_its_reason():
    refused = SharedAccess("a.py", 9, "LDS", 64, None, None, why="Its address is loaded.")
    headline, table = words_of("shared-memory", program_of(shared=(refused,)))
    assert "Its address is loaded." in headline
    assert "a.py:9 LDS 64 unknown unknown" in table


def test_a_kernel_that_is_not_compiled_keeps_its_picture_and_a_failure_removes_it():
    state = opened("matmul.grouped tab=registers gpu=H200")
    panel = INSIDE["registers"]
    waiting = panel.draw(Snapshot(state))
    assert waiting.keys() == {"registers-headline"}
    assert text_of(waiting["registers-headline"]) == "Compiling for H200"
    failure = Failure("compile", "timeout", "It took too long.")
    failed = panel.draw(Snapshot(state, failure=failure))
    assert "It took too long." in failed["registers-headline"]
    assert failed["registers-plot"] == NONE
