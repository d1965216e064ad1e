"""`tilescope serve`: serve the page."""

import argparse
import importlib.util
import os
from collections.abc import Sequence

from visualize import startup
from visualize.cli.command import USAGE, CommandFailed


def make_parser(command: str) -> argparse.ArgumentParser:
    """Return a parser of the address to listen on."""
    # A Space's visitors come from outside its container.
    host = os.environ.get(
        "GRADIO_SERVER_NAME", "0.0.0.0" if "SPACE_ID" in os.environ else "127.0.0.1"
    )
    port = os.environ.get("GRADIO_SERVER_PORT", "7860")
    parser = argparse.ArgumentParser(prog=f"tilescope {command}")
    parser.add_argument("--host", default=host, help=f"address to listen on ({host})")
    parser.add_argument(
        "--port",
        type=startup.whole_number(1, 65535),
        default=port,
        help=f"port to listen on ({port})",
    )
    return parser


def serve(arguments: Sequence[str]) -> None:
    """Serve the page until the process is interrupted.

    Raises:
        CommandFailed: the page can't be served as the arguments say.
    """
    parser = make_parser("serve")
    parser.description = (
        "Serve the playground: Tilescope's own kernels, and the captures of the examples."
    )
    is_mcp = os.environ.get("GRADIO_MCP_SERVER", "").lower() == "true"
    parser.add_argument(
        "--mcp", action="store_true", default=is_mcp, help="serve tools for agents, over MCP"
    )
    flags = parser.parse_args(arguments)
    if flags.mcp and importlib.util.find_spec("mcp") is None:
        raise CommandFailed(
            'The MCP server needs the package mcp: pip install "tilescope[mcp]"', USAGE
        )
    if obstacle := startup.obstacle(flags.host, flags.port):
        raise CommandFailed(obstacle, USAGE)
    try:
        login = startup.login()
    except ValueError as error:
        raise CommandFailed(str(error), USAGE) from error
    if login and flags.mcp:
        raise CommandFailed(
            f"With {startup.AUTH}, agents have no way to log in: omit --mcp or the login.",
            USAGE,
        )
    with startup.quick_import():
        from visualize.web.scripts import Scripts, shipped_scripts
        from visualize.web.serve import serve as serve_page

    scripts = Scripts(shipped_scripts())
    serve_page(flags.host, flags.port, mcp=flags.mcp, login=login, scripts=scripts)
