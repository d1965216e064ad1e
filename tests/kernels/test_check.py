"""The check passes what rounding explains, and nothing else. On CPU tensors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kernels.matmul.problem import FAMILY as MATMUL
from kernels.runner import check as checks
from kernels.runner.check import MAX_CELLS, allowance, check
from kernels.spec import DTYPE_BYTES
from kernels.transpose.problem import FAMILY as TRANSPOSE

DISTRIBUTIONS = ("normal", "uniform", "integers", "zeros")


@pytest.fixture(params=DTYPE_BYTES)
def dtype(request):
    return request.param


def values(shape, dtype, distribution="normal", seed=7):
    generator = torch.Generator().manual_seed(seed)
    empty = torch.empty(shape, dtype=torch.float32)
    fill = {
        "normal": lambda: empty.normal_(generator=generator),
        "uniform": lambda: empty.uniform_(-1, 1, generator=generator),
        "integers": lambda: empty.random_(-4, 5, generator=generator),
        "zeros": empty.zero_,
    }
    return fill[distribution]().to(getattr(torch, dtype))


def product(m, n, k, dtype, distribution="normal"):
    """Inputs, and their product summed in float64 and rounded once."""
    inputs = {"A": values((m, k), dtype, distribution, 1), "B": values((k, n), dtype, distribution, 2)}
    return inputs, (inputs["A"].double() @ inputs["B"].double()).to(getattr(torch, dtype))


def checked_product(output, inputs, dtype, tf32=False):
    return check(output, inputs, MATMUL.reference, inputs["A"].shape[1], dtype, tf32)


def copied(a):
    """Its transpose, in memory of its own."""
    return a.t().clone(memory_format=torch.contiguous_format)


def checked_copy(output, a, dtype):
    return check(output, {"A": a}, TRANSPOSE.reference, 0, dtype, tf32=False)


@pytest.mark.parametrize("k", [1, 577, 4097])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_the_rounded_product_passes(k, distribution, dtype):
    for m, n in ((1, 1), (1, 129), (129, 577)):
        inputs, exact = product(m, n, k, dtype, distribution)
        result, diff = checked_product(exact, inputs, dtype)
        assert result.passed, (m, n, result)
        assert (result.mismatched, result.nonfinite, result.elements) == (0, 0, m * n)
        assert result.relative_rms <= result.tolerance
        assert diff.cells.max() <= 1


@pytest.mark.parametrize("k", [1, 577, 4097])
def test_torch_matmul_passes(k, dtype):
    inputs, _ = product(256, 129, k, dtype)
    assert checked_product(inputs["A"] @ inputs["B"], inputs, dtype)[0].passed


@pytest.mark.parametrize("k", [64, 577, 4097])
def test_skipping_the_last_product_fails(k, dtype):
    inputs, _ = product(256, 256, k, dtype)
    short = (inputs["A"][:, : k - 1].double() @ inputs["B"][: k - 1].double()).to(getattr(torch, dtype))
    result, _ = checked_product(short, inputs, dtype)
    assert not result.passed
    assert result.mismatched > 0
    assert result.nonfinite == 0


def test_two_tiles_swapped_fail(dtype):
    inputs, output = product(256, 256, 577, dtype)
    first, second = output[:64, :64].clone(), output[64:128, 192:].clone()
    output[:64, :64], output[64:128, 192:] = second, first
    result, diff = checked_product(output, inputs, dtype)
    assert not result.passed
    assert result.mismatched > 0.9 * 2 * 64 * 64
    wrong = np.kron(diff.cells > 1, np.ones(diff.cell, dtype=bool))
    assert wrong[:64, :64].any()
    assert wrong[64:128, 192:].any()
    wrong[:64, :64] = wrong[64:128, 192:] = False
    assert not wrong.any()


@pytest.mark.parametrize("place", [(0, 0), (2047, 2047), (1023, 577), (129, 1000)])
def test_one_wrong_element_of_four_million_is_found(place, dtype):
    inputs, output = product(2048, 2048, 64, dtype)
    output[place] += output.double().square().mean().sqrt().item()
    result, diff = checked_product(output, inputs, dtype)
    assert not result.passed
    assert (result.mismatched, result.worst_index) == (1, place)
    assert result.worst_got == output[place].item()
    assert result.worst_expected == pytest.approx(
        (inputs["A"][place[0]].double() @ inputs["B"][:, place[1]].double()).item(), rel=1e-4
    )
    assert list(zip(*np.nonzero(diff.cells > 1), strict=True)) == [(place[0] // diff.cell[0], place[1] // diff.cell[1])]


def test_an_element_that_rounding_does_not_explain_is_found(dtype):
    """Two units in the last place of a half, or a hundredth of the typical value where operands are cut to tf32."""
    for k in (64, 577):
        inputs, output = product(129, 577, k, dtype)
        typical = output.double().square().mean().sqrt()
        for place in torch.nonzero(output.abs() > typical)[:: 37 * 129].tolist():
            changed, place = output.clone(), tuple(place)
            if dtype == "float32":
                changed[place] += 0.01 * typical
            else:
                changed.view(torch.int16)[place] += 2
            result, diff = checked_product(changed, inputs, dtype, tf32=dtype == "float32")
            assert not result.passed, (k, place)
            assert (result.mismatched, result.worst_index) == (1, place)
            assert 1 < diff.cells.max() < 10


def test_a_tile_that_was_never_written_is_not_finite(dtype):
    inputs, output = product(577, 129, 64, dtype)
    output[512:, 64:] = math.nan
    result, diff = checked_product(output, inputs, dtype)
    assert not result.passed
    assert result.nonfinite == result.mismatched == 65 * 65
    assert result.worst_index[0] >= 512
    assert result.worst_index[1] >= 64
    assert math.isnan(result.worst_got)
    assert math.isfinite(result.max_abs_error)
    assert math.isfinite(result.relative_rms)
    unwritten = np.zeros((577, 129), dtype=bool)
    unwritten[512:, 64:] = True
    assert np.array_equal(np.isinf(diff.cells), pooled(unwritten, diff.cell))


def test_a_result_of_infinity_fails(dtype):
    inputs, output = product(129, 129, 64, dtype)
    output[128, 0] = -math.inf
    result, _ = checked_product(output, inputs, dtype)
    assert not result.passed
    assert (result.nonfinite, result.worst_index) == (1, (128, 0))


def test_zeros_times_anything_must_be_zero(dtype):
    inputs, output = product(129, 577, 1000, dtype, "zeros")
    assert checked_product(output, inputs, dtype)[0].passed
    output[100, 7] = 1e-3
    result, _ = checked_product(output, inputs, dtype)
    assert not result.passed
    assert (result.mismatched, result.worst_index) == (1, (100, 7))
    output[100, 7] = math.nan
    assert not checked_product(output, inputs, dtype)[0].passed


def test_an_error_everywhere_within_the_limit_of_each_element_fails_as_a_whole(dtype):
    """One element may err by its limit; all of them can't."""
    inputs, _ = product(256, 256, 577, dtype)
    allowed = allowance(dtype, 577, tf32=False)
    wide = {name: tensor.double() for name, tensor in inputs.items()}
    reference, magnitude = wide["A"] @ wide["B"], wide["A"].abs() @ wide["B"].abs()
    limit = allowed.of_value * reference.abs() + allowed.of_magnitude * magnitude
    off = (reference + 0.9 * limit).float()
    result, _ = check(off, inputs, MATMUL.reference, 577, dtype, tf32=False)
    assert not result.passed
    assert result.mismatched == 0
    assert result.relative_rms > result.tolerance


def pooled(picture, cell):
    """The largest value of each cell, element by element."""
    rows, columns = picture.shape
    cells = np.full((-(-rows // cell[0]), -(-columns // cell[1])), -np.inf)
    for row in range(rows):
        for column in range(columns):
            at = row // cell[0], column // cell[1]
            cells[at] = max(cells[at], picture[row, column])
    return cells


@pytest.mark.parametrize("shape", [(1, 1), (1, 129), (129, 1), (128, 577), (577, 1000), (1023, 7)], ids=str)
def test_cells_are_the_largest_error_of_their_elements(shape):
    m, n = shape
    a = values((n, m), "float32")
    output = copied(a)
    error = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.01
    output += error * 0.5
    _, diff = checked_copy(output, a, "float32")
    assert diff.shape == shape
    assert diff.exact
    assert max(diff.cells.shape) <= MAX_CELLS
    assert np.array_equal(diff.cells, pooled((output - a.t()).abs().numpy(), diff.cell))


def test_cells_of_a_product_are_in_units_of_what_is_allowed(dtype):
    inputs, output = product(129, 577, 64, dtype)
    output[5] *= 1.25
    _, diff = checked_product(output, inputs, dtype)
    allowed, every_row = allowance(dtype, 64, tf32=False), slice(None)
    wide = {name: tensor.double() if dtype == "float32" else tensor.float() for name, tensor in inputs.items()}
    reference = MATMUL.reference(wide, every_row).double()
    magnitude = MATMUL.reference({name: tensor.abs().float() for name, tensor in wide.items()}, every_row).double()
    limit = allowed.of_value * reference.abs() + allowed.of_magnitude * magnitude + allowed.floor
    units = ((output.double() - reference).abs() / limit).numpy()
    assert not diff.exact
    assert np.allclose(diff.cells, pooled(units, diff.cell), rtol=1e-4)


def test_rows_at_a_time_give_what_all_at_once_give(monkeypatch, dtype):
    inputs, output = product(1000, 577, 129, dtype)
    output[999, 3] = math.nan
    output[400, 576] *= 3
    whole, picture = checked_product(output, inputs, dtype)
    monkeypatch.setattr(checks, "_CHUNK_BYTES", 577 * 48 * 100)
    parts, picture_of_parts = checked_product(output, inputs, dtype)
    assert np.array_equal(picture.cells, picture_of_parts.cells)
    for field in ("passed", "mismatched", "nonfinite", "worst_index", "max_abs_error", "elements"):
        assert getattr(whole, field) == getattr(parts, field), field
    assert whole.relative_rms == pytest.approx(parts.relative_rms)
    assert whole.tolerance == pytest.approx(parts.tolerance)


def test_an_exact_copy_passes_and_any_single_flipped_bit_fails(dtype):
    for m, n in ((1, 1), (1, 129), (577, 129), (1000, 1023)):
        a = values((m, n), dtype)
        output = copied(a)
        result, _ = checked_copy(output, a, dtype)
        assert result.passed
        assert (result.mismatched, result.max_abs_error, result.tolerance) == (0, 0, 0)
        place = (n // 2, m // 3)
        bits = output.view(torch.int16 if DTYPE_BYTES[dtype] == 2 else torch.int32)
        bits[place] ^= 1
        result, diff = checked_copy(output, a, dtype)
        assert not result.passed
        assert (result.mismatched, result.worst_index) == (1, place)
        assert np.count_nonzero(diff.cells) == 1


def test_a_copy_of_zeros_must_be_zeros(dtype):
    a = torch.zeros((129, 577), dtype=getattr(torch, dtype))
    output = copied(a)
    assert checked_copy(output, a, dtype)[0].passed
    output[576, 128] = 2.0**-24
    result, _ = checked_copy(output, a, dtype)
    assert not result.passed
    assert result.worst_index == (576, 128)


def test_two_rows_of_a_copy_swapped_fail(dtype):
    a = values((129, 577), dtype)
    output = copied(a)
    output[[1, 2]] = output[[2, 1]]
    assert not checked_copy(output, a, dtype)[0].passed


def test_only_a_sum_of_products_may_err(dtype):
    assert set(vars(allowance(dtype, 0, tf32=False)).values()) == {0}
    for reduction in (1, 577, 16384):
        assert min(vars(allowance(dtype, reduction, tf32=False)).values()) > 0


def cut_to_tf32(x):
    """float32 with 10 bits of mantissa, the rest dropped: what Triton's dot makes of an operand."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("k", [1, 16, 577, 4097])
@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_products_of_operands_cut_to_tf32_pass_where_tf32_is_what_multiplies_and_fail_elsewhere(k, distribution):
    inputs, _ = product(129, 577, k, "float32", distribution)
    cut = {name: cut_to_tf32(tensor).double() for name, tensor in inputs.items()}
    output = (cut["A"] @ cut["B"]).float()
    assert checked_product(output, inputs, "float32", tf32=True)[0].passed
    assert not checked_product(output, inputs, "float32", tf32=False)[0].passed


def test_a_skipped_product_fails_under_tf32_too():
    inputs, exact = product(256, 256, 4097, "float32")
    last = inputs["A"][:, -1:] @ inputs["B"][-1:]
    assert checked_product(exact, inputs, "float32", tf32=True)[0].passed
    assert not checked_product(exact - last, inputs, "float32", tf32=True)[0].passed


@pytest.mark.parametrize("k", [1, 64, 577, 4097])
def test_float32_that_is_a_thousandth_off_fails_where_it_is_multiplied_in_full(k):
    inputs, exact = product(129, 257, k, "float32")
    assert not checked_product(exact * 1.001, inputs, "float32", tf32=False)[0].passed
    assert not checked_product(exact.half().float(), inputs, "float32", tf32=False)[0].passed
