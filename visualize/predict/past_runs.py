"""The runs of one Experiment on one device, as they followed each other."""

from __future__ import annotations

import datetime
import itertools
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from visualize.predict.changes import Change, Times, changes, suspicion


@dataclass(frozen=True)
class PastRuns:
    """Runs that were timed, the oldest first.

    Attributes:
        device: its own name.
        places: of each run among all that are shown with it, by time: 0 is the oldest.
        ended: UTC.
        versions: (torch, triton) of each.
        samples: launches that each was timed by.
    """

    device: str
    places: np.ndarray
    ended: tuple[datetime.datetime, ...]
    versions: tuple[tuple[str, str], ...]
    samples: tuple[int, ...]
    times: Times

    def __len__(self) -> int:
        return len(self.ended)

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """When the launch became slower or faster."""
        return changes(self.times)

    @cached_property
    def suspicion(self) -> Change | None:
        """What may be a change once more runs confirm it."""
        return suspicion(self.times, self.changes)

    def upgrade(self, change: Change) -> tuple[str, ...]:
        """The versions that changed with a change: "triton 3.6.0 → 3.7.1"."""
        before, after = self.versions[change.place - 1], self.versions[change.place]
        return tuple(
            f"{name} {old} → {new}"
            for name, old, new in zip(("torch", "triton"), before, after, strict=True)
            if old != new
        )

    @property
    def levels(self) -> tuple[tuple[int, int, float], ...]:
        """From the first run to the last, between changes: their places here, and the median of their medians in ms."""
        edges = [0, *(change.place for change in self.changes), len(self)]
        return tuple(
            (start, end - 1, float(np.median(self.times.median_ms[start:end])))
            for start, end in itertools.pairwise(edges)
        )
