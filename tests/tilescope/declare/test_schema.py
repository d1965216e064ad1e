"""JSON Schemas: an exact one per kernel, and one for all kernels that allows all values that any kernel accepts."""

import jsonschema
import pytest

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import (
    argument_schemas,
    declared_parts,
    experiment_schema,
    from_json,
    merged_fields,
)
from tilescope.declare.knobs import ConfigError, Knob, knobs
from visualize.predict.costs import Textbook


def test_the_schema_and_the_api_accept_the_same_values(kernel):
    """Allowed values, and values just outside."""
    validator = jsonschema.Draft202012Validator(experiment_schema(kernel))
    payloads = [{"gpu": gpu} for gpu in ("H200", "this", "mine")]
    payloads += [{"foo": 1}, {"config": {"foo": 1}}]
    for part, (_, allowed) in declared_parts(kernel).items():
        for name, knob in allowed.items():
            values = knob.choices or (knob.low, knob.high)
            outside = (
                ("nonsense", 3, 2.5, None)
                if knob.choices
                else (knob.low - 1, knob.high + 1, 2.5, "many", None)
            )
            payloads += [{part: {name: value}} for value in (*values, *outside)]
    accepted = 0
    for payload in ({"kernel": kernel.id, **payload} for payload in payloads):
        try:
            from_json(payload, together=False)
            is_accepted = True
        except ConfigError:
            is_accepted = False
        assert validator.is_valid(payload) == is_accepted, payload
        accepted += is_accepted
    assert 30 < accepted < len(payloads) - 30
    warps = validator.schema["properties"]["config"]["properties"]["num_warps"]
    assert warps["default"] == 4
    assert warps["description"]


def test_the_merged_schema_allows_what_any_kernel_allows(kernel):
    fields = merged_fields(discover())
    for part, (_, allowed) in declared_parts(kernel).items():
        for name, knob in allowed.items():
            field = fields[part][name]
            if knob.choices is not None:
                assert set(knob.choices) <= set(field["enum"])
            else:
                assert field["minimum"] <= knob.low <= knob.high <= field["maximum"]
            assert str(knob.default) in field["description"].split("Default: ")[1]


def test_a_merged_default_stands_alone_only_if_every_kernel_shares_it():
    fields = merged_fields(discover())
    assert fields["config"]["GROUP_SIZE"]["minimum"] == 1
    assert fields["config"]["GROUP_SIZE"]["maximum"] == 1024
    assert set(fields["config"]) == {
        name for kernel in discover().values() for name in knobs(kernel.config)
    }
    assert fields["config"]["BLOCK_K"]["enum"] == [16, 32, 64, 128, 256]
    assert fields["config"]["num_warps"]["default"] == 4
    assert fields["config"]["SPLIT_K"]["description"].endswith(" Default: 8 or 0.")
    assert not {"BLOCK_M", "SPLIT_K", "GROUP_SIZE"} & {
        name for name, field in fields["config"].items() if "default" in field
    }


def test_arguments_have_the_choices_and_defaults_of_their_knobs():
    machine = argument_schemas(Textbook)
    assert machine["warp_size"]["enum"] == [2, 4, 8, 16, 32, 64]
    assert machine["warp_size"]["default"] == 32
    assert machine["element_bytes"]["type"] == "string"


TEXT = Knob("", "Sweep", "Words.", longest=5)


@pytest.mark.parametrize("value", ["", "abcde", "é = ,"])
def test_a_text_up_to_the_longest_length_is_allowed(value):
    assert TEXT.validate("words", value) == value


@pytest.mark.parametrize("value", ["abcdef", "a\nb", "\x00", "\ud800", 5, None, ["a"]])
def test_any_other_text_is_refused_in_a_sentence(value):
    with pytest.raises(
        ConfigError, match=r"^words must be at most 5 printable characters \(got .*\)\.$"
    ) as error:
        TEXT.validate("words", value)
    assert error.value.field == "words"


def test_an_error_names_a_knob_as_its_control_does_and_as_json_does():
    labelled = Knob(0, "Schedule", "Programs that one SM holds.", high=32, label="Programs per SM")
    with pytest.raises(ConfigError) as error:
        labelled.validate("programs_per_sm", 99)
    assert (
        str(error.value)
        == "Programs per SM (programs_per_sm) must be a whole number from 0 to 32 (got 99)."
    )
    assert error.value.field == "programs_per_sm"
