"""The store's SQLite file: its schema, transactions, size limit and errors.

Write-ahead logging lets other processes read while one writes. Each write is one transaction with `synchronous=FULL`:
once it returns, the result survives a killed process and a power failure. NORMAL would save one fsync (milliseconds,
while a run takes seconds), but a power failure could lose the latest results.
"""

import logging
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

LOG = logging.getLogger("tilescope.store")

# The file's `application_id`: "TILE".
APPLICATION = 0x54494C45
VERSION = 4

# Limit on the file's used pages, enough for about 300,000 runs.
MAX_BYTES = 1_000_000_000

# Seconds that a write waits for another process to finish writing, which takes milliseconds.
_BUSY_S = 1.0

# A failure is logged again only after this many seconds without it. An almost full disk still accepts small writes.
_QUIET_S = 60.0

# A `number` increases with each write and is never reused, so it orders rows and serves as a listing's cursor. `key` is
# a hash of the experiment. `summary`, `details` and `row` are JSON; `recording` is compressed JSON. `changes` counts a
# sweep's writes. The indexes serve the listing's filters: without them, listing a rare kernel's results scans the file.
_SCHEMA = (
    """CREATE TABLE result (
        number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, kernel TEXT NOT NULL, key TEXT NOT NULL,
        gpu TEXT NOT NULL, device TEXT NOT NULL, backend TEXT NOT NULL, torch TEXT NOT NULL, triton TEXT NOT NULL,
        ended TEXT NOT NULL, experiment TEXT NOT NULL, summary TEXT NOT NULL, recording BLOB NOT NULL)""",
    "CREATE INDEX result_of_experiment ON result (key, kind, gpu, backend)",
    "CREATE INDEX result_of_kind ON result (kind, kernel, device)",
    "CREATE INDEX result_of_kernel ON result (kernel)",
    "CREATE INDEX result_on_device ON result (device)",
    """CREATE TABLE sweep (
        number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, kernel TEXT NOT NULL, space TEXT NOT NULL,
        gpu TEXT NOT NULL, triton TEXT NOT NULL, began TEXT NOT NULL, state TEXT NOT NULL, details TEXT NOT NULL,
        total INTEGER NOT NULL, done INTEGER NOT NULL, best_ms REAL, changes INTEGER NOT NULL)""",
    "CREATE INDEX sweep_of_space ON sweep (space, gpu)",
    """CREATE TABLE sweep_row (
        sweep INTEGER NOT NULL REFERENCES sweep ON DELETE CASCADE, place INTEGER NOT NULL, row TEXT NOT NULL,
        PRIMARY KEY (sweep, place)) WITHOUT ROWID""",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)

_UNREADABLE = "it is not a readable database. Move it away and restart to create a new one"
_REASONS = {
    sqlite3.SQLITE_CORRUPT: _UNREADABLE,
    sqlite3.SQLITE_NOTADB: _UNREADABLE,
    sqlite3.SQLITE_BUSY: "another program has locked it",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CANTOPEN: "it can't be opened",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
}

A = TypeVar("A")


class ForeignDatabase(Exception):
    """The database belongs to another program or version, and is left untouched. The message completes a sentence."""


class Database:
    """A SQLite file that several processes may share.

    It reports trouble with the file as text (`problem`) and never raises: the page still shows a result that can't be
    stored.

    Args:
        path: the file; None to store nothing.
        max_bytes: size above which writes delete the oldest results and sweeps.
        pause_s: seconds after a failure during which nothing is retried, so that redraws and sweep rows do not each
            wait for a locked file.
    """

    def __init__(self, path: Path | None, max_bytes: int = MAX_BYTES, pause_s: float = 2.0) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        # "read" or "written" → the reason for the failure, and the time of the next attempt.
        self._failures: dict[str, tuple[str, float]] = {}
        # As in `_failures`, the verb and the reason → when to log the failure again
        self._quiet_until_s: dict[tuple[str, str], float] = {}
        self.write(lambda _: None)  # detects trouble before there is a result to lose

    @property
    def problem(self) -> str:
        """Describe trouble with the file in a sentence; "" if there is none."""
        name = self.path.name if self.path else ""
        if "written" in self._failures:
            return f"New results are not stored in {name}: {self._failures['written'][0]}."
        if "read" in self._failures:
            return f"{name} can't be read: {self._failures['read'][0]}."
        return ""

    def rows(self, query: str, given: Sequence[object] = ()) -> list[Any]:
        """Return a query's rows, or an empty list if the file can't be read."""

        def read(connection: sqlite3.Connection) -> list[Any]:
            _version(connection)
            return connection.execute(query, given).fetchall()

        return self._attempt("read", read, [])

    def write(self, change: Callable[[sqlite3.Connection], object]) -> bool:
        """Commit a change and return True. Return False if the file can't be written."""

        def transaction(connection: sqlite3.Connection) -> bool:
            connection.execute("BEGIN IMMEDIATE")
            try:
                _version(connection)
                change(connection)
                _prune(connection, self._max_bytes)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            return True

        return self._attempt("written", transaction, False)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._disconnect()

    def _attempt(self, verb: str, action: Callable[[sqlite3.Connection], A], default: A) -> A:
        with self._lock:
            if self.path is None or time.monotonic() < self._failures.get(verb, ("", 0.0))[1]:
                return default
            try:
                result = action(self._connect(self.path))
            except (sqlite3.Error, OSError, ForeignDatabase) as error:
                # On a full disk, an open connection can still read, but a new one can't create the WAL files it needs.
                if verb == "read" or (self._connection and self._connection.in_transaction):
                    self._disconnect()
                self._note(verb, error)
                return default
            self._failures.pop(verb, None)
            return result

    def _note(self, verb: str, error: BaseException) -> None:
        """Remember why the file can't be used. Log a reason once, and again after a while without it."""
        reason = _describe(error)
        now_s = time.monotonic()
        self._failures[verb] = reason, now_s + self._pause_s
        if reason == _UNREADABLE:  # writing to a broken file could break it further
            self._failures["written"] = reason, math.inf
        if now_s > self._quiet_until_s.get((verb, reason), 0.0):
            LOG.warning("%s can't be %s: %s.", self.path, verb, reason)
        self._quiet_until_s[verb, reason] = now_s + _QUIET_S

    def _connect(self, path: Path) -> sqlite3.Connection:
        # If the file was deleted or replaced, reconnect: writes to the old one would be lost.
        if self._connection and _file_id(path) != self._file:
            self._disconnect()
        if self._connection is None:
            self._connection = _open(path)
            self._file = _file_id(path)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None


def _open(path: Path) -> sqlite3.Connection:
    """Return an autocommit connection. Create the tables in a new file.

    In a read-only folder, open an existing file read-only. Write nothing to a database of another program or version.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    address = path.absolute().as_uri()
    # Reading with write-ahead logging creates a file next to the database, unless it is declared immutable.
    if path.exists() and not os.access(path.parent, os.W_OK, effective_ids=True):
        address += "?mode=ro&immutable=1"
    connection = sqlite3.connect(
        address, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, uri=True
    )
    try:
        if _version(connection) == 0:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")
            if _version(connection) == 0:  # another process may have been faster
                for statement in _SCHEMA:
                    connection.execute(statement)
            connection.execute("COMMIT")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _version(connection: sqlite3.Connection) -> int:
    """Return VERSION, or 0 for an empty database.

    Each transaction checks the version, because another Tilescope may upgrade a file while it is open here.

    Raises:
        ForeignDatabase: for any other version, and for the database of another program.
    """
    queries = ("PRAGMA user_version", "PRAGMA application_id", "SELECT count(*) FROM sqlite_master")
    version, application, tables = (connection.execute(query).fetchone()[0] for query in queries)
    if not (version or application or tables):
        return 0
    if application != APPLICATION:
        raise ForeignDatabase("it is another program's database")
    if version != VERSION:
        age = "a newer" if version > VERSION else "an older"
        versions = f"its version is {version}, but this Tilescope reads version {VERSION}"
        raise ForeignDatabase(f"{age} Tilescope wrote it: {versions}")
    return VERSION


def _prune(connection: sqlite3.Connection, max_bytes: int) -> None:
    """Delete the oldest results and sweeps, but never the latest of each, until the used pages fit in `max_bytes`.

    SQLite reuses free pages before it grows the file.
    """
    while _used_bytes(connection) > max_bytes:
        deleted = 0
        for table in ("result", "sweep"):
            # Delete 1 % at a time, so that the next writes need not delete again.
            oldest = f"SELECT number FROM {table} ORDER BY number LIMIT (SELECT count(*) / 100 + 1 FROM {table})"
            latest = f"SELECT max(number) FROM {table}"
            change = f"DELETE FROM {table} WHERE number IN ({oldest}) AND number < ({latest})"
            deleted += connection.execute(change).rowcount
        if not deleted:
            return


def _used_bytes(connection: sqlite3.Connection) -> int:
    pragmas = ("page_count", "freelist_count", "page_size")
    pages, free, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas)
    return int((pages - free) * size)


def _describe(error: BaseException) -> str:
    """Describe what is wrong with the file, as the end of a sentence. Omit its path, because the page is public."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return _REASONS.get(_code(error), str(error))


def _code(error: BaseException) -> int:
    """Return SQLite's primary error code; another number for other errors."""
    return getattr(error, "sqlite_errorcode", -1) & 0xFF


def _file_id(path: Path) -> tuple[int, int] | None:
    status = path.stat() if path.exists() else None
    return status and (status.st_dev, status.st_ino)
