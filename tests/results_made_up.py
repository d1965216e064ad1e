"""Made-up results of measurements, for tests of stored results and their pictures."""

import dataclasses
import datetime

from tilescope.results.run import Baseline, Check, Device, RunResult, Timing

START = datetime.datetime(2026, 11, 1, 9, 0, tzinfo=datetime.UTC)
H200 = Device("cuda", "NVIDIA H200", "2.11.0", "3.6.0")
INTERPRETER = Device("interpreter", "Triton's interpreter on the CPU", "2.13.0", "3.7.1")

PASSED = Check(True, 1e-4, 2e-4, 0.01, 1e-3, 0, 0, 4096, (1, 2), 0.5, 0.5, 0.7)


def run(of, median_ms=0.1, device=H200):
    """Return a run that passed."""
    if median_ms is None:
        return RunResult(of, device.backend, device, PASSED, None, note="Checked but not timed.")
    timing = Timing(median_ms, 0.995 * median_ms, 1.005 * median_ms, 100, None, 2000.0)
    library = dataclasses.replace(timing, median_ms=1.2 * median_ms)
    return RunResult(
        of, device.backend, device, PASSED, None, timing, Baseline("copy", library, 1.2, 1.19, 1.21)
    )
