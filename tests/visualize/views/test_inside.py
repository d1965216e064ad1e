"""The Inside view: its texts, and pictures that show what was counted."""

from dataclasses import replace
from functools import cache

import numpy as np
import plotly.graph_objects as go
import pytest

from tests.messages import opened, text_of
from tilescope.captures.layouts import textbook_layout
from tilescope.inside.banks import BankAccess, count_wavefronts, serve_words
from tilescope.inside.report import (
    Inside,
    LayoutConversion,
    LineRegisters,
    LineSpills,
    SharedAccess,
    SharedMap,
)
from tilescope.results import Failure
from visualize.views.inside.figures import (
    banks_figure,
    captured_program,
    pipeline_figure,
    registers_figure,
)
from visualize.views.inside.view import INSIDE
from visualize.views.memory.compiler import inspection_slots, memory_map_figure
from visualize.views.slots import NONE
from visualize.views.state import Snapshot
from visualize.web.scripts import shipped_scripts

SCRIPTS = ("attention", "gather", "histogram", "layer_norm", "softmax", "vector_add")
SOURCE = [f"source of line {number}" for number in range(1, 32)]
WORDS = np.arange(32).reshape(1, 1, 32)


@cache
def launches_of(script):
    return shipped_scripts()[f"script.{script}"].launches


def program_of(script="attention", **changes):
    """Return the inside of an example's first launch; `changes` are fields of its report."""
    program = captured_program(launches_of(script), 0)
    return replace(program, inside=replace(program.inside, **changes))


def render(tab, program):
    """Return the texts of a tab, and a line if it has no picture."""
    slots = INSIDE[tab].draw_program(program)
    text = slots[f"{tab}-headline"] + slots[f"{tab}-table"]
    return f"{text}<p>no picture" if slots[f"{tab}-plot"] == NONE else text


def render_folds(inside):
    slots = inspection_slots(inside, "", {"attention.py": (1, SOURCE)})
    return "".join(slots[f"{name}-table"] for name in ("instructions", "memory-map", "conversions"))


def test_the_texts_of_scripts_are_the_approved_ones(approve):
    texts = {}
    for script in SCRIPTS:
        program = program_of(script)
        texts |= {f"{script}: {tab}": render(tab, program) for tab in INSIDE}
        texts[f"{script}: compiler"] = render_folds(program.inside)
    approve("inside", texts)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_banks_serve_each_warp_in_the_counted_wavefronts(script):
    for access in program_of(script).accesses.values():
        for warp in np.flatnonzero(access.active.any(axis=(0, 2))):
            part = BankAccess(access.opcode, access.address[:, [warp]], access.active[:, [warp]])
            assert len(serve_words(part)) == count_wavefronts(part).actual


def with_copy(address, wavefronts, counted):
    """Return a program with one access to shared memory, a copy.

    Args:
        wavefronts: those of the banks, in all executions.
        counted: those of the hardware, which include the wavefronts in which a copy reads.
    """
    program = program_of()
    index, instruction = next(
        (index, each) for index, each in enumerate(program.instructions) if each.name == "LDGSTS"
    )
    reading = counted[0] - counted[1] - (wavefronts[0] - wavefronts[1])
    row = SharedAccess(*instruction.source, "LDGSTS", 1, *counted, reading_wavefronts=reading)
    access = BankAccess(instruction.opcode, address, np.ones_like(address, dtype=bool))
    return replace(program, inside=Inside(shared=(row,)), accesses={index: access})


CONFLICT = with_copy(1024 + 32 * WORDS, (800, 400), (900, 400))


def make_spills():
    lines = (LineRegisters("kernel", 21, 255, 240), LineRegisters("kernel", 20, 255, 235))
    spills = (LineSpills("kernel", 20, 12, 30, 48, 84, 10_752),)
    program = program_of(registers_by_line=lines, registers_at_peak=(), spills_by_line=spills)
    return replace(program, facts=replace(program.facts, spilled_bytes=48))


def make_waiting_loads():
    (pipeline,) = program_of().inside.pipelines
    why = "With num_stages = 1, line 22 waits for its load in every step."
    loads = tuple(replace(load, ahead=0, slots=0, why=why) for load in pipeline.loads)
    events = tuple(replace(event, kind="load") for event in pipeline.events if event.loads)
    return program_of(pipelines=(replace(pipeline, loads=loads, events=events),))


def make_conversions():
    source = textbook_layout((64, 32))
    forced = "the multiplication on line 7", "the store on line 9"
    conversions = (
        LayoutConversion("kernel", 9, 2, source, source, 4096, *forced),
        LayoutConversion("kernel", 8, 2, source, source, 0, "", "the load on line 8"),
    )
    shared = (
        SharedAccess("kernel", 9, "STS", 8, 32, 32),
        SharedAccess("kernel", 9, "LDS", 8, 48, 32),
    )
    return Inside(conversions=conversions, shared=shared)


def test_the_texts_and_pictures_of_rare_cases_are_the_approved_ones(approve):
    shared_map = program_of().inside.shared_map
    above_the_limit = replace(shared_map, limit_bytes=49_152)
    unknown = SharedMap(49_152, why="The capture has no allocation.")
    refused = SharedAccess("kernel", 9, "LDS", 64, None, None, why="Its address is loaded.")
    texts = {
        "bank conflicts": render("shared-memory", CONFLICT),
        "wavefronts in which copies read": render(
            "shared-memory", with_copy(1024 + 16 * WORDS, (400, 400), (500, 400))
        ),
        "a missing count": render("shared-memory", program_of(shared=(refused,))),
        "spills": render("registers", make_spills()),
        "loads that are not pipelined": render("pipeline", make_waiting_loads()),
        "a map above the limit": render_folds(Inside(shared_map=above_the_limit)),
        "no map": "".join(inspection_slots(Inside(shared_map=unknown), "", {}).values()),
        "conversions": render_folds(make_conversions()),
    }
    approve("inside_rare", texts)
    figures = {
        "bank conflicts": banks_figure(CONFLICT),
        "live registers": registers_figure(program_of()),
        "a pipeline": pipeline_figure(program_of()),
        "loads that are not pipelined": pipeline_figure(make_waiting_loads()),
        "a map": memory_map_figure(shared_map),
        "a map above the limit": memory_map_figure(above_the_limit),
    }
    approve("inside_figures", {name: go.Figure(figures[name]) for name in figures})


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
