"""Sweeps in this machine's store: rows are written as they arrive, and a later sweep of the same space resumes there.

A sweep with another version of Triton starts again: times of two compilers are not ranked together.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.gpus import Gpu
from kernels.jit import triton
from kernels.results import Sweep, SweepRow
from kernels.results.codec import UnreadableRecording, from_json, to_json
from kernels.results.store import Store
from kernels.results.stored import Json, StoredSweep
from kernels.space import Space

LOG = logging.getLogger("tilescope.sweep")

TRITON = str(getattr(triton, "__version__", "none"))


@dataclass(frozen=True)
class ResumePoint:
    """The point from which a sweep resumes.

    Attributes:
        rows: of an earlier sweep of the same space on the same kind of GPU; configs that are done are skipped.
        name: of that sweep in the store, which grows; "" begins a new one.
    """

    rows: tuple[SweepRow, ...] = ()
    name: str = ""


NEW = ResumePoint()


def stored_version(store: Store, space: Space, gpu: Gpu) -> tuple[str, int] | None:
    """Return a value that changes when `load_sweep` would return something else; None if nothing is stored."""
    latest = store.latest_sweep(space.identity, gpu.name)
    return (latest.name, latest.changes) if latest else None


def load_sweep(store: Store, space: Space, gpu: Gpu) -> tuple[Sweep, ResumePoint] | None:
    """Return the latest stored sweep of a space on a GPU, and where the next one resumes.

    The sweep's backend is "recorded" if it has times. None: there is no sweep, or this version cannot read it.
    """
    latest = store.latest_sweep(space.identity, gpu.name)
    if latest is None:
        return None
    try:
        sweep = _read_sweep(latest, store.sweep_rows(latest.name), space)
    except (UnreadableRecording, KeyError) as error:
        LOG.warning("A stored sweep cannot be read: %s", error)
        return None
    can_resume = latest.triton == TRITON
    note = f"Swept on this machine, {latest.began:%Y-%m-%d %H:%M} UTC, with Triton {latest.triton}."
    if not can_resume:
        note += f" Triton {TRITON} is installed now, so Sweep starts again."
    sweep = dataclasses.replace(sweep, note=f"{note} {sweep.note}".strip())
    return sweep, ResumePoint(sweep.rows, latest.name) if can_resume else NEW


def find_resume_point(store: Store, space: Space, gpu: Gpu) -> ResumePoint:
    """Return where a sweep of a space resumes; an empty point if nothing is stored."""
    loaded = load_sweep(store, space, gpu)
    return loaded[1] if loaded else NEW


def _read_sweep(stored: StoredSweep, stored_rows: dict[int, Json], space: Space) -> Sweep:
    """Read a stored sweep; configs without a stored row are "not tried"."""
    place = f"stored sweep {stored.name}"
    sweep: Sweep = from_json(Sweep, {**stored.details, "rows": []}, place)
    rows = [SweepRow(experiment, "not tried", device=stored.gpu) for experiment in space.experiments]
    payloads = [{**row, "experiment": rows[number].experiment.to_json()} for number, row in stored_rows.items()]
    for number, row in zip(stored_rows, from_json(tuple[SweepRow, ...], payloads, place), strict=True):
        rows[number] = row
    device = sweep.device
    if sweep.backend == "cuda":
        device = dataclasses.replace(device, backend="recorded")
    ended = ended_as(stored)
    return dataclasses.replace(sweep, space=space, rows=tuple(rows), ended=ended, device=device, backend=device.backend)


def ended_as(stored: StoredSweep) -> str:
    """Return how a stored sweep ended: "cut off" if its process died, or is still running."""
    return "cut off" if stored.state == "running" else stored.state


def store_header(store: Store, name: str, gpu: Gpu, began: datetime.datetime, sweep: Sweep) -> None:
    """Store the space and the strategy of a sweep that begins or resumes."""
    space = sweep.space
    details = to_json(dataclasses.replace(sweep, rows=()))
    head = name, space.base.kernel, space.identity, gpu.name, TRITON
    store.begin_sweep(StoredSweep(*head, began, "running", details, space.size))


def store_rows(store: Store, name: str, rows: Sequence[tuple[int, SweepRow]], done: int, best_ms: float | None) -> None:
    """Store rows by their places in grid order, and the progress."""
    stored = {place: to_json(row, omit_defaults=True) for place, row in rows}
    for fields in stored.values():
        del fields["experiment"]  # the place determines it
    store.add_to_sweep(name, stored, done, best_ms)


def store_end(store: Store, name: str, sweep: Sweep) -> None:
    """Store how a sweep ended, and its finalists."""
    best_ms = sweep.best.median_ms if sweep.best else None
    store.end_sweep(name, sweep.ended, to_json(dataclasses.replace(sweep, rows=())), best_ms)
