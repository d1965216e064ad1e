"""The form of the Experiment, and presets: a kernel's own, and the config offered for the current problem."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tilescope.declare import experiment
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import GPU, Experiment, Json, Run, kernel_knob
from tilescope.declare.gpus import DEFAULT_GPU, GPUS, Gpu
from tilescope.declare.knobs import ConfigError, knobs, quote
from tilescope.declare.space import space
from tilescope.declare.spec import Kernel, format_duration, shape_text
from tilescope.search.devices import concurrent_compiles
from tilescope.search.sweep_run import estimate_seconds
from visualize.predict.offer import FOUND, NEIGHBOUR, RANKED, offer
from visualize.views.opening import explain_opening
from visualize.views.slots import MORE, control, controls, form_value, is_hidden
from visualize.views.state import PINNED, State
from visualize.views.tune.view import default_values

# The start of the offered config's label, by origin.
_ORIGINS = {
    FOUND: "Fastest config found for",
    NEIGHBOUR: "Predicted fastest config, found for",
    RANKED: "Predicted fastest config, not searched",
}


def kernel_menu(scripts: Mapping[str, str], note: str) -> Json:
    """Return the menu of kernels and scripts.

    Args:
        scripts: titles by name.
        note: what the chosen one shows.
    """
    kernels = discover()
    knob = dataclasses.replace(kernel_knob(), choices=(*kernels, *scripts))
    labels = [f"{kernel.family.root.id}: {kernel.title}" for kernel in kernels.values()]
    return {**control("kernel", knob), "labels": [*labels, *scripts.values()], "note": note}


def experiment_form(
    state: State, this: Gpu | None, scripts: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the value of the form of kernel, GPU, problem, config and run, with the kernel's presets.

    Args:
        scripts: see `kernel_menu`.
    """
    default = f"this: {this.name}" if this else f"{DEFAULT_GPU} (default)"
    # Several values name the default GPU; the menu has one entry for it.
    same = ("", "this", this.name) if this else ("", DEFAULT_GPU)
    own = state.experiment.gpu if state.experiment.gpu in same else ""
    gpus = [own, *(name for name in GPUS if name not in same)]
    fields = [
        kernel_menu(scripts, state.kernel.headline),
        {
            **control("gpu", dataclasses.replace(GPU, choices=tuple(gpus))),
            "labels": [default, *gpus[1:]],
            "note": " ".join(
                filter(None, (state.gpu.caveat, explain_opening(state.kernel, state.launch)))
            ),
        },
        *(control(name, knob) for name, knob in state.kernel.problem_knobs().items()),
        *controls(state.kernel.config),
    ]
    # The shape's menus, inputs and timer
    menus = [field for field in fields[2:] if field["kind"] == "menu"]
    folded = [field | {"group": MORE} for field in (*menus, *controls(Run))]
    fields = [field for field in fields if field not in menus] + folded
    values = {
        **state.experiment.to_address(),
        "gpu": state.experiment.gpu,
        "form_of": state.kernel.id,
    }
    titles = tuple(presets(state.kernel, state.experiment.problem, state.gpu, this))
    shape = state.kernel.problem_knobs()
    words = [
        str(values[field["name"]])
        for field in menus
        if field["name"] in shape and not is_hidden(field, values)
    ]
    return form_value(fields, values, titles, " · ".join([*words, "more"]))


def presets(kernel: Kernel, problem: Any, gpu: Gpu, this: Gpu | None) -> dict[str, Json]:
    """Return the fields that each preset sets, by its label.

    The presets are the kernel's own, a sweep if this machine has a GPU, and the offered config. The last two are
    missing if no config is offered for the problem.
    """
    fields = {each.title: {**each.problem, **each.config, **each.view} for each in kernel.presets}
    offered = offer(kernel, problem, gpu)
    if offered is None:
        return fields
    config = dataclasses.asdict(offered.experiment.config)
    if this:
        base = Experiment(kernel.id, problem, offered.experiment.config)
        seconds = estimate_seconds(space(base, default_values(base)).size, concurrent_compiles())
        duration = f"about {format_duration(seconds)} on this GPU"
        fields[f"Open Tune to sweep this shape ({duration})"] = config | {"tab": "sweep"}
    shape = f" {shape_text(offered.search.experiment.problem)}" if offered.search else ""
    fields[f"{_ORIGINS[offered.origin]}{shape}"] = config
    return fields


def apply_preset(
    current: Mapping[str, object], kernel: Kernel, number: object, this: Gpu | None
) -> dict[str, object]:
    """Return the fields after a click on a preset: its problem, config and view, otherwise defaults.

    The sweep preset and the offered config replace only the config; the sweep preset then opens Tune.

    Raises:
        ConfigError: there is no such preset, or a config is to be offered for an invalid problem or GPU.
    """
    # A kernel's own preset also replaces a problem that is invalid.
    if isinstance(number, int) and 0 <= number < len(kernel.presets):
        preset = kernel.presets[number]
        unchanged = {
            name: current[name] for name in (*knobs(Run), "gpu", PINNED) if name in current
        }
        return {**unchanged, "kernel": kernel.id, **preset.problem, **preset.config, **preset.view}
    fields = {
        name: current[name] for name in (*knobs(kernel.family.problem), "gpu") if name in current
    }
    requested = experiment.from_json(experiment.nest({"kernel": kernel.id, **fields}))
    gpu = experiment.resolve_gpu(requested, this)
    choices = [*presets(kernel, requested.problem, gpu, this).values()]
    if not isinstance(number, int) or not 0 <= number < len(choices):
        last = len(choices) - 1
        allowed = f"{kernel.id} has presets 0 to {last}" if choices else f"{kernel.id} has none"
        raise ConfigError("no_preset", f"The preset is {quote(number)}; {allowed}.")
    return {**current, "kernel": kernel.id, **choices[number]}
