"""Commands that serve the page: `tilescope serve`, and `tilescope show` without an output. Gradio is imported late."""

import argparse
import gc
import importlib.util
import inspect
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tilescope.cli.command import USAGE, CommandFailed, address_parser, obstacle

# Environment variable with a user name and a password.
AUTH = "TILESCOPE_AUTH"


def read_login() -> tuple[str, str] | None:
    """Return the user name and password that visitors need; None if they need none.

    Raises:
        CommandFailed: the variable is not name:password. The message omits its value.
    """
    value = os.environ.get(AUTH, "")
    if not value:
        return None
    name, _, password = value.partition(":")
    if not (name and password):
        form = f"a name and a password with a colon between them: {AUTH}=name:password."
        raise CommandFailed(f"{AUTH} must be {form}", USAGE)
    return name, password


@contextmanager
def quick_import() -> Iterator[None]:
    """Import Gradio faster: send no analytics, write no stubs of its components, and collect no garbage.

    Gradio 6.31 parses the source of each component class to write a `.pyi` file beside it, a third of its import time.
    Only editors read such stubs, and two processes may write one at the same time. Imported objects stay, so the
    garbage collector, a tenth of the remaining time, would find nothing.
    """
    file_of = inspect.getfile

    def getfile(thing: Any) -> str:
        # If a component class has no source file, Gradio's metaclass writes no stub.
        if type(thing).__name__ == "ComponentMeta":
            raise OSError("This component gets no stub.")
        return file_of(thing)

    inspect.getfile = getfile  # type: ignore[assignment]
    gc.disable()
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    try:
        yield
    finally:
        inspect.getfile = file_of
        gc.freeze()
        gc.enable()


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
    login = read_login()
    if login and flags.mcp:
        raise CommandFailed(
            f"With {AUTH}, agents have no way to log in: omit --mcp or the login.",
            USAGE,
        )
    with quick_import():
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
    with quick_import():
        from visualize.web.scripts import Script, Scripts, script_name, shipped_scripts
        from visualize.web.serve import serve as serve_page

    script = Script(path, flags.script, *process)
    script.launches.report()  # so that no page waits for it
    name = script_name(flags.script)
    shipped = shipped_scripts(*process).items()
    scripts = {name: script} | {other: each for other, each in shipped if other != name}
    serve_page(flags.host, flags.port, flags.mcp, scripts=Scripts(scripts, name))
