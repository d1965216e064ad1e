"""One launch with several GROUP_SIZEs, counted and timed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from kernels.experiment import Experiment
from kernels.results.run_times import Device


@dataclass(frozen=True)
class GroupSizeRow:
    """One GROUP_SIZE.

    Attributes:
        group_size: None for a kernel that has none.
        registers, shared_bytes: of its compiled kernel, per thread and per program.
        dram_read_bytes, dram_write_bytes: of each counted launch.
        received_bytes: what SMs received of global memory, loads that hit in L1 left out; None where not counted.
        l2_read_bytes: what the L2 looked up for that; one answer can go to several SMs. None where not counted.
        times_ms: one per turn.
    """

    group_size: int | None
    registers: int
    shared_bytes: int
    dram_read_bytes: tuple[int, ...]
    dram_write_bytes: tuple[int, ...]
    received_bytes: int | None
    l2_read_bytes: int | None
    times_ms: tuple[float, ...]


@dataclass(frozen=True)
class GroupSizeStudy:
    """The same launch with several GROUP_SIZEs, that of `experiment` among them.

    Attributes:
        tool: what counted, with its version.
        rows: by GROUP_SIZE.
    """

    experiment: Experiment
    backend: str
    device: Device
    tool: str
    rows: tuple[GroupSizeRow, ...]
    clock_mhz: int | None = None
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """As it is recorded."""
        return {
            **dataclasses.asdict(self),
            "experiment": self.experiment.to_json(),
            "rows": [dataclasses.asdict(row) for row in self.rows],
        }


def with_group_size(experiment: Experiment, size: int | None) -> Experiment:
    """The experiment with another GROUP_SIZE; itself, where there is none."""
    if size is None:
        return experiment
    return dataclasses.replace(experiment, config=dataclasses.replace(experiment.config, GROUP_SIZE=size))


def any_group_size(experiment: Experiment) -> Experiment:
    """One experiment that stands for all that differ in GROUP_SIZE alone."""
    return with_group_size(experiment, 1 if hasattr(experiment.config, "GROUP_SIZE") else None)
