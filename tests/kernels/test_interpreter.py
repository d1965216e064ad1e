"""Triton's interpreter: its patched operations are right, unpatched they are wrong, and slow launches are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import kernels as package
from kernels.knobs import ConfigError, knobs
from kernels.measuring.interpreter import LIMIT_S, estimate_seconds, refuse_slow_launch
from kernels.spec import Launch
from tests.conftest import FEW_SMS

pytestmark = pytest.mark.xdist_group("mended")

PRODUCT = """
import torch, triton, triton.language as tl

@triton.jit
def product(a, b, c, SIDE: tl.constexpr):
    place = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    tl.store(c + place, tl.dot(tl.load(a + place), tl.load(b + place)))

@triton.jit
def cast(x, y, LENGTH: tl.constexpr):
    place = tl.arange(0, LENGTH)
    tl.store(y + place, tl.load(x + place).to(tl.bfloat16))
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

FLOAT8 = """
import torch, triton, triton.language as tl

@triton.jit
def to_float8(x, y, LENGTH: tl.constexpr):
    place = tl.arange(0, LENGTH)
    tl.store(y + place, tl.load(x + place).to(y.dtype.element_ty))
x = torch.randn(1 << 14, generator=torch.Generator().manual_seed(3)) * 100
right = True
for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
    y = torch.empty(x.shape, dtype=dtype)
    to_float8[(1,)](x, y, x.numel())
    most = torch.finfo(dtype).max
    right &= bool((y.float() == x.clamp(-most, most).to(dtype).float()).all())
print(right)
"""

ATOMIC = (
    PRODUCT
    + """
@triton.jit
def add(x, y, LENGTH: tl.constexpr):
    place = tl.arange(0, LENGTH)
    tl.atomic_add(y + place, tl.load(x + place), mask=place < LENGTH - 1)

x, y = torch.randn(2, 1 << 10, generator=torch.Generator().manual_seed(3)).bfloat16()
expected = torch.cat([(x + y)[:-1], y[-1:]])
try:
    add[(1,)](x, y, x.numel())
except Exception:
    pass
print(bool((y == expected).all()))
"""
)


NESTED = """
import torch, triton, triton.language as tl
from triton.runtime import interpreter

@triton.jit
def doubled(x):
    return x + x

@triton.jit
def several_times(y, TIMES: tl.constexpr):
    total = tl.load(y)
    for _ in range(TIMES):
        total = doubled(total)
    tl.store(y, total)

searched, search = [], interpreter._patch_builtin
interpreter._patch_builtin = lambda *given: searched.append(given) or search(*given)

def searches(times):
    searched.clear()
    y = torch.ones(1)
    several_times[(1,)](y, times)
    assert y.item() == 2**times
    return len(searched)

print(0 < searches(8) == searches(0))
"""

MENDED = {
    "create_dot": DOT,
    "cast_impl": CAST,
    "create_fp_to_fp": FLOAT8,
    "create_atomic_rmw": ATOMIC,
    "_patch_lang": NESTED,
}


PATCH = """
from kernels.measuring.interpreter import patch_small_floats, patch_language_once
patch_small_floats()
patch_language_once()
"""


@pytest.mark.parametrize(("prefix", "is_right"), [(PATCH, True), ("", False)], ids=["patched", "unpatched"])
def test_operations_are_right_if_patched_and_still_wrong_if_not(tmp_path, prefix, is_right):
    """If an unpatched operation is right, Triton has fixed it: remove its patch. All run in one process."""
    for name, script in MENDED.items():
        (tmp_path / f"{name}.py").write_text(script, encoding="utf-8")
    path = os.pathsep.join(map(str, (tmp_path, Path(package.__file__).parent.parent)))
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-c", "\n".join([prefix, *(f"import {name}" for name in MENDED)])]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert dict(zip(MENDED, ended.stdout.split(), strict=True)) == dict.fromkeys(MENDED, str(is_right)), ended.stderr


def test_default_problems_are_run_here(kernel):
    refuse_slow_launch(kernel, Launch(kernel.family.problem(), kernel.config(), FEW_SMS))


def test_a_launch_past_the_limit_is_refused_with_its_shape(kernel, configs):
    sizes = {name: knob.high for name, knob in knobs(kernel.family.problem).items() if knob.high}
    launch = Launch(kernel.family.problem(**sizes), configs["smallest"], FEW_SMS)
    assert estimate_seconds(kernel, launch) > LIMIT_S
    with pytest.raises(ConfigError) as caught:
        refuse_slow_launch(kernel, launch)
    assert caught.value.kind == "too_slow_here"
    assert " × ".join(str(size) for size in sizes.values()) in str(caught.value)
    assert f"about {LIMIT_S:.0f} s" in str(caught.value)


def test_more_tiles_take_longer(kernel, configs, launch_of):
    for config in configs.values():
        estimates = [estimate_seconds(kernel, launch_of((side, side, side), config)) for side in (1, 577, 2048, 8192)]
        assert estimates == sorted(set(estimates))
