"""The words and the units of a sweep's rows, on the page and in the terminal."""

import math
from typing import get_args

from tilescope.declare.experiment import Experiment
from tilescope.declare.space import Space
from tilescope.numbers import time_unit
from tilescope.results import Sweep, SweepRow
from tilescope.results.sweep import Status

STATUSES = get_args(Status)
ENDINGS = {
    "complete": "All configs were tried.",
    "patience": "It stopped early because the latest configs brought no improvement.",
    "budget": "The budget is spent.",
    "cancelled": "It was cancelled. Finished rows are kept, and the next sweep resumes from them.",
    "failed": "It ended because no device was left.",
    "running": "",
    "cut off": "It was interrupted, or is still running in another process. The next sweep resumes from its rows.",
}


def knobs_text(experiment: Experiment, space: Space) -> str:
    """Return the values of the varied knobs as text."""
    return ", ".join(f"{name} {getattr(experiment.config, name)}" for name, _ in space.varied)


def time_ms(row: SweepRow, is_timed: bool) -> float:
    """Return the time that ranks a row: the median, or the prediction in a sweep without times. NaN if not ranked."""
    if is_timed:
        return row.median_ms if row.status == "timed" and row.median_ms else math.nan
    return row.predicted.ms if row.is_right and row.predicted else math.nan


def sweep_unit(sweep: Sweep) -> tuple[str, float]:
    """Return the unit of all the sweep's times, and the factor from ms. The best config's time decides."""
    return time_unit(time_ms(sweep.best, sweep.is_timed) if sweep.best else 1.0)
