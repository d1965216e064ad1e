"""The controls of a script: its launch, the parameters of its case, and the options with which it is captured again."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from tilescope.declare.gpus import DEFAULT_GPU, GPUS
from tilescope.declare.knobs import ConfigError, Knob, quote
from tilescope.reports.launch import Launches
from visualize.views import slots
from visualize.views.slots import control

# Field names in the page's settings: the prefix of a case's parameters, the sweep over them, the prefix of an autotuned
# kernel's config number, and the GPU.
_CASE = "case_"
_SWEEP = "sweep"
_CONFIG = "config_"
GPU = "gpu"

GPU_MENU = control(
    GPU,
    Knob("", "Script", "The GPU to compile for.", choices=tuple(GPUS), label="GPU"),
)


def launch_form(launches: Launches, number: int, chosen: Mapping[str, Any] | None) -> str:
    """Return the value of the form of the launch and, if the script can be captured again, of its parameters.

    Args:
        chosen: values of the script's controls that differ from the defaults; None if it can't be captured again.
    """
    distinct = launches.report().distinct
    titles = [f"{numbers[0]}: {launch.kernel}" for numbers, launch in distinct]
    choices = {"choices": [numbers[0] for numbers, _ in distinct], "labels": titles}
    launch = control("launch", Knob(0, "Launch", "Number of the launch.", label="kernel"))
    fields = [{**launch, "kind": "menu", **choices}]
    values: dict[str, Any] = {"launch": number}
    if chosen is not None:
        for field, default in script_controls(launches):
            fields.append(field)
            values[field["name"]] = chosen.get(field["name"], default)
    return slots.form_value(fields, values)


def changed_values(launches: Launches, given: Mapping[str, Any], gpu: str) -> dict[str, Any]:
    """Return the values of the script's controls that differ from their defaults.

    Args:
        gpu: the GPU that it was first compiled for.

    Raises:
        ConfigError: the table has no such GPU.
    """
    defaults = {field["name"]: default for field, default in script_controls(launches)}
    changed = {
        name: given[name]
        for name, value in {GPU: gpu, **defaults}.items()
        if given.get(name, "") not in ("", value)
    }
    if changed.get(GPU, DEFAULT_GPU) not in list(GPUS):
        sentence = f"gpu must be one of {', '.join(GPUS)} (got {quote(changed[GPU])})."
        raise ConfigError("unknown_gpu", sentence, GPU)
    return changed


def capture_options(chosen: Mapping[str, Any]) -> list[str]:
    """Return the options of the recorder for the given control values."""
    options = []
    for name, value in chosen.items():
        if name == GPU:
            options += ["--gpu-json", json.dumps(asdict(GPUS[value]))]
        elif name == _SWEEP:
            options += [f"--set={setting}" for setting in str(value).split()]
        elif name.startswith(_CASE):
            options += [f"--set={name.removeprefix(_CASE)}={value}"]
        else:
            options += [f"--config={name.removeprefix(_CONFIG)}={value}"]
    return options


def script_controls(launches: Launches) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield each control of the script with its default."""
    content = launches.content
    case, *others = {launch.case for launch in content.launches} or {None}
    if parameters := {} if others or not case else content.cases[case]:
        yield from ((_parameter(name, default), default) for name, default in parameters.items())
        values = (
            "Values of one or more parameters, such as n=64,128. Every combination is launched."
        )
        yield control(_SWEEP, Knob("", "Case", values, longest=300)), ""
    tuned = {
        launches.kernel(number).name: launch.tuned.of
        for number, launch in enumerate(content.launches)
        if launch.tuned
    }
    for name, number in tuned.items():
        which = "Number of the config to launch. 0 launches the first that compiles and fits."
        config = Knob(0, "Autotuner config", which, high=number, label=name)
        yield control(_CONFIG + name, config), 0


def _parameter(name: str, default: Any) -> dict[str, Any]:
    """Return the control of a case's parameter: a menu, a text field, or a slider with a number field."""
    allowed: dict[str, Any] = {"longest": 100}
    if isinstance(default, bool):
        allowed = {"choices": (False, True)}
    elif isinstance(default, int):
        allowed = {"high": max(1 << 16, 4 * default), "stops": "powers"}
    return control(
        _CASE + name, Knob(default, "Case", f"Parameter {name} of the case.", label=name, **allowed)
    )
