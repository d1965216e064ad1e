"""The store's SQLite file: its schema, opening and pruning it, and describing its errors.

Write-ahead logging lets other processes read while one writes. Each write is one transaction with `synchronous=FULL`:
once it returns, the result survives a killed process and a power failure. NORMAL would save one fsync (milliseconds,
while a run takes seconds), but a power failure could lose the latest results.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

# The file's `application_id`: "TILE".
APPLICATION = 0x54494C45
VERSION = 4

# Seconds that a write waits for another process to finish writing, which takes milliseconds.
_BUSY_S = 1.0

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

_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_REASONS = {
    sqlite3.SQLITE_BUSY: "another program has locked it",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CANTOPEN: "it can't be opened",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
}


class NotOurs(Exception):
    """The database belongs to another program or version, and is left untouched. The message completes a sentence."""


# Exceptions that opening, reading or writing the file can raise.
TROUBLE = (sqlite3.Error, OSError, NotOurs)


def open_database(path: Path) -> sqlite3.Connection:
    """Return an autocommit connection to the store's file. Create the tables in a new file.

    In a read-only folder, an existing file is opened read-only.

    Raises:
        TROUBLE: the file can't be used. Nothing is written to a database of another program or version.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return _connect(path.absolute().as_uri())
    except sqlite3.OperationalError as error:
        if _code(error) not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN) or not path.exists():
            raise
        # Reading with write-ahead logging creates a file next to the database, unless it is declared immutable.
        return _connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1")


def _connect(address: str) -> sqlite3.Connection:
    connection = sqlite3.connect(address, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, uri=True)
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
    """Return VERSION, or 0 for an empty database."""
    queries = ("PRAGMA user_version", "PRAGMA application_id", "SELECT count(*) FROM sqlite_master")
    version, application, tables = (connection.execute(query).fetchone()[0] for query in queries)
    if not (version or application or tables):
        return 0
    if application != APPLICATION:
        raise NotOurs("it is another program's database")
    if version != VERSION:
        age = "a newer" if version > VERSION else "an older"
        raise NotOurs(f"{age} Tilescope wrote it: its version is {version}, but this Tilescope reads version {VERSION}")
    return VERSION


def prune(connection: sqlite3.Connection, max_bytes: int) -> None:
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


def is_corrupt(error: BaseException) -> bool:
    """Return whether the error means that the file itself is corrupt."""
    return _code(error) in _CORRUPT


def describe(error: BaseException) -> str:
    """Describe what is wrong with the file, as the end of a sentence. Omit its path, because the page is public."""
    code = _code(error)
    if code in _CORRUPT:
        return "it is not a readable database. Move it away and restart to create a new one"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return f"{_REASONS[code]} ({error})" if code in _REASONS else str(error)


def _code(error: BaseException) -> int:
    """Return SQLite's primary error code; -1 for another error."""
    return getattr(error, "sqlite_errorcode", -1) & 0xFF if isinstance(error, sqlite3.Error) else -1
