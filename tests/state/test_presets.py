"""Presets: what the last one sets, and what it says where nothing was searched."""

from __future__ import annotations

import pytest

from kernels import discover
from kernels.knobs import ConfigError
from kernels.recommended import shipped
from visualize.web.controls import FASTEST, apply_preset, presets

KERNELS = discover()
PERSISTENT = KERNELS["matmul.persistent"]
SET = {"M": 4096, "N": 4096, "K": 4096, "dtype": "float16", "GROUP_SIZE": 3, "tab": "reuse", "seed": 7, "gpu": ""}


def fastest(kernel: str, **fields: object) -> dict[str, object]:
    declared = KERNELS[kernel]
    return apply_preset({**SET, **fields}, declared, len(declared.presets), None)


@pytest.mark.parametrize("kernel", KERNELS)
def test_only_a_kernel_that_was_searched_offers_the_fastest_config(kernel: str) -> None:
    searched = any(one.experiment.kernel == kernel for one in shipped())
    assert (FASTEST in presets(KERNELS[kernel])) is searched


def test_it_sets_the_config_and_keeps_the_problem_and_the_rest() -> None:
    searched = [one.experiment for one in shipped() if one.experiment.kernel == "matmul.persistent"]
    found = next(one for one in searched if (one.problem.K, one.problem.dtype) == (4096, "float16"))
    assert fastest("matmul.persistent") == {**SET, "kernel": "matmul.persistent", **vars(found.config)}


def test_a_shape_or_gpu_unlike_the_searched_ones_is_refused_with_their_list() -> None:
    with pytest.raises(ConfigError) as raised:
        fastest("matmul.persistent", M=16, N=16, K=16)
    assert str(raised.value).startswith("No search has covered 16 × 16 × 16 float16 NN on H200. Searched: 8192 × 8192")
    assert raised.value.kind == "not_searched"
    with pytest.raises(ConfigError, match="on T4"):
        fastest("matmul.persistent", gpu="T4")


def test_the_kernels_own_presets_start_at_its_defaults() -> None:
    preset = PERSISTENT.presets[0]
    assert apply_preset(SET, PERSISTENT, 0, None) == {
        **{"seed": 7, "gpu": "", "kernel": "matmul.persistent"}, **preset.problem, **preset.config, **preset.view
    }  # fmt: skip
