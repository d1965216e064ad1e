"""Predict every recorded launch: `python -m scripts.predict_records`. No GPU needed.

Writes the file that the scoreboard compares with the counts. Run it after a model's predictions change or launches are
recorded; `python -m scripts.draw_scoreboard` then updates README.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from importlib.metadata import version

from tilescope.declare.discovery import discover, package_folder
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from tilescope.measure.counters import COUNTERS
from tilescope.results import Counters, codec, records
from tilescope.results.records import Recording
from visualize.predict.agreement import LaunchCosts, launch_totals
from visualize.views.library.scoreboard import FILE, ShippedPrediction, recorded_launch


def predict_counted(recording: Recording[Counters]) -> LaunchCosts:
    """Predict a counted launch, using the compiled code that was recorded with the counts."""
    experiment, gpu = recording.measured.experiment, GPUS[recording.gpu]
    launch = Launch(experiment.problem, experiment.config, gpu)
    return LaunchCosts(discover()[experiment.kernel], launch, None, recording.measured)


def counters_prediction(recording: Recording[Counters], costs: LaunchCosts) -> ShippedPrediction:
    """Return the prediction to ship for a counted launch.

    Args:
        costs: the result of `predict_counted`.
    """
    counters, totals = recording.measured, launch_totals(costs)
    return ShippedPrediction(
        recorded_launch(recording).short_address(),
        counters.device.triton or "",
        operations={
            kind: (predicted.requests if counted.has_requests else None, predicted.sectors)
            for kind, (predicted, counted) in totals.items()
        },
        lower_bounds=tuple(
            kind for kind, (predicted, _) in totals.items() if predicted.is_lower_bound
        ),
    )


def predictions() -> Iterator[ShippedPrediction]:
    """Yield predictions of counted launches, from their recorded compile, and of GROUP_SIZE studies, compiled here."""
    from benchmarks.recorded_reuse import STUDIES, recorded_launches, rows

    for counted in records.shipped(COUNTERS.form):
        yield counters_prediction(counted, predict_counted(counted))
    for recording, launch in zip(STUDIES, recorded_launches(), strict=True):
        reads = tuple(
            (row.group_size, round(row.predicted.read_bytes), row.is_flagged)
            for row in rows([launch])
        )
        yield ShippedPrediction(
            recorded_launch(recording).short_address(), version("triton"), reads=reads
        )


def line(prediction: ShippedPrediction) -> str:
    """Return a prediction as a line of the file, without the newline. Empty fields are omitted."""
    return json.dumps(
        codec.to_json(prediction, omit_defaults=True), ensure_ascii=False, separators=(",", ":")
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        lines = list(map(line, predictions()))
    path = package_folder() / FILE
    path.write_text("".join(f"{each}\n" for each in lines), encoding="utf-8")
    print(f"{path}: {len(lines)} launches, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
