"""Processes that write to the store are killed at random moments, and no acknowledged result is lost."""

from __future__ import annotations

import random
import signal
import sqlite3
from contextlib import closing

import pytest

from kernels.results.store import ResultFilter, Store
from tests.kernels.stores import writing

# Most of a kill's time is the start of its process, so the default is few; `make test-all` runs a hundred.
FEW, MANY = 5, 100

# Maximum seconds of writing before the kill: dozens of results, and sometimes a checkpoint.
_LONGEST_S = 0.25


@pytest.mark.timeout(600)
def test_a_killed_process_loses_at_most_the_result_in_progress(tmp_path, all_combinations):
    path, dice = tmp_path / "tilescope.db", random.Random(20261122)
    acknowledged, kills = set(), MANY if all_combinations else FEW
    for kill in range(kills):
        process = writing(path, 1_000_000 * kill, 100_000, dice.uniform(0.001, _LONGEST_S))
        printed, _ = process.communicate("go\n", timeout=30)
        assert process.returncode == -signal.SIGALRM
        whole = [line for line in printed.splitlines(keepends=True) if line.endswith("\n")]
        acknowledged |= {1_000_000.0 * kill + int(line) for line in whole}
        with closing(Store(path)) as store:
            stored = {result.summary.median_ms for result in store.latest(ResultFilter(), 10**6)}
            assert store.problem == ""
        assert acknowledged <= stored
        assert len(stored - acknowledged) <= 1, "the result in progress may or may not be stored"
        acknowledged = stored
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert len(acknowledged) > 5 * kills
