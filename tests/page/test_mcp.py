"""Tools for agents over MCP: off by default, on by a flag, and enough for a client that knows only the address."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernels import discover
from kernels.knobs import knobs
from tests.page.conftest import ROOT, App, served

# They share an app of their own.
pytestmark = pytest.mark.xdist_group("mcp")

NAMES = {
    "kernels", "run", "layouts", "schedule", "timeline", "reuse", "coalescing", "counters", "compile", "recorded",
    "history", "scoreboard", "script", "sweep", "trace",
}  # fmt: skip


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory, tilescope_cache: Path) -> Iterator[App]:
    """An app that serves MCP."""
    if importlib.util.find_spec("mcp") is None:
        pytest.fail("This Python has no package mcp, so MCP was not tested: pip install -r requirements-dev.txt.")
    with served(tmp_path_factory.mktemp("mcp"), cache=tilescope_cache, flags=("--mcp",)) as running:
        yield running


def asked(url: str, *calls: tuple[str, dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """The tools, and the replies to calls; in a thread of its own, as Playwright keeps a loop in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(_asked(url, calls))).result()


async def _asked(url: str, calls: Sequence[tuple[str, dict[str, Any]]]) -> tuple[list[Any], list[Any]]:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async with (
        streamable_http_client(f"{url}gradio_api/mcp/") as (read, write, *_),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        listed = (await session.list_tools()).tools
        return listed, [await session.call_tool(*call) for call in calls]


@pytest.fixture(scope="module")
def tools(agents: App) -> dict[str, Any]:
    listed, _ = asked(agents.url)
    return {tool.name: tool for tool in listed}


def called(app: App, name: str, **arguments: Any) -> dict[str, Any]:
    """The reply of one tool."""
    _, (result,) = asked(app.url, (name, arguments))
    assert not result.isError, result.content
    return json.loads(result.content[0].text)


def test_a_client_finds_a_better_group_size_by_itself(agents: App) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/mcp_client.py", agents.url],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reads = [int(count) for count in re.findall(r"^GROUP_SIZE \d+: (\d+) bytes", done.stdout, re.MULTILINE)]
    assert len(reads) == 2
    ratio = f"{reads[0] / reads[1]:.2f} × fewer bytes"
    assert reads[1] < reads[0] / 2.5
    assert ratio in " ".join((ROOT / "docs" / "api.md").read_text(encoding="utf-8").split())


def test_the_tools_are_the_endpoints_and_nothing_else(agents: App, tools: dict[str, Any]) -> None:
    assert set(tools) == NAMES
    with urllib.request.urlopen(f"{agents.url}gradio_api/mcp/schema") as answer:
        assert {tool["name"] for tool in json.load(answer)} == NAMES  # what Gradio's page shows
    for tool in tools.values():
        assert len(tool.description) > 150
        if "kernel" in tool.inputSchema.get("required", []):
            assert "left out take the kernel's default; `kernels` says what each means" in tool.description


def test_every_knob_is_an_argument_with_what_it_allows(agents: App, tools: dict[str, Any]) -> None:
    meanings = called(agents, "kernels")["arguments"]
    schema = tools["reuse"].inputSchema
    assert schema["required"] == ["kernel"]
    assert schema["properties"]["kernel"]["enum"] == list(discover())
    for kernel in discover().values():
        for name, knob in {**kernel.problem_knobs(), **knobs(kernel.config)}.items():
            argument = schema["properties"][name]
            assert str(knob.default) in meanings[name].split("Default: ")[1]
            if knob.choices is None:
                assert argument["minimum"] <= knob.low < knob.high <= argument["maximum"]
            else:
                assert set(knob.choices) <= set(argument["enum"])
    assert schema["properties"]["num_warps"]["default"] == 4
    assert "seed" not in schema["properties"]
    assert "seed" in tools["run"].inputSchema["properties"]
    assert tools["coalescing"].inputSchema["properties"]["model"]["enum"] == ["compiled", "textbook"]


def test_an_agent_reads_the_list_of_tools_in_few_characters(tools: dict[str, Any]) -> None:
    """Every agent has it before it at every turn."""
    assert sum(len(tool.model_dump_json(exclude_none=True)) for tool in tools.values()) < 30_000


def test_long_fields_come_when_they_are_asked_for(agents: App) -> None:
    reply = called(agents, "compile", kernel="transpose.tiled")
    assert {"ttgir", "ptx", "sass"} == set(reply["left_out"])
    assert not {"ttgir", "ptx", "sass"} & set(reply)
    chosen = called(agents, "compile", kernel="transpose.tiled", fields=["ptx", "nonsense"])
    assert set(chosen) == {"ptx", "no_such_field"}
    assert len(json.dumps(chosen["ptx"])) == reply["left_out"]["ptx"]


def test_flat_arguments_reach_their_part_of_the_experiment(agents: App) -> None:
    reply = called(agents, "schedule", kernel="matmul.grouped", M=576, N=576, K=288, BLOCK_N=64, GROUP_SIZE=3, gpu="T4")
    assert (reply["programs"], reply["loads"][8], reply["gpu"]) == (81, 54, "T4")
    board = called(agents, "coalescing", kernel="transpose.tiled", model="textbook", textbook={"warp_size": 4})
    assert board["textbook"]["warp_size"] == 4


def test_a_tool_without_an_experiment_takes_its_own_arguments(agents: App) -> None:
    reply = called(agents, "recorded", kernel="transpose.tiled", kind="timeline")
    assert {entry["experiment"]["kernel"] for entry in reply["recorded"]} == {"transpose.tiled"}


def test_a_field_that_the_kernel_does_not_have_is_refused_in_a_sentence(agents: App) -> None:
    failure = called(agents, "reuse", kernel="matmul.grid_2d", GROUP_SIZE=4)["failure"]
    assert failure["kind"] == "unknown_field"
    assert "GROUP_SIZE" in failure["message"]


def test_what_an_argument_means_stands_in_one_tool(agents: App, tools: dict[str, Any]) -> None:
    """Tools share no definitions: what was said in each would be read ten times."""
    meanings = called(agents, "kernels")["arguments"]
    for tool in tools.values():
        typed = {name: one for name, one in tool.inputSchema["properties"].items() if name in meanings}
        # Those whose kernel and GPU choose what is listed, and the one whose seed is another.
        if tool.name not in ("recorded", "scoreboard", "history", "sweep"):
            assert not any("description" in one for one in typed.values())


def test_kernels_answers_in_short(agents: App) -> None:
    reply = called(agents, "kernels")
    assert [kernel["id"] for kernel in reply["kernels"]] == list(discover())
    assert reply["kernels"][2]["defaults"]["GROUP_SIZE"] == 4
    assert len(json.dumps(reply)) < 10_000


def test_mcp_is_off_unless_asked_for(app: App) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{app.url}gradio_api/mcp/schema")


def test_without_the_package_the_flag_ends_in_a_sentence(tmp_path: Path) -> None:
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import importlib.util\n"
        "found = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'mcp' else found(name, *rest)\n"
    )
    for flags, environment in ((["--mcp"], {}), ([], {"GRADIO_MCP_SERVER": "true"})):
        done = subprocess.run(
            [sys.executable, "app.py", *flags],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(tmp_path), **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 2
        assert done.stderr == "The MCP server needs the package mcp: pip install -r requirements-mcp.txt\n"
