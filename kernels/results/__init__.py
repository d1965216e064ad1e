"""What crosses from a worker to the page: frozen values, and nothing that makes them. A leaf package."""

from kernels.results.compiled_kernel import Compiled
from kernels.results.counters import Counters, OpCounts, SharedCounts
from kernels.results.failure import STAGES, Failure
from kernels.results.group_size_study import GroupSizeRow, GroupSizeStudy
from kernels.results.measured import Measured
from kernels.results.run_result import Check, Closeup, Diff, RunResult
from kernels.results.run_times import Baseline, Clocks, Device, LaunchOverhead, Peak, RunTimes, Timing
from kernels.results.sweep_result import (
    AgainstLibrary,
    Final,
    Finalist,
    Prediction,
    Strategy,
    Sweep,
    SweepRow,
)
from kernels.results.timeline import Timeline

__all__ = [
    "STAGES",
    "AgainstLibrary",
    "Baseline",
    "Check",
    "Clocks",
    "Closeup",
    "Compiled",
    "Counters",
    "Device",
    "Diff",
    "Failure",
    "Final",
    "Finalist",
    "GroupSizeRow",
    "GroupSizeStudy",
    "LaunchOverhead",
    "Measured",
    "OpCounts",
    "Peak",
    "Prediction",
    "RunResult",
    "RunTimes",
    "SharedCounts",
    "Strategy",
    "Sweep",
    "SweepRow",
    "Timeline",
    "Timing",
]
