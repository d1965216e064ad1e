"""Shared by all commands: exit statuses, the error that carries an exit status, and the page's packages."""

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

# Exit statuses.
FINE = 0
FAILED = GREW = 1
USAGE = 2
INTERRUPTED = 130
BROKEN_PIPE = 141  # as a shell reports a process that SIGPIPE ended

# Addresses that only this machine can reach
LOOPBACK = ("127.0.0.1", "::1", "localhost")

# The packages of the page, which `show --text` does not need.
PAGE = ("gradio", "pandas", "plotly", "segno")


# Characters that control a terminal or reorder its text. Reports quote other people's files.
_CONTROLS = re.compile(r"[^\n\t -~\xa0-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\U0010ffff]")


class _Printable:
    """A stream that drops control characters. Scripts' output bypasses it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_CONTROLS.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class CommandFailed(Exception):
    """Ends a command. The message goes to stderr, unless it is empty.

    Attributes:
        status: the exit status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def run_command(command: Callable[..., None], *arguments: object) -> int:
    """Run a command, and return its exit status."""
    status: Any = FINE
    # A stream is None if the shell closed it: `>&-`.
    out: Any = sys.stdout and _Printable(sys.stdout)
    errors: Any = sys.stderr and _Printable(sys.stderr)
    try:
        with redirect_stdout(out), redirect_stderr(errors):
            try:
                command(*arguments)
            except CommandFailed as error:
                status = error.status
                if str(error):
                    print(error, file=sys.stderr)
            except SystemExit as ended:  # raised by argparse
                status = ended.code
            print(end="", flush=True)
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        status = BROKEN_PIPE  # `head` has closed the pipe
        if not isinstance(error, BrokenPipeError):
            status = USAGE
            print(f"{error.filename or 'stdout'}: {error.strerror}.", file=sys.stderr)
        if error.filename is None:  # Python flushes stdout again when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


def missing_page() -> str:
    """Return what to install for the page; "" if its packages are installed."""
    missing = ", ".join(name for name in PAGE if importlib.util.find_spec(name) is None)
    return f'This command needs {missing}: pip install "tilescope[page]"' if missing else ""


def load_page(module: str) -> Any:
    """Import a module of the page. Nothing else in this package may, because the instrument works without the page."""
    return importlib.import_module(f"visualize.{module}")
