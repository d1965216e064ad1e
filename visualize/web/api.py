"""The API: `/kernels` and the endpoints of all panels, registered with Gradio.

Gradio derives an argument's schema from its type hint, which has no bounds, defaults or help for the fields of an
object. Schemas built from the knobs replace it.
"""

import inspect
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import gradio as gr

from kernels import discover
from kernels.experiment import experiment_schema, merged_schema
from kernels.gpus import GPUS
from kernels.knobs import Knob, knobs
from kernels.measuring.session import Session
from kernels.recommended import shipped
from visualize.views.panel import EXPERIMENT, Api, Endpoint, Panel, reply_safely
from visualize.views.prediction_process import PredictionProcess
from visualize.web.tools import create_tools

# The experiment of the API page's snippets. It is quick under the interpreter, too.
EXAMPLE = {
    "kernel": "matmul.grouped",
    "problem": {"M": 576, "N": 576, "K": 288},
    "config": {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_SIZE": 3},
}


def register_endpoints(
    blocks: gr.Blocks, session: Session, predictions: PredictionProcess, panels: Sequence[Panel], with_tools: bool
) -> None:
    """Register all endpoints; call inside the Blocks context.

    Args:
        with_tools: also register an MCP tool for each endpoint.
    """

    def kernels() -> dict[str, Any]:
        """Every kernel with its knobs, problem fields, presets and exact JSON Schema; the GPU table; this GPU or null.

        `recommended` lists the fastest configs that a search found, with the GPU and the date; all else is declared.
        `gpu_table` gives each figure of a GPU with its source.
        """
        return {
            "kernels": [
                {
                    "id": kernel.id,
                    "family": kernel.family.root.id,
                    "title": kernel.title,
                    "claim": kernel.headline,
                    "knobs": [_knob(name, knob) for name, knob in knobs(kernel.config).items()],
                    "problem": [_knob(name, knob) for name, knob in kernel.problem_knobs().items()],
                    "presets": [asdict(preset) for preset in kernel.presets],
                    "recommended": [config.to_json() for config in shipped() if config.experiment.kernel == kernel.id],
                    "schema": experiment_schema(kernel),
                }
                for kernel in discover().values()
            ],
            "gpus": list(GPUS),
            "gpu_table": {name: asdict(gpu) for name, gpu in GPUS.items()},
            "device": session.gpu and asdict(session.gpu),
        }

    api, experiment = Api(session, predictions), merged_schema(discover())
    endpoints = [endpoint for panel in panels for endpoint in panel.endpoints(api)]
    for endpoint in (Endpoint("kernels", kernels, 1), *endpoints):
        schemas = {EXPERIMENT: experiment, **endpoint.schemas}
        _register(blocks, replace(endpoint, function=reply_safely(endpoint.function), schemas=schemas))
    for tool in create_tools(endpoints, session.gpu) if with_tools else ():
        _register(blocks, tool)


def _knob(name: str, knob: Knob) -> dict[str, Any]:
    allowed = {"range": [knob.low, knob.high]} if knob.choices is None else {"choices": list(knob.choices)}
    return {"name": name, "default": knob.default, "help": knob.help, **allowed}


def _register(blocks: gr.Blocks, endpoint: Endpoint) -> None:
    registered = gr.api(endpoint.function, api_name=endpoint.name, concurrency_limit=endpoint.max_concurrency)
    arguments: Sequence[Any] = blocks.fns[registered["id"]].inputs
    for name, argument in zip(inspect.signature(endpoint.function).parameters, arguments, strict=True):
        # On the instance: Gradio writes a stub beside the source of every subclass of a component. `api_info` stays:
        # the page contains it twice, and few clients read it.
        if name in endpoint.schemas:
            argument.api_info_as_input = lambda schema=endpoint.schemas[name]: schema
        if name == EXPERIMENT:
            argument.example_payload = lambda: EXAMPLE


def argument_defaults(blocks: gr.Blocks) -> dict[int | str, list[object]]:
    """Return each event's arguments where a request leaves them out, by the event's number and its name in the API.

    A required argument is None, which its handler refuses.
    """
    return {
        key: [getattr(argument, "value", None) for argument in event.inputs]
        for number, event in blocks.fns.items()
        for key in (number, str(event.api_name))
    }
