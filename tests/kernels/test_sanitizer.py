"""Kernels touch nothing out of bounds, and one that forgets a mask is caught. Needs a GPU and compute-sanitizer."""

import pytest

from tests.trees import ROOT, copied, python

pytestmark = pytest.mark.gpu


def test_every_kernel_is_clean_over_hostile_shapes(kernel):
    ended = python(ROOT, ROOT / "scripts" / "sanitize.py", "--kernel", kernel.id)
    assert ended.returncode == 0, ended.stdout
    print(ended.stdout)


def test_a_kernel_that_forgets_a_mask_is_caught(tmp_path):
    tree = copied(tmp_path / "tree")
    tile = tree / "kernels" / "matmul" / "tile.py"
    source = tile.read_text()
    for mask in (" & (inner[None, :] < K)", "(inner[:, None] < K) & "):
        assert source.count(mask) == 1
        source = source.replace(mask, "")
    tile.write_text(source)
    ended = python(
        tree, tree / "scripts" / "sanitize.py", "--kernel", "matmul.grouped", "--tool", "memcheck"
    )
    assert ended.returncode == 1, ended.stdout
    assert "Invalid __global__ read" in ended.stdout
