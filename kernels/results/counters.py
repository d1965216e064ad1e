"""What Nsight Compute counted of one launch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from kernels.experiment import Experiment
from kernels.lanes import CompiledFacts
from kernels.results.run_times import Device


@dataclass(frozen=True)
class OpCounts:
    """What Nsight Compute counted of one operation, summed over its instructions of one opcode.

    Attributes:
        operation: its number among the kernel's accesses; -1 where SASS does not tell.
        executed: warp instructions, those included in which no lane was active.
        lines: L1 tags looked up.
        ideal_sectors: the sectors that the bytes asked for would fill.
    """

    operation: int
    opcode: str
    executed: int
    lines: int
    sectors: int
    ideal_sectors: int


@dataclass(frozen=True)
class SharedCounts:
    """What was counted of a source line's instructions on shared memory, of one opcode.

    `ideal_wavefronts` are those that would be left without bank conflicts.
    """

    source: tuple[str, int]
    opcode: str
    executed: int
    wavefronts: int
    ideal_wavefronts: int


@dataclass(frozen=True)
class Counters:
    """One launch as Nsight Compute counted it.

    Attributes:
        tool: what counted, with its version.
        compiled: what the compiler made of it.
        launch: counts of the whole launch, by our names of the metrics: "ld_requests", "dram_read_bytes".
        ops, shared: counts of instructions, on global and on shared memory.
    """

    experiment: Experiment
    backend: str
    device: Device
    tool: str
    compiled: CompiledFacts
    launch: dict[str, float]
    ops: tuple[OpCounts, ...]
    shared: tuple[SharedCounts, ...]
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """The reply of `/counters`."""
        return {
            "experiment": self.experiment.to_json(),
            "backend": self.backend,
            "device": dataclasses.asdict(self.device),
            "tool": self.tool,
            "compiled": self.compiled.to_json(),
            "launch": self.launch,
            "ops": [dataclasses.asdict(op) for op in self.ops],
            "shared": [dataclasses.asdict(row) for row in self.shared],
            "note": self.note,
        }
