"""The published schema and the checks of the API agree: what one field allows, the other does."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kernels import discover
from kernels.experiment import Run, from_json
from kernels.knobs import ConfigError, Knob, knobs
from kernels.merged_schema import object_schema
from kernels.schema import experiment_model, experiment_schema


def accepted(kernel, payload):
    try:
        experiment_model(kernel).model_validate(payload)
    except ValidationError:
        return False
    return True


def checked(payload):
    try:
        from_json(payload, discover())
    except ConfigError:
        return False
    return True


def values(knob):
    """Allowed ones, and ones just outside."""
    if knob.choices is not None:
        return [*knob.choices, "nonsense", 3, None]
    return [knob.low, knob.high, knob.low - 1, knob.high + 1, 2.5, "many", None]


def test_every_field_allows_what_the_api_allows(kernel):
    several = 0
    for part, declared in (
        ("problem", kernel.problem_knobs()),
        ("config", knobs(kernel.config)),
        ("run", knobs(Run)),
    ):
        for name, knob in declared.items():
            for value in values(knob):
                payload = {"kernel": kernel.id, part: {name: value}}
                assert accepted(kernel, payload) == checked(payload), payload
                several += 1
    assert several > 60


@pytest.mark.parametrize(
    "payload", [{"gpu": "H200"}, {"gpu": "this"}, {"gpu": "mine"}, {"foo": 1}, {"config": {"foo": 1}}]
)
def test_other_fields_are_those_of_an_experiment(kernel, payload):
    payload = {"kernel": kernel.id, **payload}
    assert accepted(kernel, payload) == checked(payload)


def test_the_schema_has_defaults_bounds_and_help(kernel):
    schema = experiment_schema(kernel)
    warps = schema["$defs"]["Config"]["properties"]["num_warps"]
    assert (warps["default"], warps["enum"]) == (4, [1, 2, 4, 8, 16])
    assert warps["description"]
    assert schema["$defs"]["Problem"]["properties"]["M"]["maximum"] == 16384


TEXT = Knob("", "Sweep", "Words.", longest=5)


@pytest.mark.parametrize("value", ["", "abcde", "é = ,"])
def test_a_text_of_a_pages_options_may_be_so_long(value):
    assert TEXT.checked("words", value) == value
    assert object_schema({"words": TEXT}, "")["properties"]["words"]["maxLength"] == 5


@pytest.mark.parametrize("value", ["abcdef", "a\nb", "\x00", "\ud800", 5, None, ["a"]])
def test_another_text_is_refused_in_a_sentence(value):
    with pytest.raises(ConfigError, match=r"^words is .*; allowed are up to 5 printable characters\.$") as error:
        TEXT.checked("words", value)
    assert error.value.field == "words"
