"""The form of the Experiment, filled."""

from __future__ import annotations

from dataclasses import replace

from kernels import discover
from kernels.experiment import GPU, GPU_CHOICES, Run, kernel_knob
from kernels.gpus import DEFAULT_GPU, Gpu
from visualize.views import form
from visualize.views.presets import presets
from visualize.views.state import State


def experiment_form(state: State, this: Gpu | None) -> str:
    """The left column: kernel, problem, config, launch and run knobs, and the kernel's presets."""
    kernels = discover()
    here = f"this: {this.name}" if this else f"{DEFAULT_GPU} (no GPU here)"
    gpus = [name for name in GPU_CHOICES if name != "this" or this is not None or state.experiment.gpu == "this"]
    fields = [
        {
            **form.field("kernel", kernel_knob()),
            "labels": [f"{k.family.root.id}: {k.title}" for k in kernels.values()],
            "note": state.kernel.headline,
        },
        {
            **form.field("gpu", replace(GPU, choices=tuple(gpus))),
            "labels": [{"": here, "this": "this GPU"}.get(name, name) for name in gpus],
            "note": state.gpu.caveat,
        },
        *(form.field(name, knob) for name, knob in state.kernel.problem_knobs().items()),
        *form.fields(state.kernel.config),
        *form.fields(Run),
    ]
    values = {**state.experiment.to_address(), "gpu": state.experiment.gpu, "form_of": state.kernel.id}
    return form.filled(fields, values, presets(state.kernel))
