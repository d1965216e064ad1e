"""Accuracy and speed of the predicted DRAM reads by GROUP_SIZE: `python -m benchmarks.reuse`. No GPU needed.

Prints the time for all GROUP_SIZEs of a product of 8192³ (the limit is 300 ms per tile size), the errors against
counts on GPUs, the errors with each shape left out of the fit, and the time that the recommended GROUP_SIZE loses
against the fastest one. Takes some minutes, mostly for the fit.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pandas import DataFrame

from benchmarks.models import median_ms

if TYPE_CHECKING:
    from benchmarks.recorded_reuse import RecordedLaunch, Row

MAX_MS = 300
SIDE = 8192
PRESSURES = (0.0, 1.5, 2.2)

# The GPU of the launches that are timed, and left out of the fit shape by shape.
FITTED_ON = "H200"


def main(csv: Path | None = None) -> None:
    """Compile each kernel once, and print the four tables.

    Args:
        csv: a file that gets one line per GROUP_SIZE of each launch.
    """
    from benchmarks.recorded_reuse import recorded_launches, rows

    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        launches = recorded_launches()
        found = _frame(rows(launches))  # compiles the launches
    _print_times(launches)
    if csv is not None:
        found.to_csv(csv, index=False)
    for by in ("gpu", "draw", "tile", "shape"):
        _print_errors(by, found, by)
    _print_cross_validation([one for one in launches if one.launch.gpu.name == FITTED_ON])
    _print_regret(launches)


def _print_times(launches: Sequence[RecordedLaunch]) -> None:
    """Print median times at three L2 pressures: unknown (0), and two at which some SMs run ahead."""
    from visualize.predict.reuse import by_group_size, group_sizes

    print(f"{SIDE}³, all GROUP_SIZEs: ms at an L2 pressure of 0 (unknown), 1.5 and 2.2")
    for one in launches:
        if (
            one.kernel.id != "matmul.grouped"
            or one.shape != (SIDE, SIDE, SIDE)
            or one.launch.gpu.name != FITTED_ON
        ):
            continue
        order = one.traffic.schedule
        sizes, predict = group_sizes(order), partial(by_group_size, order)
        medians = [median_ms(partial(predict, pressure, sizes)) for pressure in PRESSURES]
        over = f"  over {MAX_MS} ms" if max(medians) > MAX_MS else ""
        print(
            f"{_by(one.tile):24} {len(sizes):4} sizes {''.join(f'{ms:8.0f}' for ms in medians)}{over}"
        )


def _frame(rows: Sequence[Row]) -> DataFrame:
    """One row per GROUP_SIZE of each launch, with its bytes, error and flag."""
    return DataFrame(
        {
            "gpu": row.of.launch.gpu.name,
            "draw": f"{row.of.launch.gpu.name}, {_draw(row.of.shape)}",
            "tile": _by(row.of.tile),
            "shape": _by(row.of.shape),
            "group_size": row.group_size,
            "counted_bytes": row.counted,
            "predicted_bytes": row.predicted.read_bytes,
            "error": row.error,
            "is_flagged": row.is_flagged,
        }
        for row in rows
    )


def _draw(shape: tuple[int, ...]) -> str:
    """The draw of random shapes to which a shape belongs, or "chosen"."""
    from benchmarks.recorded_reuse import DRAWN

    return next((f"{name} draw" for name, shapes in DRAWN.items() if shape in shapes), "chosen")


def _print_errors(title: str, rows: DataFrame, by: str) -> None:
    """Print the errors of each group of rows, and of all rows."""
    parts = {**dict(list(rows.groupby(by, sort=False))), "all": rows}
    summary = DataFrame({name: _summary(part) for name, part in parts.items()}).T.rename_axis(title)
    formats = {name: "{:.1%}".format for name in summary.columns if name != "rows"}
    print("\n" + summary.to_string(formatters={**formats, "rows": "{:.0f}".format}))


def _summary(part: DataFrame) -> dict[str, float]:
    error = part["error"]
    return {
        "rows": len(part),
        "median": error.abs().median(),
        "≤ 20 %": (error.abs() <= 0.2).mean(),
        "worst": error[error.abs().idxmax()],
        "flagged": part["is_flagged"].mean(),
        "unflagged ≤ 20 %": (error[~part["is_flagged"]].abs() <= 0.2).mean(),
    }


def _print_cross_validation(launches: Sequence[RecordedLaunch]) -> None:
    """Print the errors of each shape, with the constants of the grid fitted to all other shapes."""
    from benchmarks.recorded_reuse import grid, left_out, rows

    candidates = grid(
        drift=(0.005, 0.007, 0.009),
        jitter=(0.004, 0.006, 0.009),
        ahead_slope=(0.2, 0.25, 0.3),
        ways=(16, 24, 32),
    )
    _print_errors(
        "left out", _frame(left_out([rows(launches, each) for each in candidates])), "shape"
    )


def _print_regret(launches: Sequence[RecordedLaunch]) -> None:
    """Print how much slower the recommended GROUP_SIZE is than the fastest timed GROUP_SIZE."""
    from tilescope.timing.l2 import CONSTANTS
    from visualize.predict.reuse import recommended

    print(f"\n{'launch':62} {'pressure':>8} {'recommended':>11} {'fastest':>8} {'slower by':>9}")
    compared = [one for one in launches if None not in one.rows]
    for one in sorted(compared, key=lambda one: -one.regret):
        times = one.times_ms
        chosen = recommended(one.kernel, one.launch, one.predict(CONSTANTS))
        fastest = min(times, key=lambda size: times[size])
        print(
            f"{one!s:62} {one.traffic.l2_pressure:8.2f} {chosen:11} {fastest:8} {one.regret:9.1%}"
        )


def _by(sides: Sequence[int]) -> str:
    return " × ".join(map(str, sides))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path, help="also write every comparison to this file")
    main(parser.parse_args().csv)
