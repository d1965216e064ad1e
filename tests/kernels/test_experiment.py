"""An Experiment survives JSON and addresses, and what is wrong with one is said in a sentence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import discover
from kernels.experiment import GPU_CHOICES, Experiment, Run, from_json, nest, resolve_gpu
from kernels.gpus import DEFAULT_GPU, GPUS
from kernels.knobs import ConfigError, knobs

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


def parts(kernel):
    """The name and the knobs of each part of a kernel's experiments."""
    return (("problem", kernel.problem_knobs()), ("config", knobs(kernel.config)), ("run", knobs(Run)))


def values(knob):
    return st.sampled_from(knob.choices) if knob.choices else st.integers(knob.low, knob.high)


@st.composite
def experiments(draw):
    kernel = draw(st.sampled_from(list(KERNELS.values())))
    payload = {"kernel": kernel.id, "gpu": draw(st.sampled_from(GPU_CHOICES))}
    for name, declared in parts(kernel):
        payload[name] = draw(
            st.fixed_dictionaries({}, optional={field: values(knob) for field, knob in declared.items()})
        )
    if payload["problem"].get("dtype", "").startswith("float8") and "BLOCK_K" in knobs(kernel.config):
        payload["config"]["BLOCK_K"] = max(32, payload["config"].get("BLOCK_K", 32))
    return from_json(payload, KERNELS)


@given(experiments())
def test_json_round_trip(experiment):
    assert from_json(json.loads(json.dumps(experiment.to_json())), KERNELS) == experiment


@given(experiments(), st.dictionaries(st.sampled_from(("tab", "color", "warp_size", "utm_source")), st.text()))
def test_address_round_trip_with_other_fields_beside(experiment, beside):
    address = {**beside, **{name: str(value) for name, value in experiment.to_address().items()}}
    assert from_json(nest(address, KERNELS), KERNELS) == experiment


@given(experiments())
def test_an_address_writes_every_field(experiment):
    kernel = KERNELS[experiment.kernel]
    written = set(experiment.to_address())
    assert written - {"gpu"} == {"kernel", *(field for _, declared in parts(kernel) for field in declared)}
    assert ("gpu" in written) == bool(experiment.gpu)


def test_whole_numbers_may_be_written_as_json_or_address_writes_them(kernel, kernels):
    for part, declared in parts(kernel):
        for name, knob in declared.items():
            if isinstance(knob.default, int):
                for written in (knob.default, float(knob.default), str(knob.default)):
                    experiment = from_json({"kernel": kernel.id, part: {name: written}}, kernels)
                    read = getattr(getattr(experiment, part), name)
                    assert (read, type(read)) == (knob.default, int)


def test_what_is_left_out_takes_the_kernels_default(kernel, kernels):
    assert from_json({"kernel": kernel.id}, kernels) == Experiment(kernel.id, kernel.family.problem(), kernel.config())


def refused(payload):
    with pytest.raises(ConfigError) as caught:
        from_json(payload, KERNELS)
    message = str(caught.value)
    assert message.endswith("."), message
    assert caught.value.kind
    return caught.value, message


def test_a_value_of_a_wrong_type_is_named_with_its_field(kernel):
    for part, declared in parts(kernel):
        for name, knob in declared.items():
            for value in NOT_A_NUMBER if isinstance(knob.default, int) else NOT_A_WORD:
                error, message = refused({"kernel": kernel.id, part: {name: value}})
                assert error.field == name
                assert f"{name} is {value!r};" in message
                if isinstance(knob.default, str):
                    assert all(choice in message for choice in knob.choices)
                else:
                    assert error.kind == "not_a_number"
                    assert "whole number" in message


def test_a_number_out_of_bounds_is_named_with_what_is_allowed(kernel):
    for part, declared in parts(kernel):
        for name, knob in declared.items():
            if isinstance(knob.default, str):
                continue
            low, high = (knob.choices[0], knob.choices[-1]) if knob.choices else (knob.low, knob.high)
            for value in (low - 1, high + 1, -(10**30), 10**30, *((low + high + 1,) if knob.choices else ())):
                error, message = refused({"kernel": kernel.id, part: {name: value}})
                assert error.field == name
                assert error.kind == ("not_a_choice" if knob.choices else "out_of_range")
                assert f"{name} is {value};" in message
                assert str(low) in message
                assert str(high) in message


def test_bounds_themselves_are_allowed(kernel, kernels):
    for part, declared in parts(kernel):
        for name, knob in declared.items():
            for value in knob.choices or (knob.low, knob.high):
                experiment = from_json({"kernel": kernel.id, part: {name: value}}, kernels)
                assert getattr(getattr(experiment, part), name) == value


def test_an_unknown_field_is_named_with_those_there_are(kernel):
    for part, declared in parts(kernel):
        error, message = refused({"kernel": kernel.id, part: {"BLOCK_Q": 1}})
        assert (error.kind, error.field) == ("unknown_field", "BLOCK_Q")
        assert "'BLOCK_Q'" in message
        assert all(name in message for name in declared)
    error, message = refused({"kernel": kernel.id, "confg": {}})
    assert (error.kind, error.field) == ("unknown_field", "confg")
    assert all(name in message for name in ("config", "gpu", "kernel", "problem", "run"))


def test_an_unknown_kernel_is_named_with_those_there_are(kernels):
    for value in (*NOT_A_WORD, "matmul", ["matmul.grouped"]):
        error, message = refused({"kernel": value})
        assert (error.kind, error.field) == ("unknown_kernel", "kernel")
        assert f"kernel is {value!r};" in message
        assert all(name in message for name in kernels)
    assert refused({})[0].kind == "unknown_kernel"


def test_a_part_that_is_no_object_is_named(kernel):
    for part in ("problem", "config", "run"):
        for value in NOT_AN_OBJECT:
            error, message = refused({"kernel": kernel.id, part: value})
            assert (error.kind, error.field) == ("not_an_object", part)
            assert f"{part} is {value!r};" in message


def test_an_experiment_that_is_no_object_is_refused():
    for value in NOT_AN_OBJECT:
        error, message = refused(value)
        assert error.kind == "not_an_object"
        assert type(value).__name__ in message


def test_an_unknown_gpu_is_named_with_those_there_are(kernel):
    for value in (True, False, [], ["H200"], {}, {"a": 1}, 0, 1, 1.5, float("nan"), "h200", "NVIDIA H200", "That"):
        error, message = refused({"kernel": kernel.id, "gpu": value})
        assert (error.kind, error.field) == ("unknown_gpu", "gpu")
        assert f"gpu is {value!r};" in message
        assert all(name in message for name in ("this", *GPUS))


def test_a_gpu_that_is_null_or_empty_is_left_out(kernel, kernels):
    for value in (None, ""):
        assert from_json({"kernel": kernel.id, "gpu": value}, kernels).gpu == ""


def test_an_address_without_a_kernel_is_refused(kernels):
    for flat in ({}, {"kernel": ""}, {"kernel": "matmul"}, {"M": "577"}):
        with pytest.raises(ConfigError) as caught:
            nest(flat, kernels)
        assert caught.value.kind == "unknown_kernel"


def with_gpu(gpu):
    kernel = next(iter(KERNELS.values()))
    return Experiment(kernel.id, kernel.family.problem(), kernel.config(), gpu=gpu)


def test_this_gpu_where_there_is_none_is_refused():
    with pytest.raises(ConfigError) as caught:
        resolve_gpu(with_gpu("this"), None)
    assert (caught.value.kind, caught.value.field) == ("no_gpu", "gpu")
    assert all(name in str(caught.value) for name in ('"this"', *GPUS))


def test_a_gpu_left_out_is_this_one_or_the_default():
    here = GPUS["L4"]
    assert resolve_gpu(with_gpu(""), here) is here
    assert resolve_gpu(with_gpu("this"), here) is here
    assert resolve_gpu(with_gpu(""), None) is GPUS[DEFAULT_GPU]


def test_a_named_gpu_is_the_tables_unless_it_is_here():
    assert resolve_gpu(with_gpu("B200"), GPUS["L4"]) is GPUS["B200"]
    slice_of_it = type(GPUS["L4"])(**{**vars(GPUS["L4"]), "sms": 7})
    assert resolve_gpu(with_gpu("L4"), slice_of_it) is slice_of_it


def test_a_type_that_a_kernel_does_not_take_is_refused_with_those_it_takes():
    for kernel in KERNELS.values():
        taken = kernel.problem_knobs()["dtype"].choices
        for dtype in set(knobs(kernel.family.problem)["dtype"].choices) - set(taken):
            error, message = refused({"kernel": kernel.id, "problem": {"dtype": dtype}})
            assert (error.kind, error.field) == ("not_a_choice", "dtype")
            assert all(name in message for name in taken)


def test_float8_in_steps_of_16_is_refused():
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        error, message = refused({"kernel": "matmul.grouped", "problem": {"dtype": dtype}, "config": {"BLOCK_K": 16}})
        assert (error.kind, error.field) == ("out_of_range", "BLOCK_K")
        assert "at least 32" in message


def test_float8_is_refused_for_a_gpu_that_does_not_know_it():
    payload = {"kernel": "matmul.grouped", "problem": {"dtype": "float8_e4m3fn"}}
    assert resolve_gpu(from_json({**payload, "gpu": "L4"}, KERNELS), None).name == "L4"
    with pytest.raises(ConfigError, match=r"needs compute capability 8\.9; A100-40GB has 8\.0\.") as caught:
        resolve_gpu(from_json({**payload, "gpu": "A100-40GB"}, KERNELS), None)
    assert (caught.value.kind, caught.value.field) == ("unsupported_dtype", "dtype")
