"""The page's state, read from flat fields, checked once, and carried over to another kernel; and its presets."""

import json

import pytest

from tests.experiments import fields
from tests.messages import menu_labels, opened
from tests.tables import read_table
from tilescope.declare.discovery import discover
from tilescope.declare.gpus import GPUS
from tilescope.declare.knobs import ConfigError
from visualize.predict.costs import Textbook
from visualize.predict.offer import offer
from visualize.views.memory.flow import LaneView
from visualize.views.state import ProgramOrderView, View, opening_config
from visualize.views.tabs import change_kernel, read_link, short_address
from visualize.web.controls import apply_preset, experiment_form, presets

H100 = GPUS["H100"]


def test_every_field_of_the_address_reads_back():
    state = opened("transpose.tiled M=96 tab=dram-reads first=9 request=3 line_bytes=64")
    assert state.view.of(ProgramOrderView).first == 9
    assert state.view.of(LaneView).request == 3
    assert opened({name: str(value) for name, value in state.to_address().items()}) == state


def test_a_kernel_without_a_config_opens_with_one_that_launches_and_its_links_keep_the_chosen_one():
    """The published default of fused_add_relu needs more shared memory than RTXPRO6000 has."""
    state = opened("matmul.fused_add_relu gpu=RTXPRO6000")
    config = state.kernel.config
    offered = opening_config(state.kernel, state.experiment.problem, state.gpu)
    assert state.experiment.config == offered
    assert opened("matmul.fused_add_relu").experiment.config == config()
    address = "matmul.fused_add_relu gpu=RTXPRO6000 GROUP_SIZE=4"
    assert opened(address).experiment.config == config(GROUP_SIZE=4)
    chosen = opened("matmul.fused_add_relu gpu=RTXPRO6000", **vars(config()))
    assert chosen.experiment.config == config()
    for each in (state, chosen):
        assert opened(short_address(each)) == each


@pytest.mark.parametrize(
    ("gpu", "this", "value"),
    [
        ("", None, ""), ("H200", None, "H200"), ("T4", None, ""), ("", H100, ""), ("this", H100, "this"),
        ("H100", H100, "H100"), ("H200", H100, ""),
    ],
)  # fmt: skip
def test_the_menu_has_one_entry_for_each_gpu(gpu, this, value):
    form = json.loads(experiment_form(opened({"gpu": gpu}, this), this))
    field = next(field for field in form["fields"] if field["name"] == "gpu")
    default = "this: H100" if this else "H200 (default)"
    others = [name for name in GPUS if name not in default]
    assert field["choices"] == [value, *others]
    assert menu_labels(form, "gpu") == [default, *others]
    assert form["values"]["gpu"] == gpu


def test_an_older_address_names_its_operation_by_number():
    for named, operation in (("operation=1", "1"), ("operation=worst", "worst"), ("", "worst")):
        state = opened(f"transpose.tiled {named}")
        assert state.view.of(LaneView).operation == operation


def test_a_slider_stops_at_powers_of_two_up_to_its_cap():
    form = json.loads(experiment_form(opened("matmul.grouped M=576 BLOCK_M=64"), None))
    stops = {field["name"]: field["stops"] for field in form["fields"]}
    assert stops["GROUP_SIZE"] == [1, 2, 4, 8]
    assert stops["M"] == [2**power for power in range(15)]
    assert stops["BLOCK_K"] == [16, 32, 64, 128, 256]


@pytest.mark.parametrize(
    ("dtype", "more"), [("float16", "float16 · NN"), ("float32", "float32 · NN · tf32")]
)
def test_the_folded_controls_are_named_by_the_type_layout_and_precision_if_it_matters(dtype, more):
    form = json.loads(experiment_form(opened(f"matmul.grouped dtype={dtype}"), None))
    assert form["more"] == f"{more} · more"
    hidden = [field["name"] for field in form["fields"] if field["hidden"]]
    assert hidden == ([] if dtype == "float32" else ["precision"])


def test_an_element_that_fits_in_no_line_is_refused_and_forgiven():
    flat = fields("transpose.tiled tab=requests element_bytes=16 line_bytes=8")
    with pytest.raises(ConfigError, match="must be at most line_bytes, which is 8") as error:
        opened(flat)
    assert error.value.field == "element_bytes"
    state, sentences = read_link(flat, None)
    assert state.view.of(Textbook) == Textbook(line_bytes=8)
    assert state.view.tab == "requests"
    assert list(sentences) == ["element_bytes"]


def test_options_and_config_of_one_kernel_do_not_follow_to_another():
    state = opened("matmul.grouped M=96 operation=2 first=9 GROUP_SIZE=7")
    flat = {**state.to_address(), "form_of": "matmul.grouped"}
    other = opened(change_kernel(flat, "matmul.fused_add_relu"))
    assert other.experiment.problem.M == 96, "an extended family keeps the problem"
    assert other.experiment.config == other.kernel.config()
    assert other.view.of(LaneView) == LaneView()
    assert other.view.of(ProgramOrderView).first == 9
    other = opened(change_kernel(flat, "transpose.tiled"))
    assert other.experiment.problem.M == 1024, "another family has its own defaults"


def test_a_view_has_default_options_and_an_unknown_tab_is_refused():
    assert View("").of(LaneView) == LaneView()
    allowed = (
        "no picture 'elsewhere'. The pictures are Program order, DRAM reads, .* Tune and Library"
    )
    with pytest.raises(ConfigError, match=allowed):
        opened("tab=elsewhere")
    assert opened({"tab": "DRAM reads"}).view.tab == "dram-reads", "a title opens its picture, too"


PERSISTENT = discover()["matmul.persistent"]
SET = {"M": 4096, "N": 4096, "K": 4096, "GROUP_SIZE": 3, "tab": "dram-reads", "seed": 7, "gpu": ""}
H200 = GPUS["H200"]


def titles(text):
    state = opened(f"M=4096 N=4096 K=4096 {text}")
    return presets(state.kernel, state.experiment.problem, H200)


LAST_PRESETS = """
matmul.persistent | Fastest config found for 4096 × 4096 × 4096
matmul.persistent M=5000 | Predicted fastest config, found for 8192 × 6144 × 4096
matmul.persistent layout=TN | Predicted fastest config, not searched
matmul.stream_k layout=TT | Predicted fastest config, not searched
"""


@pytest.mark.parametrize(("text", "title"), read_table(LAST_PRESETS))
def test_the_last_preset_names_its_configs_origin(text, title):
    assert titles(text)[-1] == title


def test_the_offered_config_keeps_all_other_settings():
    found = offer(PERSISTENT, opened("M=4096 N=4096 K=4096").experiment.problem, H200).experiment
    clicked = apply_preset(SET, PERSISTENT, len(PERSISTENT.presets), None)
    assert clicked == {**SET, "kernel": "matmul.persistent", **vars(found.config)}


def test_no_config_is_offered_for_a_transpose_on_a_gpu_without_searches():
    tiled = discover()["transpose.tiled"]
    shown = presets(tiled, tiled.family.problem(), GPUS["T4"])
    assert shown == tuple(preset.title for preset in tiled.presets)


@pytest.mark.parametrize("size", [4096, 99_999])
def test_the_kernels_own_presets_start_at_its_defaults_and_replace_an_invalid_problem(size):
    preset = PERSISTENT.presets[0]
    assert apply_preset({**SET, "M": size}, PERSISTENT, 0, None) == {
        "seed": 7, "gpu": "", "kernel": "matmul.persistent", **preset.problem, **preset.config, **preset.view
    }  # fmt: skip
