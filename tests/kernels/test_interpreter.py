"""Triton's interpreter: that what is mended is still broken, that the mending is right, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernels as package
from kernels.runner.interpreter import LIMIT_S, estimated_seconds, refuse_what_takes_too_long
from kernels.spec import ConfigError, knobs

PRODUCT = """
import sys, torch, triton, triton.language as tl

@triton.jit
def product(a, b, c, SIDE: tl.constexpr):
    place = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    tl.store(c + place, tl.dot(tl.load(a + place), tl.load(b + place)))

@triton.jit
def cast(x, y, LENGTH: tl.constexpr):
    place = tl.arange(0, LENGTH)
    tl.store(y + place, tl.load(x + place).to(tl.bfloat16))

if "mend" in sys.argv:
    from kernels.runner.interpreter import mend_bfloat16
    mend_bfloat16()
"""

DOT = (
    PRODUCT
    + """
a, b = (torch.randint(-8, 9, (16, 16), generator=torch.Generator().manual_seed(s)).bfloat16() for s in (1, 2))
c = torch.full((16, 16), float("nan"))
product[(1,)](a, b, c, 16)
print(bool((c == a.float() @ b.float()).all()))
"""
)

CAST = (
    PRODUCT
    + """
bits = torch.randint(-(2**31), 2**31, (1 << 14,), generator=torch.Generator().manual_seed(3)).int()
edges = [0x00000000, -0x80000000, 0x7F7FFFFF, 0x7F800000, -0x800000, 0x7FC00000, 0x3F808000, 0x3F818000, 0x3F80C000, 1]
bits[: len(edges)] = torch.tensor(edges)
x = bits.view(torch.float32)
y = torch.empty(x.shape, dtype=torch.bfloat16)
cast[(1,)](x, y, x.numel())
right = (y == x.bfloat16()) | (y.isnan() & x.isnan())
print(bool(right.all()))
"""
)


@pytest.fixture
def interpreted(tmp_path):
    """Script → what it prints, run under Triton's interpreter."""

    def run(script, *arguments):
        file = tmp_path / "script.py"
        file.write_text(script, encoding="utf-8")
        root = str(Path(package.__file__).parent.parent)
        environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": root, "PYTHONWARNINGS": "ignore"}
        ended = subprocess.run(
            [sys.executable, str(file), *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    return run


@pytest.mark.parametrize("script", [DOT, CAST], ids=["dot", "cast"])
def test_mended_bfloat16_is_what_torch_gives(interpreted, script):
    assert interpreted(script, "mend") == "True"


@pytest.mark.parametrize(("script", "what"), [(DOT, "create_dot"), (CAST, "cast_impl")], ids=["dot", "cast"])
def test_bfloat16_is_still_wrong_where_it_is_mended(interpreted, script, what):
    message = f"Triton's interpreter gets bfloat16 right by itself now: remove {what} from mend_bfloat16."
    assert interpreted(script) == "False", message


def test_default_problems_are_run_here(kernel):
    refuse_what_takes_too_long(kernel, kernel.family.problem(), kernel.config())


def test_a_launch_past_the_limit_is_refused_with_its_shape(kernel, configs):
    sizes = {name: knob.high for name, knob in knobs(kernel.family.problem).items() if knob.high}
    problem = kernel.family.problem(**sizes)
    assert estimated_seconds(kernel, problem, configs["smallest"]) > LIMIT_S
    with pytest.raises(ConfigError) as caught:
        refuse_what_takes_too_long(kernel, problem, configs["smallest"])
    assert caught.value.kind == "too_slow_here"
    assert " × ".join(str(size) for size in sizes.values()) in str(caught.value)
    assert f"about {LIMIT_S:.0f} s" in str(caught.value)


def test_more_tiles_take_longer(kernel, configs, problem_of):
    for config in configs.values():
        estimates = [estimated_seconds(kernel, problem_of((side, side, side)), config) for side in (1, 577, 2048, 8192)]
        assert estimates == sorted(set(estimates))
