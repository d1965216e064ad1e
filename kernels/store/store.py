"""The store of one machine: what was measured is written when it ended, and found again after a restart.

Several processes may share a file. Nothing in it is a visitor's text: experiments are validated, the rest is measured.
What goes wrong with the file is a sentence (`problem`), never an exception: the page goes on without it.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kernels.experiment import Experiment
from kernels.results import Measured
from kernels.results.records import RecordForm, Recording, UnreadableRecording
from kernels.store import pruning, queries, sweeps
from kernels.store.database import LOG, TROUBLE, Database, is_corrupt, why
from kernels.store.experiment_key import key_of, text_of
from kernels.store.pruning import Bounds
from kernels.store.queries import Wanted
from kernels.store.stored import MARKS, Stored, marks_of, values
from kernels.store.sweeps import StoredRow, StoredSweep
from kernels.store.writer import Change, Writer

A = TypeVar("A")

# Writes a row of `measured`: its values in the order of the table.
_COLUMNS = f"kind, kernel, key, experiment, gpu, device, backend, torch, triton, ended, {MARKS}"
MEASURED = f"INSERT INTO measured ({_COLUMNS}) VALUES ({', '.join('?' * len(_COLUMNS.split(',')))})"

# Recordings that are kept read: a redraw asks for the same ones again.
_MOST_READ = 64

# Seconds in which nothing is read after a failure: a redraw must not wait for the file each time.
_PAUSE_S = 2.0


class Kind(Protocol):
    """What the store must know of a measurement.

    Attributes:
        name: the word for it in a listing.
        form: how its results are written.
    """

    @property
    def name(self) -> str: ...

    @property
    def form(self) -> RecordForm[Any]: ...


class Store:
    """One file of results.

    Args:
        path: of the file; None for a store that keeps nothing.
    """

    def __init__(self, path: Path | None, bounds: Bounds | None = None) -> None:
        self.path = path
        self._bounds = bounds or Bounds()
        self._database = Database(path) if path else None
        self._writer = Writer(self._database) if self._database else None
        self._reader: sqlite3.Connection | None = None
        self._reading = threading.Lock()
        self._unreadable, self._quiet_until = "", 0.0
        self._counted: tuple[int, dict[tuple[str, str, str], int]] = 0, {}
        self._read = functools.lru_cache(_MOST_READ)(self._recording)
        if self._database and self._writer:
            try:
                self._database.writer().close()
            except TROUBLE as error:
                self._writer.failed(error)
                self._writer.keep_trying()

    @property
    def is_on(self) -> bool:
        """Whether it keeps anything."""
        return self._database is not None

    @property
    def problem(self) -> str:
        """What a reader must know of the file, in sentences; "" where all is well."""
        if self._database is None or self._writer is None:
            return ""
        name, writer, said = self._database.path.name, self._writer, []
        if aside := self._database.set_aside:
            said.append(f"{name} was no readable database. It was set aside as {aside.name}, and a new one was begun.")
        if writer.trouble:
            waiting = f" {writer.waiting:,} of them wait for it." if writer.waiting else ""
            said.append(f"New results are not stored in {name}: {writer.trouble}.{waiting}")
        if writer.given_up:
            said.append(f"Not stored, and lost at the next start: {writer.given_up:,}. The log says why.")
        if self._unreadable and not writer.trouble:
            said.append(f"{name} can't be read: {self._unreadable}.")
        return " ".join(said)

    def put(self, kind: Kind, gpu: str, measured: Measured, ended: datetime.datetime) -> bool:
        """Write a result. Waits until it is on the disk, or for a while where that takes long.

        Args:
            gpu: the GPU that it was measured on or, under the interpreter, stood for; as predictions name it.
            ended: when it ended, with a time zone.

        Returns:
            Whether it is on the disk. What is not yet is tried again.
        """
        experiment = dataclasses.replace(measured.experiment, gpu="")
        date = ended.astimezone(datetime.UTC).isoformat(timespec="seconds")
        alone = dataclasses.replace(measured, experiment=experiment)
        line = zlib.compress(kind.form.line(Recording(gpu, date, alone)).encode())
        device = measured.device
        row = (
            *(kind.name, experiment.kernel, key_of(kind.form.key(experiment)), text_of(experiment)),
            *(gpu, device.name, device.backend, device.torch, device.triton, date, *values(marks_of(measured))),
        )
        return self._write(functools.partial(_put, row, line, self._bounds))

    def find(self, kind: Kind, experiment: Experiment, gpu: str, backend: str) -> Recording[Any] | None:
        """The latest result of an experiment, whatever its own `gpu` says, as it was measured; or None.

        Args:
            backend: "cuda" or "interpreter".
        """
        key = key_of(kind.form.key(experiment))
        number = self._ask(lambda reader: queries.last_of(reader, kind.name, key, gpu, backend), None)
        return None if number is None else self._read(kind.form, number)

    def latest(self, wanted: Wanted, limit: int, before: int = 0) -> list[Stored]:
        """Results, the latest first: those with a number below `before`, or all where that is 0."""
        return self._ask(lambda reader: queries.latest(reader, wanted, limit, before), [])

    def count(self, wanted: Wanted) -> int:
        """How many results there are."""
        return self._ask(lambda reader: queries.count(reader, wanted), 0)

    def counts(self) -> dict[tuple[str, str, str], int]:
        """How many results there are of each kind, kernel and device. Counted anew once something was written."""
        last = self._ask(queries.last, 0)
        if last != self._counted[0]:
            self._counted = last, self._ask(queries.counts, {})
        return self._counted[1]

    def begin_sweep(self, sweep: StoredSweep) -> bool:
        """Write a sweep that begins, or goes on; as `put` does."""

        def change(connection: sqlite3.Connection) -> None:
            sweeps.begin(connection, sweep)
            pruning.prune_sweeps(connection, self._bounds)

        return self._write(change)

    def add_to_sweep(self, name: str, rows: Sequence[StoredRow], done: int, best_ms: float | None) -> bool:
        """Write rows of a sweep, all or none, and how far it is; as `put` does.

        Args:
            done, best_ms: as of StoredSweep, with these rows.
        """
        return self._write(lambda connection: sweeps.add(connection, name, rows, done, best_ms))

    def end_sweep(self, name: str, state: str, details: dict[str, Any], best_ms: float | None) -> bool:
        """Write how a sweep ended, and what it found; as `put` does."""
        return self._write(lambda connection: sweeps.end(connection, name, state, details, best_ms))

    def sweeps(self, limit: int, kernel: str = "") -> list[StoredSweep]:
        """The latest sweeps, of one kernel or of all."""
        return self._ask(lambda reader: sweeps.listed(reader, kernel, limit), [])

    def latest_sweep(self, space: str, gpu: str) -> StoredSweep | None:
        """The sweep of a space, by its identity, on a GPU that was begun last; None where there is none."""
        return self._ask(lambda reader: sweeps.latest(reader, space, gpu), None)

    def sweep_rows(self, name: str) -> list[StoredRow]:
        """The rows of a sweep, by place."""
        return self._ask(lambda reader: sweeps.rows(reader, name), [])

    def close(self) -> None:
        """Write what waits, if it can be written, and let go of the file."""
        if self._writer:
            self._writer.close()
        with self._reading:
            self._disconnect()

    def _write(self, change: Change) -> bool:
        return self._writer.write(change) if self._writer else False

    def _ask(self, question: Callable[[sqlite3.Connection], A], nothing: A) -> A:
        """The answer; `nothing` where there is no file, or it can't be read."""
        if self._database is None or not self._database.path.exists():
            return nothing
        with self._reading:
            if time.monotonic() < self._quiet_until:
                return nothing
            try:
                answer = question(self._connected(self._database))
            except TROUBLE as error:
                self._failed(error, self._database)
                return nothing
            self._unreadable = ""
            return answer

    def _connected(self, database: Database) -> sqlite3.Connection:
        if self._reader is not None and database.is_moved(self._reader):
            self._disconnect()
        if self._reader is None:
            self._read.cache_clear()
            self._counted = 0, {}
            self._reader = database.reader()
        return self._reader

    def _failed(self, error: BaseException, database: Database) -> None:
        self._disconnect()
        self._quiet_until = time.monotonic() + _PAUSE_S
        told, self._unreadable = self._unreadable, why(error)
        if is_corrupt(error) and database.is_writable:
            database.move_aside()
        elif told != self._unreadable:
            LOG.warning("%s can't be read: %s.", database.path, self._unreadable)

    def _recording(self, form: RecordForm[Any], number: int) -> Recording[Any] | None:
        """The recording of a result; None for one that this version can't read, which goes to the log."""
        line = self._ask(lambda reader: queries.line_of(reader, number), None)
        if line is None:
            return None
        try:
            return form.recording(json.loads(zlib.decompress(line)), f"result {number} of the store")
        except (UnreadableRecording, ValueError, zlib.error) as error:
            LOG.warning("A stored result can't be read: %s", error)
            return None

    def _disconnect(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


def _put(row: tuple[Any, ...], line: bytes, bounds: Bounds, connection: sqlite3.Connection) -> None:
    """Write a row and its recording, and prune."""
    inserted = connection.execute(MEASURED, row)
    number = inserted.lastrowid
    if number is None:
        raise sqlite3.DatabaseError("an inserted row has no number")
    connection.execute("INSERT INTO recording (number, line) VALUES (?, ?)", (number, line))
    pruning.prune(connection, bounds, number)
