"""The page's host, port, proxy and login, checked before Gradio is imported. Standard library only."""

from __future__ import annotations

import argparse
import errno
import os
import socket

MAX_PORT = 65535

# The variable with a user name and a password.
AUTH = "TILESCOPE_AUTH"


def port(text: str) -> int:
    """Parse a port.

    Raises:
        argparse.ArgumentTypeError: it is not a whole number from 1 to MAX_PORT.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MAX_PORT)) and 0 < int(text) <= MAX_PORT):
        raise argparse.ArgumentTypeError(f"the port must be a whole number from 1 to {MAX_PORT} (got {text[:100]!r})")
    return int(text)


def ask_itself_directly(host: str) -> None:
    """Exclude this page from the environment's proxy. Gradio requests its own URL at start-up, and exits on failure."""
    names = ("no_proxy", "NO_PROXY")
    hosts = [part.strip() for name in names for part in os.environ.get(name, "").split(",") if part.strip()]
    for name in names:  # if both are set, only the first is read
        os.environ[name] = ",".join(dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1", host]))


def login() -> tuple[str, str] | None:
    """Return the user name and password that visitors need; None if they need none.

    Raises:
        ValueError: the variable is not such a pair. The message does not repeat it.
    """
    value = os.environ.get(AUTH, "")
    if not value:
        return None
    name, colon, password = value.partition(":")
    if not (name and colon and password):
        raise ValueError(f"{AUTH} must be a name and a password with a colon between them: {AUTH}=name:password.")
    return name, password


def obstacle(host: str, port: int) -> str:
    """Say why nothing can listen on host:port; return "" if it can."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (socket.gaierror, UnicodeError):
        return f"--host must be an address of this machine, or 0.0.0.0 to serve other machines (got {host[:100]!r})."
    except PermissionError:
        return f"Port {port} is reserved for the system; choose one above 1023 with --port."
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"Port {port} of {host} is in use; choose another with --port."
        return f"Nothing can listen on {host}, port {port}: {error.strerror}."
    return ""
