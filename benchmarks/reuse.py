"""How well and how fast DRAM reads are predicted by GROUP_SIZE: `python -m benchmarks.reuse`. No GPU needed.

Prints how long all GROUP_SIZEs of a product of 8192³ take (the bar is 300 ms a tile), how far predictions are from what
an H200 counted, the same for shapes left out of a fit over a grid of constants, and how much time is lost by taking the
recommended GROUP_SIZE. About a minute, most of it for the grid.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.oracle.recorded_reuse import Compared, Row

REPEATS = 5
BAR_MS = 300
SIDE = 8192
PRESSURES = (0.0, 1.5, 2.2)


def main() -> None:
    """Compile each distinct kernel once, and print the four tables."""
    from tests.oracle.recorded_reuse import compared, rows

    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        launches = compared()
    _print_times(launches)
    found = rows(launches)
    _print_errors("tile", {tile: [row for row in found if row.of.tile == tile] for tile in _each(found, "tile")})
    _print_errors("shape", {shape: [row for row in found if row.of.shape == shape] for shape in _each(found, "shape")})
    _print_cross_validation(launches)
    _print_regret(launches)


def _print_times(launches: Sequence[Compared]) -> None:
    """The median over some repeats, at three pressures on the L2: 0, and where some SMs run ahead."""
    from visualize.models.reuse import by_group_size, group_sizes

    print(f"{SIDE}³, all GROUP_SIZEs; ms where the L2 needs 0, 1.5 and 2.2 times as long as the next resource")
    for one in launches:
        if one.kernel.id != "matmul.grouped" or one.shape != (SIDE, SIDE, SIDE):
            continue
        sizes, medians = group_sizes(one.schedule), []
        for pressure in PRESSURES:
            times = []
            for _ in range(REPEATS):
                began = time.perf_counter()
                by_group_size(one.kernel, one.launch, one.schedule, pressure, sizes)
                times.append(1000 * (time.perf_counter() - began))
            medians.append(statistics.median(times))
        over = "  over the bar" if max(medians) > BAR_MS else ""
        print(f"{_by(one.tile):24} {len(sizes):4} sizes {''.join(f'{ms:8.0f}' for ms in medians)}{over}")


def _print_errors(what: str, parts: dict[tuple[int, ...], list[Row]]) -> None:
    print(f"\n{what:24} {'rows':>5} {'median':>8} {'≤ 20 %':>8} {'worst':>8} {'flagged':>8} {'unflagged ≤ 20 %':>17}")
    for name, part in parts.items():
        print(_error_line(_by(name), part))
    print(_error_line("all", [row for part in parts.values() for row in part]))


def _error_line(name: str, part: Sequence[Row]) -> str:
    from tests.oracle.recorded_reuse import median_error, within

    worst = max((row.error for row in part), key=abs)
    plain = [row for row in part if not row.is_flagged]
    kept = f"{within(plain):17.1%}" if plain else f"{'–':>17}"
    flagged = 1 - len(plain) / len(part)
    return f"{name:24} {len(part):5} {median_error(part):8.1%} {within(part):8.1%} {worst:+8.1%} {flagged:8.0%} {kept}"


def _print_cross_validation(launches: Sequence[Compared]) -> None:
    """Each shape by constants that were fitted to all others, in two ways; the other constants stay as they are."""
    from tests.oracle.recorded_reuse import grid, left_out, misfit, rows, within

    candidates = grid(
        evicted_from=(0.2, 0.3),
        evicted_at=(0.58, 0.64, 0.7),
        ahead_slope=(0.25, 0.36, 0.5),
        spread=(0.01, 0.02, 0.04),
    )
    found = [rows(launches, one) for one in candidates]
    fits = {"least mean |log error|": misfit, "most within 20 %": lambda part: (-within(part), misfit(part))}
    for name, badness in fits.items():
        judged = left_out(found, badness)
        title = f"left out; {name}"
        _print_errors(
            title, {shape: [row for row in judged if row.of.shape == shape] for shape in _each(judged, "shape")}
        )


def _print_regret(launches: Sequence[Compared]) -> None:
    """Of the GROUP_SIZEs that were timed, the recommended one against the fastest."""
    from visualize.models.reuse import recommended

    print(f"\n{'launch':56} {'pressure':>8} {'recommended':>11} {'fastest':>8} {'slower by':>9}")
    compared = [one for one in launches if None not in one.rows]
    for one in sorted(compared, key=lambda one: -one.regret):
        times = one.times_ms
        chosen, fastest = recommended(one.predicted(), one.launch), min(times, key=lambda size: times[size])
        print(f"{one!s:56} {one.pressure:8.2f} {chosen:11} {fastest:8} {one.regret:9.1%}")


def _each(found: Iterable[Row], what: str) -> list[tuple[int, ...]]:
    return list(dict.fromkeys(getattr(row.of, what) for row in found))


def _by(sides: Sequence[int]) -> str:
    return " × ".join(map(str, sides))


if __name__ == "__main__":
    main()
