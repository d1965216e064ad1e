"""Tilescope: what does my Triton kernel really do? Flags, page, launch; or a command for the terminal.

Worker processes import this file again under another name, so the page is imported only where it is served.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys

from visualize import startup
from visualize.cli.command import run_command


def main() -> None:
    if sys.argv[1:2] == ["sweep"]:
        from visualize.cli.sweep import sweep

        sys.exit(run_command(sweep, sys.argv[2:]))
    if sys.argv[1:2] == ["show"]:
        from visualize.cli.show import show

        sys.exit(run_command(show, sys.argv[2:]))
    # A Space's visitors come from outside its container.
    host = os.environ.get(
        "GRADIO_SERVER_NAME", "0.0.0.0" if "SPACE_ID" in os.environ else "127.0.0.1"
    )
    port = os.environ.get("GRADIO_SERVER_PORT", "7860")
    parser = argparse.ArgumentParser(
        description="Serve the Tilescope playground.",
        epilog="`app.py sweep --help`: find the fastest config of a kernel. `app.py show --help`: count the memory "
        "requests of a script's Triton kernels.",
    )
    parser.add_argument("--host", default=host, help=f"address to listen on ({host})")
    parser.add_argument(
        "--port",
        type=startup.whole_number(1, 65535),
        default=port,
        help=f"port to listen on ({port})",
    )
    is_mcp = os.environ.get("GRADIO_MCP_SERVER", "").lower() == "true"
    parser.add_argument(
        "--mcp", action="store_true", default=is_mcp, help="serve tools for agents, over MCP"
    )
    parser.add_argument(
        "--doctor", action="store_true", help="try out what works on this machine, and end"
    )
    flags = parser.parse_args()
    if flags.doctor:
        from kernels.gpus import this_gpu
        from visualize.cli.doctor import doctor, run_checks

        sys.exit(run_command(doctor, run_checks(flags.host, flags.port, this_gpu())))
    if flags.mcp and importlib.util.find_spec("mcp") is None:
        parser.exit(
            2, "The MCP server needs the package mcp: pip install -r requirements-mcp.txt\n"
        )
    if obstacle := startup.obstacle(flags.host, flags.port):
        parser.exit(2, f"{obstacle}\n")
    try:
        login = startup.login()
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    if login and flags.mcp:
        parser.exit(
            2, f"With {startup.AUTH}, agents have no way to log in: leave --mcp or the login out.\n"
        )

    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    with startup.quick_import():
        from visualize.web.serve import serve

    serve(flags.host, flags.port, mcp=flags.mcp, login=login)


if __name__ == "__main__":
    main()
