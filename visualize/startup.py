"""Prepare the page's process without importing Gradio: login, log, memory. Standard library only.

The log goes to stderr, one line per record: text or, with TILESCOPE_LOG=json, JSON. Each finished job is a record with
its id, stages and outcome in `fields`.
"""

import ctypes
import datetime
import gc
import inspect
import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

# Environment variables: a user name and a password, and the log format.
AUTH = "TILESCOPE_AUTH"
LOG_FORMAT = "TILESCOPE_LOG"

# Options of mallopt(3), <malloc.h>.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8


def bypass_proxy(host: str) -> None:
    """Exclude this page from the environment's proxy. Gradio requests its own URL at start-up, and exits on failure."""
    names = ("no_proxy", "NO_PROXY")
    parts = ",".join(os.environ.get(name, "") for name in names).split(",")
    hosts = filter(None, map(str.strip, parts))
    excluded = ",".join(dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1", host]))
    os.environ.update(dict.fromkeys(names, excluded))  # if both are set, only the first is read


def login() -> tuple[str, str] | None:
    """Return the user name and password that visitors need; None if they need none.

    Raises:
        ValueError: the variable is not name:password. The message omits its value.
    """
    value = os.environ.get(AUTH, "")
    if not value:
        return None
    name, _, password = value.partition(":")
    if not (name and password):
        raise ValueError(
            f"{AUTH} must be a name and a password with a colon between them: {AUTH}=name:password."
        )
    return name, password


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, logger, message, the record's `fields`, and a traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging() -> None:
    """Configure logging. Text logs contain only warnings and errors."""
    is_json = os.environ.get(LOG_FORMAT, "").strip().lower() == "json"
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(
        JsonLines() if is_json else logging.Formatter("%(levelname)s: %(name)s: %(message)s")
    )
    logger = logging.getLogger("tilescope")
    logger.handlers[:] = [stream]
    logger.propagate = False
    logger.setLevel(logging.INFO if is_json else logging.WARNING)


def return_large_arrays() -> None:
    """Make glibc return each large array to the system when it is freed, and keep the memory of smaller ones.

    By default, glibc raises its mmap threshold up to 32 MiB as large arrays are freed. The arrays of a large
    launch would then stay in the heap of the thread that drew it. A redraw of 512 × 512 tiles allocates dozens of
    arrays of 2 MiB. If glibc returned these, too, page faults would dominate the redraw.

    All threads share one arena. By default each has its own, which keeps the memory that it frees.
    """
    with suppress(
        AttributeError, TypeError
    ):  # musl and macOS have no mallopt, and Windows has no CDLL(None)
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, 1 << 22)
        mallopt(_TRIM_THRESHOLD, 1 << 26)
        mallopt(_ARENA_MAX, 1)


@contextmanager
def quick_import() -> Iterator[None]:
    """Import Gradio faster: send no analytics, write no stubs of its components, and collect no garbage.

    Gradio 6.31 parses the source of each component class to write a `.pyi` file beside it, a third of its import time.
    Only editors read such stubs, and two processes may write one at the same time. Imported objects stay, so the
    garbage collector, a tenth of the remaining time, would find nothing.
    """
    file_of = inspect.getfile

    def getfile(thing: Any) -> str:
        # If a component class has no source file, Gradio's metaclass writes no stub.
        if type(thing).__name__ == "ComponentMeta":
            raise OSError("This component gets no stub.")
        return file_of(thing)

    inspect.getfile = getfile  # type: ignore[assignment]
    gc.disable()
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    try:
        yield
    finally:
        inspect.getfile = file_of
        gc.freeze()
        gc.enable()
