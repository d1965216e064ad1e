"""Triton's interpreter: its patched operations are right, unpatched they are wrong, and slow launches are refused."""

import pytest

from tests.conftest import FEW_SMS
from tests.experiments import experiment_of
from tests.trees import ROOT, python
from tilescope.declare.knobs import knobs
from tilescope.declare.spec import (
    INTERPRETER_LIMIT_S,
    Launch,
    explain_slow_launch,
    format_duration,
    interpreter_seconds,
)

pytestmark = pytest.mark.xdist_group("mended")

# A function per patched operation that returns whether its results are right.
OPERATIONS = """
import torch, triton, triton.language as tl
from triton.runtime import interpreter

@triton.jit
def product(a, b, c, SIDE: tl.constexpr):
    place = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    tl.store(c + place, tl.dot(tl.load(a + place), tl.load(b + place)))

@triton.jit
def cast(x, y, LENGTH: tl.constexpr):
    place = tl.arange(0, LENGTH)
    tl.store(y + place, tl.load(x + place).to(y.dtype.element_ty))

@triton.jit
def add(x, y, LENGTH: tl.constexpr):
    place = tl.arange(0, LENGTH)
    tl.atomic_add(y + place, tl.load(x + place), mask=place < LENGTH - 1)

@triton.jit
def doubled(x):
    return x + x

@triton.jit
def several_times(y, TIMES: tl.constexpr):
    total = tl.load(y)
    for _ in range(TIMES):
        total = doubled(total)
    tl.store(y, total)

seeded = torch.Generator().manual_seed(3)

def create_dot():
    a, b = torch.randint(-8, 9, (2, 16, 16), generator=seeded).bfloat16()
    c = torch.full((16, 16), float("nan"))
    product[(1,)](a, b, c, 16)
    return c == a.float() @ b.float()

def cast_impl():
    edges = [0, -0x80000000, 0x7F7FFFFF, 0x7F800000, -0x800000, 0x7FC00000, 0x3F808000, 0x3F818000, 0x3F80C000, 1]
    bits = torch.randint(-(2**31), 2**31, (1 << 14,), generator=seeded).int()
    bits[: len(edges)] = torch.tensor(edges)
    x, y = bits.view(torch.float32), torch.empty(bits.shape, dtype=torch.bfloat16)
    cast[(1,)](x, y, x.numel())
    return (y == x.bfloat16()) | (y.isnan() & x.isnan())

def create_fp_to_fp():
    right = []
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        x, most = torch.randn(1 << 14, generator=seeded) * 100, torch.finfo(dtype).max
        y = torch.empty(x.shape, dtype=dtype)
        cast[(1,)](x, y, x.numel())
        right.append(y.float() == x.clamp(-most, most).to(dtype).float())
    return torch.cat(right)

def create_atomic_rmw():
    x, y = torch.randn(2, 1 << 10, generator=seeded).bfloat16()
    expected = torch.cat([(x + y)[:-1], y[-1:]])
    try:
        add[(1,)](x, y, x.numel())
    except Exception:  # it refuses bfloat16
        pass
    return y == expected

def _patch_lang():
    searched, search = [], interpreter._patch_builtin
    interpreter._patch_builtin = lambda *given: searched.append(given) or search(*given)

    def searches(times):
        searched.clear()
        y = torch.ones(1)
        several_times[(1,)](y, times)
        assert y.item() == 2**times
        return len(searched)

    return torch.tensor(0 < searches(8) == searches(0))

for operation in (create_dot, cast_impl, create_fp_to_fp, create_atomic_rmw, _patch_lang):
    print(operation.__name__, bool(operation().all()))
"""

PATCH = """
from tilescope.measure.worker import patch_interpreter
patch_interpreter()
"""


@pytest.mark.parametrize(
    ("prefix", "is_right"), [(PATCH, True), ("", False)], ids=["patched", "unpatched"]
)
def test_operations_are_right_if_patched_and_still_wrong_if_not(tmp_path, prefix, is_right):
    """If an unpatched operation is right, Triton has fixed it: remove its patch."""
    script = tmp_path / "script.py"
    script.write_text(prefix + OPERATIONS)
    ended = python(ROOT, script, TRITON_INTERPRET="1", PYTHONWARNINGS="ignore")
    names = ("create_dot", "cast_impl", "create_fp_to_fp", "create_atomic_rmw", "_patch_lang")
    assert ended.stdout.splitlines() == [f"{name} {is_right}" for name in names], ended.stderr


def test_default_problems_are_run_here(kernel):
    assert (
        explain_slow_launch(kernel, Launch(kernel.family.problem(), kernel.config(), FEW_SMS)) == ""
    )


def test_a_launch_past_the_limit_is_refused_with_its_shape(kernel, configs):
    sizes = {name: knob.high for name, knob in knobs(kernel.family.problem).items() if knob.high}
    launch = Launch(kernel.family.problem(**sizes), configs["smallest"], FEW_SMS)
    assert interpreter_seconds(kernel, launch) > INTERPRETER_LIMIT_S
    reason = explain_slow_launch(kernel, launch)
    assert f"for {' × '.join(str(size) for size in sizes.values())} " in reason
    assert f"about {INTERPRETER_LIMIT_S:.0f} s" in reason
    assert f"about {format_duration(interpreter_seconds(kernel, launch))} for" in reason


def test_more_tiles_take_longer(kernel, configs, launch_of):
    for config in configs.values():
        estimates = [
            interpreter_seconds(kernel, launch_of((side, side, side), config))
            for side in (1, 577, 2048, 8192)
        ]
        assert estimates == sorted(set(estimates))


@pytest.mark.xdist_group("interpreted")
@pytest.mark.parametrize(("num_stages", "is_too_large"), [(3, False), (8, True)])
def test_a_run_warns_of_a_config_that_needs_more_shared_memory_than_the_gpu_has(
    session, num_stages, is_too_large
):
    """Eight stages of two float32 blocks of 128 × 64 take 512 KiB; an H200's program has 227 KiB."""
    depth = 64 if is_too_large else 16
    text = f"M=64 N=64 K=64 dtype=float32 BLOCK_M=128 BLOCK_N=128 BLOCK_K={depth}"
    experiment = experiment_of(f"matmul.grouped {text} num_stages={num_stages}")
    found = session.submit(experiment).result()
    assert found.check.passed
    assert (
        "This config probably can't launch on H200: it needs 524,288 bytes" in found.note
    ) == is_too_large, found.note
