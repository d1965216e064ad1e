"""What crosses from a worker to the page: frozen values, and nothing that makes them. A leaf package."""

from kernels.results.compiled_kernel import Compiled
from kernels.results.counters import Counters, OpCounts, SharedCounts
from kernels.results.failure import STAGES, Failure
from kernels.results.group_size_study import GroupSizeRow, GroupSizeStudy
from kernels.results.layout_study import LayoutRow, LayoutStudy
from kernels.results.measured import Measured
from kernels.results.run_result import Baseline, Check, Closeup, Device, Diff, Peak, RunResult, Timing
from kernels.results.timeline import Timeline

__all__ = [
    "STAGES",
    "Baseline",
    "Check",
    "Closeup",
    "Compiled",
    "Counters",
    "Device",
    "Diff",
    "Failure",
    "GroupSizeRow",
    "GroupSizeStudy",
    "LayoutRow",
    "LayoutStudy",
    "Measured",
    "OpCounts",
    "Peak",
    "RunResult",
    "SharedCounts",
    "Timeline",
    "Timing",
]
