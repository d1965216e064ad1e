"""An experiment as the store writes it: the same text, and the same key, for the same experiment in every version."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from typing import Any

from kernels import discover
from kernels.experiment import Experiment, from_json
from kernels.knobs import ConfigError


def text_of(experiment: Experiment) -> str:
    """JSON with sorted names: the kernel, and what differs from its defaults. The GPU is left out.

    A default never changes once it is published. So a knob that is added to a kernel leaves the texts of all that was
    measured before as they are.
    """
    fields = experiment.to_json()
    fields.pop("gpu", None)
    for part, usual in _defaults(experiment.kernel).items():
        fields[part] = {name: value for name, value in fields[part].items() if usual.get(name) != value}
    return json.dumps({name: value for name, value in fields.items() if value}, sort_keys=True, separators=(",", ":"))


def key_of(experiment: Experiment) -> str:
    """128 bits, in hexadecimal, that stand for an experiment on any GPU."""
    return hashlib.blake2b(text_of(experiment).encode(), digest_size=16).hexdigest()


def experiment_of(text: str) -> Experiment | None:
    """The experiment of a text; None where this version has no such kernel, or allows no such value."""
    try:
        return from_json(json.loads(text), discover())
    except (ValueError, ConfigError):
        return None


@functools.cache
def _defaults(kernel: str) -> dict[str, dict[str, Any]]:
    usual = from_json({"kernel": kernel}, discover())
    return {part: dataclasses.asdict(getattr(usual, part)) for part in ("problem", "config", "run")}
