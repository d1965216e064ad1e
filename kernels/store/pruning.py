"""How much the store keeps, and what goes first."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass


@dataclass(frozen=True)
class Bounds:
    """The most that is kept.

    Attributes:
        of_one: results of one kind of one experiment on one GPU.
        results: of all.
        sweeps: with their rows.
        swept: configs of all sweeps together; each row takes some 500 bytes.
        file_bytes: of the file's pages that are in use.
    """

    of_one: int = 500
    results: int = 200_000
    sweeps: int = 200
    swept: int = 200_000
    file_bytes: int = 1_000_000_000


# Of what is too much, this share more goes at once, so that the next writes need not look.
_SHARE = 0.01


def prune(connection: sqlite3.Connection, bounds: Bounds, written: int) -> None:
    """Delete what is over the bounds, in the transaction that wrote a result.

    The oldest results of the same experiment go first. Over a bound of the whole, the oldest go of which a newer one of
    the same experiment is kept; where each is the only one of its experiment, the oldest.

    Args:
        written: the number of the result that was written.
    """
    same = "key, kind, gpu, backend"
    connection.execute(
        f"""DELETE FROM measured WHERE number IN (
            SELECT number FROM measured WHERE ({same}) = (SELECT {same} FROM measured WHERE number = ?)
            ORDER BY number DESC LIMIT -1 OFFSET ?)""",
        (written, bounds.of_one),
    )
    (count,) = connection.execute("SELECT count(*) FROM measured").fetchone()
    excess = count - bounds.results
    if used_bytes(connection) > bounds.file_bytes:
        excess = max(excess, 1)
    if excess > 0:
        _forget(connection, excess + int(_SHARE * count), written)


def prune_sweeps(connection: sqlite3.Connection, bounds: Bounds) -> None:
    """Delete the oldest sweeps over their bounds, with their rows. The latest stays, whatever its size."""
    connection.execute(
        """DELETE FROM sweep WHERE number IN (
            SELECT number FROM (
                SELECT number, row_number() OVER latest AS place, sum(total) OVER latest AS configs
                FROM sweep WINDOW latest AS (ORDER BY number DESC))
            WHERE place > 1 AND (place > ? OR configs > ?))""",
        (bounds.sweeps, bounds.swept),
    )


def used_bytes(connection: sqlite3.Connection) -> int:
    """Bytes of the file that are in use: pages that are free again are filled before it grows."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _forget(connection: sqlite3.Connection, count: int, written: int) -> None:
    """Delete so many of the oldest results, but for the one just written."""
    superseded = """SELECT number FROM measured AS old WHERE EXISTS (
            SELECT 1 FROM measured AS new WHERE (new.key, new.kind, new.gpu, new.backend)
                = (old.key, old.kind, old.gpu, old.backend) AND new.number > old.number)
        ORDER BY number LIMIT ?"""
    gone = connection.execute(f"DELETE FROM measured WHERE number IN ({superseded})", (count,)).rowcount
    if gone < count:
        oldest = "SELECT number FROM measured WHERE number <> ? ORDER BY number LIMIT ?"
        connection.execute(f"DELETE FROM measured WHERE number IN ({oldest})", (written, count - gone))
