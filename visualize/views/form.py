"""Controls generated from knobs: one component renders those of a form.

Gradio's slider can't step by powers of two. Here a knob of choices is a slider over them, a range a slider beside a
number, a list of words a menu: all native inputs, so that keys and screen readers work.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from typing import Any

from kernels.knobs import Knob, knobs


def placed(sentences: Mapping[str, str]) -> str:
    """Sentences by field name; under "" what belongs to no single field."""
    return json.dumps(dict(sentences), ensure_ascii=False)


def filled(fields: list[dict[str, Any]], values: Mapping[str, Any], presets: tuple[str, ...] = ()) -> str:
    """A form's value: what controls there are, what they are set to, and presets to click."""
    return json.dumps({"fields": fields, "values": dict(values), "presets": presets}, ensure_ascii=False)


def of(declared: Any, hidden: Collection[str] = ()) -> str:
    """The value of a form of a dataclass of knobs, set to `declared`.

    Args:
        hidden: fields that make no difference here: they keep their values, and have no controls.
    """
    shown = [one for one in fields(type(declared)) if one["name"] not in hidden]
    return filled(shown, dataclasses.asdict(declared))


def fields(declared: type, labels: Mapping[str, list[str]] | None = None, group: str = "") -> list[dict[str, Any]]:
    """The controls of a dataclass of knobs: one without a group has none, as something else on the page sets it.

    Args:
        labels: words to show for the numbers 0, 1, … of a field, by field name.
        group: the heading to put them under, where it is not the knobs' own.
    """
    words = labels or {}
    return [field(name, knob, words.get(name), group) for name, knob in knobs(declared).items() if knob.group]


def field(name: str, knob: Knob, labels: list[str] | None = None, group: str = "") -> dict[str, Any]:
    """One control."""
    words = {"label": knob.label or name, "group": group or knob.group, "help": knob.help}
    shared: dict[str, Any] = {"name": name, **words}
    if knob.only_with:
        shared["only_with"] = {"name": knob.only_with[0], "values": list(knob.only_with[1])}
    if knob.longest is not None:
        return {**shared, "kind": "text", "longest": knob.longest}
    if labels is not None:
        return {**shared, "kind": "menu", "choices": list(range(len(labels))), "labels": labels}
    if knob.choices is None:
        bounds = {"low": knob.low, "high": knob.high, "reach": knob.reach or knob.high, "stops": knob.stops}
        return {**shared, "kind": "number", **bounds}
    kind = "menu" if isinstance(knob.choices[0], str) else "steps"
    return {**shared, "kind": kind, "choices": list(knob.choices)}
