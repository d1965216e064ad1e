"""MCP tools: the endpoints in a form that suits agents.

An endpoint takes a nested experiment and returns every field of the reply. A tool takes the experiment's fields as
separate arguments. It returns JSON text, because Gradio sends MCP clients the `str` of a result. It omits long fields,
such as PTX or the tiles of 8,192 programs, unless the client requests them.

Agents read the schemas of all tools at once, and MCP tools share no definitions. So each schema has only the types and
bounds of the arguments, and one tool, `kernels`, explains them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernels import discover
from kernels.experiment import JsonSchema, gpu_schema, kernel_schema, merged_fields
from kernels.gpus import Gpu
from kernels.knobs import knobs
from visualize.views.panel import EXPERIMENT, Endpoint, reply_safely

if TYPE_CHECKING:
    from gradio.mcp import GradioMCPServer

# Maximum characters of a field's JSON, about 2,000 tokens. Operations, bounds and checks are shorter.
LONGEST_FIELD = 8_000

# Tools are also endpoints of the API, where their names have this prefix.
_PREFIX = "mcp_"

_FIELDS: JsonSchema = {
    "type": "array",
    "items": {"type": "string"},
    "description": "Reply fields to return. Default: all but long ones (see `left_out`).",
}
# If an experiment only narrows a reply, it stays one argument.
_OPTIONAL: JsonSchema = {
    "type": "object",
    "description": 'Only of this experiment: {"kernel", "problem", "config", "run"}, with the fields that `run` takes.',
}
_WHOLE: JsonSchema = {
    "type": "object",
    "description": 'The launch: {"kernel", "problem", "config", "gpu"}, with the fields that `compile` takes.',
}
_HOW = "The reply is JSON. `failure` says what was wrong and what is allowed."
_KNOBS = (
    "Arguments that are left out take the kernel's default; `kernels` says what each means, and which kernels have it."
)


def create_tools(endpoints: Sequence[Endpoint], device: Gpu | None) -> list[Endpoint]:
    """Return a tool for each endpoint, and one that lists the kernels. Their names begin with "mcp_".

    Args:
        device: this machine's GPU, or None.
    """

    def kernels() -> dict[str, Any]:
        """Lists the kernels: what each shows, the default of each argument, and presets worth a look.

        `arguments` says what each argument of the other tools means. Also the names of the GPUs that predictions can
        be for, and this machine's GPU (null: predictions and recorded results only).
        """
        return {
            "kernels": [
                {
                    "id": kernel.id,
                    "title": kernel.title,
                    "claim": kernel.headline,
                    "defaults": {
                        name: knob.default for name, knob in {**kernel.problem_knobs(), **knobs(kernel.config)}.items()
                    },
                    "presets": {preset.title: {**preset.problem, **preset.config} for preset in kernel.presets},
                }
                for kernel in discover().values()
            ],
            "arguments": {name: schema["description"] for name, schema in _flat_schemas(_parts(launches=True)).items()},
            "gpus": gpu_schema()["enum"],
            "device": device and device.name,
        }

    return [_tool(endpoint) for endpoint in (Endpoint("kernels", kernels), *endpoints)]


def offer_tools_alone(server: GradioMCPServer) -> None:
    """Remove endpoints from a running MCP server, and remove the prefix from the tools' names.

    Gradio offers every public endpoint, and on a Space prefixes each name with the Space's. It also adds an empty
    description to each argument without one, a tenth of the text that an agent reads.
    """
    describe = server.get_fn_description

    def describe_briefly(*event: Any) -> tuple[str, dict[str, str]]:
        description, arguments = describe(*event)
        return description, {name: text for name, text in arguments.items() if text}

    server.get_fn_description = describe_briefly  # type: ignore[assignment, method-assign]
    offered = [endpoint for endpoint in server.tool_to_endpoint.values() if endpoint.startswith(f"/{_PREFIX}")]
    server.tool_to_endpoint = {
        server.tool_prefix + endpoint.removeprefix(f"/{_PREFIX}"): endpoint for endpoint in offered
    }


def _parts(launches: bool) -> dict[str, dict[str, JsonSchema]]:
    """Return the schemas of an experiment's fields by part. Only a launch depends on the part "run"."""
    return {part: fields for part, fields in merged_fields(discover()).items() if launches or part != "run"}


def _flat_schemas(parts: Mapping[str, Mapping[str, JsonSchema]]) -> dict[str, JsonSchema]:
    flat = {name: schema for fields in parts.values() for name, schema in fields.items()}
    return {"kernel": kernel_schema(discover()), **flat, "gpu": gpu_schema()}


def _tool(endpoint: Endpoint) -> Endpoint:
    parameters = inspect.signature(endpoint.function).parameters
    needs_experiment = EXPERIMENT in parameters and parameters[EXPERIMENT].default is inspect.Parameter.empty
    is_flat = needs_experiment and endpoint.is_flat
    parts = _parts(endpoint.launches) if is_flat else {}
    flat = _flat_schemas(parts) if is_flat else {}
    own = [name for name in parameters if not (is_flat and name == EXPERIMENT)]
    described = {EXPERIMENT: _WHOLE if needs_experiment else _OPTIONAL, **endpoint.schemas}
    schemas: dict[str, JsonSchema] = {
        **{name: {key: value for key, value in flat[name].items() if key != "description"} for name in flat},
        **{name: described.get(name, {}) for name in own},
        "fields": _FIELDS,
    }

    async def tool(*values: Any) -> str:
        given = {name: value for name, value in zip(schemas, values, strict=True) if value is not None}
        arguments = {name: given[name] for name in own if name in given}
        if is_flat:
            experiment: dict[str, Any] = {name: given[name] for name in ("kernel", "gpu") if name in given}
            for part, fields in parts.items():
                experiment[part] = {name: given[name] for name in fields if name in given}
            arguments[EXPERIMENT] = experiment
        reply = await reply_safely(endpoint.function)(**arguments)
        return json.dumps(shortened(reply, given.get("fields")))

    # The signature and the docstring that Gradio needs for an MCP tool.
    defaults = {"kernel": inspect.Parameter.empty, **{name: parameters[name].default for name in own}}
    tool.__name__ = endpoint.name
    tool.__annotations__ = {**dict.fromkeys(schemas, Any), "return": str}
    tool.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=defaults.get(name))
            for name in schemas
        ],
        return_annotation=str,
    )
    about = (inspect.getdoc(endpoint.function) or "").partition("\n\nArgs:")[0]
    tool.__doc__ = " ".join([*about.split(), _HOW, *([_KNOBS] if is_flat else [])]) + "\n\nArgs:"
    for name, schema in schemas.items():
        if "description" in schema:
            tool.__doc__ += f"\n    {name}: {schema['description']}"
    return Endpoint(f"{_PREFIX}{endpoint.name}", tool, endpoint.max_concurrency, schemas=schemas)


def shortened(reply: Mapping[str, Any], fields: Sequence[str] | None) -> dict[str, Any]:
    """Return a reply's requested fields; by default all fields except long ones, whose lengths it lists.

    >>> shortened({"programs": 4, "ptx": "x" * 20_000}, None)
    {'programs': 4, 'left_out': {'ptx': 20002}}
    >>> shortened({"programs": 4, "ptx": "add"}, ["ptx", "sass"])
    {'ptx': 'add', 'no_such_field': ['sass']}
    """
    if "failure" in reply:
        return dict(reply)
    if fields is not None:
        unknown = [name for name in fields if name not in reply]
        chosen = {name: reply[name] for name in fields if name in reply}
        return {**chosen, "no_such_field": unknown} if unknown else chosen
    lengths = {name: len(json.dumps(value)) for name, value in reply.items()}
    long = {name: length for name, length in lengths.items() if length > LONGEST_FIELD}
    short = {name: value for name, value in reply.items() if name not in long}
    return {**short, "left_out": long} if long else short
