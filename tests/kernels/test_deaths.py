"""Workers killed at random moments: clear failures, and good runs after. A few; the script kills hundreds."""

from __future__ import annotations

from scripts.inject_deaths import inject


def test_runs_whose_worker_is_killed_say_so_and_the_next_ones_are_good(session):
    result = inject(session, deaths=2, seed=1)
    assert (result.stages.total(), result.unclear, result.bad_next) == (2, [], [])
