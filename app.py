"""Tilescope: what does my Triton kernel really do? Runs one of the commands; without one, serves the page.

Worker processes import this file again under another name, so each command is imported only where it runs.
"""

from __future__ import annotations

import sys
from importlib import import_module

from visualize.cli.command import run_command

COMMANDS = ("show", "serve", "sweep", "doctor")


def main() -> None:
    arguments = sys.argv[1:]
    command = "serve"
    if arguments and arguments[0] in COMMANDS:
        command = arguments.pop(0)
    elif "--doctor" in arguments:
        arguments.remove("--doctor")
        command = "doctor"
    module = import_module(f"visualize.cli.{command}")
    sys.exit(run_command(getattr(module, command), arguments))


if __name__ == "__main__":
    main()
