"""State: what the page is set to, read from its forms or its address, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels import discover, experiment
from kernels.experiment import Experiment, Run
from kernels.gpus import Gpu
from kernels.knobs import ConfigError, checked_fields, knobs
from kernels.spec import Kernel, Launch
from visualize.models.textbook import Textbook
from visualize.state.view import TABS, LaneView, ScheduleView, View, WhatIfView

DEFAULT_KERNEL = "matmul.grouped"


@dataclass(frozen=True)
class State:
    """An Experiment and a View, with the kernel and the GPU that they name."""

    experiment: Experiment
    view: View
    kernel: Kernel
    gpu: Gpu

    @property
    def launch(self) -> Launch:
        return Launch(self.experiment.problem, self.experiment.config, self.gpu)

    def to_address(self) -> dict[str, Any]:
        return {**self.experiment.to_address(), **self.view.to_address()}


def state(flat: Mapping[str, object], this: Gpu | None) -> State:
    """Read a page from flat fields (an address', or all forms' together); what is left out takes its default.

    Raises:
        ConfigError: with the field that caused it.
    """
    kernels = discover()
    chosen = experiment.from_json(experiment.nested({"kernel": DEFAULT_KERNEL, **flat}, kernels), kernels)
    parts = {
        name: checked_fields(declared, {k: flat[k] for k in knobs(declared) if k in flat}, name)
        for name, declared in (
            ("schedule", ScheduleView),
            ("board", Textbook),
            ("lanes", LaneView),
            ("whatif", WhatIfView),
        )
    }
    parts["board"].bytes_of(chosen.problem.dtype)  # an element must fit in a line
    tab = flat.get("tab", View.tab)
    if tab not in TABS:
        raise ConfigError("not_a_choice", f"tab is {tab!r}; allowed are {', '.join(TABS)}.", "tab")
    return State(chosen, View(str(tab), **parts), kernels[chosen.kernel], experiment.resolved_gpu(chosen, this))


def forgiving_state(flat: Mapping[str, object], this: Gpu | None) -> tuple[State, dict[str, str]]:
    """The same, but what is wrong takes its default, and a sentence says so: for an address that somebody typed."""
    kept = dict(flat)
    sentences: dict[str, str] = {}
    while True:
        try:
            return state(kept, this), sentences
        except ConfigError as error:
            sentences[error.field] = str(error)
            if error.field not in kept:
                kept = {}
            kept.pop(error.field, None)


def with_kernel(current: Mapping[str, object], kernel: str) -> dict[str, object]:
    """Fields for another kernel: the problem survives within a family, the config starts at the kernel's defaults.

    What is run and how it is drawn stay as they are, but for the choice of an operation, which is the kernel's own.
    """
    declared = experiment.kernel_named(kernel, discover())
    kept = [*knobs(Run), *knobs(ScheduleView), *knobs(Textbook), *knobs(WhatIfView), "gpu"]
    if discover()[str(current["form_of"])].family.root.id == declared.family.root.id:
        kept += list(knobs(declared.family.problem))
    if current.get("dtype") not in (declared.problem_knobs()["dtype"].choices or ()):
        kept = [name for name in kept if name != "dtype"]
    return {"kernel": kernel, **{name: current[name] for name in kept if name in current}}


def with_preset(current: Mapping[str, object], kernel: Kernel, number: int) -> dict[str, object]:
    """Fields of one of the kernel's presets: its problem, config and view over the defaults."""
    preset = kernel.presets[number]
    kept = {name: current[name] for name in (*knobs(Run), "gpu") if name in current}
    return {**kept, "kernel": kernel.id, **preset.problem, **preset.config, **preset.view}
