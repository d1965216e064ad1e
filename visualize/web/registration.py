"""How a function becomes an endpoint of Gradio's: typed arguments, in its schema, its API page and its MCP tools.

Gradio derives an argument's schema from its type hint, which can name choices, but no bounds, default or help of a
field inside an object. So the schema that was built from the knobs takes its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr
from gradio.components.api_component import Api
from gradio.context import get_blocks_context

from kernels.experiment import JsonSchema


def register(
    function: Callable[..., Any],
    name: str,
    at_once: int | None,
    schemas: Mapping[str, JsonSchema],
    examples: Mapping[str, object],
) -> None:
    """Register an endpoint; call inside a Blocks context.

    Args:
        at_once: as in `Endpoint`.
        schemas: JSON Schemas by parameter, where the type hint's is not enough.
        examples: values by parameter for the snippets of the API page, where there is no default.
    """
    blocks = get_blocks_context()
    if blocks is None:
        raise RuntimeError("An endpoint is registered inside a Blocks context.")
    registered = gr.api(function, api_name=name, concurrency_limit=at_once)
    arguments = blocks.fns[registered["id"]].inputs
    for parameter, argument in zip(inspect.signature(function).parameters, arguments, strict=True):
        if not isinstance(argument, Api):
            raise TypeError(f"{name}'s {parameter} is {argument!r}; gr.api makes an Api of each parameter.")
        if parameter in schemas:
            _describe(argument, schemas[parameter])
        if parameter in examples:
            _exemplify(argument, examples[parameter])


def argument_defaults(blocks: gr.Blocks) -> dict[str, list[object]]:
    """Return each endpoint's defaults by its name: None for an argument that has none, which the endpoint refuses."""
    return {
        str(event.api_name): [
            None if one.default is inspect.Parameter.empty else one.default
            for one in inspect.signature(event.fn).parameters.values()
        ]
        for event in blocks.fns.values()
        if event.fn is not None and all(isinstance(one, Api) for one in event.outputs)
    }


# On the instance: Gradio writes a stub beside the source of every subclass of a component. `api_info` is left as it is:
# the page carries it twice more than it is read.
def _describe(argument: Api, schema: JsonSchema) -> None:
    argument.api_info_as_input = lambda: schema  # type: ignore[method-assign]


def _exemplify(argument: Api, example: object) -> None:
    argument.example_payload = lambda: example  # type: ignore[method-assign]
