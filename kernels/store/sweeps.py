"""Sweeps that are stored: what was asked, how far it came, and a row per config."""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernels.experiment import Experiment
from kernels.store.experiment_key import experiment_of, key_of, text_of
from kernels.store.migrations import version_of

# The version of the tables that has all of a sweep.
_SINCE = 3


@dataclass(frozen=True)
class StoredRow:
    """One config of a sweep.

    Attributes:
        place: its number in the sweep. A row that is stored again takes the place of the earlier one.
        median_ms, passed: None where it was not timed, not checked.
        details: the rest, as JSON has it.
    """

    place: int
    details: dict[str, Any]
    median_ms: float | None = None
    passed: bool | None = None


@dataclass(frozen=True)
class StoredSweep:
    """A sweep without its rows.

    Attributes:
        name: chosen by whoever begins it, and its own.
        experiment: what it varies; None where this version has no such kernel.
        began: UTC.
        state: a word: "running" until it is said to have ended.
        details: what was asked and found, as JSON has it.
        space: the identity of the space that it searches.
        triton: the version that compiles its configs.
        total, done: configs, and those of which it is known what becomes of them.
        best_ms: the time of the fastest; None where none was timed.
        changes: how often it was written: another number, and it holds something else.
        kernel: that it is of, also where this version has none of that name.
    """

    name: str
    experiment: Experiment | None
    gpu: str
    began: datetime.datetime
    state: str
    details: dict[str, Any]
    space: str = ""
    triton: str = ""
    total: int = 0
    done: int = 0
    best_ms: float | None = None
    changes: int = 0
    kernel: str = ""


def begin(connection: sqlite3.Connection, sweep: StoredSweep) -> None:
    """Write a sweep that has no rows yet; one that was begun before stays, with its rows."""
    if sweep.experiment is None:
        raise ValueError("A sweep that begins has an experiment.")
    connection.execute(
        "INSERT INTO sweep (name, kernel, key, experiment, gpu, began, state, details, space, triton, total)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET state = excluded.state, details = excluded.details, changes = changes + 1",
        (
            *(sweep.name, sweep.experiment.kernel, key_of(sweep.experiment), text_of(sweep.experiment), sweep.gpu),
            *(sweep.began.isoformat(timespec="seconds"), sweep.state, json.dumps(sweep.details)),
            *(sweep.space, sweep.triton, sweep.total),
        ),
    )


def add(connection: sqlite3.Connection, name: str, rows: Sequence[StoredRow], done: int, best_ms: float | None) -> None:
    """Write rows of a sweep, and how far it is; those of one that is no longer kept are dropped."""
    connection.executemany(
        "INSERT OR REPLACE INTO sweep_row (sweep, place, median_ms, passed, details)"
        " SELECT number, ?, ?, ?, ? FROM sweep WHERE name = ?",
        [(row.place, row.median_ms, row.passed, json.dumps(row.details), name) for row in rows],
    )
    connection.execute(
        "UPDATE sweep SET done = ?, best_ms = ?, changes = changes + 1 WHERE name = ?", (done, best_ms, name)
    )


def end(connection: sqlite3.Connection, name: str, state: str, details: dict[str, Any], best_ms: float | None) -> None:
    """Say how a sweep ended, and what it found."""
    connection.execute(
        "UPDATE sweep SET state = ?, details = ?, best_ms = ?, changes = changes + 1 WHERE name = ?",
        (state, json.dumps(details), best_ms, name),
    )


_COLUMNS = "name, experiment, gpu, began, state, details, space, triton, total, done, best_ms, changes, kernel"


def listed(connection: sqlite3.Connection, kernel: str, limit: int) -> list[StoredSweep]:
    """The latest sweeps, of one kernel or, where it is "", of all."""
    if not _has_sweeps(connection):
        return []
    where, given = ("WHERE kernel = ?", (kernel,)) if kernel else ("", ())
    found = connection.execute(f"SELECT {_COLUMNS} FROM sweep {where} ORDER BY number DESC LIMIT ?", (*given, limit))
    return [_stored(*row) for row in found]


def latest(connection: sqlite3.Connection, space: str, gpu: str) -> StoredSweep | None:
    """The sweep of a space on a GPU that was begun last; None where there is none."""
    if not _has_sweeps(connection):
        return None
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM sweep WHERE space = ? AND gpu = ? ORDER BY number DESC LIMIT 1", (space, gpu)
    ).fetchone()
    return None if row is None else _stored(*row)


def _has_sweeps(connection: sqlite3.Connection) -> bool:
    """Whether the file is of a version with sweeps: one that can't be written stays of the version that it is."""
    return version_of(connection) >= _SINCE


def _stored(name: str, text: str, gpu: str, began: str, state: str, details: str, *rest: Any) -> StoredSweep:
    date = datetime.datetime.fromisoformat(began)
    return StoredSweep(name, experiment_of(text), gpu, date, state, json.loads(details), *rest)


def rows(connection: sqlite3.Connection, name: str) -> list[StoredRow]:
    """The rows of a sweep, by place."""
    found = connection.execute(
        "SELECT place, sweep_row.details, median_ms, passed FROM sweep_row JOIN sweep ON sweep = number"
        " WHERE name = ? ORDER BY place",
        (name,),
    )
    return [
        StoredRow(place, json.loads(details), median_ms, None if passed is None else bool(passed))
        for place, details, median_ms, passed in found
    ]
