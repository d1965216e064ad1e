"""The commands that serve the page: `tilescope serve`, and `tilescope show` without an output."""

import argparse
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilescope.cli.command import USAGE, CommandFailed, address_parser, obstacle
from visualize import startup


def serve(arguments: Sequence[str]) -> None:
    """Serve the page until the process is interrupted.

    Raises:
        CommandFailed: the page can't be served with these arguments.
    """
    parser = address_parser("serve")
    parser.description = (
        "Serve the playground: Tilescope's own kernels, and the captures of the examples."
    )
    is_mcp = os.environ.get("GRADIO_MCP_SERVER", "").lower() == "true"
    parser.add_argument(
        "--mcp", action="store_true", default=is_mcp, help="serve tools for agents over MCP"
    )
    flags = parser.parse_args(arguments)
    if flags.mcp and importlib.util.find_spec("mcp") is None:
        raise CommandFailed(
            'The MCP server needs the package mcp: pip install "tilescope[mcp]"', USAGE
        )
    if problem := obstacle(flags.host, flags.port):
        raise CommandFailed(problem, USAGE)
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


def serve_script(path: Path, flags: argparse.Namespace, *process: Any) -> None:
    """Serve the page with a script.

    Args:
        path: the script's capture.
        flags: the flags of `tilescope show`.
        process: recaptures scripts, and compiles their kernels: see `Script`. Empty without an interpreter.
    """
    with startup.quick_import():
        from visualize.web.scripts import Script, Scripts, script_name, shipped_scripts
        from visualize.web.serve import serve as serve_page

    script = Script(path, flags.script, *process)
    script.launches.report()  # so that no page waits for it
    name = script_name(flags.script)
    shipped = shipped_scripts(*process).items()
    scripts = {name: script} | {other: each for other, each in shipped if other != name}
    serve_page(flags.host, flags.port, flags.mcp, scripts=Scripts(scripts, name))
