"""Flags for the address to listen on, and a check that a server can listen there."""

import argparse
import errno
import os
import re
import socket
from collections.abc import Callable


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
