"""What is set on the Sweep tab: which knobs vary, how it is searched, what is shown; and what it would take."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels import discover
from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.knobs import ConfigError, knob, knobs
from kernels.results import Strategy
from kernels.results.sweep import STRATEGIES
from kernels.space import MAX_CONFIGS, Space, parse_varied, space
from kernels.sweep.devices import concurrent_compiles
from kernels.sweep.sweep_run import estimate_seconds, refuse_configs
from visualize.views import form
from visualize.views.state import State
from visualize.views.tune.text import varied_text

AUTO = "auto"
PICTURES = ("heatmap", "bound", "convergence", "parallel", "library")
_HEATMAP = ("sweep_picture", ("heatmap",))

# Values of the launch knobs that a sweep tries where nothing is said.
_WARPS = (4, 8)

_KNOBS = tuple(dict.fromkeys(name for kernel in discover().values() for name in knobs(kernel.config)))


@dataclass(frozen=True)
class SweptKnobs:
    """Which knobs vary. Another kernel has others."""

    of_kernel = True

    sweep_vary: str = knob(
        "", "Sweep", "Knobs and their values: BLOCK_M=64,128 num_warps=4,8. Empty: tiles around the one that is set.",
        longest=400,
    )  # fmt: skip

    sweep_over: str = knob(
        "", "Sweep", "A dimension and its sizes, each swept for itself: K=512,1024. Empty: the shape that is set.",
        longest=200,
    )  # fmt: skip


@dataclass(frozen=True)
class SweepSearch:
    """How a space is searched."""

    sweep_strategy: str = knob(
        "guided", "Sweep", "guided: by predicted time, ends early. grid: all, in order. random: all, shuffled.",
        choices=STRATEGIES,
    )  # fmt: skip
    sweep_budget: int = knob(
        0, "Sweep", "Configs that are timed at most. 0: no limit.", low=0, high=MAX_CONFIGS, stops="powers"
    )
    sweep_seed: int = knob(
        0, "Sweep", "The order of random.", low=0, high=999, only_with=("sweep_strategy", ("random",))
    )


@dataclass(frozen=True)
class SweepPicture:
    """The picture of what was found. Another kernel has other knobs."""

    of_kernel = True

    sweep_picture: str = knob(
        "heatmap", "Sweep", "heatmap: two knobs, the best of the others. bound: time against its prediction. "
        "convergence: fastest so far. parallel: all knobs. library: its time over the best, by size.",
        choices=PICTURES,
    )  # fmt: skip
    sweep_click: str = knob(
        "set", "Sweep", "What a click on a config does. set: the page shows it. pin: it stands beside what is set.",
        choices=("set", "pin"),
    )  # fmt: skip
    sweep_x: str = knob(AUTO, "Sweep", "The knob across the heatmap.", choices=(AUTO, *_KNOBS), only_with=_HEATMAP)
    sweep_y: str = knob(AUTO, "Sweep", "The knob up the heatmap.", choices=(AUTO, *_KNOBS), only_with=_HEATMAP)


@dataclass(frozen=True)
class Plan:
    """What a sweep would do.

    Attributes:
        refused: why configs can't launch, of which that is known before any compile.
        seconds: that it takes, roughly.
    """

    space: Space
    refused: Mapping[Experiment, str]
    seconds: float


def strategy(state: State) -> Strategy:
    """How it is searched."""
    view = state.view.of(SweepSearch)
    seed = view.sweep_seed if view.sweep_strategy == "random" else 0
    return Strategy(view.sweep_strategy, seed, view.sweep_budget or None)


def swept_space(state: State) -> Space:
    """The space that is set.

    Raises:
        ConfigError: for the field of what varies, with what is wrong in it.
    """
    text = state.view.of(SweptKnobs).sweep_vary.strip()
    try:
        if not text:
            return space(state.experiment, around(state.experiment))
        joined = re.sub(r"\s*([,=])\s*", r"\1", text)
        return space(state.experiment, parse_varied(joined.split(), "sweep_vary"))
    except ConfigError as error:
        raise ConfigError(error.kind, str(error), "sweep_vary") from None


def around(experiment: Experiment) -> dict[str, list[Any]]:
    """What varies where nothing is said: each side of the tile over its neighbours, and 4 or 8 warps."""
    found: dict[str, list[Any]] = {}
    for name, declared in knobs(type(experiment.config)).items():
        if name == "num_warps":
            found[name] = list(_WARPS)
        elif declared.group == "Tile" and declared.choices is not None:
            at = declared.choices.index(getattr(experiment.config, name))
            found[name] = list(declared.choices[max(0, at - 1) : at + 2])
    return found


def chosen_axes(state: State, within: Space) -> tuple[str, str]:
    """The heatmap's knobs, across and up; those with the most values where nothing is chosen.

    Raises:
        ConfigError: for one that does not vary.
    """
    chosen = state.view.of(SweepPicture)
    names = [name for name, _ in within.varied]
    for field in ("sweep_x", "sweep_y"):
        if getattr(chosen, field) not in (AUTO, *names):
            raise ConfigError(
                "not_a_choice",
                f"{field} is {getattr(chosen, field)}, which does not vary; allowed are {AUTO}, {', '.join(names)}.",
                field,
            )
    longest = sorted(names, key=lambda name: -len(dict(within.varied)[name]))
    x = chosen.sweep_x if chosen.sweep_x != AUTO else next((n for n in longest if n != chosen.sweep_y), names[0])
    y = chosen.sweep_y if chosen.sweep_y != AUTO else next((n for n in longest if n != x), x)
    return x, y


def options_form(kind: type, state: State, within: Space) -> str:
    """The form of one kind of options: what varies is offered as axes, and what is tried by default is shown."""
    shown: Any = state.view.of(kind)
    names = [AUTO, *(name for name, _ in within.varied)]
    more: dict[str, dict[str, Any]] = {
        "sweep_vary": {"label": "vary", "placeholder": varied_text(within)},
        "sweep_over": {"label": "over", "placeholder": "only the shape that is set"},
        "sweep_x": {"label": "across", "choices": names},
        "sweep_y": {"label": "up", "choices": names},
        "sweep_picture": {"label": "picture"},
        "sweep_click": {"label": "click"},
        "sweep_strategy": {"label": "strategy"},
        "sweep_budget": {"label": "budget"},
        "sweep_seed": {"label": "seed"},
    }
    fields = [{**one, **more[one["name"]]} for one in form.fields(kind)]
    return form.filled(fields, dataclasses.asdict(shown))


def plan(within: Space, gpu: Gpu, budget: int | None) -> Plan:
    """What a sweep of a space would do on this machine's cores."""
    refused = refuse_configs(within, gpu)
    left = within.size - len(refused)
    return Plan(within, refused, estimate_seconds(min(left, budget or left), concurrent_compiles()))
