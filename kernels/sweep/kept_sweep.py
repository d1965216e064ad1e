"""Sweeps in this machine's store: rows are written as they are known, and a later sweep of the same space goes on.

Who compiles with another Triton starts anew: times of two compilers are not ranked together.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernels.gpus import Gpu
from kernels.jit import triton
from kernels.results import Sweep, SweepRow
from kernels.results.codec import UnreadableRecording, from_json, to_json
from kernels.space import Space
from kernels.store import Store, StoredRow, StoredSweep

LOG = logging.getLogger("tilescope.sweep")

# What a sweep is said to have ended as that never said how: its process is gone, or still at it.
CUT_OFF = "cut off"


@dataclass(frozen=True)
class Before:
    """What a sweep goes on from.

    Attributes:
        rows: of an earlier sweep of the same space on the same kind of GPU: those that are done are skipped.
        name: of that sweep in the store, where it grows on; "" for a new one.
    """

    rows: tuple[SweepRow, ...] = ()
    name: str = ""


@dataclass(frozen=True)
class Kept:
    """A sweep that is stored.

    Attributes:
        sweep: as it was found; its backend is "recorded" where it has times.
        before: what the next sweep of its space goes on from.
    """

    sweep: Sweep
    before: Before


def stamp(store: Store, space: Space, gpu: Gpu) -> object:
    """Something that is equal for as long as `kept` finds the same; None where nothing is stored."""
    latest = store.latest_sweep(space.identity, gpu.name)
    return latest and (latest.name, latest.changes)


def kept(store: Store, space: Space, gpu: Gpu) -> Kept | None:
    """The latest stored sweep of a space on a GPU; None where there is none, or this version can't read it."""
    latest = store.latest_sweep(space.identity, gpu.name)
    if latest is None:
        return None
    try:
        sweep = _sweep(latest, store.sweep_rows(latest.name), space)
    except (UnreadableRecording, KeyError) as error:
        LOG.warning("A stored sweep can't be read: %s", error)
        return None
    resumes = latest.triton == _triton()
    said = f"Swept on this machine, {latest.began:%Y-%m-%d %H:%M} UTC, with Triton {latest.triton}."
    if not resumes:
        said += f" Triton {_triton()} is installed now, so Sweep starts anew."
    sweep = dataclasses.replace(sweep, note=f"{said} {sweep.note}".strip())
    return Kept(sweep, Before(sweep.rows, latest.name) if resumes else Before())


def _sweep(stored: StoredSweep, rows: Sequence[StoredRow], space: Space) -> Sweep:
    """A stored sweep with its rows, and those of configs that were not tried."""
    place = f"stored sweep {stored.name}"
    found: Sweep = from_json(Sweep, {**stored.details, "rows": []}, place)
    experiments = space.experiments
    known = [row for row in rows if row.place < len(experiments)]
    payloads = [{**row.details, "experiment": experiments[row.place].to_json()} for row in known]
    read: tuple[SweepRow, ...] = from_json(tuple[SweepRow, ...], payloads, place)
    every = [SweepRow(one, "not tried", device=stored.gpu) for one in experiments]
    for row, one in zip(known, read, strict=True):
        every[row.place] = one
    device = found.device
    if found.backend == "cuda":
        device = dataclasses.replace(device, backend="recorded")
    return dataclasses.replace(
        found, space=space, rows=tuple(every), ended=state_of(stored), device=device, backend=device.backend
    )


def state_of(stored: StoredSweep) -> str:
    """How a stored sweep ended, as of `Sweep.ended`."""
    return CUT_OFF if stored.state == "running" else stored.state


def _triton() -> str:
    return str(getattr(triton, "__version__", "none"))


class SweepKeeper:
    """Writes one sweep to the store.

    Args:
        name: of the stored sweep that it goes on with; "" for a new one.

    Attributes:
        name: its own.
    """

    def __init__(self, store: Store, gpu: Gpu, name: str = "") -> None:
        self._store, self._gpu = store, gpu
        self.name = name or uuid.uuid4().hex
        self._began = datetime.datetime.now(datetime.UTC)

    def begin(self, sweep: Sweep) -> None:
        """Write what is searched, and how."""
        base, total = sweep.space.experiments[0], sweep.space.size
        asked = StoredSweep(
            *(self.name, base, self._gpu.name, self._began, "running", _details(sweep)),
            *(sweep.space.identity, _triton(), total),
        )
        self._store.begin_sweep(asked)

    def add(self, rows: Sequence[tuple[int, SweepRow]], done: int, best_ms: float | None) -> None:
        """Write rows by their places in grid order. What is not written yet when this returns is tried again.

        Args:
            done, best_ms: as of StoredSweep.
        """
        self._store.add_to_sweep(self.name, [_row(place, row) for place, row in rows], done, best_ms)

    def end(self, sweep: Sweep) -> None:
        """Write how it ended, and the finalists."""
        best_ms = sweep.best.median_ms if sweep.best else None
        self._store.end_sweep(self.name, sweep.ended, _details(sweep), best_ms)


def kept_and_keeper(
    store: Store, space: Space, gpu: Gpu, before: Before | None
) -> tuple[tuple[SweepRow, ...], SweepKeeper]:
    """The rows that a sweep goes on from, and what writes it.

    Args:
        before: None for what is stored.
    """
    if before is None:
        found = kept(store, space, gpu)
        before = found.before if found else Before()
    return before.rows, SweepKeeper(store, gpu, before.name)


def _details(sweep: Sweep) -> dict[str, Any]:
    """A sweep without its rows."""
    fields: dict[str, Any] = to_json(dataclasses.replace(sweep, rows=()))
    return fields


def _row(place: int, row: SweepRow) -> StoredRow:
    """A row without its experiment, which its place tells, and without what has its default."""
    details = to_json(row, omit_defaults=True)
    del details["experiment"]
    passed = {"timed": True, "checked": True, "wrong": False}.get(row.status)
    return StoredRow(place, details, row.median_ms, passed)
