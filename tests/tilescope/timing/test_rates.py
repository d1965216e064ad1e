"""The pipes of instructions."""

import pytest

from tests.listings import make_listing
from tilescope.sass.opcodes import find_opcode
from tilescope.timing.steps import PIPES, read_steps


@pytest.mark.parametrize(
    ("name", "pipe"),
    [
        ("I2FP", "alu"),
        ("I2F", "xu"),
        ("UIADD3", "uniform"),
        ("UTMALDG", "control"),
    ],
)
def test_instructions_have_the_pipe_of_their_documented_rate(name, pipe):
    assert find_opcode(name).pipe == pipe
    assert pipe in PIPES


@pytest.mark.parametrize("name", ["MATCH", "STAS", "UBLKCP", "UTCHMMA", "UTCBAR", "LDTM", "FFMA9"])
def test_instructions_of_unknown_rate_have_no_pipe(name):
    assert find_opcode(name).pipe == ""


def test_a_listing_with_an_unknown_instruction_has_a_step_for_each():
    sass = make_listing("FADD R0, R1, R2\nLDTM.x32 R4, tmem[UR4]\nEXIT")
    assert len(read_steps(sass)) == 3
