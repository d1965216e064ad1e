"""Cases of scripts: a worker compiles and predicts them without a GPU; on a GPU, they are checked."""

import dataclasses
import shutil
from contextlib import closing
from pathlib import Path
from unittest import mock

import pytest

from tilescope.declare.experiment import Experiment, Run, Settings
from tilescope.declare.gpus import GPUS, this_gpu
from tilescope.measure.fair_queue import Call
from tilescope.measure.session import Session
from tilescope.results.sweep import ConfigBuild, ConfigTrial
from tilescope.search.cases import CaseTrial, build, combine, describe_case
from tilescope.search.trial import LocalDevice

GPU = GPUS["H200"]
SCRIPT = """
import torch
import triton
import triton.language as tl
import kernels  # a module beside the script

@triton.jit
def scale(x, out, n, BLOCK: tl.constexpr, WRONG: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + place, mask=place < n)
    tl.store(out + place, value * kernels.FACTOR + WRONG, mask=place < n)

def arguments(n, **more):
    x = torch.randn(n, device="cuda")
    return dict(x=x, out=torch.empty_like(x), n=n, **more), {"out": 2 * x}

def case(n=1 << 20, BLOCK=1024, num_warps=4, wrong=0):
    keywords, expected = arguments(n, BLOCK=BLOCK, num_warps=num_warps, WRONG=wrong)
    return scale, (triton.cdiv(n, BLOCK),), keywords, expected

def case_without_expected(n=4096, BLOCK=1024, wrong=0):
    return scale, (triton.cdiv(n, BLOCK),), arguments(n, BLOCK=BLOCK, WRONG=wrong)[0]

configs = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((256, 1), (512, 2))]
tuned = triton.autotune(configs, key=["n"])(scale)

def case_of_clusters(n=1 << 20, num_ctas=2):
    given, expected = arguments(n, BLOCK=4096, WRONG=0, num_ctas=num_ctas)
    return scale, (n // 4096,), given, expected

def case_tuned(n=4096):
    keywords, expected = arguments(n, WRONG=0)
    return tuned, lambda meta: (triton.cdiv(n, meta["BLOCK"]),), keywords, expected

def case_of_many_functions(n=1 << 24, BLOCK=1024):
    import sys

    keywords, expected = arguments(n, BLOCK=BLOCK, WRONG=0)
    x = torch.randn_like(keywords["x"]).float().square()
    keywords["x"] = torch.rsqrt(x + x.mean()) * 2
    assert "sympy" not in sys.modules
    large = torch.where(x > 0, x, 0).expand(1 << 12, -1).abs()  # 256 GiB
    return scale, (triton.cdiv(n, BLOCK),), keywords, {"out": large[0]}

def case_that_reads(n=8 << 20, BLOCK=1024):
    keywords, _ = arguments(n, BLOCK=BLOCK, WRONG=0)
    keywords["n"] = int((keywords["x"] > -100).sum())
    return scale, (triton.cdiv(n, BLOCK),), keywords

def case_of_half(n=1 << 20, out="empty"):
    keywords, expected = arguments(n, BLOCK=1024, WRONG=0)
    if out == "zeros":
        keywords["out"].zero_()
    if out == "launched":
        scale[(n // 1024,)](**keywords)
    return scale, (n // 2048,), keywords, expected

def case_that_launches(n=1 << 24, BLOCK=1024):
    kernel, grid, given = case_without_expected(n, BLOCK)
    kernel[grid](**given)
    return kernel, grid, given

def case_without_launch():
    return 7

def case_with_positions(n=4096, BLOCK=1024):
    return scale, (4,), (n, BLOCK)

def case_with_a_typo(n=4096, BLOCK=1024):
    return *case_without_expected(n, BLOCK), {"output": None}

def case_that_exits(n=4096):
    raise SystemExit(3)

def case_that_raises(n=4096):
    raise ValueError("n must be odd")

def case_of_objects(n, kind=torch.float32, shape=(1, 2)):
    pass
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    folder = tmp_path_factory.mktemp("script")
    (folder / "kernels.py").write_text("FACTOR = 2.0\n")
    (folder / "scale.py").write_text(SCRIPT)
    return str(folder / "scale.py")


@pytest.fixture(scope="module")
def pool(tilescope_cache):
    """Workers for the script alone, because its module `kernels` replaces ours in them."""
    session = Session(None, tilescope_cache)
    yield session.compilers
    session.close()


def experiment(script, case="case", problem=None, **config):
    target = f"{script}:{case}"
    return Experiment(target, Settings(**(problem or {})), Settings(**config), "", Run(l2="cold"))


def call(pool, function, *arguments):
    return pool.submit(Call("compile", function, arguments)).result(100)


def test_a_case_is_described_by_its_defaults_and_its_autotuner(pool, script):
    described = call(pool, describe_case, f"{script}:case", GPU)
    assert described.defaults == {"n": 1 << 20, "BLOCK": 1024, "num_warps": 4, "wrong": 0}
    assert described.configs == ()
    assert {"n", "BLOCK"} <= {*described.parameters}
    assert "wrong" not in described.parameters
    tuned = call(pool, describe_case, f"{script}:case_tuned", GPU)
    blocks = [(config["BLOCK"], config["num_warps"]) for config in tuned.configs]
    assert blocks == [(256, 1), (512, 2)]
    assert tuned.source == described.source


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("case_without_launch", "case_without_launch returned no launch. It must return (kernel, "),
        ("cases", "scale.py has no case 'cases'. Its cases: case, case_without_expected, case_"),
        ("case_with_positions", "where arguments and expected are dictionaries by name."),
        ("case_with_a_typo", "case_with_a_typo expects output, but no argument is called so."),
        ("case_that_exits", "scale.py:case_that_exits exited with status 3 (scale.py:"),
        (
            "case_that_raises",
            "scale.py:case_that_raises raised ValueError: n must be odd (scale.py:",
        ),
        ("case_of_objects", "case_of_objects has no default for n; all need one."),
    ],
)
def test_a_case_that_cannot_be_tuned_is_refused_with_a_sentence(pool, script, case, message):
    assert message in call(pool, describe_case, f"{script}:{case}", GPU).message


def test_a_script_in_a_package_has_relative_imports(pool, script, tmp_path):
    package = shutil.copytree(Path(script).parent, tmp_path / "package")
    (package / "__init__.py").touch()
    module = package / "imports.py"
    module.write_text("from .scale import case")
    assert call(pool, describe_case, f"{module}:case", GPU).defaults["BLOCK"] == 1024


def build_on_a_host_with_two_gpus(*arguments):
    from torch.cuda import random

    with mock.patch.object(random, "device_count", return_value=2):
        return build(*arguments)


def test_the_random_seed_is_set_on_a_host_with_two_gpus(script, tilescope_cache):
    with closing(Session(None, tilescope_cache)) as session:
        built = call(session.compilers, build_on_a_host_with_two_gpus, experiment(script), GPU)
    assert isinstance(built, ConfigBuild), built


def test_the_shapes_of_large_tensors_are_found_without_slow_imports(script, tilescope_cache):
    with closing(Session(None, tilescope_cache)) as session:
        built = call(session.compilers, build, experiment(script, "case_of_many_functions"), GPU)
    assert isinstance(built, ConfigBuild), built


def test_a_config_is_compiled_and_its_time_predicted(pool, script):
    built = call(pool, build, experiment(script, n=1 << 24), GPU)
    assert built.registers >= 16
    # 128 MiB at 4.8 TB/s take at least 28 µs
    assert 0.028 < built.predicted.ms < 0.06
    assert built.predicted.resource == "DRAM"
    assert built.written == 1.0
    tuned = call(pool, build, experiment(script, "case_tuned", BLOCK=512, num_warps=2), GPU)
    assert tuned.predicted.ms < built.predicted.ms


def test_the_share_of_an_expected_output_that_a_config_writes_is_counted(pool, script):
    assert call(pool, build, experiment(script, "case_without_expected"), GPU).written is None
    # Elements that a config skips keep the zeros, or the results of an earlier launch
    for out, written in (("empty", 0.5), ("zeros", None), ("launched", None)):
        assert (
            call(pool, build, experiment(script, "case_of_half", out=out), GPU).written == written
        )


def test_a_launch_that_is_not_evaluated_has_no_predicted_time(pool, script):
    built = call(pool, build, experiment(script, "case_of_clusters", num_ctas=2), GPU)
    assert built.registers > 0
    assert built.predicted is None
    assert built.written is None
    assert "num_ctas" in built.reason


def test_a_case_that_reads_a_large_tensor_is_compiled_with_its_values(pool, script):
    described = call(pool, describe_case, f"{script}:case_that_reads", GPU)
    assert described.defaults == {"n": 8 << 20, "BLOCK": 1024}
    assert (
        call(pool, build, experiment(script, "case_that_reads", BLOCK=1024), GPU).predicted.ms > 0
    )


def test_only_the_launch_that_a_case_returns_is_predicted(pool, script):
    cases = [("case_that_launches", {}), ("case", {"n": 1 << 24})]
    twice, once = (
        call(pool, build, experiment(script, case, values, BLOCK=1024), GPU)
        for case, values in cases
    )
    assert twice.predicted.ms == pytest.approx(once.predicted.ms, rel=0.01)


def test_an_output_with_another_shape_than_expected_is_wrong(script):
    import torch

    trial = CaseTrial(ConfigTrial((experiment(script),)))
    prepared = trial.prepare(experiment(script))
    prepared._keywords = {"out": torch.ones(4)}
    prepared._expected = {"out": torch.ones(4)}
    assert prepared.explain_wrong() == ""
    prepared._expected = {"out": torch.ones(2, 2)}
    assert "out has not the shape (2, 2), which is expected." in prepared.explain_wrong()


def test_values_are_combined_with_each_config_of_an_autotuner():
    varied, listed = combine({"A": [1, 2]}, [{"B": 3, "num_warps": 4}, {"C": 5, "num_warps": 4}])
    assert varied == (("A", (1, 2)), ("B", (3, None)), ("num_warps", (4,)), ("C", (None, 5)))
    assert listed == ((1, 3, 4, None), (1, None, 4, 5), (2, 3, 4, None), (2, None, 4, 5))


@pytest.mark.gpu
def test_wrong_and_failing_configs_do_not_affect_the_others_on_a_gpu(script, tmp_path):
    session = Session(this_gpu(), tmp_path)
    blocks = [experiment(script, BLOCK=block) for block in (256, 1000, 512)]
    wrong = experiment(script, wrong=1)
    trial = ConfigTrial((*blocks, wrong), phase="explore")
    device = LocalDevice(session, blocks[0])
    outcomes = device.attempt(trial).each
    assert [outcome.status for outcome in outcomes] == ["timed", "failed", "timed", "wrong"]
    assert "out has a relative RMS error of" in outcomes[3].reason
    first = experiment(script, "case_without_expected")
    others = [dataclasses.replace(first, config=Settings(wrong=value)) for value in (0, 1)]
    trial = ConfigTrial(tuple(others), phase="explore", reference=first)
    assert [each.status for each in device.attempt(trial).each] == ["timed", "wrong"]
    session.close()
