"""The check passes right results, locates wrong ones, and refuses tensors that exceed free memory. On CPU tensors."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kernels.matmul.problem import FAMILY as MATMUL
from kernels.matmul.problem import allowance
from tests.products import (
    WIDER_THAN_A_BYTE,
    checked_copy,
    checked_product,
    copied,
    product,
    values,
)
from tests.tables import read_table
from tilescope.declare.experiment import from_json
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import DTYPE_BYTES
from tilescope.measure.check import MAX_CELLS, InsufficientMemory, check, require_memory
from tilescope.measure.run import prepare
from tilescope.measure.worker import to_failure


@pytest.fixture(params=WIDER_THAN_A_BYTE)
def dtype(request):
    return request.param


def test_an_element_that_rounding_does_not_explain_is_found(dtype):
    """Two units in the last place of a half, or a hundredth of the typical value where operands are cut to tf32."""
    for k in (64, 577):
        inputs, output = product(129, 577, k, dtype)
        typical = output.double().square().mean().sqrt()
        for place in torch.nonzero(output.abs() > typical)[:: 37 * 129].tolist():
            changed = output.clone()
            place = tuple(place)
            if dtype == "float32":
                changed[place] += 0.02 * typical
            else:
                changed.view(torch.int16)[place] += 2
            result, diff = checked_product(
                changed, inputs, dtype, "tf32" if dtype == "float32" else "exact"
            )
            assert not result.passed, (k, place)
            assert result.mismatched == 1
            assert result.worst_index == place
            assert 1 < diff.cells.max() == pytest.approx(result.worst_over_allowed)


def test_a_tile_that_was_never_written_and_a_result_of_infinity_are_not_finite(dtype):
    inputs, output = product(577, 129, 64, dtype)
    output[512:, 64:] = math.nan
    output[0, 0] = -math.inf
    result, diff = checked_product(output, inputs, dtype)
    assert not result.passed
    assert result.nonfinite == result.mismatched == 65 * 65 + 1
    assert result.worst_index == (0, 0)
    assert result.worst_got == -math.inf
    assert math.isfinite(result.max_abs_error)
    assert math.isfinite(result.relative_rms)
    unwritten = np.zeros((577, 129), dtype=bool)
    unwritten[512:, 64:] = unwritten[0, 0] = True
    assert np.array_equal(np.isinf(diff.cells), pooled(unwritten, diff.cell))


def test_zeros_times_anything_must_be_zero(dtype):
    inputs, output = product(129, 577, 1000, dtype, "zeros")
    output[100, 7] = 1e-3
    result, _ = checked_product(output, inputs, dtype)
    assert not result.passed
    assert (result.mismatched, result.worst_index) == (1, (100, 7))


def test_an_error_everywhere_within_the_limit_of_each_element_fails_as_a_whole(dtype):
    """One element may err by its limit; all of them can't."""
    inputs, _ = product(256, 256, 577, dtype)
    allowed = allowance(dtype, 577, coarse_sums=True)
    wide = {name: tensor.double() for name, tensor in inputs.items()}
    reference = wide["A"] @ wide["B"]
    magnitude = wide["A"].abs() @ wide["B"].abs()
    limit = 2 * (allowed.of_value * reference.abs() + allowed.of_scale * magnitude)
    off = (reference + 0.9 * limit).float()
    result, _ = check(off, inputs, MATMUL, allowed)
    assert not result.passed
    assert result.mismatched == 0
    assert result.relative_rms > result.tolerance


def pooled(picture, cell):
    """Return the largest value of each cell, compared element by element."""
    rows, columns = picture.shape
    cells = np.full((-(-rows // cell[0]), -(-columns // cell[1])), -np.inf)
    for row in range(rows):
        for column in range(columns):
            at = row // cell[0], column // cell[1]
            cells[at] = max(cells[at], picture[row, column])
    return cells


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 129), (129, 1), (128, 577), (577, 1000), (1023, 7)], ids=str
)
def test_cells_are_the_largest_error_of_their_elements(shape):
    m, n = shape
    a = values((n, m), "float32")
    output = copied(a)
    error = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.01
    output += error * 0.5
    _, diff = checked_copy(output, a)
    assert diff.shape == shape
    assert diff.exact
    assert max(diff.cells.shape) <= MAX_CELLS
    assert np.array_equal(diff.cells, pooled((output - a.t()).abs().numpy(), diff.cell))


CELLS = """
(576, 576) | (64, 48) | (8, 6)
(577, 1000) | (1, 1000) | (5, 8)
(1000, 1000) | (3, 200) | (9, 8)
"""


@pytest.mark.parametrize(("shape", "tile", "cell"), read_table(CELLS))
def test_no_cell_has_a_part_of_a_tile_and_elements_of_another(shape, tile, cell):
    a = values(shape[::-1], "float32")
    _, diff = checked_copy(copied(a), a, tile)
    assert diff.cell == cell


def test_an_exact_copy_passes_and_any_single_flipped_bit_fails(dtype):
    for m, n in ((1, 1), (1, 129), (577, 129), (1000, 1023)):
        a = values((m, n), dtype)
        output = copied(a)
        result, _ = checked_copy(output, a)
        assert result.passed
        assert result.mismatched == 0
        assert result.max_abs_error == 0
        assert result.tolerance == 0
        place = (n // 2, m // 3)
        bits = output.view(torch.int16 if DTYPE_BYTES[dtype] == 2 else torch.int32)
        bits[place] ^= 1
        result, diff = checked_copy(output, a)
        assert not result.passed
        assert result.mismatched == 1
        assert result.worst_index == place
        assert np.count_nonzero(diff.cells) == 1


def test_a_closeup_shows_the_worst_tile_with_its_neighbours():
    inputs, output = product(600, 500, 64, "float16")
    output[130, 250] += 5
    _, diff = checked_product(output, inputs, "float16", tile=(64, 32))
    near = diff.closeup
    assert near.first == (64, 192)
    assert near.shape == (3 * 64, 3 * 32)
    assert near.got.shape == (7, 7)
    row, column = np.unravel_index(near.cells.argmax(), near.cells.shape)
    assert row == (130 - 64) // near.cell[0]
    assert column == (250 - 192) // near.cell[1]


@pytest.mark.parametrize("tile", [None, (256, 256), (1, 64), (2, 1), (1, 1)])
@pytest.mark.parametrize("place", [(0, 0), (33, 10), (99, 0), (99, 89)])
def test_a_closeup_has_the_values_around_the_worst_place_whatever_the_tile_and_ends_at_the_edges(
    place, tile
):
    a = values((90, 100), "float32")
    output = copied(a)
    assert checked_copy(output, a, tile)[1].closeup is None, "it is right"
    output[place] += 7
    near = checked_copy(output, a, tile)[1].closeup
    rows, columns = (
        slice(at, at + size) for at, size in zip(near.near, near.got.shape, strict=True)
    )
    assert np.array_equal(near.got, output[rows, columns].numpy())
    assert np.array_equal(near.expected, a.t()[rows, columns].numpy())
    assert np.argwhere(near.units).tolist() == [[place[0] - rows.start, place[1] - columns.start]]
    assert min(near.first) >= 0
    assert near.first[0] + near.shape[0] <= 100
    assert near.first[1] + near.shape[1] <= 90


def test_wrong_elements_are_found_among_more_than_2_to_the_24_that_are_compared_in_parts():
    """A product in float16 has more elements than float32 can count and than one part holds."""
    a = values((2064, 16), "float16", seed=1)
    b = values((16, 8192), "float16", seed=2)
    inputs = {"A": a, "B": b}
    exact = a.float() @ b.float()
    output = exact.half()
    right, _ = checked_product(output, inputs, "float16")
    assert right.elements > 1 << 24
    assert right.passed
    output[5, 7] += 0.5
    relative_rms = (
        (output - exact).norm(dtype=torch.float64) / exact.norm(dtype=torch.float64)
    ).item()
    output[1964, 8191] = math.nan
    result, diff = checked_product(output, inputs, "float16")
    assert not result.passed
    assert result.mismatched == 2
    assert result.nonfinite == 1
    assert result.worst_index == (1964, 8191)
    assert result.relative_rms == pytest.approx(relative_rms, rel=1e-4)
    assert result.tolerance == pytest.approx(right.tolerance, rel=1e-4)
    rows, columns = diff.cell
    wrong = [[5 // rows, 7 // columns], [1964 // rows, 8191 // columns]]
    assert np.argwhere(diff.cells > 1).tolist() == wrong


GIB = 2**30


@pytest.fixture
def device(monkeypatch):
    """Return a function that installs a device: GiB free of 16, GiB that torch reserved, and GiB of those in use."""

    def install(free, reserved=0, allocated=0):
        fake = SimpleNamespace(
            mem_get_info=lambda: (int(free * GIB), 16 * GIB),
            memory_reserved=lambda: reserved * GIB,
            memory_allocated=lambda: allocated * GIB,
        )
        monkeypatch.setattr(torch, "cuda", fake)

    return install


def test_memory_that_torch_reserved_and_does_not_use_is_free(device):
    device(free=1, reserved=3, allocated=1)
    require_memory(3 * GIB, "They")
    with pytest.raises(
        InsufficientMemory, match=r"^They take 3\.5 GiB; the GPU has 16 GiB, 3\.0 of them free\. "
    ):
        require_memory(7 * GIB // 2, "They")


def test_operands_count_with_the_float32_values_that_they_are_converted_from(device, monkeypatch):
    """Two operands of half a gibibyte, and the second's values in float32 before they become float16: 2 GiB."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    device(free=1.9)
    experiment = from_json({"kernel": "matmul.grouped", "problem": dict.fromkeys("MNK", 16384)})
    with pytest.raises(InsufficientMemory) as error:
        prepare(experiment, GPUS["T4"])
    failure = to_failure("launch", error.value)
    assert failure.stage == "launch"
    assert failure.kind == "out_of_memory"
    assert failure.message.startswith(
        "These tensors take 2.0 GiB; the GPU has 16 GiB, 1.9 of them free."
    )


class OnTheGpu(torch.Tensor):
    is_cuda = True


def test_the_check_is_refused_before_its_operands_are_widened(device):
    device(free=0)
    output = torch.zeros(4, 4, dtype=torch.float16).as_subclass(OnTheGpu)
    inputs = {name: torch.zeros(4, 4, dtype=torch.float16) for name in "ab"}
    with pytest.raises(
        InsufficientMemory, match=r"^The operands of the check, in a wider type, take 0\.0 GiB"
    ):
        check(output, inputs, MATMUL, allowance("float16", 4))
