"""Predict which of a launch's loads hit in the L1, from the sectors that a few programs of an SM load.

Resident programs progress alike. A sector stays in the L1 until the bytes fetched after it exceed the L1's size.
"""

import operator
from collections.abc import Sequence

import numpy as np

from tilescope.evaluate.counts import OperationCounts
from tilescope.evaluate.probe import MOST_PROGRAMS
from tilescope.evaluate.sectors import SECTOR_BYTES


def find_hits(
    operations: Sequence[OperationCounts], resident: int, per_sm: int, l1_bytes: float
) -> np.ndarray:
    """Return the fraction of each operation's sectors that hit in the L1, (operations,); 0 if it loads nothing.

    Args:
        resident: programs that run on an SM at a time.
        per_sm: programs that an SM runs in all.
        l1_bytes: size of an SM's L1.
    """
    # If an SM runs more programs than were recorded, the first half only fills the L1.
    at_once = min(resident, MOST_PROGRAMS // 2 if per_sm > MOST_PROGRAMS else per_sm)
    recorded = [
        (time, program, number, sectors)
        for number, op in enumerate(operations)
        for program, time, sectors in op.tally.loads
    ]
    executed: dict[int, int] = {}
    loads = []
    for _, program, number, sectors in sorted(recorded, key=operator.itemgetter(0, 1)):
        executed[program] = executed.get(program, 0) + 1
        loads.append((executed[program], program, number, sectors))
    rank = {program: place for place, program in enumerate(sorted(executed))}
    loads.sort(key=lambda load: (rank[load[1]] // at_once, *load[:2]))
    skipped = at_once if per_sm > MOST_PROGRAMS and len(rank) > at_once else 0
    asked = np.zeros(len(operations))
    missed = np.zeros(len(operations))
    if not loads:
        return missed
    fits = l1_bytes * at_once / min(resident, per_sm) / SECTOR_BYTES
    _, index = np.unique(np.concatenate([load[3] for load in loads]), return_inverse=True)
    used = np.full(index.max(initial=0) + 1, -np.inf)
    fetched = 0
    begin = 0
    for _, program, number, sectors in loads:
        touched = np.unique(index[begin : begin + len(sectors)])
        begin += len(sectors)
        misses = int(np.count_nonzero(fetched - used[touched] >= fits))
        fetched += misses
        used[touched] = fetched
        if rank[program] >= skipped:
            asked[number] += len(sectors)
            missed[number] += misses
    return np.where(asked > 0, 1 - missed / np.maximum(asked, 1), 0.0)
