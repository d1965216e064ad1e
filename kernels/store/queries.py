"""What is asked of the store: each from an index, and none reads a recording but the one that is wanted."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from kernels.store.stored import COLUMNS, Stored, stored

# More than any number of a result.
_END = 2**63 - 1


@dataclass(frozen=True)
class Wanted:
    """Which results are listed: those that have all that is named; "" and () name nothing.

    Attributes:
        kinds, keys: any of these; keys as of `experiment_key.key_of`.
        device: the device's own name.
    """

    kinds: tuple[str, ...] = ()
    kernel: str = ""
    device: str = ""
    keys: tuple[str, ...] = ()

    def where(self) -> tuple[str, list[str]]:
        """The condition in SQL, which holds no value, and the values."""
        named = {
            "kind": self.kinds,
            "kernel": (self.kernel,) if self.kernel else (),
            "device": (self.device,) if self.device else (),
            "key": self.keys,
        }
        parts = [f"{column} IN ({', '.join('?' * len(of))})" for column, of in named.items() if of]
        return " AND ".join(parts) or "1", [value for of in named.values() for value in of]


def latest(connection: sqlite3.Connection, wanted: Wanted, limit: int, before: int = 0) -> list[Stored]:
    """The latest results first.

    Args:
        before: only those with a smaller number; 0 for all.
    """
    where, given = wanted.where()
    found = connection.execute(
        f"SELECT {COLUMNS} FROM measured WHERE {where} AND number < ? ORDER BY number DESC LIMIT ?",
        (*given, before or _END, limit),
    )
    return [stored(row) for row in found]


def count(connection: sqlite3.Connection, wanted: Wanted) -> int:
    """How many there are."""
    where, given = wanted.where()
    (number,) = connection.execute(f"SELECT count(*) FROM measured WHERE {where}", given).fetchone()
    return int(number)


def counts(connection: sqlite3.Connection) -> dict[tuple[str, str, str], int]:
    """How many there are of each kind, kernel and device."""
    groups = "kind, kernel, device"
    found = connection.execute(f"SELECT {groups}, count(*) FROM measured GROUP BY {groups}")
    return {(kind, kernel, device): number for kind, kernel, device, number in found}


def last(connection: sqlite3.Connection) -> int:
    """The number of the latest result, which is higher after each write; 0 where there is none."""
    (number,) = connection.execute("SELECT max(number) FROM measured").fetchone()
    return int(number or 0)


def last_of(connection: sqlite3.Connection, kind: str, key: str, gpu: str, backend: str) -> int | None:
    """The number of the latest result of a kind; None where there is none."""
    row = connection.execute(
        "SELECT number FROM measured WHERE key = ? AND kind = ? AND gpu = ? AND backend = ?"
        " ORDER BY number DESC LIMIT 1",
        (key, kind, gpu, backend),
    ).fetchone()
    return None if row is None else int(row[0])


def line_of(connection: sqlite3.Connection, number: int) -> bytes | None:
    """The recording of a result, deflated; None where it is no longer kept."""
    row = connection.execute("SELECT line FROM recording WHERE number = ?", (number,)).fetchone()
    return None if row is None else bytes(row[0])
