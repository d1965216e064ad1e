"""The store's file: how it is opened, what is wrong with it in a sentence, and how a corrupt one is set aside.

Write-ahead logging lets readers go on while one process writes. Each write is one transaction with `synchronous=FULL`:
when it returns, the result is on the disk, so that neither a killed process nor a power failure takes back what was
acknowledged. NORMAL would spare one fsync (some milliseconds, and a run takes seconds), and could lose the last results
with the power.
"""

from __future__ import annotations

import datetime
import logging
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from kernels.store.migrations import VERSION, NotOurs, upgrade, version_of

LOG = logging.getLogger("tilescope.store")

# Seconds that a write waits for another process's, which takes milliseconds; and a read for a checkpoint.
_WRITE_PATIENCE_S, _READ_PATIENCE_S = 2.0, 0.25

_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_WHY = {
    sqlite3.SQLITE_BUSY: "another program has locked it",
    sqlite3.SQLITE_LOCKED: "another program has locked it",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_PERM: "it may not be opened",
    sqlite3.SQLITE_CANTOPEN: "it can't be opened",
    sqlite3.SQLITE_IOERR: "the disk reports an error",
    sqlite3.SQLITE_PROTOCOL: "its file system does not lock files",
}

# What opening, reading or writing the file can raise. `is_trouble` tells which of them lie with the file.
TROUBLE = (sqlite3.Error, OSError, NotOurs)


class Database:
    """One file. Whoever opens a connection keeps it in one thread, or behind a lock.

    Attributes:
        set_aside: where a corrupt file was moved to; None where none was.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.set_aside: Path | None = None

    def writer(self) -> sqlite3.Connection:
        """A connection that writes, to a database of this version. A corrupt file is set aside first.

        Raises:
            TROUBLE: where it can't be opened or written; `why` says it in words.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return self._writer()
        except sqlite3.DatabaseError as error:
            if not is_corrupt(error):
                raise
            self.move_aside()
            return self._writer()

    def reader(self) -> sqlite3.Connection:
        """A connection that only reads; of a file in a folder that can't be written, too.

        Raises:
            TROUBLE: where it can't be opened.
        """
        try:
            return self._reader("mode=rw")
        except sqlite3.OperationalError:
            if self.is_writable:
                raise
            # Reading a write-ahead log takes a file beside it, which a folder that can't be written does not get.
            return self._reader("mode=ro&immutable=1")

    @property
    def is_writable(self) -> bool:
        """Whether the file's folder takes another file."""
        return os.access(self.path.parent, os.W_OK)

    def is_moved(self, connection: sqlite3.Connection) -> bool:
        """Whether the path no longer leads to the file of a connection: what is written there would be lost."""
        here, there = _identity(self.path), getattr(connection, "opened", None)
        return here is None or here != there

    def move_aside(self) -> None:
        """Rename a corrupt file, with its log, to a name with the date. Nothing is deleted."""
        now = datetime.datetime.now(datetime.UTC)
        kept = self.path.with_name(f"{self.path.stem}.corrupt-{now:%Y-%m-%dT%H%M%S.%f}{self.path.suffix}")
        for end in ("-wal", "-shm", ""):
            file = self.path.with_name(self.path.name + end)
            if file.exists():
                file.rename(kept.with_name(kept.name + end))
        self.set_aside = kept
        LOG.warning("%s is no readable database. It was set aside as %s, and a new one was begun.", self.path, kept)

    def _writer(self) -> sqlite3.Connection:
        return self._opened(str(self.path), _WRITE_PATIENCE_S, _prepare)

    def _reader(self, mode: str) -> sqlite3.Connection:
        # A question mark or a percent sign in the path means something else in an address.
        address = f"{self.path.absolute().as_uri()}?{mode}"
        return self._opened(address, _READ_PATIENCE_S, lambda reader: reader.execute("PRAGMA query_only = ON"))

    def _opened(self, address: str, patience_s: float, prepare: Callable[[sqlite3.Connection], object]) -> _Connection:
        """A connection that is ready for its use; closed again where it can't be made so."""
        connection = _connect(address, patience_s)
        try:
            version_of(connection)  # first: a database that is not ours stays as it is
            prepare(connection)
        except BaseException:
            connection.close()
            raise
        connection.opened = _identity(self.path)
        return connection


def _prepare(connection: sqlite3.Connection) -> None:
    """Make a new connection one that writes, to tables of this version."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    upgrade(connection)
    # Says now what a write would say. To begin one is no error where the file is read-only.
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("ROLLBACK")


class _Connection(sqlite3.Connection):
    """A connection that knows which file it opened."""

    opened: tuple[int, int] | None = None


def _connect(address: str, patience_s: float) -> _Connection:
    return sqlite3.connect(
        address,
        timeout=patience_s,
        isolation_level=None,
        check_same_thread=False,
        uri=address.startswith("file:"),
        factory=_Connection,
    )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_corrupt(error: BaseException) -> bool:
    """Whether the file itself is broken."""
    return _code(error) in _CORRUPT


def is_trouble(error: BaseException) -> bool:
    """Whether the file is in the way, which can pass, and not what was asked of it."""
    return isinstance(error, OSError | NotOurs) or is_corrupt(error) or _code(error) in _WHY


def why(error: BaseException) -> str:
    """What is wrong, in words, as the end of a sentence about the file."""
    code = _code(error)
    if code in _CORRUPT:
        return "it is no readable database"
    if isinstance(error, OSError):  # whose own words have the path in them, which is nobody's concern on a public page
        return error.strerror or type(error).__name__
    return f"{_WHY[code]} ({error})" if code in _WHY else str(error)


def _code(error: BaseException) -> int:
    """SQLite's own code of an error, without what makes it more precise; -1 for another error."""
    return getattr(error, "sqlite_errorcode", -1) & 0xFF if isinstance(error, sqlite3.Error) else -1
