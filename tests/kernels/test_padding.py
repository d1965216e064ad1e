"""Copies of misaligned operands to aligned rows, which descriptors can load."""

import pytest

from tests.experiments import experiment_of
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import launch_of
from tilescope.declare.gpus import GPUS
from tilescope.results import RunResult

PERSISTENT, FUSED = (discover()[f"matmul.{name}"] for name in ("persistent", "fused_add_relu"))
ODD = "M=129 N=131 K=77"


def launch(text, gpu="H200"):
    return launch_of(experiment_of(f"matmul.persistent {text}"), GPUS[gpu])[1]


@pytest.mark.parametrize(
    ("problem", "padded"),
    [
        ("M=128 N=128 K=128", {}),
        ("M=128 N=128 K=129", {"A": (128, 192)}),
        ("M=128 N=129 K=128", {"B": (128, 192)}),
        ("M=129 N=128 K=128", {}),
        (f"{ODD} layout=TT", {"A": (192, 77), "B": (128, 131)}),  # stored as K × M and N × K
        (f"{ODD} dtype=float32", {"A": (129, 96), "B": (77, 160)}),
        (f"{ODD} dtype=float8_e4m3fn", {"A": (129, 128), "B": (77, 256)}),
    ],
)
def test_misaligned_operands_get_rows_of_whole_lines(problem, padded):
    spaces = PERSISTENT.workspaces(launch(f"{problem} PAD=always"))
    assert {name.removeprefix("padded "): spec.shape for name, spec in spaces.items()} == padded
    assert not PERSISTENT.workspaces(launch(f"{problem} PAD=never"))
    assert not PERSISTENT.workspaces(launch(f"{problem} PAD=always", "A10G"))


def test_auto_copies_only_if_that_should_save_time():
    odd = launch("M=511 N=513 K=515 PAD=auto")
    tiny = launch("M=64 N=63 K=63 PAD=auto")
    assert PERSISTENT.workspaces(odd)
    assert not PERSISTENT.workspaces(tiny)
    assert "falls back to pointers" in PERSISTENT.note(tiny)
    assert "A first launch pads rows of A from 1,030 to 1,152 bytes" in PERSISTENT.note(odd)


@pytest.mark.xdist_group("interpreted")
@pytest.mark.parametrize("kernel", [PERSISTENT, FUSED], ids=lambda kernel: kernel.id)
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_padded_products_are_right(session, kernel, layout):
    text = f"{kernel.id} {ODD} layout={layout} BLOCK_M=32 BLOCK_N=64 BLOCK_K=32 PAD=always"
    found = session.submit(experiment_of(text)).result()
    assert isinstance(found, RunResult), found
    assert found.check.passed
