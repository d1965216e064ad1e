"""What was measured before, for whoever asks: this machine's store first, then the recordings that are shipped."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any

from kernels.experiment import Experiment
from kernels.results import records
from kernels.results.records import RecordForm, Recording
from kernels.store.store import Kind, Store


@dataclass(frozen=True)
class Found:
    """A result of an earlier day, marked as such in its note and, where it is a GPU's, in its `backend`.

    Attributes:
        ended: when it was measured on this machine; None for one that is shipped.
    """

    value: Any
    ended: datetime.datetime | None = None


class Archive:
    """One look-up for both."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def find(self, kind: Kind, experiment: Experiment, gpu: str) -> Found | None:
        """What a GPU of that name gave: on this machine, or else on another, as it is shipped."""
        if stored := self.store.find(kind, experiment, gpu, "cuda"):
            return _found(kind.form, stored, experiment)
        shipped = records.find(kind.form, experiment, gpu)
        return None if shipped is None else Found(shipped)

    def interpreted(self, kind: Kind, experiment: Experiment, gpu: str) -> Found | None:
        """What Triton's interpreter gave on this machine."""
        stored = self.store.find(kind, experiment, gpu, "interpreter")
        return _found(kind.form, stored, experiment) if stored else None


def _found(form: RecordForm[Any], recording: Recording[Any], experiment: Experiment) -> Found:
    measured, ended = recording.measured, datetime.datetime.fromisoformat(recording.date)
    note = f"{form.verb} earlier on this machine, {ended:%Y-%m-%d %H:%M} UTC. {measured.note}".strip()
    backend = "recorded" if measured.device.backend == "cuda" else measured.backend
    return Found(form.recall(measured, experiment, note, backend), ended)
