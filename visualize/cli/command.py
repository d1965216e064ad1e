"""Exit statuses of the commands, and the error that carries one."""

import sys
from collections.abc import Callable

# Exit statuses.
FINE = 0
FAILED = GREW = 1
USAGE = 2
INTERRUPTED = 130


class CommandFailed(Exception):
    """Ends a command. The message goes to stderr.

    Attributes:
        status: the exit status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def run_command(command: Callable[..., None], *arguments: object) -> int:
    """Run a command, and return its exit status."""
    try:
        command(*arguments)
    except CommandFailed as error:
        print(error, file=sys.stderr)
        return error.status
    return FINE
