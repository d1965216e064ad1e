"""Hits in the L1 of programs that run on the same SM."""

import numpy as np
import pytest

from tilescope.evaluate.counts import OperationCounts, Tally
from tilescope.timing.traffic import find_hits

BLOCK = np.arange(128)  # sectors of 4 KiB


def load(*executions):
    """Return an operation that loads sectors: (program, time, sectors) each."""
    tally = Tally()
    tally.loads.extend(executions)
    return OperationCounts("load", "ld", ("rows.py", 1), (), None, tally)


def test_a_row_that_all_programs_read_is_fetched_once_while_their_own_rows_are_always_fetched():
    programs = range(8)
    own = load(*((program, 1, 1000 * program + BLOCK) for program in programs))
    shared = load(*((program, 2, 100_000 + BLOCK) for program in programs))
    hits = find_hits([own, shared], resident=8, per_sm=100, l1_bytes=1 << 17)
    assert hits.tolist() == [0, 1]


@pytest.mark.parametrize(("l1_bytes", "hit"), [(1 << 14, 1), (1 << 12, 0)])
def test_a_second_pass_over_a_row_hits_only_if_the_row_fits(l1_bytes, hit):
    first = load((0, 1, BLOCK), (0, 2, 1000 + BLOCK))
    second = load((0, 3, BLOCK), (0, 4, 1000 + BLOCK))
    hits = find_hits([first, second], resident=4, per_sm=1, l1_bytes=l1_bytes)
    assert hits.tolist() == [0, hit]


def test_sectors_that_an_execution_requests_twice_are_fetched_once():
    strided = load((0, 1, np.repeat(BLOCK, 4)))
    assert find_hits([strided], resident=1, per_sm=1, l1_bytes=1 << 17).tolist() == [0.75]
