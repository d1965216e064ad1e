"""Tilescope: what does my Triton kernel really do? Runs one of the commands; without one, serves the page.

Worker processes import this file again under another name, so each command is imported only where it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

if sys.flags.safe_path:  # Python has left out this file's folder
    sys.path.insert(0, str(Path(__file__).parent))

from visualize.cli.command import USAGE, CommandFailed, missing_page, run_command

VERSION = "0.1.0"
HELP = """\
usage: tilescope [COMMAND] [ARGUMENTS]

  show    run a script, and show the memory requests of every Triton launch in it
  serve   serve the page of Tilescope's own kernels (the default)
  sweep   find the fastest config of one of these kernels
  doctor  check what works on this machine

`tilescope COMMAND --help` lists a command's arguments; `tilescope --version` prints the version."""
COMMANDS = ("show", "serve", "sweep", "doctor")


def main() -> None:
    sys.exit(run_command(run, sys.argv[1:]))


def run(arguments: Sequence[str]) -> None:
    """Run the command that the arguments begin with.

    Raises:
        CommandFailed: it failed, or there is no such command.
    """
    if arguments[:1] in (["-h"], ["--help"]):
        print(HELP)
        return
    if arguments[:1] == ["--version"]:
        print(f"tilescope {VERSION}")
        return
    command = "serve"
    rest = list(arguments)
    if rest and not rest[0].startswith("-"):
        command = rest.pop(0)
    elif "--doctor" in rest:
        command = "doctor"
        rest.remove("--doctor")
    if command not in COMMANDS:
        allowed = ", ".join(COMMANDS)
        raise CommandFailed(f"The command must be one of {allowed} (got {command!r}).", USAGE)
    if command in ("serve", "sweep") and (missing := missing_page()):
        raise CommandFailed(missing, USAGE)
    getattr(import_module(f"visualize.cli.{command}"), command)(rest)


if __name__ == "__main__":
    main()
