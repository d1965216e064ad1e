"""The store of one machine: results and sweeps in one SQLite file, and the lookup of earlier results.

Several processes may share the file. The store reports trouble with the file as text (`problem`) and never raises: the
page still shows a result that can't be stored.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import logging
import math
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kernels.experiment import Experiment
from kernels.results import Measured, codec, records
from kernels.results.database import TROUBLE, describe, is_corrupt, open_database, prune
from kernels.results.records import RecordForm
from kernels.results.stored import (
    RESULT_COLUMNS,
    Json,
    KnownResult,
    ResultFilter,
    StoredResult,
    StoredSweep,
    experiment_key,
    read_result,
    result_row,
)

LOG = logging.getLogger("tilescope.store")

# Limit on the file's used pages, enough for about 300,000 runs.
MAX_BYTES = 1_000_000_000

# Number of decoded recordings kept in memory, because each redraw reads the same recordings.
_MOST_READ = 64

# Seconds without a retry after a failure, so that redraws and sweep rows do not each wait for a locked file.
_PAUSE_S = 2.0

A = TypeVar("A")


class Kind(Protocol):
    """The parts of a measurement that the store needs: its name in listings, and the form of its recordings."""

    name: str
    form: RecordForm[Any]


class Store:
    """One file of results and sweeps.

    Args:
        path: the SQLite file; None to store nothing.
        max_bytes: size above which the store deletes the oldest results and sweeps.
    """

    def __init__(self, path: Path | None, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        # "read" or "written" → the reason for the failure, and the time of the next attempt.
        self._trouble: dict[str, tuple[str, float]] = {}
        self._lost = 0
        self._decode = functools.lru_cache(_MOST_READ)(self._read_recording)
        self._write(lambda _: None)  # detects trouble before there is a result to lose
        self._lost = 0

    @property
    def is_on(self) -> bool:
        """Return whether the store has a file."""
        return self.path is not None

    @property
    def problem(self) -> str:
        """Describe trouble with the file, in sentences; "" if there is none."""
        name, sentences = self.path.name if self.path else "", []
        if "written" in self._trouble:
            sentences.append(f"New results are not stored in {name}: {self._trouble['written'][0]}.")
        elif "read" in self._trouble:
            sentences.append(f"{name} can't be read: {self._trouble['read'][0]}.")
        if self._lost:
            sentences.append(f"Failed writes since the start: {self._lost:,}. See the log for the reasons.")
        return " ".join(sentences)

    def put(self, kind: Kind, gpu: str, measured: Measured, ended: datetime.datetime) -> bool:
        """Write a result. Return True once it is on disk, and False if the write failed.

        Args:
            gpu: the GPU that ran the measurement; for the interpreter, the GPU that predictions are for.
            ended: time zone aware.
        """
        row = result_row(kind.name, kind.form, gpu, measured, ended)
        return self._write(lambda connection: _insert(connection, "result", row))

    def find(self, kind: Kind, experiment: Experiment, gpu: str, backend: str = "cuda") -> KnownResult | None:
        """Return the latest earlier result of an experiment on a GPU: stored on this machine if possible, else shipped.

        A GPU's result is marked as recorded, and its note names its origin. The experiment's own `gpu` is ignored.

        Args:
            backend: "cuda", or "interpreter" for an earlier result of Triton's interpreter on this machine.
        """
        form, given = kind.form, (experiment_key(kind.form.key(experiment)), kind.name, gpu, backend)
        query = "SELECT max(number) FROM result WHERE key = ? AND kind = ? AND gpu = ? AND backend = ?"
        numbers = [number for (number,) in self._rows(query, given) if number]
        if numbers and (decoded := self._decode(form, *numbers)):
            measured, ended = decoded
            note = f"{form.verb} earlier on this machine, {ended:%Y-%m-%d %H:%M} UTC. {measured.note}".strip()
            mark = "recorded" if backend == "cuda" else backend
            return KnownResult(form.recall(measured, experiment, note, mark), ended)
        shipped = records.find(form, experiment, gpu) if backend == "cuda" else None
        return None if shipped is None else KnownResult(shipped)

    def latest(self, wanted: ResultFilter, limit: int, before: int = 0) -> list[StoredResult]:
        """List results, latest first. Start below the number `before`, or at the latest result if it is 0."""
        where, given = wanted.where()
        query = f"SELECT {RESULT_COLUMNS} FROM result WHERE {where} AND number < ? ORDER BY number DESC LIMIT ?"
        return [read_result(*row) for row in self._rows(query, [*given, before or 2**63 - 1, limit])]

    def count(self, wanted: ResultFilter) -> int:
        """Count the results that match a filter."""
        where, given = wanted.where()
        return sum(number for (number,) in self._rows(f"SELECT count(*) FROM result WHERE {where}", given))

    def counts(self) -> dict[tuple[str, str, str], int]:
        """Count the results of each kind, kernel and device."""
        columns = "kind, kernel, device"
        rows = self._rows(f"SELECT {columns}, count(*) FROM result GROUP BY {columns}")
        return {(kind, kernel, device): number for kind, kernel, device, number in rows}

    def begin_sweep(self, sweep: StoredSweep) -> bool:
        """Write a new sweep, or resume the sweep with this name and keep its rows. Return as `put` does."""
        row = {**vars(sweep), "began": sweep.began.isoformat(timespec="seconds"), "details": json.dumps(sweep.details)}
        resume = "ON CONFLICT (name) DO UPDATE SET state = excluded.state, details = excluded.details"
        return self._write(lambda connection: _insert(connection, "sweep", row, f"{resume}, changes = changes + 1"))

    def add_to_sweep(self, name: str, rows: Mapping[int, Json], done: int, best_ms: float | None) -> bool:
        """Write a sweep's progress and some of its rows, by place in grid order, atomically. Return as `put` does.

        A row replaces the earlier row at its place. Rows of a deleted sweep are dropped.
        """

        def change(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "INSERT OR REPLACE INTO sweep_row SELECT number, ?, ? FROM sweep WHERE name = ?",
                [(place, json.dumps(row), name) for place, row in rows.items()],
            )
            progress = "UPDATE sweep SET done = ?, best_ms = ?, changes = changes + 1 WHERE name = ?"
            connection.execute(progress, (done, best_ms, name))

        return self._write(change)

    def end_sweep(self, name: str, state: str, details: Json, best_ms: float | None) -> bool:
        """Write a sweep's final state and details. Return as `put` does."""
        change = "UPDATE sweep SET state = ?, details = ?, best_ms = ?, changes = changes + 1 WHERE name = ?"
        given = (state, json.dumps(details), best_ms, name)
        return self._write(lambda connection: connection.execute(change, given))

    def sweeps(self, limit: int, kernel: str = "") -> list[StoredSweep]:
        """List the latest sweeps of one kernel, or of all kernels."""
        return self._sweeps("kernel = ?" if kernel else "'' = ?", (kernel, limit))

    def latest_sweep(self, space: str, gpu: str) -> StoredSweep | None:
        """Return the latest sweep of a space on a GPU. `space` is the space's identity."""
        return next(iter(self._sweeps("space = ? AND gpu = ?", (space, gpu, 1))), None)

    def sweep_rows(self, name: str) -> dict[int, Json]:
        """Return the rows of a sweep by place."""
        query = "SELECT place, row FROM sweep_row JOIN sweep ON sweep = number WHERE name = ? ORDER BY place"
        return {place: json.loads(row) for place, row in self._rows(query, (name,))}

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._disconnect()

    def _sweeps(self, where: str, given: tuple[Any, ...]) -> list[StoredSweep]:
        columns = ", ".join(field.name for field in dataclasses.fields(StoredSweep))
        rows = self._rows(f"SELECT {columns} FROM sweep WHERE {where} ORDER BY number DESC LIMIT ?", given)
        date = datetime.datetime.fromisoformat
        return [StoredSweep(*[*row[:5], date(row[5]), row[6], json.loads(row[7]), *row[8:]]) for row in rows]

    def _read_recording(self, form: RecordForm[Any], number: int) -> tuple[Any, datetime.datetime] | None:
        """Return a result and its end time. Log a warning and return None if this version can't read it."""
        query = "SELECT recording, ended FROM result WHERE number = ?"
        for recording, ended in self._rows(query, (number,)):
            try:
                measured = codec.from_json(form.result, json.loads(zlib.decompress(recording)), f"result {number}")
                return measured, datetime.datetime.fromisoformat(ended)
            except (ValueError, zlib.error) as error:
                LOG.warning("A stored result can't be read: %s", error)
        return None

    def _rows(self, query: str, given: Sequence[object] = ()) -> list[Any]:
        """Return a query's rows, or an empty list if the file can't be read."""
        return self._attempt("read", lambda connection: connection.execute(query, given).fetchall(), [])

    def _write(self, change: Callable[[sqlite3.Connection], object]) -> bool:
        """Commit a change and return True. Count it as lost and return False if the file can't be written."""

        def transaction(connection: sqlite3.Connection) -> bool:
            connection.execute("BEGIN IMMEDIATE")
            try:
                change(connection)
                prune(connection, self._max_bytes)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            return True

        is_written = self._attempt("written", transaction, False)
        self._lost += self.is_on and not is_written
        return is_written

    def _attempt(self, verb: str, action: Callable[[sqlite3.Connection], A], default: A) -> A:
        with self._lock:
            if self.path is None or time.monotonic() < self._trouble.get(verb, ("", 0.0))[1]:
                return default
            try:
                result = action(self._connect(self.path))
            except TROUBLE as error:
                # On a full disk, an open connection can still read, but a new one can't create the WAL files it needs.
                if verb == "read" or (self._connection and self._connection.in_transaction):
                    self._disconnect()
                self._note(verb, error)
                return default
            self._trouble.pop(verb, None)
            return result

    def _note(self, verb: str, error: BaseException) -> None:
        """Remember why the file can't be used. Log each new reason."""
        reason, before = describe(error), self._trouble.get(verb, ("", 0.0))[0]
        self._trouble[verb] = reason, time.monotonic() + _PAUSE_S
        if is_corrupt(error):  # writing to a broken file could break it further
            self._trouble["written"] = reason, math.inf
        if reason != before:
            LOG.warning("%s can't be %s: %s.", self.path, verb, reason)

    def _connect(self, path: Path) -> sqlite3.Connection:
        # If the file was deleted or replaced, reconnect: writes to the old one would be lost.
        if self._connection is not None and _file_id(path) != self._file:
            self._disconnect()
        if self._connection is None:
            self._decode.cache_clear()
            self._connection = open_database(path)
            self._file = _file_id(path)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def machine_store(cache: Path) -> Store:
    """Return the store in the file TILESCOPE_DB, by default tilescope.db in `cache`; "off" stores nothing."""
    name = os.environ.get("TILESCOPE_DB", "").strip()
    if name.lower() == "off":
        return Store(None)
    path = Path(name) if name else cache / "tilescope.db"
    with suppress(RuntimeError):  # the user has no home directory, so "~" stays an ordinary name
        path = path.expanduser()
    return Store(path)


def _insert(connection: sqlite3.Connection, table: str, row: Mapping[str, object], conflict: str = "") -> None:
    values = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values}) {conflict}", tuple(row.values()))


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
