"""The store's tables, version by version, and the way from an older one. The version is the file's `user_version`."""

from __future__ import annotations

import sqlite3

# Says in a file's header whose database it is: "TILE".
APPLICATION = 0x54494C45

# One list of statements per version, each applied to the one before. What was published is never changed: a new version
# is a new list.
#
# `measured` has what is asked of many rows at once, so that a listing reads no recording; `recording` has the rest, a
# line of `kernels.records` deflated. `number` counts up and is never given again: it is the order in which results
# were written, and the cursor of a listing. A `sweep` and its rows have their details as JSON; its
# `changes` count the writes.
_VERSIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE measured (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            kind TEXT NOT NULL, kernel TEXT NOT NULL, key TEXT NOT NULL, experiment TEXT NOT NULL,
            gpu TEXT NOT NULL, device TEXT NOT NULL, backend TEXT NOT NULL, torch TEXT NOT NULL, triton TEXT NOT NULL,
            ended TEXT NOT NULL,
            median_ms REAL, p20_ms REAL, p80_ms REAL, samples INTEGER,
            ratio REAL, ratio_low REAL, ratio_high REAL, passed INTEGER)""",
        """CREATE TABLE recording (
            number INTEGER PRIMARY KEY REFERENCES measured ON DELETE CASCADE, line BLOB NOT NULL)""",
        "CREATE INDEX measured_same ON measured (key, kind, gpu, backend, number)",
        "CREATE INDEX measured_listed ON measured (kind, kernel, device, number)",
        "CREATE INDEX measured_kernel ON measured (kernel, number)",
        "CREATE INDEX measured_device ON measured (device, number)",
    ),
    (
        """CREATE TABLE sweep (
            number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,
            kernel TEXT NOT NULL, key TEXT NOT NULL, experiment TEXT NOT NULL,
            gpu TEXT NOT NULL, began TEXT NOT NULL, state TEXT NOT NULL, details TEXT NOT NULL)""",
        """CREATE TABLE sweep_row (
            sweep INTEGER NOT NULL REFERENCES sweep ON DELETE CASCADE, place INTEGER NOT NULL,
            median_ms REAL, passed INTEGER, details TEXT NOT NULL, PRIMARY KEY (sweep, place)) WITHOUT ROWID""",
        "CREATE INDEX sweep_same ON sweep (key, gpu, number)",
    ),
    (
        "ALTER TABLE sweep ADD COLUMN space TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE sweep ADD COLUMN triton TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE sweep ADD COLUMN total INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE sweep ADD COLUMN done INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE sweep ADD COLUMN best_ms REAL",
        "ALTER TABLE sweep ADD COLUMN changes INTEGER NOT NULL DEFAULT 0",
        "CREATE INDEX sweep_of_space ON sweep (space, gpu, number)",
    ),
)

VERSION = len(_VERSIONS)


class NotOurs(Exception):
    """A database that is not to be touched, and why, as the end of a sentence about it."""


def upgrade(connection: sqlite3.Connection, to: int = VERSION) -> None:
    """Bring a database to a version in one transaction: an empty one, or one of an earlier version with its rows.

    Args:
        connection: in autocommit mode.
        to: for tests, an earlier version.

    Raises:
        NotOurs: for a database of another program, or of a newer version of this one.
        sqlite3.Error: where it can't be read or written.
    """
    if version_of(connection) >= to:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have done it since.
        for statements in _VERSIONS[version_of(connection) : to]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {to}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def version_of(connection: sqlite3.Connection) -> int:
    """The version of a database, 0 for an empty one.

    Raises:
        NotOurs: as `upgrade` does.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION and (tables or version or application):
        raise NotOurs("it is another program's database")
    if version > VERSION:
        raise NotOurs(f"a newer Tilescope wrote it: its version is {version}, and this one reads up to {VERSION}")
    return int(version)
