"""Defects of the page's scripts."""

from __future__ import annotations

from tests.mutants.defect import planted

SCRIPTS = (
    *planted(
        "visualize/widgets/assets",
        "launch.js",
        "tests/page/test_player.py",
        ("this.finish(number > this.count ? this.count : current - 1);", "this.finish(current);"),
    ),
    *planted(
        "visualize/widgets/assets",
        "plot.js",
        "tests/page/test_player.py",
        ("flat[i] += flat[i - 1];", "flat[i] += 0;"),
    ),
)
