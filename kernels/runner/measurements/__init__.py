"""What can be measured of an experiment: one file per kind, and the list of all."""

from __future__ import annotations

from typing import Any

from kernels.runner.measurements.counters_measurement import COUNTERS
from kernels.runner.measurements.group_sizes_measurement import GROUP_SIZES
from kernels.runner.measurements.layouts_measurement import LAYOUTS
from kernels.runner.measurements.measurement import Measurement
from kernels.runner.measurements.run_measurement import CHECK, RUN
from kernels.runner.measurements.timeline_measurement import TIMELINE

MEASUREMENTS: dict[str, Measurement[Any]] = {
    measurement.name: measurement
    for measurement in (
        RUN,
        CHECK,
        LAYOUTS,
        COUNTERS,
        GROUP_SIZES,
        TIMELINE,
    )
}
