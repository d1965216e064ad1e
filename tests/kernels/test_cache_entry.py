"""A truncated cache entry is compiled again, and then it is whole."""

from __future__ import annotations

import pytest

from kernels import discover
from kernels.compiling import compiler
from kernels.experiment import Experiment
from kernels.gpus import GPUS
from kernels.measuring.fair_queue import Call
from kernels.measuring.pool import Pool
from kernels.results import Compiled


def compile_in(cache, side=640, block=16):
    """Compile in a fresh worker."""
    kernel = discover()["transpose.tiled"]
    config = kernel.config(BLOCK_M=block, BLOCK_N=16, num_warps=1)
    experiment = Experiment(kernel.id, kernel.family.problem(M=side, N=side), config, "H200")
    pool = Pool("compile", str(cache))
    try:
        return pool.submit(Call("compile", compiler.compile_experiment, (experiment, GPUS["H200"]))).result()
    finally:
        pool.close()


def files(cache, suffix):
    return sorted(file for file in cache.rglob(f"*.{suffix}") if not file.name.startswith("__grp__"))


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache with one kernel in it, and the kernel."""
    cache = tmp_path_factory.mktemp("cache")
    made = compile_in(cache)
    assert isinstance(made, Compiled), made
    return cache, made


# One file of each kind: bytes, text (PTX is text, too), JSON, and the SASS.
@pytest.mark.parametrize(
    ("suffix", "left"), [("cubin", 0.6), ("cubin", None), ("ttgir", 0.6), ("json", 0.0), ("sass", 0.6)]
)
def test_a_truncated_file_is_compiled_again(filled, suffix, left):
    """A file of full length in which only the header is left is compiled again, too."""
    cache, made = filled
    (file,) = files(cache, suffix)
    whole = file.read_bytes()
    file.write_bytes(whole[:64].ljust(len(whole), b"\0") if left is None else whole[: int(left * len(whole))])
    again = compile_in(cache)
    assert isinstance(again, Compiled), again
    assert (again.registers, again.operations) == (made.registers, made.operations)
    assert (again.ttgir, again.ptx, again.sass) == (made.ttgir, made.ptx, made.sass)
    assert len(file.read_bytes()) == len(whole), "it is whole again"


def test_the_sass_of_other_code_is_not_taken(tmp_path):
    small, large = compile_in(tmp_path), compile_in(tmp_path, block=32)
    assert small.sass != large.sass
    first, second = files(tmp_path, "sass")
    first.write_bytes(second.read_bytes())
    assert [compile_in(tmp_path).sass, compile_in(tmp_path, block=32).sass] == [small.sass, large.sass]
