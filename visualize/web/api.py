"""The API: `/kernels` and the endpoints of all panels, registered with Gradio.

Gradio derives an argument's schema from its type hint, which has no bounds, defaults or help for the fields of an
object. Schemas built from the knobs replace it.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gradio as gr
from gradio.components import api_component
from gradio.context import get_blocks_context

from kernels import discover
from kernels.experiment import JsonSchema, experiment_schema, merged_schema
from kernels.gpus import GPUS, Gpu
from kernels.knobs import Knob, knobs
from kernels.measuring.session import Session
from kernels.recommended import shipped
from visualize.views.endpoint import EXPERIMENT, Api, reply_safely
from visualize.views.prediction_process import PredictionProcess
from visualize.views.view import Panel
from visualize.web.tools import tools

# The experiment of the API page's snippets. It is quick under the interpreter, too.
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
        with_tools: also register an MCP tool for each endpoint.
    """

    def kernels() -> dict[str, Any]:
        """Every kernel with its knobs, problem fields, presets and exact JSON Schema; the GPU table; this GPU or null.

        `recommended` lists the fastest configs that a search found, with the GPU and the date; all else is declared.
        `gpu_table` gives each figure of a GPU with its source.
        """
        return kernels_reply(session.gpu)

    declared = discover()
    experiment = merged_schema(declared)
    register(reply_safely(kernels), "kernels", 1, {}, {})
    served = [endpoint for panel in panels for endpoint in panel.endpoints(Api(session, predictions))]
    for endpoint in served:
        schemas = {EXPERIMENT: experiment, **endpoint.schemas}
        register(
            reply_safely(endpoint.function), endpoint.name, endpoint.max_concurrency, schemas, {EXPERIMENT: EXAMPLE}
        )
    for tool in tools(session, served, declared) if with_tools else ():
        register(tool.function, tool.name, tool.max_concurrency, tool.schemas, {})


def kernels_reply(this: Gpu | None) -> dict[str, Any]:
    """Return the body of /kernels."""
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
                "recommended": [config.to_json() for config in shipped() if config.experiment.kernel == kernel.id],
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


def register(
    function: Callable[..., Any],
    name: str,
    max_concurrency: int | None,
    schemas: Mapping[str, JsonSchema],
    examples: Mapping[str, object],
) -> None:
    """Register an endpoint; call inside a Blocks context.

    Args:
        max_concurrency: as in `Endpoint`.
        schemas: JSON Schemas by parameter that replace the type hint's.
        examples: by parameter, values without defaults for the API page's snippets.
    """
    blocks = get_blocks_context()
    if blocks is None:
        raise RuntimeError("Endpoints must be registered inside a Blocks context.")
    registered = gr.api(function, api_name=name, concurrency_limit=max_concurrency)
    arguments = blocks.fns[registered["id"]].inputs
    for parameter, argument in zip(inspect.signature(function).parameters, arguments, strict=True):
        if not isinstance(argument, api_component.Api):
            raise TypeError(f"{name}'s {parameter} is {argument!r}; gr.api makes an Api of each parameter.")
        # On the instance: Gradio writes a stub beside the source of every subclass of a component. `api_info` stays:
        # the page contains it twice, and few clients read it.
        if parameter in schemas:
            argument.api_info_as_input = lambda schema=schemas[parameter]: schema  # type: ignore[method-assign, misc]
        if parameter in examples:
            argument.example_payload = lambda example=examples[parameter]: example  # type: ignore[method-assign, misc]


def argument_defaults(blocks: gr.Blocks) -> dict[int | str, list[object]]:
    """Return each event's arguments where a request leaves them out, by the event's number and its name in the API.

    A required argument is None, which its handler refuses.
    """
    found: dict[int | str, list[object]] = {}
    for number, event in blocks.fns.items():
        defaults: list[object] = [None] * len(event.inputs)
        if event.fn is not None and all(isinstance(output, api_component.Api) for output in event.outputs):
            parameters = list(inspect.signature(event.fn).parameters.values())[: len(defaults)]
            defaults = [None if one.default is inspect.Parameter.empty else one.default for one in parameters]
        found[number] = found[str(event.api_name)] = defaults
    return found
