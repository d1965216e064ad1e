"""Results that workers send to the page, as frozen dataclasses. Importing them loads neither pydantic nor SQLite."""

from kernels.results.counters import (
    Counters,
    GroupSizeRow,
    GroupSizeStudy,
    OpCounts,
    SharedCounts,
    Timeline,
)
from kernels.results.run import (
    Baseline,
    Check,
    Compiled,
    Device,
    Diff,
    Failure,
    Measured,
    Peak,
    RunResult,
    Timing,
)
from kernels.results.sweep import (
    Final,
    Finalist,
    LibraryRatio,
    Prediction,
    ResumePoint,
    Strategy,
    Sweep,
    SweepRow,
)
