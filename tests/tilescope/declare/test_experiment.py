"""An Experiment survives JSON and URLs and fits its schema; an error names the field, the value and what is allowed."""

import dataclasses
import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import (
    GPU_CHOICES,
    argument_schemas,
    declared_parts,
    experiment_schema,
    from_json,
    merged_fields,
    nest,
    resolve_gpu,
)
from tilescope.declare.gpus import DEFAULT_GPU, GPUS
from tilescope.declare.knobs import ConfigError, Knob, knobs
from visualize.predict.costs import Textbook

KERNELS = discover()
NOT_A_NUMBER = (
    None,
    True,
    False,
    [],
    [1],
    {},
    {"a": 1},
    "",
    "abc",
    "1.5",
    "0x10",
    1.5,
    float("nan"),
    float("inf"),
    b"1",
    object(),
)
NOT_A_WORD = (*NOT_A_NUMBER, 0, -1, 10**30, "FLOAT16", "float16 ")
NOT_AN_OBJECT = (None, [], [1], "abc", "", 1, 1.5, float("nan"), True, ("kernel",))

HERE = dataclasses.replace(GPUS["L4"], sms=7)
TEXT = Knob("", "Sweep", "Words.", longest=5)


def fields(kernel):
    """Return every field of a kernel's experiments: part, name, knob."""
    return [
        (part, name, knob)
        for part, (_, allowed) in declared_parts(kernel).items()
        for name, knob in allowed.items()
    ]


@st.composite
def experiments(draw):
    kernel = draw(st.sampled_from(list(KERNELS.values())))
    payload = {
        "kernel": kernel.id,
        "gpu": draw(st.sampled_from(GPU_CHOICES)),
        "problem": {},
        "config": {},
        "run": {},
    }
    for part, name, knob in fields(kernel):
        if draw(st.booleans()):
            values = (
                st.sampled_from(knob.choices) if knob.choices else st.integers(knob.low, knob.high)
            )
            payload[part][name] = draw(values)
    if payload["problem"].get("dtype", "").startswith("float8") and "BLOCK_K" in knobs(
        kernel.config
    ):
        payload["config"]["BLOCK_K"] = max(32, payload["config"].get("BLOCK_K", 32))
    return from_json(payload)


@given(
    experiments(),
    st.dictionaries(st.sampled_from(("tab", "color", "warp_size", "utm_source")), st.text()),
)
def test_an_experiment_survives_json_and_a_url_with_other_parameters(experiment, others):
    assert from_json(json.loads(json.dumps(experiment.to_json()))) == experiment
    address = experiment.to_address()
    assert (
        from_json(nest({**others, **{name: str(value) for name, value in address.items()}}))
        == experiment
    )
    assert set(address) - {"gpu"} == {
        "kernel",
        *(name for _, name, _ in fields(KERNELS[experiment.kernel])),
    }
    assert ("gpu" in address) == bool(experiment.gpu)


def refuse(payload, kind, field, *parts):
    """Check that a payload is refused with this kind and field, and a sentence that has these parts."""
    with pytest.raises(ConfigError) as caught:
        from_json(payload)
    assert caught.value.kind == kind
    assert caught.value.field == field
    message = str(caught.value)
    assert message.endswith(".")
    assert all(str(part) in message for part in parts), message


def test_a_value_of_a_wrong_type_is_refused(kernel):
    for part, name, knob in fields(kernel):
        is_number = isinstance(knob.default, int)
        for value in NOT_A_NUMBER if is_number else NOT_A_WORD:
            payload = {"kernel": kernel.id, part: {name: value}}
            allowed = knob.choices or ("a whole number from",)
            kind = "not_a_number" if is_number else "not_a_choice"
            refuse(payload, kind, name, name, " must be ", *allowed, f" (got {value!r}).")


def test_a_number_out_of_bounds_is_refused(kernel):
    for part, name, knob in fields(kernel):
        if isinstance(knob.default, str):
            continue
        low, *_, high = knob.choices or (knob.low, knob.high)
        kind = "not_a_choice" if knob.choices else "out_of_range"
        between = [low + high + 1] * bool(knob.choices)
        for value in (low - 1, high + 1, -(10**30), 10**30, *between):
            payload = {"kernel": kernel.id, part: {name: value}}
            refuse(payload, kind, name, name, " must be ", low, high, f" (got {value}).")


def test_an_unknown_field_is_refused(kernel):
    for part, (_, allowed) in declared_parts(kernel).items():
        refuse(
            {"kernel": kernel.id, part: {"BLOCK_Q": 1}},
            "unknown_field",
            "BLOCK_Q",
            "'BLOCK_Q'",
            *allowed,
        )
    parts = ("config", "gpu", "kernel", "problem", "run")
    refuse({"kernel": kernel.id, "confg": {}}, "unknown_field", "confg", *parts)


def test_an_unknown_kernel_is_refused(kernels):
    for value in (*NOT_A_WORD, "matmul", ["matmul.grouped"]):
        refuse(
            {"kernel": value},
            "unknown_kernel",
            "kernel",
            "kernel must be ",
            *kernels,
            f" (got {value!r}).",
        )
    for flat in ({}, {"kernel": ""}, {"kernel": "matmul"}, {"M": "577"}):
        with pytest.raises(ConfigError, match="kernel must be ") as caught:
            nest(flat)
        assert caught.value.kind == "unknown_kernel"


def test_an_experiment_or_a_part_that_is_not_an_object_is_refused(kernel):
    for value in NOT_AN_OBJECT:
        refuse(value, "not_an_object", "", type(value).__name__)
        for part in ("problem", "config", "run"):
            message = f"{part} must be a JSON object (got {value!r})."
            refuse({"kernel": kernel.id, part: value}, "not_an_object", part, message)


def test_an_unknown_gpu_or_an_unsupported_dtype_is_refused(kernel):
    for value in (True, False, [], ["H200"], {}, 0, 1.5, "h200", "NVIDIA H200", "That"):
        payload = {"kernel": kernel.id, "gpu": value}
        refuse(payload, "unknown_gpu", "gpu", "gpu must be this, ", *GPUS, f" (got {value!r}).")
    supported = kernel.problem_knobs()["dtype"].choices
    for dtype in set(knobs(kernel.family.problem)["dtype"].choices) - set(supported):
        refuse(
            {"kernel": kernel.id, "problem": {"dtype": dtype}}, "not_a_choice", "dtype", *supported
        )


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_in_steps_of_16_is_refused(dtype):
    payload = {"kernel": "matmul.grouped", "problem": {"dtype": dtype}, "config": {"BLOCK_K": 16}}
    refuse(payload, "out_of_range", "BLOCK_K", "at least 32")


@pytest.mark.parametrize(
    ("name", "this", "expected"),
    [
        ("", HERE, HERE),
        ("this", HERE, HERE),
        ("L4", HERE, HERE),
        ("B200", HERE, GPUS["B200"]),
        ("", None, GPUS[DEFAULT_GPU]),
        ("L4", None, GPUS["L4"]),
    ],
)
def test_the_gpu_is_this_one_or_the_default_unless_named(name, this, expected):
    payload = {"kernel": "matmul.grouped", "problem": {"dtype": "float8_e4m3fn"}, "gpu": name}
    assert resolve_gpu(from_json(payload), this) is expected


@pytest.mark.parametrize(
    ("name", "kind", "field", "message"),
    [
        ("this", "no_gpu", "gpu", '"this", but this machine has no GPU'),
        (
            "A100-40GB",
            "unsupported_dtype",
            "dtype",
            r"needs compute capability 8\.9; A100-40GB has 8\.0\.",
        ),
    ],
)
def test_a_gpu_that_is_not_here_or_lacks_the_dtype_is_refused(name, kind, field, message):
    payload = {"kernel": "matmul.grouped", "problem": {"dtype": "float8_e4m3fn"}, "gpu": name}
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_gpu(from_json(payload), None)
    assert caught.value.kind == kind
    assert caught.value.field == field


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
    fields = merged_fields()
    for part, (_, allowed) in declared_parts(kernel).items():
        for name, knob in allowed.items():
            field = fields[part][name]
            if knob.choices is not None:
                assert set(knob.choices) <= set(field["enum"])
            else:
                assert field["minimum"] <= knob.low <= knob.high <= field["maximum"]
            assert str(knob.default) in field["description"].split("Default: ")[1]


def test_a_merged_default_stands_alone_only_if_every_kernel_shares_it():
    fields = merged_fields()
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
