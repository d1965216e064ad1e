"""Predict every recorded launch: `python -m scripts.predict_records`. No GPU needed.

Writes the file that the scoreboard compares with the counts. Run it after a model's predictions change or launches are
recorded; `python -m scripts.draw_scoreboard` then updates README.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from visualize.views.library.scoreboard import Prediction


def predictions() -> Iterator[Prediction]:
    """Yield predictions of counted launches, from their recorded compile, and of GROUP_SIZE studies, compiled here."""
    from kernels.measuring.counters import COUNTERS
    from kernels.results import records
    from tests.oracle.recorded_reuse import STUDIES, recorded_launches, rows
    from visualize.views.library.scoreboard import Prediction, counters_prediction, predict_counted, recorded_launch

    for counted in records.shipped(COUNTERS.form):
        yield counters_prediction(counted, predict_counted(counted))
    for recording, launch in zip(STUDIES, recorded_launches(), strict=True):
        reads = tuple((row.group_size, round(row.predicted.read_bytes), row.is_flagged) for row in rows([launch]))
        yield Prediction(recorded_launch(recording).short_address(), version("triton"), reads=reads)


def main() -> None:
    from visualize.views.library.scoreboard import FILE

    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        lines = [prediction.line() for prediction in predictions()]
    FILE.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{FILE}: {len(lines)} launches, {FILE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
