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
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kernels.experiment import JsonSchema, gpu_schema, kernel_schema, merged_fields
from kernels.knobs import knobs
from kernels.measuring.session import Session
from kernels.spec import Kernel
from visualize.views.endpoint import EXPERIMENT, Endpoint, reply_safely

if TYPE_CHECKING:
    from gradio.mcp import GradioMCPServer

# Maximum characters of a field's JSON, about 2,000 tokens. Operations, bounds and checks are shorter.
LONGEST_FIELD = 8_000

# Tools are also endpoints of the API, where their names have this prefix.
_PREFIX = "mcp_"

_FIELDS: JsonSchema = {
    "type": "array",
    "items": {"type": "string"},
    "description": "Reply fields to return. Default: all but long ones, which `left_out` names.",
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
_HOW = "The reply is JSON; `failure` in it says what was wrong and what is allowed."
_KNOBS = (
    "Arguments that are left out take the kernel's default; `kernels` says what each means, and which kernels have it."
)


def tools(session: Session, endpoints: Sequence[Endpoint], kernels: Mapping[str, Kernel]) -> list[Endpoint]:
    """Return a tool for each endpoint, and one that lists the kernels. Their names begin with "mcp_"."""
    return [_kernels_tool(session, kernels), *(_tool(endpoint, kernels) for endpoint in endpoints)]


def offer_tools_alone(server: GradioMCPServer) -> None:
    """Remove endpoints from a running MCP server, and remove the prefix from the tools' names.

    Gradio offers every public endpoint, and on a Space prefixes each name with the Space's. It also adds an empty
    description to each argument without one, a tenth of the text that an agent reads.
    """
    described = server.get_fn_description

    def in_short(*of: Any) -> tuple[str, dict[str, str]]:
        description, arguments = described(*of)
        return description, {name: text for name, text in arguments.items() if text}

    server.get_fn_description = in_short  # type: ignore[assignment, method-assign]
    offered = [endpoint for endpoint in server.tool_to_endpoint.values() if endpoint.startswith(f"/{_PREFIX}")]
    server.tool_to_endpoint = {
        server.tool_prefix + endpoint.removeprefix(f"/{_PREFIX}"): endpoint for endpoint in offered
    }


def _tool(endpoint: Endpoint, kernels: Mapping[str, Kernel]) -> Endpoint:
    parameters = inspect.signature(endpoint.function).parameters
    is_of_one = EXPERIMENT in parameters and parameters[EXPERIMENT].default is inspect.Parameter.empty
    own = [name for name in parameters if name != EXPERIMENT or not (is_of_one and endpoint.is_flat)]
    fields = merged_fields(kernels) if is_of_one and endpoint.is_flat else {}
    as_object = _WHOLE if is_of_one else _OPTIONAL
    if not endpoint.launches:  # how it is launched makes no difference
        fields.pop("run", None)
    flat = {name: _unexplained(schema) for part in fields.values() for name, schema in part.items()}
    schemas: dict[str, JsonSchema] = {
        **(
            {"kernel": _unexplained(kernel_schema(kernels)), **flat, "gpu": _unexplained(gpu_schema())}
            if fields
            else {}
        ),
        **{name: endpoint.schemas.get(name, as_object if name == EXPERIMENT else {}) for name in own},
        "fields": _FIELDS,
    }

    async def tool(*values: Any) -> str:
        given = {name: value for name, value in zip(schemas, values, strict=True) if value is not None}
        passed = {name: given[name] for name in own if name in given}
        if fields:
            experiment: dict[str, Any] = {name: given[name] for name in ("kernel", "gpu") if name in given}
            for part, names in fields.items():
                experiment[part] = {name: given[name] for name in names if name in given}
            passed[EXPERIMENT] = experiment
        reply = await reply_safely(endpoint.function)(**passed)
        return json.dumps(shortened(reply, given.get("fields")))

    defaults = {"kernel": inspect.Parameter.empty, **{name: parameters[name].default for name in own}}
    about = f"{_description(endpoint.function)} {_HOW}" + (f" {_KNOBS}" if fields else "")
    typed = _typed(tool, endpoint.name, about, schemas, defaults)
    return Endpoint(f"{_PREFIX}{endpoint.name}", typed, endpoint.max_concurrency, schemas=schemas)


def _kernels_tool(session: Session, kernels: Mapping[str, Kernel]) -> Endpoint:
    async def tool() -> str:
        return json.dumps(kernels_in_short(session, kernels))

    about = (
        "Lists the kernels: what each shows, the default of each argument, and presets worth a look. `arguments` says"
        " what each argument of the other tools means. Also the names of the GPUs that predictions can be for, and this"
        " machine's GPU (null: predictions and recorded results only). The reply is JSON."
    )
    return Endpoint(f"{_PREFIX}kernels", _typed(tool, "kernels", about, {}, {}))


def kernels_in_short(session: Session, kernels: Mapping[str, Kernel]) -> dict[str, Any]:
    """Return the kernels and the meaning of their arguments. Each tool's schema has the allowed values."""
    declared = (field for part in merged_fields(kernels).values() for field in part.items())
    return {
        "kernels": [
            {
                "id": kernel.id,
                "title": kernel.title,
                "claim": kernel.headline,
                "defaults": {
                    name: knob.default for name, knob in {**kernel.problem_knobs(), **knobs(kernel.config)}.items()
                },
                "presets": {one.title: {**one.problem, **one.config} for one in kernel.presets},
            }
            for kernel in kernels.values()
        ],
        "arguments": {name: schema["description"] for name, schema in (*declared, ("gpu", gpu_schema()))},
        "gpus": gpu_schema()["enum"],
        "device": session.gpu and session.gpu.name,
    }


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


def _typed(
    function: Callable[..., Any],
    name: str,
    description: str,
    schemas: Mapping[str, JsonSchema],
    defaults: Mapping[str, object],
) -> Callable[..., Any]:
    """Give a function the signature and docstring that Gradio needs for an MCP tool."""
    parameters = [
        inspect.Parameter(
            parameter,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=defaults.get(parameter),
        )
        for parameter in schemas
    ]
    function.__name__ = name
    function.__annotations__ = {**dict.fromkeys(schemas, Any), "return": str}
    function.__signature__ = inspect.Signature(parameters, return_annotation=str)  # type: ignore[attr-defined]
    helps = "".join(
        f"\n    {name}: {schema['description']}" for name, schema in schemas.items() if "description" in schema
    )
    function.__doc__ = description + (f"\n\nArgs:{helps}" if helps else "")
    return function


def _unexplained(schema: JsonSchema) -> JsonSchema:
    return {name: value for name, value in schema.items() if name != "description"}


def _description(function: Callable[..., Any]) -> str:
    """Return an endpoint's docstring, without its arguments, in one line."""
    return " ".join((inspect.getdoc(function) or "").split("\n\nArgs:")[0].split())
