"""The API: `/kernels`, and the endpoints of all panels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from kernels import discover
from kernels.experiment import experiment_schema, merged_schema
from kernels.gpus import GPUS, Gpu
from kernels.knobs import Knob, knobs
from kernels.measuring.session import Session
from kernels.recommended import shipped
from visualize.views.endpoint import EXPERIMENT, Api, answered
from visualize.views.prediction_process import PredictionProcess
from visualize.views.view import Panel
from visualize.web.registration import register
from visualize.web.tools import tools

# What the API page's snippets ask for; quick under the interpreter, too.
EXAMPLE = {
    "kernel": "matmul.grouped",
    "problem": {"M": 576, "N": 576, "K": 288},
    "config": {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_SIZE": 3},
}


def endpoints(
    session: Session, predictions: PredictionProcess, panels: Sequence[Panel], with_tools: bool = False
) -> None:
    """Register all endpoints; call inside a Blocks context.

    Args:
        with_tools: and for each a tool for agents, which Gradio's MCP server lists.
    """

    def kernels() -> dict[str, Any]:
        """Every kernel with its knobs, problem fields, presets and exact JSON Schema; the GPU table; this GPU or null.

        `recommended` lists the fastest configs that a search found, with the GPU and the date; all else is declared.
        `gpu_table` gives each figure of a GPU with its source.
        """
        return answered(lambda: kernels_reply(session.gpu))

    declared = discover()
    experiment = merged_schema(declared)
    register(kernels, "kernels", 1, {}, {})
    served = [endpoint for panel in panels for endpoint in panel.endpoints(Api(session, predictions))]
    for one in served:
        register(one.function, one.name, one.at_once, {EXPERIMENT: experiment, **one.schemas}, {EXPERIMENT: EXAMPLE})
    for tool in tools(session, served, declared) if with_tools else ():
        register(tool.function, tool.name, tool.at_once, tool.schemas, {})


def kernels_reply(this: Gpu | None) -> dict[str, Any]:
    """The body of /kernels."""
    return {
        "kernels": [
            {
                "id": kernel.id,
                "family": kernel.family.root.id,
                "title": kernel.title,
                "claim": kernel.headline,
                "knobs": [_knob(name, knob) for name, knob in knobs(kernel.config).items()],
                "problem": [_knob(name, knob) for name, knob in kernel.problem_knobs().items()],
                "presets": [dataclasses.asdict(preset) for preset in kernel.presets],
                "recommended": [one.to_json() for one in shipped() if one.experiment.kernel == kernel.id],
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
