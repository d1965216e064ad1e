"""One schema for all kernels: nothing that a kernel takes is refused, and every default is said."""

from __future__ import annotations

import json

from kernels import discover
from kernels.knobs import knobs
from kernels.merged_schema import merged_fields, merged_schema, object_schema
from kernels.schema import declared_parts, experiment_schema
from visualize.predict.textbook import Textbook


def test_every_field_of_every_kernel_is_in_it_with_all_it_allows(kernel):
    fields = merged_fields(discover())
    for part, declared in declared_parts(kernel).items():
        for name, knob in declared.items():
            field = fields[part][name]
            if knob.choices is not None:
                assert set(knob.choices) <= set(field["enum"])
            else:
                assert field["minimum"] <= knob.low <= knob.high <= field["maximum"]
            assert str(knob.default) in field["description"].split("Default: ")[1]


def test_nothing_is_allowed_that_no_kernel_allows():
    fields = merged_fields(discover())
    assert fields["config"]["BLOCK_K"]["enum"] == [16, 32, 64, 128, 256]
    assert (fields["config"]["GROUP_SIZE"]["minimum"], fields["config"]["GROUP_SIZE"]["maximum"]) == (1, 1024)
    assert set(fields["config"]) == {
        name for kernel in discover().values() for name in declared_parts(kernel)["config"]
    }


def test_a_default_stands_alone_only_where_every_kernel_shares_it():
    fields = merged_fields(discover())
    assert fields["config"]["num_warps"]["default"] == 4
    assert "default" not in fields["config"]["BLOCK_M"]
    assert "64 (matmul.grid_2d, matmul.grouped" in fields["config"]["BLOCK_M"]["description"]
    assert "default" not in fields["config"]["SPLIT_K"]
    assert "Only for matmul.split_k_atomic, matmul.split_k_race." in fields["config"]["SPLIT_K"]["description"]
    assert "Only for matmul.*." in fields["problem"]["K"]["description"]


def test_it_is_much_smaller_than_a_union_of_the_exact_ones():
    union = sum(len(json.dumps(experiment_schema(kernel))) for kernel in discover().values())
    assert len(json.dumps(merged_schema(discover()))) < union / 5


def test_an_object_of_knobs_has_their_choices_and_defaults():
    machine = object_schema(knobs(Textbook), "A machine.")["properties"]
    assert (machine["warp_size"]["enum"], machine["warp_size"]["default"]) == ([2, 4, 8, 16, 32, 64], 32)
    assert machine["element_bytes"]["type"] == "string"
