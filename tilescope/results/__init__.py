"""Results that workers send to the page, as frozen dataclasses. Importing them loads neither pydantic nor SQLite."""

from tilescope.results.counters import (
    Counters,
    GroupSizeRow,
    GroupSizeStudy,
    OpCounts,
    SharedCounts,
    Timeline,
)
from tilescope.results.run import (
    Baseline,
    Check,
    Compiled,
    Device,
    Diff,
    Failure,
    Measured,
    Peak,
    RunResult,
    Stopped,
    Timing,
)
from tilescope.results.sweep import (
    Final,
    Finalist,
    LibraryRatio,
    Sweep,
    SweepPrediction,
    SweepRow,
)
