"""What can be measured of an experiment: one file per kind, and the list of all."""

from __future__ import annotations

from typing import Any

from kernels.measuring.measurements.counters_measurement import COUNTERS
from kernels.measuring.measurements.group_sizes_measurement import GROUP_SIZES
from kernels.measuring.measurements.measurement import Measurement
from kernels.measuring.measurements.run_measurement import CHECK, RUN
from kernels.measuring.measurements.timeline_measurement import TIMELINE

MEASUREMENTS: dict[str, Measurement[Any]] = {
    measurement.name: measurement
    for measurement in (
        RUN,
        CHECK,
        COUNTERS,
        GROUP_SIZES,
        TIMELINE,
    )
}
