"""Kernels compiled without a GPU: for every target, each memory operation is found in TTGIR, PTX and SASS."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernels.experiment import Experiment
from kernels.gpus import GPUS
from kernels.runner.results import Compiled, Failure
from kernels.source import last_line, lines_of
from kernels.spec import Launch
from visualize.models.listing import memory_lines, source_lines

TEXTS = ("ttgir", "ptx", "sass")
CAPABILITIES = {
    "A100-40GB": "sm_80",
    "A10G": "sm_86",
    "L4": "sm_89",
    "H200": "sm_90",
    "B200": "sm_100",
    "RTX5090": "sm_120",
}


def experiment(kernel, gpu, **problem):
    """The default on 8 warps: 128 × 256 tiles take minutes on 4."""
    return Experiment(kernel.id, kernel.family.problem(**problem), kernel.config(num_warps=8), gpu)


@pytest.mark.parametrize("gpu", ["A100-40GB", "H200"])
def test_every_operation_is_found_in_every_text(session, kernel, gpu):
    chosen = experiment(kernel, gpu)
    compiled = session.compiled(chosen)
    assert isinstance(compiled, Compiled), compiled
    for access in kernel.accesses(Launch(chosen.problem, chosen.config, GPUS[gpu])):
        file, first = access.source
        last = last_line(access.source)
        assert any(name in "".join(lines_of(file)[first - 1 : last]) for name in ("load(", "store(", "atomic_add("))
        for kind in TEXTS:
            name = file.rsplit("/", 1)[-1]
            assert memory_lines(getattr(compiled, kind), kind, name, first, last), (access.op, access.tensor, kind)


def test_lines_of_inlined_code_are_the_innermost(session, kernels):
    compiled = session.compiled(experiment(kernels["matmul.grouped"], "H200"))
    for kind in TEXTS:
        files = {source[0] for source in source_lines(getattr(compiled, kind), kind) if source}
        assert {"grouped.py", "tile.py"} <= files, kind


@pytest.mark.parametrize("gpu", CAPABILITIES)
def test_any_gpu_of_the_table_is_compiled_for(session, kernels, gpu):
    compiled = session.compiled(experiment(kernels["matmul.grouped"], gpu))
    assert isinstance(compiled, Compiled), compiled
    assert f".target {CAPABILITIES[gpu]}" in compiled.ptx
    assert 0 < compiled.registers <= 255
    assert compiled.gpu == gpu


def test_what_was_compiled_is_kept(session, kernels):
    chosen = experiment(kernels["transpose.tiled"], "H200")
    assert session.compiled(chosen) is session.compiled(replace(chosen, run=replace(chosen.run, seed=5)))


def test_a_config_that_no_sm_has_room_for_is_refused_with_the_figures(session, kernels):
    kernel = kernels["matmul.grouped"]
    config = kernel.config(BLOCK_M=256, BLOCK_N=256, BLOCK_K=128, num_stages=4, num_warps=8)
    outcome = session.compiled(Experiment(kernel.id, kernel.family.problem(), config, "H200"))
    assert isinstance(outcome, Failure)
    assert (outcome.stage, outcome.kind) == ("compile", "out_of_resources")
    assert "232,448" in outcome.message


def test_whole_rows_of_16_bytes_are_what_wide_copies_need(session, kernels):
    """The facts passed are the launcher's: sizes divisible by 16, or not."""
    kernel = kernels["transpose.tiled"]
    wide, narrow = (session.compiled(experiment(kernel, "H200", M=n, N=n)).ptx for n in (1024, 1023))
    assert "ld.global.v4" in wide
    assert "ld.global.v4" not in narrow
