"""Workers killed at random moments: clear failures, and good runs after. A few; the script kills hundreds."""

from __future__ import annotations

from scripts.inject_deaths import inject


def test_runs_whose_worker_is_killed_say_so_and_the_next_ones_are_good(session):
    found = inject(session, deaths=2, seed=1)
    assert len(found.struck) == 2
    assert found.unclear == []
    assert found.bad_after == []
