"""The configs that a sweep compares: a base experiment and the values of each varied knob. Standard library only.

A sweep covers a single problem, because times of different problems can't be ranked.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kernels.experiment import Experiment, from_json
from kernels.knobs import ConfigError, Knob, knobs, quote
from kernels.spec import Kernel

# At one second per compile, this takes more than an hour on one core.
MAX_CONFIGS = 4096


@dataclass(frozen=True)
class Space:
    """A base experiment and the values of each varied knob.

    Attributes:
        base: the experiment that supplies all other values. Its own values of the varied knobs have no effect.
        varied: (knob, values) in the kernel's knob order; numbers ascending, choices in the knob's order.
    """

    base: Experiment
    varied: tuple[tuple[str, tuple[int | str, ...]], ...]

    @property
    def size(self) -> int:
        """Number of configs, including configs that the family rejects."""
        return math.prod(len(values) for _, values in self.varied)

    @cached_property
    def experiments(self) -> tuple[Experiment, ...]:
        """All configs in grid order: the last knob varies fastest."""
        names = [name for name, _ in self.varied]
        return tuple(
            dataclasses.replace(
                self.base, config=dataclasses.replace(self.base.config, **dict(zip(names, values, strict=True)))
            )
            for values in itertools.product(*(values for _, values in self.varied))
        )

    def refused(self, kernel: Kernel) -> dict[Experiment, str]:
        """Return the experiments that the kernel's family rejects, with the reason as a sentence."""
        reasons = {}
        for experiment in self.experiments:
            try:
                kernel.family.refuse(experiment.problem, experiment.config)
            except ConfigError as error:
                reasons[experiment] = str(error)
        return reasons

    def to_json(self) -> dict[str, Any]:
        """Return the API's payload."""
        return {
            "experiment": self.base.to_json(),
            "vary": {name: list(values) for name, values in self.varied},
        }

    @cached_property
    def identity(self) -> str:
        """A hash of 16 hexadecimal digits, the same for equal spaces on any machine.

        It ignores the base's own values of the varied knobs.
        """
        payload = self.to_json()
        config = payload["experiment"]["config"]
        payload["experiment"]["config"] = {k: v for k, v in config.items() if k not in payload["vary"]}
        return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()[:16]


def space(base: Experiment, vary: Mapping[str, Sequence[object]], kernels: Mapping[str, Kernel]) -> Space:
    """Build the space of a base experiment and the values of some knobs of its config.

    Args:
        vary: values by knob. Numbers may be text; repeated values are dropped.

    Raises:
        ConfigError: a knob is unknown or has no values, a value is not allowed, no knob varies, or there are more than
            MAX_CONFIGS configs.
    """
    kernel = kernels[base.kernel]
    declared = knobs(kernel.config)
    if not vary:
        raise ConfigError("nothing_varied", f"No knob is varied; {kernel.id} has {', '.join(declared)}.")
    for name, values in vary.items():
        if name not in declared:
            raise ConfigError(
                "unknown_field",
                f"A sweep of {kernel.id} can't vary {quote(name)}; the knobs of its config are {', '.join(declared)}.",
                str(name),
            )
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ConfigError("no_values", f"{name} is varied over {quote(values)}; give a list of values.", name)
    varied = tuple((name, _ordered(name, knob, vary[name])) for name, knob in declared.items() if name in vary)
    result = Space(base, varied)
    if result.size > MAX_CONFIGS:
        sizes = " × ".join(str(len(values)) for _, values in varied)
        raise ConfigError(
            "too_many_configs",
            f"{sizes} are {result.size:,} configs; at most {MAX_CONFIGS:,} are allowed. Vary fewer values.",
            varied[0][0],
        )
    return result


def parse_varied(texts: Sequence[str], setting: str) -> dict[str, list[str]]:
    """Parse texts `KNOB=VALUE,VALUE` into values by knob, the `vary` of `space`.

    >>> parse_varied(["BLOCK_M=64,128", "num_warps=4"], "--vary")
    {'BLOCK_M': ['64', '128'], 'num_warps': ['4']}

    Args:
        setting: the name of the setting for error messages.
    """
    varied: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip() or not values.strip(" ,"):
            raise ConfigError(
                "not_a_knob", f"{setting} is {quote(text)}; write KNOB=VALUE,VALUE, as in BLOCK_M=64,128.", setting
            )
        varied.setdefault(name.strip(), []).extend(value.strip() for value in values.split(",") if value.strip())
    return varied


def _ordered(name: str, knob: Knob, values: Sequence[object]) -> tuple[int | str, ...]:
    """Validate the values and drop duplicates. Sort numbers, and keep choices in the declared order."""
    checked = {knob.validate(name, value) for value in values}
    if knob.choices is not None:
        return tuple(choice for choice in knob.choices if choice in checked)
    return tuple(sorted(checked))


def space_from_json(payload: object, kernels: Mapping[str, Kernel]) -> Space:
    """Read the payload of `Space.to_json`.

    Raises:
        ConfigError: the message names the field, its value and the allowed values.
    """
    if not isinstance(payload, Mapping) or set(payload) != {"experiment", "vary"}:
        raise ConfigError("not_an_object", "A space must be a JSON object with the fields experiment and vary.")
    vary = payload["vary"]
    if not isinstance(vary, Mapping):
        raise ConfigError("not_an_object", f"vary is {vary!r}; it must be a JSON object of lists.", "vary")
    return space(from_json(payload["experiment"], kernels), vary, kernels)
