"""Results that workers send to the page, as frozen dataclasses. Importing them loads neither pydantic nor SQLite."""

from kernels.results.counters import Counters, GroupSizeRow, GroupSizeStudy, OpCounts, SharedCounts, Timeline
from kernels.results.run import Check, Compiled, Device, Diff, Failure, Measured, RunResult, Timing
from kernels.results.sweep import Final, Finalist, LibraryRatio, Prediction, Strategy, Sweep, SweepRow
