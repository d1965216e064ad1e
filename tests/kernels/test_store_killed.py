"""The store under kill -9: a process that writes is killed at random moments, and nothing it had stored is lost."""

from __future__ import annotations

import random
import sqlite3
import time

import pytest

from kernels.results.store import Store
from kernels.results.stored import ResultFilter
from tests.kernels.stores import writing

# A kill takes what a process takes to start. A few hold what it is about; `make test-all` does a hundred.
FEW, MANY = 5, 100

# Seconds of writing before the kill, at most: some dozens of results, and a checkpoint now and then.
_LONGEST_S = 0.25


@pytest.mark.timeout(600)
def test_a_process_killed_while_it_writes_loses_at_most_the_result_in_hand(tmp_path, all_combinations):
    path, dice = tmp_path / "tilescope.db", random.Random(20261122)
    acknowledged, kills = set(), MANY if all_combinations else FEW
    for kill in range(kills):
        process = writing(path, 1_000_000 * kill, 100_000)
        process.stdin.write("go\n")
        process.stdin.flush()
        time.sleep(dice.uniform(0, _LONGEST_S))
        process.kill()
        said, _ = process.communicate(timeout=30)
        assert process.returncode == -9
        whole = [line for line in said.splitlines(keepends=True) if line.endswith("\n")]
        told = {1_000_000.0 * kill + int(line) for line in whole}
        store = Store(path)
        found = {one.summary.median_ms for one in store.latest(ResultFilter(), 10**6)}
        assert store.problem == ""
        store.close()
        assert acknowledged | told <= found
        assert len(found - acknowledged - told) <= 1, "the one in hand may be there, or not"
        acknowledged = found
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    assert len(acknowledged) > 5 * kills
