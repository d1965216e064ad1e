"""Which configs a sweep compares: grid order, what is refused, identity, and the sentences of a bad space."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kernels import discover
from kernels.experiment import from_json
from kernels.knobs import ConfigError
from kernels.space import MAX_CONFIGS, Space, space, space_from_json

VARY: dict[str, Any] = {"BLOCK_M": [128, 64, 64], "num_warps": ["8", 4]}


def base(**config: int) -> Any:
    return from_json({"kernel": "matmul.grouped", "config": config}, discover())


def made(**config: int) -> Space:
    return space(base(**config), VARY, discover())


def test_experiments_come_in_grid_order_each_once_and_keep_what_is_not_varied() -> None:
    found = made(BLOCK_N=32)
    tiles = [(one.config.BLOCK_M, one.config.num_warps) for one in found.experiments]
    assert tiles == [(64, 4), (64, 8), (128, 4), (128, 8)]
    assert {one.config.BLOCK_N for one in found.experiments} == {32}
    assert found.size == len(tiles)


def test_json_gives_the_space_back() -> None:
    found = made(BLOCK_N=32)
    assert space_from_json(json.loads(json.dumps(found.to_json())), discover()) == found


def test_the_identity_leaves_out_what_makes_no_difference_and_nothing_else() -> None:
    assert made(BLOCK_M=16).identity == made(BLOCK_M=256, num_warps=1).identity
    assert made(BLOCK_N=32).identity != made(BLOCK_N=64).identity
    assert space(base(), {"BLOCK_M": [64]}, discover()).identity != made().identity


def test_the_identity_is_the_same_on_every_machine() -> None:
    """What is stored under it is found again: a change here orphans every stored sweep."""
    assert made().identity == "ea536aa1215cc99d"


def test_what_the_family_refuses_is_set_aside_with_its_sentence() -> None:
    one = from_json({"kernel": "matmul.grouped", "problem": {"dtype": "float8_e4m3fn"}}, discover())
    found = space(one, {"BLOCK_K": [16, 32]}, discover())
    (refused,) = found.refused(discover()["matmul.grouped"]).items()
    assert refused[0] == found.experiments[0]
    assert refused[1] == "BLOCK_K is 16; float8_e4m3fn needs at least 32."


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ({}, "No knob is varied"),
        ({"BLOCK_X": [1]}, "can't vary 'BLOCK_X'; the knobs of its config are BLOCK_M, BLOCK_N"),
        ({"K": [512, 1024]}, "can't vary 'K'"),
        ({"BLOCK_M": [63]}, "BLOCK_M is 63; allowed are 16, 32, 64, 128 and 256."),
        ({"BLOCK_M": ["big"]}, "BLOCK_M is 'big'; it must be a whole number."),
        ({"BLOCK_M": []}, "give a list of values"),
        ({"BLOCK_M": 64}, "give a list of values"),
        ({"GROUP_SIZE": list(range(1, 1000)), "num_stages": [1, 2, 3, 4, 5]}, f"at most {MAX_CONFIGS:,} are allowed"),
    ],
)
def test_a_bad_space_is_told_in_a_sentence(vary: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        space(base(), vary, discover())
    assert said in str(error.value)


@pytest.mark.parametrize("payload", [[], {}, {"experiment": {"kernel": "matmul.grouped"}, "vary": [1]}])
def test_json_that_is_no_space_is_an_error(payload: Any) -> None:
    with pytest.raises(ConfigError):
        space_from_json(payload, discover())
