"""`tilescope.prune` keeps the autotuner configs with the shortest predicted times, in the user's own process."""

import itertools
import json

import pytest

from benchmarks.search import TUNINGS, read_tunings
from tests.tables import read_table
from tests.trees import ROOT, python
from tilescope.autotuning import select_close

# One worker prepares what all tests use
pytestmark = pytest.mark.xdist_group("prune")

SCRIPT = """
import json, sys, tempfile
from dataclasses import asdict
from pathlib import Path
import torch, triton
import triton.language as tl
from tilescope import autotuning, prune
from tilescope.declare import gpus
from tilescope.record.patches import recording
from triton.tools.tensor_descriptor import TensorDescriptor

# Strides of 1 are the fastest. The others make each lane read its own sector.
CONFIGS = [
    triton.Config({"STRIDE": stride, "BLOCK": block, "LOCKED": False}, num_warps=warps)
    for stride in (1, 32) for block in (512, 1024) for warps in (2, 4, 8)
]
NEVER_COMPILES = triton.Config({"STRIDE": 3, "BLOCK": 512, "LOCKED": False})
UNPREDICTABLE = triton.Config({"STRIDE": 1, "BLOCK": 512, "LOCKED": True})

def tune(configs):
    @triton.autotune(configs, key=["n"], prune_configs_by={"early_config_prune": prune})
    @triton.heuristics({"EVEN": lambda values: values["n"] % values["BLOCK"] == 0})
    @triton.jit
    def copy(x, out, lock, n, STRIDE: tl.constexpr, BLOCK: tl.constexpr, LOCKED: tl.constexpr, EVEN: tl.constexpr):
        tl.static_assert(STRIDE != 3)
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        i = i % STRIDE * (n // STRIDE) + i // STRIDE
        if LOCKED:
            while tl.atomic_cas(lock, 0, 1) == 1:
                pass
        tl.store(out + i, tl.load(x + i, mask=EVEN | (i < n)), mask=EVEN | (i < n))
    return copy

def kept(configs, grid=lambda values: (triton.cdiv(1 << 20, values["BLOCK"]),)):
    tuner = tune(configs)
    x = torch.empty(1 << 20, device="cuda")
    tuner.nargs = {"x": x, "out": torch.empty_like(x), "lock": torch.zeros(1, dtype=torch.int32), "n": 1 << 20}
    pruned = tuner.prune_configs({"grid": grid, "warmup": False})
    return [configs.index(config) for config in pruned]

def set_block(values):
    values["source"].block_shape = [values["BLOCK"]]

DESCRIBED = [triton.Config({"BLOCK": block}, pre_hook=set_block) for block in (256, 64)]

def kept_described():
    @triton.autotune(DESCRIBED, key=["n"], prune_configs_by={"early_config_prune": prune})
    @triton.jit
    def load_described(source, out, n, BLOCK: tl.constexpr):
        start = tl.program_id(0) * BLOCK
        tl.store(out + start + tl.arange(0, BLOCK), source.load([start]))
    x = torch.empty(1 << 16, device="cuda")
    source = TensorDescriptor(x, [1 << 16], [1], [1])
    load_described.nargs = {"source": source, "out": torch.empty_like(x), "n": 1 << 16}
    grid = lambda values: (triton.cdiv(1 << 16, values["BLOCK"]),)
    pruned = load_described.prune_configs({"grid": grid, "warmup": False})
    return [DESCRIBED.index(config) for config in pruned]

predict = autotuning._predict
autotuning._BENCH_S = 60  # predictions never take longer than timing
outside = prune([1, 2], {})
replies = {"outside": outside}
with tempfile.TemporaryDirectory() as name, recording(Path(name), asdict(gpus.GPUS["H100"])):
    gpus.this_gpu = lambda: None
    replies["no GPU"] = kept(CONFIGS)
    gpus.this_gpu = lambda: gpus.GPUS["H100"]
    replies["fast"] = kept([*CONFIGS, NEVER_COMPILES])
    replies["locked"] = kept([CONFIGS[9], CONFIGS[0], UNPREDICTABLE])
    replies["grid fails"] = kept(CONFIGS[:2], lambda values: values["MISSING"])
    replies["descriptors"] = kept_described()
    replies["none compiles"] = kept([NEVER_COMPILES, NEVER_COMPILES])
    autotuning._BENCH_S = 0
    replies["too slow"] = kept(CONFIGS[:1])
    autotuning._BENCH_S = 60
    autotuning._predict = lambda predictor, path, launches, limit_s: predict(predictor, path, launches, 0)
    replies["late"] = kept(CONFIGS[:2])
for stderr in (None, open("closed", "w")):
    if stderr:
        stderr.close()
    sys.stderr, before = stderr, sys.stderr
    replies["quiet"] = prune([1, 2], {})
    sys.stderr = before
print(json.dumps(replies))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory, compiled_before):
    folder = tmp_path_factory.mktemp("prune")
    (folder / "script.py").write_text(SCRIPT)
    done = python(ROOT, "script.py", cwd=folder, TRITON_CACHE_DIR=str(compiled_before))
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    kept = json.loads(done.stdout)
    assert kept.pop("quiet") == [1, 2]
    return dict(zip(kept, zip(kept.values(), lines, strict=True), strict=True))


def test_configs_close_to_the_fastest_are_kept_and_those_that_do_not_compile_are_dropped(run):
    """Six of twelve configs are coalesced and alike; at most a third is kept."""
    kept, line = run["fast"]
    assert len(kept) == 4
    assert set(kept) < set(range(6))
    assert line.startswith("tilescope.prune kept 4 of 13 configs of copy in ")
    assert line.endswith("; 1 do not compile or fit")


def test_configs_without_a_prediction_are_kept_in_addition(run):
    kept, line = run["locked"]
    assert kept == [1, 2]
    assert line.endswith("; 1 kept without a prediction")


def test_configs_of_a_kernel_with_tensor_descriptors_are_pruned(run):
    kept, line = run["descriptors"]
    assert kept == [0]
    assert line.startswith("tilescope.prune kept 1 of 2 configs of load_described in ")


UNPRUNED = """
outside | 2 | prune was not called by an autotuner
no GPU | 12 | this machine has no NVIDIA GPU
grid fails | 2 | KeyError: 'MISSING'
too slow | 1 | all were compiled in parallel; timing them is faster than predicting
late | 2 | no config could be predicted. The prediction took longer than 0 s.
"""


@pytest.mark.parametrize(("name", "count", "reason"), read_table(UNPRUNED))
def test_all_configs_are_kept_and_a_line_gives_the_reason(run, name, count, reason):
    kept, line = run[name]
    assert len(kept) == count
    assert line.endswith(f" s: {reason}")


def test_all_configs_are_kept_if_none_compiles(run):
    kept, line = run["none compiles"]
    assert len(kept) == 2
    assert "no config could be predicted. CompileTimeAssertionFailure" in line


def test_the_fastest_config_of_each_recorded_problem_is_kept():
    """48 configs of 24 problems, timed on an H200. The model was not fitted to their kernels."""
    for recorded in itertools.chain(*read_tunings(TUNINGS).values()):
        rows = list(recorded.rows.values())
        kept = select_close({number: row.predicted_ms for number, row in enumerate(rows)})
        assert 5 <= len(kept) <= 16
        assert min(rows[number].median_ms for number in kept) == min(row.median_ms for row in rows)
