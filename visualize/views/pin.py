"""What is pinned: an Experiment that another one is compared with, as one field of the page's address."""

from __future__ import annotations

import urllib.parse
from dataclasses import replace
from typing import Any

from kernels.experiment import Experiment, from_json, nest, resolve_gpu
from kernels.gpus import Gpu
from kernels.knobs import ConfigError, knobs

# The address field that holds it.
FIELD = "with"

# Longer than the address of any Experiment.
_LONGEST = 1000


def to_text(short: dict[str, Any]) -> str:
    """The field's value: the short address of what is pinned."""
    return urllib.parse.urlencode(short)


def pinned(text: object, this: Gpu | None) -> Experiment | None:
    """What an address pins; None where it pins nothing.

    Raises:
        ConfigError: for the field "with", where it describes no experiment.
    """
    if not text:
        return None
    if not isinstance(text, str) or len(text) > _LONGEST:
        raise ConfigError("too_long", f"What is pinned is an address of at most {_LONGEST:,} characters.", FIELD)
    fields = dict(urllib.parse.parse_qsl(text))
    try:
        chosen = from_json(nest(fields))
        resolve_gpu(chosen, this)
    except ConfigError as error:
        raise ConfigError(error.kind, f"What is pinned can't be shown: {error}", FIELD) from error
    return chosen


def fitting(option: Any, old: str, chosen: Experiment) -> Any:
    """A panel's option as it is for another experiment: its defaults where it means nothing there.

    Args:
        old: the kernel for which the option was chosen.
    """
    try:
        if getattr(option, "of_kernel", False) and old != chosen.kernel:
            return type(option)()
        if refuse := getattr(option, "refuse", None):
            refuse(chosen.problem)
    except ConfigError:
        return replace(option, **{name: knob.default for name, knob in knobs(type(option)).items()})
    return option
