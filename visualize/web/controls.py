"""The form of the Experiment, and presets: a kernel's own, and the config offered for the current problem."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tilescope.declare import experiment
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import GPU, Json, Run, kernel_knob
from tilescope.declare.gpus import DEFAULT_GPU, GPUS, Gpu
from tilescope.declare.knobs import LAUNCH, ConfigError, knobs, quote
from tilescope.declare.spec import Kernel, shape_text
from visualize.predict.offer import FOUND, NEIGHBOUR, RANKED, offer
from visualize.views.slots import MORE, control, controls, form_value, is_hidden
from visualize.views.state import PINNED, State, explain_opening

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
    """Return the value of the form of kernel, GPU, problem and config, with the kernel's presets.

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
    menus = [field for field in fields[2:] if field["kind"] == "menu"]
    fields.sort(key=lambda field: field["group"] == LAUNCH and field not in menus)
    for field in fields:
        if field in menus or field["group"] == LAUNCH:
            field["group"] = MORE
    values = {
        **state.experiment.to_address(),
        "gpu": state.experiment.gpu,
        "form_of": state.kernel.id,
    }
    titles = presets(state.kernel, state.experiment.problem, state.gpu)
    shape = state.kernel.problem_knobs()
    words = [
        str(values[field["name"]])
        for field in menus
        if field["name"] in shape and not is_hidden(field, values)
    ]
    return form_value(fields, values, titles, " · ".join([*words, "more"]))


def presets(kernel: Kernel, problem: Any, gpu: Gpu) -> tuple[str, ...]:
    """Return the preset labels: the kernel's own, and the config that is offered for the problem, if there is one."""
    offered = offer(kernel, problem, gpu)
    titles = [preset.title for preset in kernel.presets]
    if offered:
        shape = f" {shape_text(offered.search.experiment.problem)}" if offered.search else ""
        titles.append(f"{_ORIGINS[offered.origin]}{shape}")
    return tuple(titles)


def apply_preset(
    current: Json, kernel: Kernel, number: object, this: Gpu | None
) -> dict[str, object]:
    """Return the fields after a click on a preset: its problem, config and view, otherwise defaults.

    The offered config replaces only the config.

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
    titles = presets(kernel, requested.problem, gpu)
    offered = offer(kernel, requested.problem, gpu)
    if offered is None or number != len(kernel.presets):
        allowed = (
            f"{kernel.id} has presets 0 to {len(titles) - 1}" if titles else f"{kernel.id} has none"
        )
        raise ConfigError("no_preset", f"The preset is {quote(number)}; {allowed}.")
    return {**current, "kernel": kernel.id, **dataclasses.asdict(offered.experiment.config)}
