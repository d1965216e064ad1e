"""The command `tilescope`, also `python -m tilescope`. A command's module is imported only when it runs."""

import sys
from collections.abc import Sequence
from importlib import import_module

from tilescope import __version__
from tilescope.cli.command import USAGE, CommandFailed, load_page, missing_page, run_command
from tilescope.processes import FOLDER

HELP = """\
usage: tilescope [COMMAND] [ARGUMENTS]

  show    run a script, and show the memory requests of every Triton launch in it
  serve   serve the page of Tilescope's own kernels (the default)
  tune    find the fastest configs of a kernel for many problems
  doctor  find what does not work on this machine

`tilescope COMMAND --help` lists a command's arguments; `tilescope --version` prints the version."""
COMMANDS = ("show", "serve", "tune", "doctor")


def main() -> None:
    sys.path.insert(0, str(FOLDER))
    sys.exit(run_command(run, sys.argv[1:]))


def run(arguments: Sequence[str]) -> None:
    """Run the command that the first argument names.

    Raises:
        CommandFailed: the command failed, or does not exist.
    """
    if arguments[:1] in (["-h"], ["--help"]):
        print(HELP)
        return
    if arguments[:1] == ["--version"]:
        print(f"tilescope {__version__}")
        return
    command = "serve"
    rest = list(arguments)
    if rest and not rest[0].startswith("-"):
        command = rest.pop(0)
        if command == "sweep":  # its earlier name
            command = "tune"
    elif "--doctor" in rest:
        command = "doctor"
        rest.remove("--doctor")
    if command not in COMMANDS:
        allowed = ", ".join(COMMANDS)
        raise CommandFailed(f"The command must be one of {allowed} (got {command!r}).", USAGE)
    if command == "serve" and (missing := missing_page()):
        raise CommandFailed(missing, USAGE)
    page = command == "serve"
    module = load_page("commands") if page else import_module(f"tilescope.cli.{command}")
    getattr(module, command)(rest)


if __name__ == "__main__":
    main()
