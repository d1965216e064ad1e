"""The configs that a search compares: a base experiment and the values of each varied knob. Standard library only.

A space covers a single problem, because times of different problems can't be ranked.
"""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment, Json, Run, Settings, from_json
from tilescope.declare.knobs import ConfigError, knobs, quote, refuse_unknown

# At one second per compile, this takes more than an hour on one core.
MAX_CONFIGS = 4096

# Maximum number of configs from `nearby_values`.
MAX_NEARBY = 200


@dataclass(frozen=True)
class Space:
    """A base experiment and the values of each varied knob.

    Attributes:
        base: the experiment that supplies all other values. Its own values of the varied knobs have no effect.
        varied: (knob, values) in the kernel's knob order; numbers ascending, choices in the knob's order.
        listed: the combinations to try, each in the order of `varied`; empty for all combinations.
        source: a hash of the code of a script's case; "" for our kernels.
        parameters: the kernel's parameters, for a script's case.
        load: "sustained" (launches follow each other, which may lower the clock) or "single" (the GPU rests).
    """

    base: Experiment
    varied: tuple[tuple[str, tuple[Any, ...]], ...]
    listed: tuple[tuple[Any, ...], ...] = ()
    source: str = ""
    parameters: tuple[str, ...] = ()
    load: str = "sustained"

    @property
    def size(self) -> int:
        """Number of configs, including configs that the family rejects."""
        return len(self.listed) or math.prod(len(values) for _, values in self.varied)

    @cached_property
    def experiments(self) -> tuple[Experiment, ...]:
        """All configs in grid order: the last knob varies fastest."""
        varied = dict(self.varied)
        chosen = [dict(zip(varied, each, strict=True)) for each in self.listed]
        config = self.base.config
        configs = (
            type(config)(**{**vars(config), **each}) for each in chosen or combinations(varied)
        )
        return tuple(replace(self.base, config=config) for config in configs)

    def to_json(self) -> Json:
        """Return the API's payload. Only `tilescope tune` has spaces with further fields."""
        load = self.load if self.load != "sustained" else ""
        more = {
            "listed": list(map(list, self.listed)), "source": self.source, "parameters": list(self.parameters),
            "load": load,
        }  # fmt: skip
        return {
            "experiment": self.base.to_json(),
            "vary": {name: list(values) for name, values in self.varied},
            **{name: value for name, value in more.items() if value},
        }

    @cached_property
    def identity(self) -> str:
        """A hash of 16 hexadecimal digits, the same for equal spaces on any machine.

        It ignores the base's own values of the varied knobs.
        """
        payload = self.to_json()
        config = payload["experiment"]["config"]
        payload["experiment"]["config"] = {
            k: v for k, v in config.items() if k not in payload["vary"]
        }
        return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()[:16]


def combinations(values: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return all combinations of values, by name.

    >>> combinations({"M": [1, 2], "N": [3]})
    [{'M': 1, 'N': 3}, {'M': 2, 'N': 3}]
    """
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


def space(base: Experiment, vary: Mapping[str, Sequence[object]]) -> Space:
    """Build the space of a base experiment and the values of some knobs of its config.

    Args:
        vary: values by knob. Numbers may be text; repeated values are dropped.

    Raises:
        ConfigError: a knob is unknown or has no values, a value is not allowed, no knob varies, or there are more than
            MAX_CONFIGS configs.
    """
    declared = knobs(discover()[base.kernel].config)
    if not vary:
        raise ConfigError(
            "nothing_varied", f"Vary at least one knob: {base.kernel} has {', '.join(declared)}."
        )
    refuse_unknown(vary, f"The config of {base.kernel}", declared)
    for name, values in vary.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError(
                "no_values", f"{name} must be a list of values to vary (got {quote(values)}).", name
            )
    varied = [
        (name, tuple(sorted(checked, key=knob.choices.index if knob.choices else int)))
        for name, knob in declared.items()
        if (checked := {knob.validate(name, value) for value in vary.get(name, ())})
    ]
    result = Space(base, tuple(varied))
    if result.size > MAX_CONFIGS:
        sizes = " × ".join(str(len(values)) for _, values in varied)
        message = f"{sizes} are {result.size:,} configs; at most {MAX_CONFIGS:,} are allowed. Vary fewer values."
        raise ConfigError("too_many_configs", message, varied[0][0])
    return result


def nearby_values(experiment: Experiment) -> dict[str, list[Any]]:
    """Return values to vary: 4 and 8 warps, and the current num_stages and Tile values with their neighbours.

    A Tile knob does not vary if there would then be more than MAX_NEARBY combinations.
    """
    stages = experiment.config.num_stages
    values: dict[str, list[Any]] = {
        "num_warps": [4, 8],
        "num_stages": list(range(max(1, stages - 1), min(8, stages + 1) + 1)),
    }
    for name, declared in knobs(type(experiment.config)).items():
        if declared.group == "Tile" and declared.choices is not None:
            place = declared.choices.index(getattr(experiment.config, name))
            near = list(declared.choices[max(0, place - 1) : place + 2])
            if math.prod(map(len, (*values.values(), near))) <= MAX_NEARBY:
                values[name] = near
    return values


def parse_varied(texts: Sequence[str], setting: str) -> dict[str, list[str]]:
    """Parse texts `NAME=VALUE,VALUE` into values by knob, the `vary` of `space`. A text may hold several knobs.

    >>> parse_varied(["BLOCK_M=64, 128 num_warps = 4"], "--vary")
    {'BLOCK_M': ['64', '128'], 'num_warps': ['4']}
    >>> parse_varied(["op=a b,c"], "--vary")
    {'op': ['a b', 'c']}

    A value given twice counts once.

    Args:
        setting: the name of the setting for error messages.
    """
    varied: dict[str, list[str]] = {}
    # A name and "=" begin a knob, so other spaces belong to values
    parts = (part for text in texts for part in re.split(r"\s+(?=\w+\s*=)", text.strip()))
    for text in parts:
        name, _, values = re.sub(r"\s*([,=])\s*", r"\1", text).partition("=")
        if not name or not values.strip(","):
            example = "NAME=VALUE,VALUE, such as BLOCK_M=64,128"
            raise ConfigError(
                "not_a_knob", f"{setting} must be {example} (got {quote(text)}).", setting
            )
        varied.setdefault(name, []).extend(filter(None, values.split(",")))
    return {name: list(dict.fromkeys(values)) for name, values in varied.items()}


def space_from_json(payload: object) -> Space:
    """Read the payload of `Space.to_json`.

    Raises:
        ConfigError: the message names the field, its value and the allowed values.
    """
    if not isinstance(payload, Mapping) or not {"experiment", "vary"} <= set(payload):
        raise ConfigError(
            "not_an_object", "A space must be a JSON object with the fields experiment and vary."
        )
    if not isinstance(payload["vary"], Mapping):
        raise ConfigError(
            "not_an_object",
            f"vary must be a JSON object of lists (got {payload['vary']!r}).",
            "vary",
        )
    load = payload.get("load", "sustained")
    if "source" in payload:
        base = read_tried(payload["experiment"])
        varied = tuple((name, tuple(values)) for name, values in payload["vary"].items())
        listed = tuple(map(tuple, payload.get("listed", ())))
        parameters = tuple(payload.get("parameters", ()))
        return Space(base, varied, listed, payload["source"], parameters, load)
    return replace(space(from_json(payload["experiment"]), payload["vary"]), load=load)


def read_tried(payload: Mapping[str, Any]) -> Experiment:
    """Read an experiment of a stored sweep, whose kernel may be a script's case and whose config may not fit."""
    kernel = str(payload.get("kernel"))
    if ":" not in kernel:
        return from_json(payload, together=False)
    problem, config = (Settings(**payload[part]) for part in ("problem", "config"))
    return Experiment(kernel, problem, config, payload.get("gpu", ""), Run(**payload["run"]))
