"""Shared by all commands: exit statuses, the error that carries one, the page's packages, and flags for the address."""

import argparse
import errno
import importlib
import importlib.util
import os
import re
import socket
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


def whole_number(low: int, high: int = 10**9) -> Callable[[str], int]:
    """Return an argparse type: a whole number from `low` to `high`."""

    def parse(text: str) -> int:
        if not (re.fullmatch("[0-9]{1,10}", text) and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(
                f"must be a whole number from {low} to {high} (got {text[:100]!r})"
            )
        return int(text)

    return parse


def address_parser(command: str) -> argparse.ArgumentParser:
    """Return a parser with the flags for the address to listen on."""
    # A Space's visitors come from outside its container.
    host = os.environ.get(
        "GRADIO_SERVER_NAME", "0.0.0.0" if "SPACE_ID" in os.environ else "127.0.0.1"
    )
    port = os.environ.get("GRADIO_SERVER_PORT", "7860")
    parser = argparse.ArgumentParser(prog=f"tilescope {command}")
    parser.add_argument("--host", default=host, help=f"address to listen on ({host})")
    parser.add_argument(
        "--port",
        type=whole_number(1, 65535),
        default=port,
        help=f"port to listen on ({port})",
    )
    return parser


def obstacle(host: str, port: int) -> str:
    """Return why a server cannot listen on host:port; "" if it can."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (socket.gaierror, UnicodeError):
        return f"--host must be an address of this machine, or 0.0.0.0 to serve other machines (got {host[:100]!r})."
    except PermissionError:
        return f"Port {port} is privileged; choose one above 1023 with --port."
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"Port {port} of {host} is in use; choose another with --port."
        return f"Cannot listen on {host}, port {port}: {error.strerror}."
    return ""
