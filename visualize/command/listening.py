"""Whether a page can listen where it is told to: found out before Gradio is imported. Standard library only."""

from __future__ import annotations

import argparse
import errno
import os
import socket

MOST = 65535


def port(text: str) -> int:
    """A port, as a flag or the environment gives it.

    Raises:
        argparse.ArgumentTypeError: for what is none.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(MOST)) and 0 < int(text) <= MOST):
        raise argparse.ArgumentTypeError(f"the port must be a whole number from 1 to {MOST} (got {text[:100]!r})")
    return int(text)


def ask_itself_directly(host: str) -> None:
    """Except this page from the proxy of the environment: Gradio requests its own URL at start-up, and else exits."""
    names = ("no_proxy", "NO_PROXY")
    excepted = [one.strip() for name in names for one in os.environ.get(name, "").split(",") if one.strip()]
    for name in names:  # the same in both, as the first alone is read where there are two
        os.environ[name] = ",".join(dict.fromkeys([*excepted, "localhost", "127.0.0.1", "::1", host]))


# Variable with the name and password that a visitor must give.
AUTH = "TILESCOPE_AUTH"


def login() -> tuple[str, str] | None:
    """Name and password that a visitor must give; None where anybody may use the page.

    Raises:
        ValueError: for a variable that is no such pair, which is not repeated.
    """
    given = os.environ.get(AUTH, "")
    if not given:
        return None
    name, colon, password = given.partition(":")
    if not (name and colon and password):
        raise ValueError(f"{AUTH} must be a name and a password with a colon between them: {AUTH}=name:password.")
    return name, password


def obstacle(host: str, port: int) -> str:
    """Why nothing can listen on host:port, a sentence; "" where it can."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (socket.gaierror, UnicodeError):
        return f"The host is {host[:100]!r}, which has no address; 127.0.0.1 is this machine's own, 0.0.0.0 all of its."
    except PermissionError:
        return f"Port {port} is reserved for the system; choose one above 1023 with --port."
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"Port {port} of {host} is in use; choose another with --port."
        return f"Nothing can listen on {host}, port {port}: {error.strerror}."
    return ""
