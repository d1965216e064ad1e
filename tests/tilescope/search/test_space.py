"""Spaces of configs: grid order, JSON, identity, rejected configs, and invalid spaces."""

import pytest
from fakes import GPU

from tests.experiments import experiment_of
from tilescope.declare.knobs import ConfigError
from tilescope.declare.space import MAX_CONFIGS, space, space_from_json
from tilescope.search.sweep_run import explain_refusal


def make_space(text=""):
    base = experiment_of(f"matmul.grouped {text}")
    return space(base, {"BLOCK_M": [128, 64, 64], "num_warps": ["8", 4]})


def test_experiments_are_distinct_in_grid_order_and_keep_the_base_s_other_values():
    configs = [experiment.config for experiment in make_space("BLOCK_N=32").experiments]
    varied = [(config.BLOCK_M, config.num_warps) for config in configs]
    assert varied == [(64, 4), (64, 8), (128, 4), (128, 8)]
    assert {config.BLOCK_N for config in configs} == {32}
    assert make_space().size == len(configs)


def test_the_identity_ignores_the_base_s_values_of_varied_knobs_and_nothing_else():
    assert make_space("BLOCK_M=16").identity == make_space("BLOCK_M=256 num_warps=1").identity
    assert make_space("BLOCK_N=32").identity != make_space("BLOCK_N=64").identity
    assert space(make_space().base, {"BLOCK_M": [64]}).identity != make_space().identity
    assert make_space().identity == "ea536aa1215cc99d", (
        "another identity would orphan every stored sweep"
    )


def test_a_config_that_the_family_rejects_is_refused_with_the_reason():
    float8 = space(experiment_of("matmul.grouped dtype=float8_e4m3fn"), {"BLOCK_K": [16, 32]})
    assert [explain_refusal(each, GPU) for each in float8.experiments] == [
        "BLOCK_K must be at least 32 for float8_e4m3fn (got 16).",
        "",
    ]


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({}, "Vary at least one knob"),
        (
            {"BLOCK_X": [1]},
            "The config of matmul.grouped has no field 'BLOCK_X'; it has BLOCK_M, BLOCK_N",
        ),
        ({"BLOCK_M": [63]}, "BLOCK_M must be 16, 32, 64, 128 or 256 (got 63)."),
        ({"BLOCK_M": []}, "BLOCK_M must be a list of values to vary (got [])."),
        (
            {"GROUP_SIZE": list(range(1, 1000)), "num_stages": [1, 2, 3, 4, 5]},
            f"at most {MAX_CONFIGS:,} are allowed",
        ),
    ],
)
def test_an_invalid_space_is_refused_with_the_reason(vary, message):
    with pytest.raises(ConfigError) as error:
        space(make_space().base, vary)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "payload", [[], {}, {"experiment": {"kernel": "matmul.grouped"}, "vary": [1]}]
)
def test_json_of_another_shape_is_refused(payload):
    with pytest.raises(ConfigError):
        space_from_json(payload)
