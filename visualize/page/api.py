"""The API: `/kernels`, and the endpoints of all panels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import gradio as gr

from kernels import discover
from kernels.gpus import GPUS, Gpu
from kernels.knobs import Knob, knobs
from kernels.runner.session import Session
from kernels.schema import experiment_schema
from visualize.panels.endpoint import Api, answered
from visualize.panels.panel import Panel


def endpoints(session: Session, panels: Sequence[Panel]) -> None:
    """Register all endpoints; call inside a Blocks context."""

    def kernels() -> dict[str, Any]:
        """Every kernel with its knobs and problem fields, the GPU table, and this machine's GPU or null."""
        return answered(lambda: kernels_reply(session.gpu))

    gr.api(kernels, api_name="kernels")
    api = Api(session)
    for endpoint in (endpoint for panel in panels for endpoint in panel.endpoints(api)):
        gr.api(endpoint.function, api_name=endpoint.name, concurrency_limit=endpoint.at_once)


def kernels_reply(this: Gpu | None) -> dict[str, Any]:
    """The body of /kernels."""
    return {
        "kernels": [
            {
                "id": kernel.id,
                "family": kernel.family.root.id,
                "title": kernel.title,
                "claim": kernel.claim,
                "knobs": [_knob(name, knob) for name, knob in knobs(kernel.config).items()],
                "problem": [_knob(name, knob) for name, knob in kernel.problem_knobs().items()],
                "presets": [dataclasses.asdict(preset) for preset in kernel.presets],
                "schema": experiment_schema(kernel),
            }
            for kernel in discover().values()
        ],
        "gpus": list(GPUS),
        "gpu_table": {name: dataclasses.asdict(gpu) for name, gpu in GPUS.items()},
        "device": None if this is None else dataclasses.asdict(this),
    }


def _knob(name: str, knob: Knob) -> dict[str, Any]:
    allowed = {"range": [knob.low, knob.high]} if knob.choices is None else {"choices": list(knob.choices)}
    return {"name": name, "default": knob.default, "help": knob.help, **allowed}
