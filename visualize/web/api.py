"""The API: `/kernels` and the endpoints of all panels, registered with Gradio, and the same as MCP tools for agents.

Gradio derives an argument's schema from its type hint, which has no bounds, defaults or help for the fields of an
object. Schemas built from the knobs replace it.

An endpoint takes a nested experiment and returns every field of the reply. A tool takes the experiment's fields as
separate arguments. It returns JSON text, because Gradio sends MCP clients the `str` of a result. It omits long fields,
such as PTX or the tiles of 8,192 programs, unless the client requests them.

Agents read the schemas of all tools at once, and MCP tools share no definitions. So each schema has only the types and
bounds of the arguments, and one tool, `kernels`, explains them.
"""

import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from inspect import Parameter
from typing import Any

import gradio as gr
import orjson

from tilescope.declare.discovery import discover, opening
from tilescope.declare.experiment import (
    Json,
    JsonSchema,
    experiment_schema,
    from_json,
    gpu_schema,
    kernel_schema,
    merged_fields,
    merged_schema,
    nest,
    resolve_gpu,
)
from tilescope.declare.gpus import DEFAULT_GPU, GPUS
from tilescope.declare.knobs import Knob, knobs
from visualize.predict.offer import PUBLISHED, Offer, offer, offers
from visualize.views.panel import EXPERIMENT, Api, Endpoint, Panel, Reply, encode

# Maximum characters of a field's JSON, about 3,000 tokens. Operations, bounds and checks are shorter.
LONGEST_FIELD = 12_000

# Tools are also endpoints of the API, where their names have this prefix.
_PREFIX = "mcp_"

# The default and the JSON Schema of each argument.
Arguments = dict[str, tuple[Any, JsonSchema]]

_FIELDS: JsonSchema = {
    "type": "array",
    "items": {"type": "string"},
    "description": "Reply fields to return. Default: all but long ones (see `left_out`).",
}
# An experiment that stays one argument.
_NESTED: JsonSchema = {
    "type": "object",
    "description": 'A launch: {"kernel", "problem", "config", "gpu", "run"}, with the fields that `run` takes.',
}
_HOW = "The reply is JSON. `failure` says what was wrong and what is allowed."
_LAUNCHES = "It launches the kernel, which can take a minute."
_KNOBS = "Omitted arguments take the kernel's default; `kernels` says what each means and which kernels have it."


def register_endpoints(
    blocks: gr.Blocks,
    api: Api,
    panels: Sequence[Panel],
    with_tools: bool,
    others: Sequence[Endpoint] = (),
) -> None:
    """Register all endpoints; call inside the Blocks context.

    Args:
        with_tools: also register an MCP tool for each endpoint.
        others: endpoints of no panel.
    """
    endpoints = [
        Endpoint("kernels", kernels),
        Endpoint("recommend", recommend, is_flat=False),
        *(endpoint for panel in panels for endpoint in panel.endpoints),
        *others,
    ]
    for endpoint in endpoints:
        arguments = endpoint.arguments
        if EXPERIMENT in arguments:
            arguments[EXPERIMENT] = arguments[EXPERIMENT][0], merged_schema()
        reply = partial(endpoint.call, api)
        _register(blocks, endpoint.name, reply, endpoint.function.__doc__, arguments)
    for endpoint in (Endpoint("kernels", brief_kernels), *endpoints[1:]) if with_tools else ():
        _register_tool(blocks, api, endpoint)


@functools.cache
def kernels(api: Api) -> bytes:
    """Every kernel with its knobs, problem fields, presets and exact JSON Schema; the GPU table; this GPU or null.

    `recommended` lists the configs that searches found, and one for each preset shape without a search.
    `gpu_table` gives each figure of a GPU with its source.
    """
    gpu = api.session.gpu or GPUS[DEFAULT_GPU]
    reply = {
        "kernels": [
            {
                "id": kernel.id,
                "family": kernel.family.root.id,
                "title": kernel.title,
                "claim": kernel.headline,
                "knobs": [_knob(name, knob) for name, knob in knobs(kernel.config).items()],
                "problem": [_knob(name, knob) for name, knob in kernel.problem_knobs().items()],
                "presets": [asdict(preset) for preset in kernel.presets],
                "recommended": [offered.to_json() for offered in offers(kernel, gpu)],
                "schema": experiment_schema(kernel),
            }
            for kernel in discover().values()
        ],
        "gpus": list(GPUS),
        "gpu_table": {name: asdict(gpu) for name, gpu in GPUS.items()},
        "device": api.session.gpu and asdict(api.session.gpu),
    }
    return encode(reply)


def recommend(api: Api, experiment: Json) -> Reply:
    """Recommends a config for this experiment's kernel, problem and GPU; its own config is ignored.

    `origin`: found by a search for this shape or a neighbouring one, ranked first by the model, or the published
    default where neither exists.
    """
    requested = from_json(experiment)
    kernel = discover()[requested.kernel]
    gpu = resolve_gpu(requested, api.session.gpu)
    published = Offer(replace(requested, config=kernel.config()), PUBLISHED, None)
    offered = offer(kernel, requested.problem, gpu) or published
    chosen = replace(requested, config=offered.experiment.config)
    return {**offered.to_json(), "experiment": chosen.to_json()}


def _knob(name: str, knob: Knob) -> Json:
    allowed = (
        {"range": [knob.low, knob.high]}
        if knob.choices is None
        else {"choices": list(knob.choices)}
    )
    return {"name": name, "default": knob.default, "help": knob.help, **allowed}


def _register(
    blocks: gr.Blocks,
    name: str,
    reply: Callable[[Json], Awaitable[Any]],
    description: str | None,
    arguments: Arguments,
    hints: Json | None = None,
) -> None:
    """Register a function with Gradio, which reads its signature and its description."""

    async def function(*values: Any) -> Any:
        return await reply(dict(zip(arguments, values, strict=True)))

    parameters = [
        Parameter(each, Parameter.POSITIONAL_OR_KEYWORD, default=default)
        for each, (default, _) in arguments.items()
    ]
    function.__name__ = name
    function.__doc__ = description
    signature = inspect.Signature(parameters, return_annotation=Json)
    function.__annotations__ = dict.fromkeys(arguments, Any)
    vars(function).update(__signature__=signature, hints=hints)
    registered = gr.api(function, api_name=name, concurrency_limit=None)
    inputs: Sequence[Any] = blocks.fns[registered["id"]].inputs
    for (argument, (_, schema)), component in zip(arguments.items(), inputs, strict=True):
        # On the instance: Gradio writes a stub beside the source of every subclass of a component. `api_info` stays:
        # the page contains it twice, and few clients read it.
        component.api_info_as_input = lambda schema=schema: schema
        if argument == EXPERIMENT:
            component.example_payload = lambda: nest(opening())


def argument_defaults(blocks: gr.Blocks) -> dict[int | str, list[object]]:
    """Return each event's arguments where a request leaves them out, by the event's number and its name in the API.

    A required argument is None, which its handler refuses.
    """
    return {
        key: [getattr(argument, "value", None) for argument in event.inputs]
        for number, event in blocks.fns.items()
        for key in (number, str(event.api_name))
    }


def brief_kernels(api: Api) -> Json:
    """Lists the kernels: what each shows, the default of each argument, and presets worth a look.

    `arguments` says what each argument of the other tools means. Also the names of the GPUs that predictions can
    be for, and this machine's GPU (null: predictions and recorded results only).
    """
    reply = orjson.loads(kernels(api))
    return {
        "kernels": [
            {
                **{name: kernel[name] for name in ("id", "title", "claim")},
                "defaults": {
                    knob["name"]: knob["default"] for knob in kernel["problem"] + kernel["knobs"]
                },
                "presets": {
                    preset["title"]: preset["problem"] | preset["config"]
                    for preset in kernel["presets"]
                },
            }
            for kernel in reply["kernels"]
        ],
        "arguments": {
            name: schema["description"] for name, schema in _flat(merged_fields()).items()
        },
        "gpus": gpu_schema()["enum"],
        "device": reply["device"] and reply["device"]["name"],
    }


def offer_tools_alone(server: Any) -> None:
    """Remove endpoints from a running `gradio.mcp.GradioMCPServer`, and the prefix from the tools' names.

    Gradio offers every public endpoint, and on a Space prefixes each name with the Space's. It also replaces the
    description in an argument's schema by that of the docstring, even if there is none. It writes no annotations.
    """
    from mcp import types

    describe = server.get_fn_description
    server.get_fn_description = lambda *event: (describe(*event)[0], {})
    server.tool_to_endpoint = {
        server.tool_prefix + endpoint.removeprefix(f"/{_PREFIX}"): endpoint
        for endpoint in server.tool_to_endpoint.values()
        if endpoint.startswith(f"/{_PREFIX}")
    }
    handlers = server.mcp_server.request_handlers
    list_tools = handlers[types.ListToolsRequest]

    async def list_annotated(request: Any) -> Any:
        reply = await list_tools(request)
        for tool in reply.root.tools:
            endpoint = server.tool_to_endpoint[tool.name]
            event = server.get_block_fn_from_endpoint_name(endpoint)
            tool.annotations = types.ToolAnnotations(**event.fn.hints)
        return reply

    async def skip_schema(tool: str) -> None:
        """Leave the check of arguments to endpoints: errors of mcp do not name the argument."""

    handlers[types.ListToolsRequest] = list_annotated
    server.mcp_server._get_cached_tool_definition = skip_schema


def _flat(parts: Mapping[str, Mapping[str, JsonSchema]]) -> dict[str, JsonSchema]:
    """Return the schemas of an experiment's fields, without their parts."""
    flat = {name: schema for fields in parts.values() for name, schema in fields.items()}
    return {"kernel": kernel_schema(), **flat, "gpu": gpu_schema()}


def _register_tool(blocks: gr.Blocks, api: Api, endpoint: Endpoint) -> None:
    """Register the MCP tool of an endpoint."""
    own = endpoint.arguments
    needs_experiment = EXPERIMENT in own and own[EXPERIMENT][0] is Parameter.empty
    is_flat = needs_experiment and endpoint.is_flat
    parts = merged_fields() if is_flat else {}
    fields: Arguments = {}
    if is_flat:
        del own[EXPERIMENT]
        if not endpoint.launches:
            del parts["run"]
        for name, schema in _flat(parts).items():
            brief = {key: value for key, value in schema.items() if key != "description"}
            fields[name] = Parameter.empty if name == "kernel" else None, brief
    elif EXPERIMENT in own:
        own[EXPERIMENT] = own[EXPERIMENT][0], _NESTED
    arguments = {**fields, **own, "fields": (None, _FIELDS)}

    async def reply(values: Json) -> str:
        given = {name: value for name, value in values.items() if value is not None}
        chosen = given.pop("fields", None)
        if is_flat:
            nested = {
                part: {name: given.pop(name) for name in names if name in given}
                for part, names in parts.items()
            }
            whole = {name: given.pop(name, None) for name in ("kernel", "gpu")}
            given[EXPERIMENT] = {**whole, **nested}
        full = await endpoint.call(api, given)
        return json.dumps(shortened(orjson.loads(orjson.dumps(full)), chosen))

    launches = _LAUNCHES if endpoint.launches and is_flat else ""
    omitted = _KNOBS if is_flat else ""
    words = f"{endpoint.function.__doc__} {launches} {_HOW} {omitted}"
    # A launch takes a GPU's time, and its results are stored.
    hints = {
        "readOnlyHint": not endpoint.launches,
        "destructiveHint": False,
        "openWorldHint": False,
    }
    name = f"{_PREFIX}{endpoint.name}"
    _register(blocks, name, reply, " ".join(words.split()), arguments, hints)


def shortened(reply: Json, fields: Sequence[str] | None) -> Json:
    """Return a reply's requested fields; by default all fields except long ones, whose lengths it lists.

    >>> shortened({"programs": 4, "ptx": "x" * 20_000}, None)
    {'programs': 4, 'left_out': {'ptx': 20002}}
    >>> shortened({"programs": 4, "ptx": "add"}, ["ptx", "sass"])
    {'ptx': 'add', 'no_such_field': ['sass']}
    """
    if "failure" in reply:
        return dict(reply)
    if fields is not None:
        names = fields if isinstance(fields, list) else [str(fields)]
        unknown = [name for name in names if name not in reply]
        chosen = {name: reply[name] for name in names if name in reply}
        return {**chosen, "no_such_field": unknown} if unknown else chosen
    long = {
        name: length
        for name, value in reply.items()
        if (length := len(json.dumps(value))) > LONGEST_FIELD
    }
    short = {name: value for name, value in reply.items() if name not in long}
    return {**short, "left_out": long} if long else short
