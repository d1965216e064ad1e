"""An agent without a language model: given only the address of a page, it finds a better GROUP_SIZE over MCP.

    tilescope serve --mcp
    python scripts/mcp_client.py [http://127.0.0.1:7860]

It lists the tools and reads their schemas to find the one that takes GROUP_SIZE and predicts DRAM reads. It calls this
tool for a 4096 × 8192 × 8192 matmul with the default, takes the GROUP_SIZE that reads the fewest bytes, and calls it
again to confirm. Exits with 1 if it finds nothing better. Needs the package mcp (`tilescope[mcp]`).
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client

KNOB, METRIC = "GROUP_SIZE", "dram_read_bytes"
PROBLEM = {"kernel": "matmul.grouped", "M": 4096, "N": 8192, "K": 8192}


async def call_tool(session: ClientSession, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's reply; exit with its message if it fails."""
    result = await session.call_tool(tool, arguments)
    (content,) = result.content
    if result.isError or not isinstance(content, types.TextContent):
        sys.exit(f"{tool}: {content}")
    reply = json.loads(content.text)
    if "failure" in reply:
        sys.exit(f"{tool}: {reply['failure']['message']}")
    return reply


def choose_tool(tools: list[types.Tool]) -> types.Tool:
    """Return the tool that takes the knob and whose description names the metric."""
    matching = [
        tool
        for tool in tools
        if KNOB in tool.inputSchema["properties"] and METRIC in (tool.description or "")
    ]
    if len(matching) != 1:
        sys.exit(
            f"{len(matching)} tools take {KNOB} and reply with {METRIC}; exactly one is expected."
        )
    return matching[0]


async def search(url: str) -> bool:
    """Print each step; return whether a better GROUP_SIZE was found."""
    async with (
        streamable_http_client(f"{url.rstrip('/')}/gradio_api/mcp/") as (read, write, *_),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        tools = (await session.list_tools()).tools
        print(f"{len(tools)} tools: {', '.join(tool.name for tool in tools)}")

        tool = choose_tool(tools)
        allowed = tool.inputSchema["properties"][KNOB]
        print(f"{tool.name} takes {KNOB} from {allowed['minimum']} to {allowed['maximum']}")

        before = await call_tool(session, tool.name, PROBLEM)
        default = before["experiment"]["config"][KNOB]
        reads = {int(size): count for size, count in before["by_group_size"].items()}
        best = min(reads, key=reads.__getitem__)
        after = await call_tool(session, tool.name, {**PROBLEM, KNOB: best})

    for size, reply in ((default, before), (best, after)):
        print(f"{KNOB} {size}: {reply[METRIC]} bytes read from DRAM, predicted for {reply['gpu']}")
    print(
        f"{before[METRIC] / after[METRIC]:.2f} × fewer bytes; at least {after['compulsory_bytes']} must be read"
    )
    print(
        f"The tool recommends {KNOB} {before['recommended_group_size']}, which also weighs L2 lookups"
    )
    return best != default and after[METRIC] < before[METRIC]


if __name__ == "__main__":
    sys.exit(not asyncio.run(search(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:7860")))
