"""Presets: what one click sets. The kernel's own, and the fastest config that a search found for what is set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kernels import experiment
from kernels.experiment import Run
from kernels.gpus import Gpu
from kernels.knobs import ConfigError, knobs, quote
from kernels.recommended import recommend, shipped
from kernels.spec import Kernel, shape_text
from visualize.views import pin

FASTEST = "Fastest config found for this shape"


def presets(kernel: Kernel) -> tuple[str, ...]:
    """What the presets' buttons say: the kernel's own, then the fastest config where a search has found any."""
    searched = any(one.experiment.kernel == kernel.id for one in shipped())
    return (*(preset.title for preset in kernel.presets), *((FASTEST,) if searched else ()))


def with_preset(current: Mapping[str, object], kernel: Kernel, number: object, this: Gpu | None) -> dict[str, object]:
    """Fields of one of the kernel's presets: its problem, config and view over the defaults.

    The last one keeps the problem and the view, and sets the fastest config that a search found for them.

    Raises:
        ConfigError: where there is no preset of that number, or no search covered a problem like the one that is set.
    """
    offered = presets(kernel)
    if not isinstance(number, int) or not 0 <= number < len(offered):
        allowed = f"{kernel.id} has presets 0 to {len(offered) - 1}" if offered else f"{kernel.id} has none"
        raise ConfigError("no_preset", f"The preset is {quote(number)}; {allowed}.")
    if offered[number] == FASTEST:
        return {**current, "kernel": kernel.id, **dataclasses.asdict(_fastest(current, kernel, this))}
    preset = kernel.presets[number]
    kept = {name: current[name] for name in (*knobs(Run), "gpu", pin.FIELD) if name in current}
    return {**kept, "kernel": kernel.id, **preset.problem, **preset.config, **preset.view}


def _fastest(current: Mapping[str, object], kernel: Kernel, this: Gpu | None) -> Any:
    """The fastest config found for the problem that is set, on the GPU that is set."""
    asked = {name: current[name] for name in (*knobs(kernel.family.problem), "gpu") if name in current}
    chosen = experiment.from_json(experiment.nest({"kernel": kernel.id, **asked}))
    gpu = experiment.resolve_gpu(chosen, this)
    if found := recommend(kernel, chosen.problem, gpu):
        return found.experiment.config
    searched = [one for one in shipped() if one.experiment.kernel == kernel.id]
    listed = "; ".join(dict.fromkeys(f"{_said(one.experiment.problem)} on {one.gpu}" for one in searched))
    raise ConfigError(
        "not_searched", f"No search has covered {_said(chosen.problem)} on {gpu.name}. Searched: {listed}."
    )


def _said(problem: Any) -> str:
    """A problem in a few words: its sizes, then its type and layout."""
    return " ".join([shape_text(problem), problem.dtype, *([problem.layout] if hasattr(problem, "layout") else [])])
