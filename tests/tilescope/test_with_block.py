"""`tilescope.capture` records the launches of a `with` block of the user's own process."""

import json
import re

import pytest

from tests.trees import ROOT, python
from tilescope.captures.reader import Capture
from tilescope.cli.command import FINE, USAGE

# One worker prepares what all tests use
pytestmark = pytest.mark.xdist_group("with block")

SCRIPT = """
import json, os, sys
import torch, triton
import triton.language as tl
import tilescope

@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)

# A single warp leaves no options to try
def launch(num_warps=1):
    x = torch.ones(1024, device="cuda")
    out = torch.empty_like(x)
    copy[(4,)](x, out, 1024, BLOCK=256, num_warps=num_warps)
    return out

paths = list(sys.path)
os.environ["CHANGED"] = os.environ["DELETED"] = "before"
environment = dict(os.environ)
with tilescope.capture("unread.tilescope", gpu="L4") as unread:
    launch(num_warps=4).sum().item()
    raise AssertionError("never evaluated")
with tilescope.capture("values.tilescope", values=True) as values:
    total = launch().sum().item()
with tilescope.capture("nothing.tilescope") as nothing:
    pass
try:
    with tilescope.capture("failed.tilescope") as failed:
        launch()
        raise KeyError("own")
except KeyError as error:
    own = str(error)
unchanged = environment == dict(os.environ)
os.mkdir("removed")
try:
    with tilescope.capture("removed/run.tilescope"):
        os.environ["CHANGED"] = os.environ["ADDED"] = "inside"
        del os.environ["DELETED"]
        os.rmdir("removed")
        raise StopIteration("own")
except StopIteration as error:
    unwritten = [error.args, error.__notes__]
environment |= {"CHANGED": "inside", "ADDED": "inside"}
del environment["DELETED"]
kept = environment == dict(os.environ)
try:
    with tilescope.capture("missing/run.tilescope"):
        raise AssertionError("never runs")
except FileNotFoundError as error:
    unwritable = error.filename
with tilescope.capture("outer", gpu="L4") as outer:
    launch()
    os.chdir("/")
    try:
        with tilescope.capture("inner.tilescope"):
            launch()
    except RuntimeError as error:
        nested = str(error)
    launch()
ours = [name for name in sys.modules if name.partition(".")[0] in ("kernels", "visualize")]
print(json.dumps({
    "environment": [unchanged, kept], "unwritten": unwritten,
    "paths": paths == sys.path, "ours": ours, "gpu": torch.cuda.is_available(), "total": total, "own": own,
    "unwritable": unwritable, "nested": nested, "outer": len(outer),
    "counts": [len(each) for each in (unread, values, nothing, failed)],
    "unread": unread[0], "report": unread.report, "repr": [repr(unread), repr(unread[0])],
    "html": unread._repr_html_(),
}))
"""


GPU_SCRIPT = """
import json, torch, triton
import triton.language as tl
import tilescope

@triton.autotune([triton.Config({"BLOCK": block}) for block in (64, 128, 256)], key=["n"])
@triton.jit
def copy(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n), mask=i < n)

x = torch.randn(1 << 20, device="cuda")
out = torch.zeros_like(x)
with tilescope.capture("gpu.tilescope") as launches:
    copy[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
print(json.dumps({
    "equal": torch.equal(x, out), "tried": len(copy.configs_timings), "best": copy.best_config.kwargs["BLOCK"],
    "launches": launches,
}))
"""


def run_script(folder, text, cache):
    """Return the JSON that a script printed."""
    (folder / "script.py").write_text(text)
    done = python(ROOT, "script.py", cwd=folder, TRITON_CACHE_DIR=str(cache))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def block(tmp_path_factory, compiled_before):
    """Return the folder of a script with four blocks, and what it printed."""
    folder = tmp_path_factory.mktemp("block")
    return folder, run_script(folder, SCRIPT, compiled_before)


def test_the_process_stays_as_it_was(block):
    _, printed = block
    assert (printed["paths"], printed["ours"], printed["gpu"]) == (True, [], False)


def test_the_environment_keeps_what_a_block_changes_and_nothing_else(block):
    _, printed = block
    assert printed["environment"] == [True, True]


def test_an_exception_stays_the_blocks_although_the_capture_cannot_be_written(block):
    _, printed = block
    arguments, (note,) = printed["unwritten"]
    assert arguments == ["own"]
    assert note.startswith("tilescope.capture: [Errno 2] No such file or directory")


def test_a_read_ends_the_block_and_an_exception_is_the_users(block):
    _, printed = block
    assert printed["counts"] == [1, 1, 0, 1]
    assert "script.py:23 reads a tensor (with item)" in printed["report"]["stopped"]
    assert (printed["total"], printed["own"]) == (1024, "'own'")


def test_a_block_whose_file_cannot_be_written_does_not_run(block):
    _, printed = block
    assert printed["unwritable"].endswith("/missing/run.tilescope")


def test_a_block_inside_another_is_refused_and_the_outer_one_loses_no_launch(block):
    folder, printed = block
    assert printed["nested"].startswith("Captures cannot be nested: another block")
    assert printed["outer"] == 2
    assert not (folder / "inner.tilescope").exists()


def test_a_block_in_a_script_that_is_captured_is_refused(capture_script):
    path = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
    text = f"{path}import tilescope\nwith tilescope.capture('own'):\n    pass"
    stop = Capture(capture_script(text)).content.stopped
    assert stop.message.startswith("script.py raised RuntimeError: Captures cannot be nested")


def test_reports_are_those_of_show_and_print_as_tables(block, run_show):
    folder, printed = block
    path = folder / "unread.tilescope"
    (launch,) = json.loads(run_show(FINE, path, "--json").out)["launches"]
    assert launch["totals"]["ld_sectors"] == 128
    assert {name: printed["unread"][name] for name in launch} == launch
    text = run_show(FINE, path, "--text").out
    assert text == f"{printed['repr'][0]}\n"
    assert printed["repr"][1] in text
    assert re.search("script.py:10 +load +x +8 ", printed["html"])


def test_a_capture_needs_no_suffix_and_its_path_is_that_at_the_blocks_start(block, run_show):
    folder, _ = block
    assert "L4: 2 launches\n" in run_show(FINE, folder / "outer", "--text").out
    refused = run_show(USAGE, f"{folder}/outer:case", "--text")
    assert "outer is a capture, so it cannot run the case 'case'." in refused.err


@pytest.mark.gpu
def test_on_a_gpu_launches_run_and_an_autotuner_searches(tmp_path, compiled_before):
    printed = run_script(tmp_path, GPU_SCRIPT, compiled_before)
    (launch,) = printed["launches"]
    assert (printed["equal"], printed["tried"]) == (True, 3)
    assert launch["config"]["BLOCK"] == printed["best"]
    assert launch["elapsed_ms"] > 0
    assert launch["totals"]["ld_sectors"] == (1 << 20) * 4 // 32
