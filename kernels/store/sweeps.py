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


@dataclass(frozen=True)
class SweepRow:
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
        details: what was asked, as JSON has it.
    """

    name: str
    experiment: Experiment | None
    gpu: str
    began: datetime.datetime
    state: str
    details: dict[str, Any]


def begin(connection: sqlite3.Connection, sweep: StoredSweep) -> None:
    """Write a sweep that has no rows yet; one that was begun before stays, with its rows."""
    if sweep.experiment is None:
        raise ValueError("A sweep that begins has an experiment.")
    connection.execute(
        "INSERT INTO sweep (name, kernel, key, experiment, gpu, began, state, details) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET state = excluded.state",
        (
            *(sweep.name, sweep.experiment.kernel, key_of(sweep.experiment), text_of(sweep.experiment), sweep.gpu),
            *(sweep.began.isoformat(timespec="seconds"), sweep.state, json.dumps(sweep.details)),
        ),
    )


def add(connection: sqlite3.Connection, name: str, rows: Sequence[SweepRow]) -> None:
    """Write rows of a sweep; those of one that is no longer kept are dropped."""
    connection.executemany(
        "INSERT OR REPLACE INTO sweep_row (sweep, place, median_ms, passed, details)"
        " SELECT number, ?, ?, ?, ? FROM sweep WHERE name = ?",
        [(row.place, row.median_ms, row.passed, json.dumps(row.details), name) for row in rows],
    )


def end(connection: sqlite3.Connection, name: str, state: str) -> None:
    """Say how a sweep ended."""
    connection.execute("UPDATE sweep SET state = ? WHERE name = ?", (state, name))


def listed(connection: sqlite3.Connection, experiment: Experiment | None, limit: int) -> list[StoredSweep]:
    """The latest sweeps, of one experiment or of all."""
    where, given = ("WHERE key = ?", (key_of(experiment),)) if experiment else ("", ())
    found = connection.execute(
        f"SELECT name, experiment, gpu, began, state, details FROM sweep {where} ORDER BY number DESC LIMIT ?",
        (*given, limit),
    )
    return [
        StoredSweep(name, experiment_of(text), gpu, datetime.datetime.fromisoformat(began), state, json.loads(details))
        for name, text, gpu, began, state, details in found
    ]


def rows(connection: sqlite3.Connection, name: str) -> list[SweepRow]:
    """The rows of a sweep, by place."""
    found = connection.execute(
        "SELECT place, sweep_row.details, median_ms, passed FROM sweep_row JOIN sweep ON sweep = number"
        " WHERE name = ? ORDER BY place",
        (name,),
    )
    return [
        SweepRow(place, json.loads(details), median_ms, None if passed is None else bool(passed))
        for place, details, median_ms, passed in found
    ]
