"""The page's state, read from flat fields, checked once, and carried over to another kernel."""

from __future__ import annotations

import pytest

from kernels.knobs import ConfigError
from visualize.predict.textbook import Textbook
from visualize.views.memory.flow import LaneView
from visualize.views.state import ScheduleView, View
from visualize.views.tabs import SETTINGS


def test_every_field_of_the_address_reads_back():
    flat = {"kernel": "transpose.tiled", "M": 96, "tab": "reuse", "color": "wave", "request": 3, "line_bytes": 64}
    state = SETTINGS.state(flat, None)
    assert state.view.of(ScheduleView).color == "wave"
    assert state.view.of(LaneView).request == 3
    again = SETTINGS.state({name: str(value) for name, value in state.to_address().items()}, None)
    assert again == state


@pytest.mark.parametrize("said", ["1", "worst", None])
def test_an_older_address_names_its_operation_by_number(said):
    flat = {"kernel": "transpose.tiled"} if said is None else {"kernel": "transpose.tiled", "operation": said}
    expected = "worst" if said is None else str(said)
    assert SETTINGS.state(flat, None).view.of(LaneView).operation == expected


def test_an_element_that_fits_in_no_line_is_refused_and_forgiven():
    flat = {"kernel": "transpose.tiled", "tab": "coalescing", "element_bytes": "16", "line_bytes": 8}
    with pytest.raises(ConfigError, match="must be at most line_bytes, which is 8") as error:
        SETTINGS.state(flat, None)
    assert error.value.field == "element_bytes"
    opened, sentences = SETTINGS.state_or_defaults(flat, None)
    assert opened.view.of(Textbook) == Textbook(line_bytes=8)
    assert opened.view.tab == "coalescing"
    assert list(sentences) == ["element_bytes"]


def test_options_and_config_of_one_kernel_do_not_follow_to_another():
    state = SETTINGS.state(
        {"kernel": "matmul.grouped", "M": 96, "operation": "2", "color": "sm", "GROUP_SIZE": 7}, None
    )
    flat = SETTINGS.change_kernel({**state.to_address(), "form_of": "matmul.grouped"}, "matmul.fused_add_relu")
    other = SETTINGS.state(flat, None)
    assert other.experiment.problem.M == 96, "an extended family keeps the problem"
    assert other.experiment.config == other.kernel.config()
    assert other.view.of(LaneView) == LaneView()
    assert other.view.of(ScheduleView).color == "sm"
    flat = SETTINGS.change_kernel({**state.to_address(), "form_of": "matmul.grouped"}, "transpose.tiled")
    assert SETTINGS.state(flat, None).experiment.problem.M == 1024, "another family has its own defaults"


def test_a_view_has_default_options_and_an_unknown_tab_is_refused():
    assert View("").of(LaneView) == LaneView()
    with pytest.raises(ConfigError, match="tab is 'elsewhere'; allowed are result, schedule"):
        SETTINGS.state({"tab": "elsewhere"}, None)
