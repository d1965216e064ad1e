"""Copies of misaligned operands to aligned rows, which descriptors can load."""

import pytest

from tests.experiments import experiment_of, launch_from, run
from tests.tables import read_table
from tilescope.declare.gpus import GPUS
from tilescope.measure.run import prepare

ODD = "M=129 N=131 K=77"
TILE = "BLOCK_M=32 BLOCK_N=64 BLOCK_K=32"


def launched(text):
    return launch_from(f"matmul.persistent {text}")


def workspaces(text):
    kernel, launch = launched(text)
    return kernel.workspaces(launch)


# The shapes of copies. With layout TT, A and B are stored as K × M and N × K.
PADDED = """
M=128 N=128 K=128 | {}
M=128 N=128 K=129 | {"A": (128, 192)}
M=128 N=129 K=128 | {"B": (128, 192)}
M=129 N=128 K=128 | {}
M=129 N=131 K=77 layout=TT | {"A": (192, 77), "B": (128, 131)}
M=129 N=131 K=77 dtype=float32 | {"A": (129, 96), "B": (77, 160)}
M=129 N=131 K=77 dtype=float8_e4m3fn | {"A": (129, 128), "B": (77, 256)}
"""


@pytest.mark.parametrize(("problem", "padded"), read_table(PADDED))
def test_misaligned_operands_get_rows_of_whole_lines(problem, padded):
    spaces = workspaces(f"{problem} PAD=always")
    assert {name.removeprefix("padded "): spec.shape for name, spec in spaces.items()} == padded
    assert not workspaces(f"{problem} PAD=never")


def test_gpus_without_descriptors_need_no_padding():
    assert not workspaces(f"{ODD} PAD=always gpu=A10G")


def test_auto_copies_only_if_that_should_save_time():
    odd = "M=511 N=513 K=515 PAD=auto"
    tiny = "M=64 N=63 K=63 PAD=auto"
    assert workspaces(odd)
    assert not workspaces(tiny)
    notes = (kernel.note(launch) for kernel, launch in map(launched, (tiny, odd)))
    assert "falls back to pointers" in next(notes)
    note = next(notes)
    assert "This pads rows of A from 1,030 to 1,152 bytes" in note
    assert note.endswith("Times include the copies; counts don't.")


@pytest.mark.xdist_group("interpreted")
@pytest.mark.parametrize("kernel", ["persistent", "fused_add_relu"])
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_padded_products_are_right(session, kernel, layout):
    run(
        session,
        f"matmul.{kernel} {ODD} layout={layout} {TILE} PAD=always",
    )


def launch_on_two_inputs():
    """Run in the worker. Return the largest absolute element of a product, and of one with other inputs."""
    prepared = prepare(experiment_of(f"matmul.persistent {ODD} {TILE} PAD=always"), GPUS["H200"])
    launch = prepared.bind()
    largest = []
    for _ in range(2):
        prepared.poison()
        launch()
        largest.append(float(prepared.output.abs().max()))
        prepared.inputs["A"].zero_()
    return largest


@pytest.mark.xdist_group("interpreted")
def test_each_launch_copies_its_inputs_again(session):
    before, after = session.call_runner(launch_on_two_inputs)
    assert before > 0 == after


@pytest.mark.xdist_group("compiled")
def test_predicted_times_include_the_copies(session):
    text = f"matmul.persistent M=511 {TILE} gpu=H200"
    odd = f"{text} N=513 K=515 PAD=always"
    kernel, launch = launch_from(odd)
    copies_us = 1e3 * kernel.copies_ms(launch)
    padded, aligned = (
        session.inspect(experiment_of(each)).result()[0] for each in (odd, f"{text} N=512 K=512")
    )
    assert f"assumes {copies_us:.2f} µs for the copies" in padded.assumed
    assert padded.predicted_us > aligned.predicted_us + 0.9 * copies_us
    assert padded.range_us[0] > copies_us
