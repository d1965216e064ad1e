"""What the commands share: exit statuses, the error that carries one, and the import of the page's packages."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from visualize.startup import quick_import

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


@contextmanager
def import_page() -> Iterator[None]:
    """Import modules that need Gradio, Plotly and pandas, which are not installed for `show --text`.

    Raises:
        CommandFailed: one of the page's packages is missing.
    """
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    try:
        with quick_import():
            yield
    except ModuleNotFoundError as error:
        reason = f'This needs the package {error.name}: pip install "tilescope[page]"'
        raise CommandFailed(reason, USAGE) from error
