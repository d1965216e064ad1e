"""The page's state, read from flat fields, checked once, and carried over to another kernel; and its presets."""

import json
import re

import pytest

from kernels import discover
from kernels.gpus import GPUS
from kernels.knobs import ConfigError, knobs
from kernels.recommended import shipped
from visualize.predict.textbook import Textbook
from visualize.views.memory.flow import LaneView
from visualize.views.opening import opening_config
from visualize.views.state import ScheduleView, View
from visualize.views.tabs import SETTINGS
from visualize.web.controls import apply_preset, experiment_form, presets

H100 = GPUS["H100"]


def test_every_field_of_the_address_reads_back():
    flat = {
        "kernel": "transpose.tiled",
        "M": 96,
        "tab": "reuse",
        "color": "wave",
        "request": 3,
        "line_bytes": 64,
    }
    state = SETTINGS.state(flat, None)
    assert state.view.of(ScheduleView).color == "wave"
    assert state.view.of(LaneView).request == 3
    again = SETTINGS.state({name: str(value) for name, value in state.to_address().items()}, None)
    assert again == state


def test_a_kernel_without_a_config_opens_with_one_that_launches_and_its_links_keep_the_chosen_one():
    """The published default of fused_add_relu needs more shared memory than RTXPRO6000 has."""
    fused = {"kernel": "matmul.fused_add_relu", "gpu": "RTXPRO6000"}
    opened = SETTINGS.state(fused, None)
    assert opened.experiment.config == opening_config(
        opened.kernel, opened.experiment.problem, opened.gpu
    )
    assert SETTINGS.state(fused | {"gpu": ""}, None).experiment.config == opened.kernel.config()
    assert SETTINGS.state(
        fused | {"GROUP_SIZE": 4}, None
    ).experiment.config == opened.kernel.config(GROUP_SIZE=4)
    chosen = SETTINGS.state(fused | vars(opened.kernel.config()), None)
    assert chosen.experiment.config == opened.kernel.config()
    for state in (opened, chosen):
        assert SETTINGS.state(SETTINGS.short_address(state), None) == state


@pytest.mark.parametrize(
    ("gpu", "this", "value"),
    [
        ("", None, ""), ("H200", None, "H200"), ("T4", None, ""), ("", H100, ""), ("this", H100, "this"),
        ("H100", H100, "H100"), ("H200", H100, ""),
    ],
)  # fmt: skip
def test_the_menu_has_one_entry_for_each_gpu(gpu, this, value):
    form = json.loads(experiment_form(SETTINGS.state({"gpu": gpu}, this), this))
    field = next(field for field in form["fields"] if field["name"] == "gpu")
    default = "this: H100" if this else "H200 (default)"
    assert field["choices"][0] == value
    assert field["labels"][0] == default
    assert (
        field["labels"][1:]
        == field["choices"][1:]
        == [name for name in GPUS if name not in default]
    )
    assert form["values"]["gpu"] == gpu
    assert len(set(field["choices"])) == len(GPUS)


def test_an_older_address_names_its_operation_by_number():
    for named, operation in (
        ({"operation": "1"}, "1"),
        ({"operation": "worst"}, "worst"),
        ({}, "worst"),
    ):
        assert (
            SETTINGS.state({"kernel": "transpose.tiled", **named}, None).view.of(LaneView).operation
            == operation
        )


def test_an_element_that_fits_in_no_line_is_refused_and_forgiven():
    flat = {
        "kernel": "transpose.tiled",
        "tab": "coalescing",
        "element_bytes": "16",
        "line_bytes": 8,
    }
    with pytest.raises(ConfigError, match="must be at most line_bytes, which is 8") as error:
        SETTINGS.state(flat, None)
    assert error.value.field == "element_bytes"
    opened, sentences = SETTINGS.state_or_defaults(flat, None)
    assert opened.view.of(Textbook) == Textbook(line_bytes=8)
    assert opened.view.tab == "coalescing"
    assert list(sentences) == ["element_bytes"]


def test_options_and_config_of_one_kernel_do_not_follow_to_another():
    state = SETTINGS.state(
        {"kernel": "matmul.grouped", "M": 96, "operation": "2", "color": "sm", "GROUP_SIZE": 7},
        None,
    )
    flat = SETTINGS.change_kernel(
        {**state.to_address(), "form_of": "matmul.grouped"}, "matmul.fused_add_relu"
    )
    other = SETTINGS.state(flat, None)
    assert other.experiment.problem.M == 96, "an extended family keeps the problem"
    assert other.experiment.config == other.kernel.config()
    assert other.view.of(LaneView) == LaneView()
    assert other.view.of(ScheduleView).color == "sm"
    flat = SETTINGS.change_kernel(
        {**state.to_address(), "form_of": "matmul.grouped"}, "transpose.tiled"
    )
    assert SETTINGS.state(flat, None).experiment.problem.M == 1024, (
        "another family has its own defaults"
    )


def test_a_view_has_default_options_and_an_unknown_tab_is_refused():
    assert View("").of(LaneView) == LaneView()
    with pytest.raises(
        ConfigError, match=r"tab is 'elsewhere'; allowed are result .Result., schedule .Program"
    ):
        SETTINGS.state({"tab": "elsewhere"}, None)


KERNELS = discover()
PERSISTENT = KERNELS["matmul.persistent"]
SET = {
    "M": 4096,
    "N": 4096,
    "K": 4096,
    "dtype": "float16",
    "GROUP_SIZE": 3,
    "tab": "reuse",
    "seed": 7,
    "gpu": "",
}


H200 = GPUS["H200"]


def labels(kernel, this=None, **fields):
    declared = KERNELS[kernel]
    problem = {
        name: value
        for name, value in {**SET, **fields}.items()
        if name in knobs(declared.family.problem)
    }
    return presets(declared, declared.family.problem(**problem), H200, this)


def click(kernel, label, this=None, **fields):
    number = next(
        n for n, title in enumerate(labels(kernel, this, **fields)) if title.startswith(label)
    )
    return apply_preset({**SET, **fields}, KERNELS[kernel], number, this)


@pytest.mark.parametrize(
    ("kernel", "fields", "label"),
    [
        ("matmul.persistent", {}, "Fastest config found for 4096 × 4096 × 4096"),
        (
            "matmul.persistent",
            {"M": 5000},
            "Predicted fastest config, found for 8192 × 6144 × 4096",
        ),
        ("matmul.persistent", {"layout": "TN"}, "Predicted fastest config, not searched"),
        ("matmul.stream_k", {"layout": "TT"}, "Predicted fastest config, not searched"),
    ],
)
def test_the_last_preset_names_its_configs_origin_and_follows_the_sweep_preset_on_a_gpu(
    kernel, fields, label
):
    assert labels(kernel, **fields)[-1] == label
    *_, sweep, last = labels(kernel, this=H200, **fields)
    assert last == label
    assert re.fullmatch(r"Open Tune to sweep this shape \(about \d.* on this GPU\)", sweep)


def test_the_offered_config_and_the_sweep_preset_keep_all_other_settings():
    searched = [
        search.experiment for search in shipped() if search.experiment.kernel == "matmul.persistent"
    ]
    found = next(
        each for each in searched if each.problem.K == 4096 and each.problem.dtype == "float16"
    )
    clicked = click("matmul.persistent", "Fastest")
    assert clicked == {**SET, "kernel": "matmul.persistent", **vars(found.config)}
    swept = click("matmul.persistent", "Open Tune", H200)
    assert swept == {**clicked, "tab": "sweep"}


def test_no_config_is_offered_for_a_transpose_on_a_gpu_without_searches():
    tiled = KERNELS["transpose.tiled"]
    titles = presets(tiled, tiled.family.problem(), GPUS["T4"], None)
    assert titles == tuple(preset.title for preset in tiled.presets)


@pytest.mark.parametrize("size", [4096, 99_999])
def test_the_kernels_own_presets_start_at_its_defaults_and_replace_an_invalid_problem(size):
    preset = PERSISTENT.presets[0]
    assert apply_preset({**SET, "M": size}, PERSISTENT, 0, None) == {
        "seed": 7, "gpu": "", "kernel": "matmul.persistent", **preset.problem, **preset.config, **preset.view
    }  # fmt: skip
