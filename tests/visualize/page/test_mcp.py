"""MCP tools: enabled by a flag, and enough for an agent that knows only the address."""

import json
import re
import urllib.request

import pytest

from tests.trees import ROOT, python
from tests.waiting import run_coroutine
from tilescope.declare.discovery import discover

NAMES = {
    "kernels", "recommend", "run", "layouts", "schedule", "timeline", "reuse", "coalescing", "counters", "compile",
    "recorded", "history", "scoreboard", "script", "sweep", "trace", "requests",
}  # fmt: skip


async def ask(url, *calls):
    """Return the tools, and the replies to calls."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async with (
        streamable_http_client(f"{url}gradio_api/mcp/") as (read, write, *_),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        tools = (await session.list_tools()).tools
        return tools, [await session.call_tool(*call) for call in calls]


@pytest.fixture(scope="module")
def tools(app):
    return {tool.name: tool for tool in run_coroutine(ask(app.url))[0]}


def call(app, name, **arguments):
    """Return the reply of one tool."""
    _, (result,) = run_coroutine(ask(app.url, (name, arguments)))
    assert not result.isError, result.content
    return json.loads(result.content[0].text)


def test_an_agent_finds_a_better_group_size(app):
    done = python(ROOT, "scripts/mcp_client.py", app.url)
    assert done.returncode == 0, done.stdout + done.stderr
    default, better = map(
        int, re.findall(r"^GROUP_SIZE \d+: (\d+) bytes", done.stdout, re.MULTILINE)
    )
    assert better < default / 2.5
    documented = " ".join((ROOT / "docs" / "api.md").read_text().split())
    assert f"{default / better:.2f} × fewer bytes" in documented


def test_the_tools_are_the_endpoints_in_few_characters(app, tools):
    with urllib.request.urlopen(f"{app.url}gradio_api/mcp/schema") as answer:
        # Gradio's page shows the schema
        assert {tool["name"] for tool in json.load(answer)} == set(tools) == NAMES
    for tool in tools.values():
        assert len(tool.description) > 150
        if "kernel" in tool.inputSchema.get("required", []):
            assert (
                "Omitted arguments take the kernel's default; `kernels` says what each means"
                in tool.description
            )
    schema = tools["reuse"].inputSchema
    assert schema["required"] == ["kernel"]
    assert schema["properties"]["GROUP_SIZE"]["maximum"] == 1024
    assert ["seed" in tools[name].inputSchema["properties"] for name in ("reuse", "run")] == [
        False,
        True,
    ]
    # Every agent has the list in its context at every turn.
    assert sum(len(tool.model_dump_json(exclude_none=True)) for tool in tools.values()) < 35_500


def test_only_the_tool_kernels_explains_arguments(app, tools):
    """Tools share no definitions: an agent would read each explanation ten times."""
    reply = call(app, "kernels")
    assert [kernel["id"] for kernel in reply["kernels"]] == list(discover())
    assert reply["kernels"][2]["defaults"]["GROUP_SIZE"] == 4
    assert len(json.dumps(reply)) < 10_000
    # In these four, the kernel and the GPU filter a list, or the seed has another meaning.
    for name in NAMES - {"recorded", "scoreboard", "history", "sweep"}:
        arguments = tools[name].inputSchema["properties"]
        assert not any(
            "description" in arguments[each] for each in arguments if each in reply["arguments"]
        )


def test_long_fields_are_sent_on_request(app):
    reply = call(app, "compile", kernel="matmul.grouped")
    assert {"ttgir", "ptx", "sass"} == set(reply["left_out"])
    assert not {"ttgir", "ptx", "sass"} & set(reply)
    chosen = call(app, "compile", kernel="matmul.grouped", fields=["ptx", "nonsense"])
    assert set(chosen) == {"ptx", "no_such_field"}
    assert len(json.dumps(chosen["ptx"])) == reply["left_out"]["ptx"]


def test_arguments_reach_their_part_of_the_experiment_and_their_endpoint(app):
    reply = call(
        app,
        "schedule",
        kernel="matmul.grouped",
        M=576,
        N=576,
        K=288,
        BLOCK_N=64,
        GROUP_SIZE=3,
        gpu="T4",
    )
    assert reply["programs"] == 81
    assert reply["loads"][8] == 54
    assert reply["gpu"] == "T4"
    board = call(
        app, "coalescing", kernel="transpose.tiled", model="textbook", textbook={"warp_size": 4}
    )
    assert board["textbook"]["warp_size"] == 4
    recorded = call(app, "recorded", kernel="transpose.tiled", kind="timeline")["recorded"]
    assert {entry["experiment"]["kernel"] for entry in recorded} == {"transpose.tiled"}
    failure = call(app, "reuse", kernel="matmul.grid_2d", GROUP_SIZE=4)["failure"]
    assert failure["kind"] == "unknown_field"
    assert "GROUP_SIZE" in failure["message"]


@pytest.mark.parametrize(
    ("tool", "arguments", "error"),
    [
        ("reuse", {"kernel": "matmul.grouped", "GROUP_SIZE": "abc"}, "GROUP_SIZE must be a whole"),
        ("recommend", {"experiment": 3}, "experiment must be a JSON object"),
        ("schedule", {"M": 3}, "required argument: kernel"),
        ("layouts", {"kernel": "transpose.flat", "Z": 1}, "`Z` is not a valid"),
        ("coalescing", {"kernel": "transpose.flat", "fields": 7}, '"no_such_field": ["7"]'),
    ],
)
def test_an_error_names_the_argument(app, tool, arguments, error):
    _, (result,) = run_coroutine(ask(app.url, (tool, arguments)))
    assert error in result.content[0].text


def test_annotations_say_which_tools_only_read(tools):
    launching = {"run", "sweep", "layouts", "timeline", "trace", "counters"}
    assert {tool.name for tool in tools.values() if not tool.annotations.readOnlyHint} == launching
    for tool in tools.values():
        assert not tool.annotations.destructiveHint
        assert not tool.annotations.openWorldHint
        assert "minute" in tool.description or tool.name not in launching


def test_the_served_page_has_the_examples_and_runs_no_file(app, tmp_path):
    reply = call(app, "requests", script="softmax")
    assert reply["brief"].startswith("softmax.py:12 in softmax, load x (launch 0): ")
    assert reply["launches"][0]["totals"]["ld_sectors"] == 512_000
    script = tmp_path / "writes.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    message = call(app, "requests", script=str(script))["failure"]["message"]
    assert message.startswith("script must be one of vector_add, softmax, ")
    assert not (tmp_path / "ran").exists()


def test_without_the_package_the_app_ends_with_a_sentence(tmp_path, monkeypatch):
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'mcp' else found(name, *rest)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = python(ROOT, "app.py", "--mcp")
    assert done.returncode == 2
    assert done.stderr == 'The MCP server needs the package mcp: pip install "tilescope[mcp]"\n'
