"""The Inside view: its texts, and pictures that show what was counted."""

from dataclasses import replace
from functools import cache
from types import MappingProxyType

import numpy as np
import pytest

from tests.messages import decode, opened, text_of
from tilescope.captures.layouts import Layout, textbook_layout
from tilescope.inside.banks import BankAccess, count_wavefronts
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
    TensorLayout,
)
from tilescope.results import Failure
from visualize.views.inside.program import captured_program
from visualize.views.inside.view import INSIDE
from visualize.views.slots import NONE
from visualize.views.state import Snapshot
from visualize.web.scripts import shipped_scripts

SCRIPTS = ("attention", "gather", "histogram", "layer_norm", "softmax", "vector_add")
STAGES = tuple(
    SharedBuffer("a", 20, 16_384 * stage, 16_384, 0, 3, "pipelined operand", stage, 3, "a")
    for stage in range(3)
)
MAP = SharedMap(
    49_152,
    227 * 1024,
    (*STAGES, SharedBuffer("a", 30, 0, 12_288, 5, 6, "layout conversion")),
    tuple(MapStep("a", line, "ttg.local_load") for line in (20, 20, 22, 22, 25, 30, 30)),
    (MapLoop("a", 18, 1, 3),),
    (StageNeed(2, 32_768, 6), StageNeed(3, 49_152, 4), StageNeed(4, 262_144, 0)),
)


@cache
def launches_of(script):
    return shipped_scripts()[f"script.{script}"].launches


def program_of(script="attention", facts=MappingProxyType({}), **changes):
    """Return the inside of an example's first launch; `changes` are fields of its report."""
    program = captured_program(launches_of(script), 0)
    return replace(
        program,
        inside=replace(program.inside, **changes),
        facts=replace(program.facts, **facts),
    )


def frames_of(tab, program):
    figure = decode(INSIDE[tab].draw_program(program)[f"{tab}-plot"])
    return [frame for group in figure["layout"]["meta"]["groups"] for frame in group["frames"]]


def block(layout, line=20):
    return TensorLayout("a", line, "load", "block", "f32", layout)


def made_up():
    """Return programs with what no example has, by the picture that shows it."""
    full = {"shared_bytes": 49_152}
    source = textbook_layout((64, 32))
    forced = "the multiplication on line 7", "the store on line 9"
    (pipeline,) = program_of().inside.pipelines
    why = "With num_stages = 1, line 22 waits for its load in every step."
    loads = tuple(replace(load, ahead=0, slots=0, why=why) for load in pipeline.loads)
    events = tuple(replace(event, kind="load") for event in pipeline.events if event.loads)
    return {
        "memory-map: a bar per stage": program_of(facts=full, shared_map=MAP),
        "memory-map: above the limit": program_of(
            facts=full, shared_map=replace(MAP, limit_bytes=40_960)
        ),
        "memory-map: unknown": program_of(
            shared_map=SharedMap(49_152, why="The capture has no allocation.")
        ),
        "registers: spills": program_of(
            facts={"spilled_bytes": 48},
            registers_by_line=(LineRegisters("a", 21, 255, 240), LineRegisters("a", 20, 255, 235)),
            registers_at_peak=(),
            spills_by_line=(LineSpills("a", 20, 12, 30, 48, 84, 10_752),),
        ),
        "layouts: two conversions": program_of(
            conversions=(
                LayoutConversion("a", 9, 2, source, source, 4096, *forced),
                LayoutConversion("a", 8, 2, source, source, 0, "", "the load on line 8"),
            ),
            shared=(
                SharedAccess("a", 9, "STS", 8, 32, 32),
                SharedAccess("a", 9, "LDS", 8, 48, 32),
            ),
        ),
        "pipeline: loads that are not pipelined": program_of(
            pipelines=(replace(pipeline, loads=loads, events=events),)
        ),
        "shared-memory: an unknown count": program_of(
            shared=(SharedAccess("a", 9, "LDS", 64, None, None, why="Its address is loaded."),)
        ),
    }


def test_the_texts_are_the_approved_ones(approve):
    programs = {f"{tab}: {script}": program_of(script) for script in SCRIPTS for tab in INSIDE}
    shown = {}
    for name, program in (programs | made_up()).items():
        tab = name.partition(":")[0]
        slots = INSIDE[tab].draw_program(program)
        shown[name] = slots[f"{tab}-headline"] + slots[f"{tab}-table"]
        if slots[f"{tab}-plot"] == NONE:
            shown[name] += "<p>No picture."
        elif tab == "memory-map" and name not in programs:
            shown[f"{name}, as a picture"] = decode(slots[f"{tab}-plot"])
    approve("inside", shown)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_picture_of_banks_has_the_counted_wavefronts(script):
    program = program_of(script)
    for index, access in program.accesses.items():
        instruction = program.instructions[index]
        row = SharedAccess(*instruction.location[0][:2], instruction.name, 1, 1, 1)
        own = replace(program, accesses={index: access}, inside=Inside(shared=(row,)))
        counted = set()
        for warp in range(access.address.shape[1]):
            part = BankAccess(access.opcode, access.address[:, [warp]], access.active[:, [warp]])
            if part.active.any():
                counted.add(tuple(count_wavefronts(part)))
        drawn = {tuple(map(len, frame["keys"])) for frame in frames_of("shared-memory", own)}
        assert drawn == counted


def test_lanes_two_words_apart_take_two_wavefronts_and_lanes_with_one_word_share_it():
    program = program_of()
    index = next(iter(program.accesses))
    instruction = program.instructions[index]
    row = SharedAccess(*instruction.location[0][:2], instruction.name, 1, 1, 1)
    lane = np.arange(32).reshape(1, 1, 32)
    active = np.ones_like(lane, dtype=bool)

    def keys(address):
        accesses = {index: BankAccess("LDS", address, active)}
        own = replace(program, accesses=accesses, inside=Inside(shared=(row,)))
        (frame,) = frames_of("shared-memory", own)
        return frame["keys"]

    apart, in_order = keys(1024 + 8 * lane)
    idle = [-1] * 16
    assert apart.tolist() == [
        np.ravel([np.arange(first, first + 16), idle], "F").tolist() for first in (0, 16)
    ]
    assert in_order.tolist() == [list(range(32))]
    shared, _ = keys(lane // 4 * 4)
    assert shared.tolist() == [[*range(0, 32, 4), *[-1] * 24]]


def test_a_layout_picture_shows_the_first_holder_of_each_element():
    layout = textbook_layout((8, 16))
    replicated = Layout((8, 16), ((0, 0),), layout.lane, (*layout.warp, (0, 0)))
    program = program_of(layouts=(block(layout), block(replicated, line=21)))
    for frame in frames_of("layouts", program):
        (patch,) = frame["patches"]
        element = np.arange(8 * 16).reshape(8, 16)
        holders = np.stack([element // 32, element % 32, np.zeros_like(element)], axis=2)
        np.testing.assert_array_equal(patch["customdata"], holders)
        np.testing.assert_array_equal(frame["keys"], [element])


def test_a_vector_is_wrapped_and_a_large_block_is_cut():
    layouts = (block(textbook_layout((1024,))), block(textbook_layout((2, 256, 512)), line=21))
    vector, large = frames_of("layouts", program_of(layouts=layouts))
    assert np.shape(vector["keys"]) == (1, 32, 32)
    assert np.shape(large["keys"]) == (1, 128, 256)
    assert "2 × 256 × 512 elements, the first 128 × 256" in large["title"]


def test_a_block_larger_than_tritons_limit_is_not_drawn():
    program = program_of(layouts=(block(textbook_layout((1 << 20, 1 << 20))),))
    assert INSIDE["layouts"].draw_program(program)["layouts-plot"] == NONE


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


def test_copies_in_flight_are_those_of_the_pipeline():
    program = program_of()
    (pipeline,) = program.inside.pipelines
    (frame,) = frames_of("pipeline", program)
    title = frame["title"]
    bars = [patch for patch in frame["patches"] if "in flight" in "".join(patch["customdata"])]
    (flying,) = bars
    starts = np.array(flying["base"])
    ends = starts + flying["x"]
    at_once = [np.sum((starts <= start) & (start < ends)) for start in starts]
    assert title.endswith(f"maximum copies in flight: {max(at_once)}")
    assert {bar.split(",")[0] for bar in flying["y"]} == {
        f"line {load.line}" for load in pipeline.loads if load.ahead
    }


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
