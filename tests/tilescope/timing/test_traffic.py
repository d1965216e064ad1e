"""DRAM traffic of launches whose programs each load and store one block, and L1 hits of programs on one SM."""

import numpy as np
import pytest

from tests.tables import read_table
from tilescope.evaluate.counts import OperationCounts, Sampler, Tally
from tilescope.evaluate.sectors import RequestCosts
from tilescope.timing.traffic import find_hits, predict_traffic

BLOCK = 4096
MIB = 1 << 20
L2 = {"l1_bytes": 1e5, "l2_bytes": 48 * MIB, "kept_bytes": 16 * MIB, "held_bytes": 32 * MIB}

SECTORS = np.arange(128)  # of 4 KiB


def make_operation(sampler, program, first, op="load", counter="ld", **more):
    """Return an operation whose programs access blocks, by the address of each block."""
    tally = Tally()
    sampler.add(tally.touches, program, first, first + BLOCK - 1, np.full(len(first), BLOCK))
    return OperationCounts(op, counter, ("copy.py", 1), (), None, tally, **more)


def copy_blocks(mib):
    """Return the loads and stores of a launch that copies a tensor to another one, and its number of programs."""
    programs = np.arange(mib * MIB // BLOCK)
    sampler = Sampler(len(programs))
    operations = [
        make_operation(sampler, programs, base + programs * BLOCK, op, counter)
        for op, counter, base in (("load", "ld", 1 << 40), ("store", "st", 2 << 40))
    ]
    return operations, len(programs)


@pytest.mark.parametrize(("mib", "cold", "warm"), [(8, (8, 0), (0, 0)), (64, (64, 48), (64, 64))])
def test_a_repeated_copy_reads_nothing_if_its_data_fit_and_else_evicts_what_the_last_one_wrote(
    mib, cold, warm
):
    operations, programs = copy_blocks(mib)
    traffic = predict_traffic(operations, programs, sms=132, resident=8, **L2)
    assert (traffic.read_bytes / MIB, traffic.written_bytes / MIB) == cold
    assert (traffic.warm_read_bytes / MIB, traffic.warm_written_bytes / MIB) == warm


def loop_over(programs, operands):
    """Return the operations of a loop in which each program loads its part of each operand, several times."""
    operations = []
    sampler = Sampler(programs)
    for number, (mib, times) in enumerate(operands):
        blocks = np.arange(mib * MIB // BLOCK).reshape(programs, -1)
        first = (number + 1 << 40) + np.tile(blocks, times).ravel() * BLOCK
        program = np.repeat(np.arange(programs), blocks.shape[1] * times)
        operations.append(make_operation(sampler, program, first, loop=1))
    return operations


LOOPS = """
[(16, 4)] | 16 | fits in the L2
[(64, 4)] | 256 |
[(8, 4)] | 8 |
[(256, 1), (8, 4)] | 288 | 72 MiB are touched between two uses
[(32, 1), (8, 4)] | 40 | 16 MiB
"""


@pytest.mark.parametrize(("operands", "read", "why"), read_table(LOOPS))
def test_a_loop_reads_a_block_again_if_more_bytes_than_the_l2_holds_were_touched_since(
    operands, read, why
):
    traffic = predict_traffic(loop_over(128, operands), 128, sms=128, resident=1, **L2)
    assert traffic.read_bytes / MIB == pytest.approx(read, rel=0.01), "each block has 1.5 copies"


def test_the_traffic_of_many_executions_follows_from_a_sample():
    operations, programs = copy_blocks(4096)
    traffic = predict_traffic(operations, programs, sms=132, resident=8, **L2)
    kept = sum(len(part[0]) for op in operations for part in op.tally.touches.parts)
    assert kept <= 1 << 18
    assert traffic.read_bytes / MIB == pytest.approx(4096, rel=0.02)
    assert traffic.written_bytes / MIB == pytest.approx(4096 - 16, rel=0.02)
    assert traffic.l2_bytes["load"] / MIB == pytest.approx(4096, rel=0.001)


def test_programs_that_load_parts_of_a_sector_at_the_same_time_all_wait_for_dram():
    programs = np.arange(4096)
    sampler = Sampler(len(programs))
    tally = Tally(counts=np.ones(len(RequestCosts._fields), np.int64) * len(programs))
    first = (1 << 40) + programs * 8
    sampler.add(tally.touches, programs, first, first + 7, np.full(len(programs), 32))
    operation = OperationCounts("load", "ld", ("columns.py", 1), (), None, tally)
    traffic = predict_traffic([operation], len(programs), sms=132, resident=32, **L2)
    (request,) = traffic.requests.values()
    assert traffic.read_bytes == 4096 * 8
    assert request.dram_share == pytest.approx(0.25)
    assert request.dram_waits == 1


def load(*executions):
    """Return an operation that loads sectors: (program, time, sectors) each."""
    tally = Tally()
    tally.loads.extend(executions)
    return OperationCounts("load", "ld", ("rows.py", 1), (), None, tally)


def test_a_row_that_all_programs_read_is_fetched_once_while_their_own_rows_are_always_fetched():
    programs = range(8)
    own = load(*((program, 1, 1000 * program + SECTORS) for program in programs))
    shared = load(*((program, 2, 100_000 + SECTORS) for program in programs))
    hits, waits = find_hits([own, shared], resident=8, per_sm=100, l1_bytes=1 << 17)
    assert (hits.tolist(), waits.tolist()) == ([0, 1], [1, 0])


@pytest.mark.parametrize(("l1_bytes", "hit"), [(1 << 14, 1), (1 << 12, 0)])
def test_a_second_pass_over_a_row_hits_only_if_the_row_fits(l1_bytes, hit):
    first = load((0, 1, SECTORS), (0, 2, 1000 + SECTORS))
    second = load((0, 3, SECTORS), (0, 4, 1000 + SECTORS))
    hits, _ = find_hits([first, second], resident=4, per_sm=1, l1_bytes=l1_bytes)
    assert hits.tolist() == [0, hit]


def test_a_load_waits_for_the_sectors_that_the_load_before_it_has_just_requested():
    left = load((0, 1, SECTORS))
    right = load((0, 2, SECTORS))
    hits, waits = find_hits([left, right], resident=1, per_sm=1, l1_bytes=1 << 17)
    assert (hits.tolist(), waits.tolist()) == ([0, 1], [1, 1])


def test_sectors_that_an_execution_requests_twice_are_fetched_once():
    strided = load((0, 1, np.repeat(SECTORS, 4)))
    hits, _ = find_hits([strided], resident=1, per_sm=1, l1_bytes=1 << 17)
    assert hits.tolist() == [0.75]
