"""The JSON Schema of an experiment, kernel by kernel, built from the knobs that check it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from kernels.experiment import GPU_CHOICES, Run
from kernels.knobs import Knob, knobs
from kernels.spec import Kernel

_CLOSED = ConfigDict(extra="forbid")


def experiment_model(kernel: Kernel) -> type[BaseModel]:
    """A pydantic model of this kernel's experiments. What fields demand of each other is checked by `from_json` alone.

    >>> from kernels import discover
    >>> experiment = experiment_model(discover()["matmul.grouped"])
    >>> experiment.model_validate({"kernel": "matmul.grouped", "config": {"BLOCK_M": 128}}).config.BLOCK_M
    128
    """
    fields: dict[str, Any] = {"kernel": (Literal[kernel.id], Field(description=kernel.claim))}
    for name, declared in declared_parts(kernel).items():
        several: dict[str, Any] = {n: _field(knob) for n, knob in declared.items()}
        part = create_model(name.title(), __config__=_CLOSED, **several)
        fields[name] = (part, Field(default_factory=part))
    fields["gpu"] = (Literal[GPU_CHOICES], Field("", description='"this", a name of the GPU table, or left out.'))
    return create_model("Experiment", __config__=_CLOSED, **fields)


def declared_parts(kernel: Kernel) -> dict[str, dict[str, Knob]]:
    """The knobs of each part of this kernel's experiments."""
    return {"problem": kernel.problem_knobs(), "config": knobs(kernel.config), "run": knobs(Run)}


def experiment_schema(kernel: Kernel) -> dict[str, Any]:
    """The same as JSON Schema, 2020-12."""
    return experiment_model(kernel).model_json_schema()


def _field(knob: Knob) -> tuple[Any, Any]:
    if knob.choices is not None:
        return Literal[knob.choices], Field(knob.default, description=knob.help)
    return int, Field(knob.default, description=knob.help, ge=knob.low, le=knob.high)
