"""The form of the Experiment, and presets: a kernel's own, and the fastest config found for the current problem."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from kernels import discover, experiment
from kernels.experiment import GPU, GPU_CHOICES, Run, kernel_knob
from kernels.gpus import DEFAULT_GPU, Gpu
from kernels.knobs import ConfigError, knobs, quote
from kernels.recommended import recommend, shipped
from kernels.spec import Kernel, shape_text
from visualize.views.slots import control, controls, form_value
from visualize.views.state import PINNED, State

FASTEST = "Fastest config found for this shape"


def experiment_form(state: State, this: Gpu | None) -> str:
    """Return the value of the form of kernel, GPU, problem, config and run, with the kernel's presets."""
    kernels = discover()
    default = f"this: {this.name}" if this else f"{DEFAULT_GPU} (default)"
    gpus = [name for name in GPU_CHOICES if name != "this" or this is not None or state.experiment.gpu == "this"]
    fields = [
        {
            **control("kernel", kernel_knob()),
            "labels": [f"{kernel.family.root.id}: {kernel.title}" for kernel in kernels.values()],
            "note": state.kernel.headline,
        },
        {
            **control("gpu", dataclasses.replace(GPU, choices=tuple(gpus))),
            "labels": [{"": default, "this": "this GPU"}.get(name, name) for name in gpus],
            "note": state.gpu.caveat,
        },
        *(control(name, knob) for name, knob in state.kernel.problem_knobs().items()),
        *controls(state.kernel.config),
        *controls(Run),
    ]
    values = {**state.experiment.to_address(), "gpu": state.experiment.gpu, "form_of": state.kernel.id}
    return form_value(fields, values, presets(state.kernel))


def presets(kernel: Kernel) -> tuple[str, ...]:
    """Return the labels of the kernel's presets, then FASTEST if a search has covered the kernel."""
    is_searched = any(config.experiment.kernel == kernel.id for config in shipped())
    return (*(preset.title for preset in kernel.presets), *((FASTEST,) if is_searched else ()))


def apply_preset(current: Mapping[str, object], kernel: Kernel, number: object, this: Gpu | None) -> dict[str, object]:
    """Return the fields after a click on a preset: its problem, config and view, otherwise defaults.

    FASTEST keeps the problem and the view, and sets the fastest config that a search found for them.

    Raises:
        ConfigError: there is no such preset, or no search has covered a problem like the current one.
    """
    titles = presets(kernel)
    if not isinstance(number, int) or not 0 <= number < len(titles):
        allowed = f"{kernel.id} has presets 0 to {len(titles) - 1}" if titles else f"{kernel.id} has none"
        raise ConfigError("no_preset", f"The preset is {quote(number)}; {allowed}.")
    if titles[number] == FASTEST:
        return {**current, "kernel": kernel.id, **dataclasses.asdict(_fastest(current, kernel, this))}
    preset = kernel.presets[number]
    unchanged = {name: current[name] for name in (*knobs(Run), "gpu", PINNED) if name in current}
    return {**unchanged, "kernel": kernel.id, **preset.problem, **preset.config, **preset.view}


def _fastest(current: Mapping[str, object], kernel: Kernel, this: Gpu | None) -> Any:
    fields = {name: current[name] for name in (*knobs(kernel.family.problem), "gpu") if name in current}
    requested = experiment.from_json(experiment.nest({"kernel": kernel.id, **fields}))
    gpu = experiment.resolve_gpu(requested, this)
    if fastest := recommend(kernel, requested.problem, gpu):
        return fastest.experiment.config

    def describe(problem: Any) -> str:
        return " ".join([shape_text(problem), problem.dtype, *([problem.layout] if hasattr(problem, "layout") else [])])

    searched = [config for config in shipped() if config.experiment.kernel == kernel.id]
    listed = "; ".join(dict.fromkeys(f"{describe(config.experiment.problem)} on {config.gpu}" for config in searched))
    sentence = f"No search has covered {describe(requested.problem)} on {gpu.name}. Searched: {listed}."
    raise ConfigError("not_searched", sentence)
