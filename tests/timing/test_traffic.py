"""The DRAM traffic of launches whose programs load and store a block each."""

import numpy as np
import pytest

from kernels.evaluate.counts import OperationCounts, Tally
from kernels.evaluate.touches import Sampler
from kernels.timing.traffic import predict_traffic

BLOCK = 4096
MIB = 1 << 20
L2 = {"l1_bytes": 1e5, "l2_bytes": 20 * MIB, "kept_bytes": 16 * MIB, "held_bytes": 32 * MIB}


def copy_blocks(mib):
    """Return the loads and stores of a launch that copies a tensor to another one, and its number of programs."""
    programs = np.arange(mib * MIB // BLOCK)
    operations = []
    sampler = Sampler(len(programs))
    for op, counter, base in (("load", "ld", 1 << 40), ("store", "st", 2 << 40)):
        first = base + programs * BLOCK
        tally = Tally()
        sampler.add(tally.touches, programs, first, np.full(1, BLOCK - 1), np.full(1, BLOCK))
        operations.append(OperationCounts(op, counter, ("copy.py", 1), (), None, tally))
    return operations, len(programs)


@pytest.mark.parametrize(("mib", "cold", "warm"), [(8, (8, 0), (0, 0)), (64, (64, 48), (64, 64))])
def test_a_repeated_copy_reads_nothing_if_its_data_fit_and_else_evicts_what_the_last_one_wrote(
    mib, cold, warm
):
    operations, programs = copy_blocks(mib)
    traffic = predict_traffic(operations, programs, sms=132, resident=8, **L2)
    assert (traffic.read_bytes / MIB, traffic.written_bytes / MIB) == cold
    assert (traffic.warm_read_bytes / MIB, traffic.warm_written_bytes / MIB) == warm
