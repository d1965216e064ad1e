"""A cache entry that was cut off is compiled once more, and then it is whole again; a full disk is named."""

from __future__ import annotations

import errno
import os
from types import SimpleNamespace

import pytest

from kernels import discover
from kernels.compiling import compiler, disassembly
from kernels.compiling.cache_entry import CutOff, assert_whole, disk_full
from kernels.experiment import Experiment
from kernels.gpus import GPUS
from kernels.measuring.processes import Workers
from kernels.results import Compiled

GPU = GPUS["H200"]


def experiment():
    kernel = discover()["transpose.tiled"]
    small = kernel.config(BLOCK_M=16, BLOCK_N=16, num_warps=1)
    return Experiment(kernel.id, kernel.family.problem(M=640, N=640), small, "H200")


def compiled_in(cache):
    """What a fresh worker makes of it."""
    workers = Workers("compile", str(cache))
    try:
        return workers.submit(compiler.compiled_for, "compile", experiment(), GPU).result()
    finally:
        workers.close()


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache with one kernel in it, and what it is."""
    cache = tmp_path_factory.mktemp("cache")
    made = compiled_in(cache)
    assert isinstance(made, Compiled), made
    return cache, made


# By default what is read in a way of its own: as bytes, as text (of which ptx is another), as JSON, and the SASS.
@pytest.mark.parametrize(
    ("suffix", "left"),
    [
        ("cubin", 0.6),
        ("ttgir", 0.6),
        pytest.param("ptx", 0.6, marks=pytest.mark.all_combinations),
        ("json", 0.0),
        ("sass", 0.6),
    ],
)
def test_a_file_that_was_cut_off_is_made_anew(filled, suffix, left):
    cache, made = filled
    (file,) = (one for one in cache.rglob(f"*.{suffix}") if not one.name.startswith("__grp__"))
    whole = file.read_bytes()
    file.write_bytes(whole[: int(left * len(whole))])
    again = compiled_in(cache)
    assert isinstance(again, Compiled), again
    assert (again.registers, again.operations) == (made.registers, made.operations)
    assert (again.ttgir, again.ptx, again.sass) == (made.ttgir, made.ptx, made.sass)
    assert len(file.read_bytes()) == len(whole), "it is whole again"


def test_the_sass_is_kept_and_that_of_other_code_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    printed = iter(("first", "second"))
    monkeypatch.setattr(disassembly, "tool", lambda path, *arguments: next(printed))
    one, other = (SimpleNamespace(hash="ab", asm={"cubin": cubin}) for cubin in (b"code", b"other code"))
    assert [disassembly.sass_of(each) for each in (one, one, other, other)] == ["first", "first", "second", "second"]


WHOLE = {
    "cubin": b"\x7fELF".ljust(0x28) + (64).to_bytes(8, "little") + bytes(10) + b"\x40\x00\x02\x00" + bytes(2 + 128),
    "ttgir": "module {\n}\n",
    "ptx": ".entry f() {\n}\n",
}


def test_what_is_whole_is_taken():
    assert_whole(WHOLE)


@pytest.mark.parametrize(
    ("part", "left"),
    [
        *(("cubin", left) for left in (b"", b"\x7fELF", WHOLE["cubin"][:-1], b"no kernel" * 100)),
        *((kind, left) for kind in ("ttgir", "ptx") for left in ("", "// begun", "module {\n")),
    ],
)
def test_what_has_no_end_is_said_to_be_cut_off(part, left):
    with pytest.raises(CutOff, match=f"of {len(left):,} (bytes|characters) is not whole"):
        assert_whole({**WHOLE, part: left})


def test_a_full_disk_is_named_and_other_trouble_is_not():
    full = disk_full(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "/somewhere/of/mine/tilescope")
    assert full is not None
    assert (full.stage, full.kind) == ("compile", "disk_full")
    assert full.message.startswith("The disk of tilescope is full (No space left on device)")
    assert "/somewhere" not in full.message
    assert disk_full(OSError(errno.EACCES, "no"), "x") is None
    assert disk_full(ValueError("no"), "x") is None
