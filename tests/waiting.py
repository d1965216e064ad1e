"""Wait for another thread, process, server or event loop."""

import asyncio
import socket
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")

# Only what hangs reaches this limit, in seconds: machines may be slow, or busy with other work.
PATIENCE_S = 240.0


def until(condition, timeout_s=PATIENCE_S):
    """Call `condition` until it returns a true value, and return that value.

    Raises:
        AssertionError: the condition is still false after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"the condition was still false after {timeout_s:g} s"
        time.sleep(0.02)
    return value


def run_coroutine(coroutine, timeout_s=PATIENCE_S):
    """Return a coroutine's result. After browser tests, the main thread already has a running loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(coroutine)).result(timeout_s)


def free_port():
    """Return a port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(command, url, log, **options):
    """Run a server. Yield its process and its first reply for a URL, and end the process afterwards.

    Args:
        log: the file that gets the server's output.
        options: those of Popen.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, **options)

    def reply():
        assert process.poll() is None, (
            f"the server ended with {process.returncode}:\n{log.read_text()}"
        )
        with suppress(OSError), urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return bytes(answer.read())
        return b""

    try:
        yield process, until(reply)
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
