"""The store of one machine: results and sweeps in one SQLite file, and the lookup of earlier results.

A sweep's rows are written as they arrive, and a later sweep of the same space resumes from them.
"""

import datetime
import functools
import hashlib
import itertools
import json
import logging
import os
import sqlite3
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tilescope.declare import jit
from tilescope.declare.experiment import Experiment, Json, from_json
from tilescope.declare.gpus import Gpu
from tilescope.declare.knobs import ConfigError
from tilescope.declare.space import Space, space_from_json
from tilescope.results import (
    Measured,
    RunResult,
    Sweep,
    SweepRow,
    Timeline,
    codec,
    records,
)
from tilescope.results.database import Database

LOG = logging.getLogger("tilescope.store")

# The version of Triton that compiles this machine's sweeps.
TRITON = str(getattr(jit.triton, "__version__", "none"))

# The fields of a result's summary in listings: of its Timing, its Baseline and its Check.
SUMMARY = (
    "median_ms", "p20_ms", "p80_ms", "samples", "ratio", "ratio_low", "ratio_high", "passed",
)  # fmt: skip

S = TypeVar("S", "StoredResult", "StoredSweep")


class Kind(Protocol):
    """The parts of a measurement that the store needs: its name in listings, and the form of its recordings."""

    name: str
    form: records.RecordForm[Any]


@dataclass(frozen=True)
class ResultFilter:
    """Allowed values of a table's columns, for listings. An empty field allows everything.

    Attributes:
        device: the device's own name.
        key: `experiment_key`.
    """

    kind: tuple[str, ...] = ()
    kernel: tuple[str, ...] = ()
    device: tuple[str, ...] = ()
    key: tuple[str, ...] = ()

    def where(self) -> tuple[str, list[str]]:
        """Return the SQL condition with placeholders, and the placeholders' values."""
        allowed = {column: values for column, values in vars(self).items() if values}
        terms = [
            f"{column} IN ({', '.join('?' * len(values))})" for column, values in allowed.items()
        ]
        return " AND ".join(terms) or "1", list(itertools.chain(*allowed.values()))


@dataclass(frozen=True)
class StoredResult:
    """A result without its recording.

    Attributes:
        number: later results have higher numbers.
        kind: the name of the measurement.
        gpu: the GPU that ran the measurement; for the interpreter, the GPU that predictions are for.
        device, backend, torch, triton: as in results.Device.
        ended: UTC.
        experiment: None if this version lacks the kernel or rejects a value.
        summary: the fields in SUMMARY. A field is None if the kind of measurement lacks it or nothing was timed.
    """

    number: int
    kind: str
    kernel: str
    gpu: str
    device: str
    backend: str
    torch: str
    triton: str
    ended: datetime.datetime
    experiment: Experiment | None
    summary: Json


@dataclass(frozen=True)
class StoredSweep:
    """A sweep without its rows.

    Attributes:
        name: its unique id, chosen by its writer.
        space: the identity of its space.
        gpu, triton: the GPU that times its configs, and the Triton version that compiles them.
        began: UTC.
        state: "running" until its end is recorded.
        details: the sweep as JSON.
        total, done: number of configs, and how many of them are done.
        best_ms: the fastest config's time; None before the first timing.
        changes: number of writes so far. An equal number means equal content.
    """

    name: str
    kernel: str
    space: str
    gpu: str
    triton: str
    began: datetime.datetime
    state: str
    details: Json
    total: int
    done: int
    best_ms: float | None
    changes: int

    @property
    def ended(self) -> str:
        """Return how the sweep ended: "cut off" if its process died or is still running."""
        return "cut off" if self.state == "running" else self.state

    @functools.cached_property
    def swept_space(self) -> Space | None:
        """The configs that it compares; None if this version lacks the kernel or rejects a value."""
        try:
            return space_from_json(self.details.get("space"))
        except ConfigError:
            return None


class Store(Database):
    """One file of results and sweeps."""

    def put(self, kind: Kind, gpu: str, measured: Measured, ended: datetime.datetime) -> bool:
        """Write a result. Return True once it is on disk, and False if the write failed.

        Args:
            gpu: the GPU that ran the measurement; for the interpreter, the GPU that predictions are for.
            ended: timezone-aware.
        """
        measured = replace(measured, experiment=replace(measured.experiment, gpu=""))
        experiment = measured.experiment
        device = measured.device
        row = {
            "kind": kind.name,
            "kernel": experiment.kernel,
            "key": experiment_key(kind.form.key(experiment)),
            "gpu": gpu,
            "device": device.name,
            "backend": device.backend,
            "torch": device.torch,
            "triton": device.triton,
            "ended": ended.astimezone(datetime.UTC).isoformat(timespec="seconds"),
            "experiment": experiment_text(experiment),
            "summary": json.dumps(_summarize(measured)),
            "recording": zlib.compress(json.dumps(kind.form.encode(measured)).encode()),
        }
        return self.write(lambda connection: _insert(connection, "result", row))

    def find(self, kind: Kind, experiment: Experiment, gpu: str, backend: str = "cuda") -> Any:
        """Return the latest earlier result of an experiment on a GPU: stored on this machine if possible, else shipped.

        A GPU's result is marked as recorded, and its note names its origin. The experiment's own `gpu` is ignored.
        None if there is no result.

        Args:
            backend: "cuda", or "interpreter" for an earlier result of Triton's interpreter.
        """
        form = kind.form
        matches = "key = ? AND kind = ? AND gpu = ? AND backend = ?"
        query = f"SELECT number, recording, ended FROM result WHERE {matches} ORDER BY number DESC LIMIT 1"
        given = experiment_key(form.key(experiment)), kind.name, gpu, backend
        for number, recording, date in self.rows(query, given):
            try:
                fields = json.loads(zlib.decompress(recording))
                measured = codec.from_json(form.result, fields, f"result {number}")
            except (ValueError, zlib.error) as error:
                LOG.warning("A stored result can't be read: %s", error)
                continue
            ended = datetime.datetime.fromisoformat(date)
            note = f"{form.verb} earlier on this machine, {ended:%Y-%m-%d %H:%M} UTC. {measured.note}".strip()
            return form.recall(measured, experiment, note)
        return records.find(form, experiment, gpu, backend)

    def latest(
        self, result_filter: ResultFilter, limit: int, before: int = 0
    ) -> list[StoredResult]:
        """List results, latest first. Start below the number `before`, or at the latest result if it is 0."""
        where, given = result_filter.where()
        return self._list(
            StoredResult, "result", f"{where} AND number < ?", [*given, before or 2**63 - 1, limit]
        )

    def count(self, result_filter: ResultFilter) -> int:
        """Count the results that match a filter."""
        where, given = result_filter.where()
        return sum(
            number for (number,) in self.rows(f"SELECT count(*) FROM result WHERE {where}", given)
        )

    def begin_sweep(self, name: str, gpu: Gpu, began: datetime.datetime, sweep: Sweep) -> bool:
        """Write a new sweep without its rows, or resume the sweep with this name and keep its rows.

        Return as `put` does.
        """
        space = sweep.space
        row = {
            "name": name,
            "kernel": space.base.kernel,
            "space": space.identity,
            "gpu": gpu.name,
            "triton": TRITON,
            "began": began.isoformat(timespec="seconds"),
            "state": "running",
            "details": _details(sweep),
            "total": space.size,
            "done": 0,
            "changes": 0,
        }
        resume = (
            "ON CONFLICT (name) DO UPDATE SET state = excluded.state, details = excluded.details"
        )
        return self.write(
            lambda connection: _insert(connection, "sweep", row, f"{resume}, changes = changes + 1")
        )

    def add_to_sweep(
        self, name: str, rows: Mapping[int, SweepRow], done: int, best_ms: float | None
    ) -> bool:
        """Atomically write a sweep's progress and some of its rows, by place in grid order. Return as `put` does.

        A row replaces the earlier row at its place. Rows of a deleted sweep are dropped.
        """
        texts = []
        for place, row in rows.items():
            fields = codec.to_json(row, omit_defaults=True)
            del fields["experiment"]  # the place determines it
            texts.append((place, json.dumps(fields), name))

        def change(connection: sqlite3.Connection) -> None:
            into = "INSERT OR REPLACE INTO sweep_row SELECT number, ?, ? FROM sweep WHERE name = ?"
            connection.executemany(into, texts)
            progress = (
                "UPDATE sweep SET done = ?, best_ms = ?, changes = changes + 1 WHERE name = ?"
            )
            connection.execute(progress, (done, best_ms, name))

        return self.write(change)

    def end_sweep(self, name: str, sweep: Sweep) -> bool:
        """Write how a sweep ended, and its finalists. Return as `put` does."""
        change = "UPDATE sweep SET state = ?, details = ?, best_ms = ?, changes = changes + 1 WHERE name = ?"
        given = sweep.ended, _details(sweep), sweep.best and sweep.best.median_ms, name
        return self.write(lambda connection: connection.execute(change, given))

    def sweeps(self, limit: int, kernels: tuple[str, ...] = ()) -> list[StoredSweep]:
        """List the latest sweeps of some kernels, by default of all kernels."""
        where, given = ResultFilter(kernel=kernels).where()
        return self._list(StoredSweep, "sweep", where, [*given, limit])

    def latest_sweep(self, space: Space, gpu: Gpu) -> StoredSweep | None:
        """Return the latest sweep of a space on a GPU. Later writes to a sweep change its `changes`."""
        latest = self._list(
            StoredSweep, "sweep", "space = ? AND gpu = ?", [space.identity, gpu.name, 1]
        )
        return latest[0] if latest else None

    def load_sweep(self, space: Space, gpu: Gpu) -> Sweep | None:
        """Return the latest sweep of a space on a GPU with all rows.

        The sweep's backend is "recorded" if it has times. Configs without a stored row are "not tried". A sweep with
        another version of Triton has no name, because times of two compilers are not ranked together. Return None if
        there is no sweep or this version can't read it.
        """
        latest = self.latest_sweep(space, gpu)
        if latest is None:
            return None
        query = "SELECT place, row FROM sweep_row JOIN sweep ON sweep = number WHERE name = ?"
        stored = {place: json.loads(row) for place, row in self.rows(query, [latest.name])}
        untried = {"status": "not tried", "device": gpu.name}
        rows = [
            {"experiment": experiment.to_json(), **stored.get(place, untried)}
            for place, experiment in enumerate(space.experiments)
        ]
        try:
            sweep: Sweep = codec.from_json(
                Sweep,
                {**latest.details, "rows": rows},
                f"stored sweep {latest.name}",
                ignores_unknown=True,  # earlier versions stored more fields
            )
        except codec.UnreadableRecording as error:
            LOG.warning("A stored sweep can't be read: %s", error)
            return None
        can_resume = latest.triton == TRITON
        note = f"Swept on this machine, {latest.began:%Y-%m-%d %H:%M} UTC, with Triton {latest.triton}."
        if not can_resume:
            note += f" Triton {TRITON} is installed now, so the next sweep starts from scratch."
        backend = "recorded" if sweep.backend == "cuda" else sweep.backend
        return replace(
            sweep,
            space=space,
            device=replace(sweep.device, backend=backend),
            ended=latest.ended,
            note=f"{note} {sweep.note}".strip(),
            name=latest.name if can_resume else "",
        )

    def _list(self, stored: type[S], table: str, where: str, given: Sequence[object]) -> list[S]:
        """Return rows of a table, latest first. The last of `given` is the maximum number of rows."""
        columns = [field.name for field in fields(stored)]
        query = (
            f"SELECT {', '.join(columns)} FROM {table} WHERE {where} ORDER BY number DESC LIMIT ?"
        )
        readers = [_READERS.get(name, lambda value: value) for name in columns]
        rows = self.rows(query, given)
        return [
            stored(*(read(value) for read, value in zip(readers, row, strict=True))) for row in rows
        ]


def experiment_text(experiment: Experiment) -> str:
    """Return the kernel and all values that differ from its defaults, without the GPU, as JSON with sorted names.

    Published defaults never change, so adding a knob to a kernel does not change the texts of earlier results.
    """
    payload = replace(experiment, gpu="").short_json()
    return json.dumps(payload, sort_keys=True, separators=(",", ":"))


def experiment_key(experiment: Experiment) -> str:
    """Return a 128-bit hash in hexadecimal that identifies an experiment regardless of GPU, process and version."""
    return hashlib.blake2b(experiment_text(experiment).encode(), digest_size=16).hexdigest()


def read_experiment(text: str) -> Experiment | None:
    """Parse `experiment_text`. Return None if this version lacks the kernel or rejects a value."""
    try:
        return from_json(json.loads(text))
    except ValueError:
        return None


def _summarize(measured: Measured) -> Json:
    known: Json = {}
    if isinstance(measured, RunResult):
        for part in filter(None, (measured.check, measured.baseline, measured.timing)):
            known |= vars(part)
    elif isinstance(measured, Timeline):
        known = {**vars(measured.plain), "passed": measured.passed}
    return {name: known.get(name) for name in SUMMARY}


def _details(sweep: Sweep) -> str:
    return json.dumps(codec.to_json(replace(sweep, rows=())))


def _insert(
    connection: sqlite3.Connection, table: str, row: Mapping[str, object], conflict: str = ""
) -> None:
    values = ", ".join("?" * len(row))
    connection.execute(
        f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values}) {conflict}", tuple(row.values())
    )


# Converters of stored columns, for listings.
_READERS: dict[str, Callable[[str], Any]] = {
    "began": datetime.datetime.fromisoformat,
    "ended": datetime.datetime.fromisoformat,
    "details": json.loads,
    "experiment": read_experiment,
    "summary": json.loads,
}


def machine_store(cache: Path) -> Store:
    """Return the store in the file TILESCOPE_DB, by default tilescope.db in `cache`; "off" stores nothing."""
    name = os.environ.get("TILESCOPE_DB", "").strip()
    if name.lower() == "off":
        return Store(None)
    return Store(Path(os.path.expanduser(name)) if name else cache / "tilescope.db")  # noqa: PTH111
