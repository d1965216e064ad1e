"""Space: which configs of one kernel a sweep compares. Standard library only.

A space is an experiment and, for each knob that is varied, its values. The knobs are those of the kernel's config: a
sweep compares configs at one problem, as times of different problems rank nothing.
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

# Configs of one space at most: at a second of compiling each, more than an hour on one core.
MOST_CONFIGS = 4096


@dataclass(frozen=True)
class Space:
    """A base experiment, and the values of each knob that is varied.

    Attributes:
        base: what all configs share; its own values of the varied knobs make no difference.
        varied: (knob, values), knobs as the kernel declares them, values ascending or as the knob lists its choices.
    """

    base: Experiment
    varied: tuple[tuple[str, tuple[int | str, ...]], ...]

    @property
    def size(self) -> int:
        """Configs, those that the family refuses among them."""
        return math.prod(len(values) for _, values in self.varied)

    @cached_property
    def experiments(self) -> tuple[Experiment, ...]:
        """Every config as an experiment, in grid order: the last knob's values vary fastest."""
        names = [name for name, _ in self.varied]
        return tuple(
            dataclasses.replace(
                self.base, config=dataclasses.replace(self.base.config, **dict(zip(names, values, strict=True)))
            )
            for values in itertools.product(*(values for _, values in self.varied))
        )

    def refused(self, kernel: Kernel) -> dict[Experiment, str]:
        """The experiments that the kernel's family refuses, each with the reason as a sentence."""
        found = {}
        for experiment in self.experiments:
            try:
                kernel.family.refuse(experiment.problem, experiment.config)
            except ConfigError as error:
                found[experiment] = str(error)
        return found

    def to_json(self) -> dict[str, Any]:
        """The API's payload."""
        return {
            "experiment": self.base.to_json(),
            "vary": {name: list(values) for name, values in self.varied},
        }

    @cached_property
    def identity(self) -> str:
        """16 hexadecimal digits that are the same for equal spaces, on any machine and day.

        The base's own values of the varied knobs are left out.
        """
        payload = self.to_json()
        config = payload["experiment"]["config"]
        payload["experiment"]["config"] = {k: v for k, v in config.items() if k not in payload["vary"]}
        return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()[:16]


def space(base: Experiment, vary: Mapping[str, Sequence[object]], kernels: Mapping[str, Kernel]) -> Space:
    """The space of a base experiment and the values of some knobs of its config.

    Args:
        vary: values by knob; numbers may be given as text. Values that are given twice count once.

    Raises:
        ConfigError: for a knob that the config has not, a value that the knob does not allow, a knob without values,
            no knob at all, or more than MOST_CONFIGS configs.
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
    found = Space(base, varied)
    if found.size > MOST_CONFIGS:
        sizes = " × ".join(str(len(values)) for _, values in varied)
        raise ConfigError(
            "too_many_configs",
            f"{sizes} are {found.size:,} configs; at most {MOST_CONFIGS:,} are allowed. Vary fewer values.",
            varied[0][0],
        )
    return found


def varied(given: Sequence[str], what: str) -> dict[str, list[str]]:
    """The values by knob of texts `KNOB=VALUE,VALUE`, to make a space of.

    >>> varied(["BLOCK_M=64,128", "num_warps=4"], "--vary")
    {'BLOCK_M': ['64', '128'], 'num_warps': ['4']}

    Args:
        what: names the setting in a sentence about it.
    """
    found: dict[str, list[str]] = {}
    for one in given:
        name, equals, values = one.partition("=")
        if not equals or not name.strip() or not values.strip(" ,"):
            raise ConfigError(
                "not_a_knob", f"{what} is {quote(one)}; write KNOB=VALUE,VALUE, as in BLOCK_M=64,128.", what
            )
        found.setdefault(name.strip(), []).extend(value.strip() for value in values.split(",") if value.strip())
    return found


def _ordered(name: str, knob: Knob, values: Sequence[object]) -> tuple[int | str, ...]:
    """Each value once, checked: numbers ascending, choices as they are declared."""
    checked = {knob.validate(name, value) for value in values}
    if knob.choices is not None:
        return tuple(choice for choice in knob.choices if choice in checked)
    return tuple(sorted(checked))


def space_from_json(payload: object, kernels: Mapping[str, Kernel]) -> Space:
    """The space of `to_json`'s payload.

    Raises:
        ConfigError: with what was wrong, the value, and what is allowed.
    """
    if not isinstance(payload, Mapping) or set(payload) != {"experiment", "vary"}:
        raise ConfigError("not_an_object", "A space is a JSON object with the fields experiment and vary.")
    vary = payload["vary"]
    if not isinstance(vary, Mapping):
        raise ConfigError("not_an_object", f"vary is {vary!r}; it must be a JSON object of lists.", "vary")
    return space(from_json(payload["experiment"], kernels), vary, kernels)
