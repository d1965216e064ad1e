"""Predict every recorded launch: `python -m scripts.predict_records`. No GPU needed.

Writes the scores of our kernels. Run it after a model's predictions change or launches are
recorded; `python -m scripts.draw_scoreboard` then updates README.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

from scripts.score_file import replace_scores
from tilescope.declare.discovery import discover, package_folder
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from tilescope.measure.counters import COUNTERS
from tilescope.results import Counters, records
from tilescope.results.counters import with_group_size
from tilescope.results.records import Recording
from tilescope.results.scores import Score
from visualize.predict.costs import LaunchCosts, launch_totals
from visualize.views.library import DRAM, FILE, recorded_launch


def predict_counted(recording: Recording[Counters]) -> LaunchCosts:
    """Predict a counted launch, using the compiled code that was recorded with the counts."""
    experiment, gpu = recording.measured.experiment, GPUS[recording.gpu]
    launch = Launch(experiment.problem, experiment.config, gpu)
    return LaunchCosts(discover()[experiment.kernel], launch, None, recording.measured)


def score_counters(recording: Recording[Counters], costs: LaunchCosts) -> list[Score]:
    """Return the scores of a counted launch: requests, except of TMA boxes, and sectors.

    Args:
        costs: the result of `predict_counted`.
    """
    launch = recorded_launch(recording).short_address()
    scores = []
    for kind, (predicted, counted) in launch_totals(costs).items():
        why = "Its atomics retry." if predicted.is_lower_bound else ""
        for count in ("requests", "sectors"):
            if count == "sectors" or counted.has_requests:
                values = getattr(predicted, count), getattr(counted, count)
                scores.append(Score(count, launch, *values, kind, why, is_compared=not why))
    return scores


def score_records() -> Iterator[Score]:
    """Yield the scores of counted launches, from their recorded compile, and of GROUP_SIZE studies, compiled here."""
    from benchmarks.recorded_reuse import STUDIES, recorded_launches, rows

    for counted in records.shipped(COUNTERS.form):
        yield from score_counters(counted, predict_counted(counted))
    for recording, launch in zip(STUDIES, recorded_launches(), strict=True):
        for row in rows([launch]):
            experiment = with_group_size(recorded_launch(recording), row.group_size)
            values = round(row.read_bytes), round(row.counted)
            yield Score(
                DRAM, experiment.short_address(), *values, "DRAM read", is_flagged=row.is_flagged
            )


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        replace_scores(package_folder() / FILE, score_records())


if __name__ == "__main__":
    main()
