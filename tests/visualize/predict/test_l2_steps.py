"""The loads of each step of a launch, and the L2's contents after it: against a replay, access by access."""

import math

import numpy as np
import pytest

from tilescope.declare.discovery import discover
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from tilescope.timing.l2 import CONSTANTS
from visualize.predict.l2_steps import step_loads
from visualize.predict.reuse import bytes_per_tile, reuse
from visualize.predict.schedule import panels, row_major, schedule, steps

GPU = GPUS["H200"]


def plan(m, n, k, kernel="matmul.grouped", **config):
    declared = discover()[kernel]
    return schedule(
        declared, Launch(declared.family.problem(M=m, N=n, K=k), declared.config(**config), GPU), 1
    )


def predict(order, by="auto", first=132):
    launch = steps(order, by)
    written = bytes_per_tile(order.kernel, order.launch)
    return step_loads(order, launch, panels(order), written, first), launch, written


def full_sets(touched, ways=CONSTANTS.ways):
    """Return the chance that a set has received as many lines as it has ways (Poisson)."""
    lines = ways * touched
    return 1 - sum(math.exp(-lines) * lines**n / math.factorial(n) for n in range(ways))


def replay(order, launch, written):
    """Return the bytes fetched and evicted after each wave, with each reuse's distance counted exactly."""
    rows, columns = launch.timed.pieces
    columns = columns + len(panels(order).row_bytes)
    size = np.concatenate([panels(order).row_bytes, panels(order).column_bytes]).tolist()
    last = dict[int, int]()
    kept = dict[int, float]()  # bytes by piece
    begin = fetched = evicted = 0
    totals = []
    tiles = np.bincount(order.step).tolist()
    for wave, count in enumerate(tiles):
        entries = slice(begin, begin + count)
        begin += count
        read, users = np.unique([*rows[entries], *columns[entries]], return_counts=True)
        copies = {
            piece: (2 - 0.5**n) * size[piece]
            for piece, n in zip(read.tolist(), users.tolist(), strict=True)
        }
        shares = {}
        for before in {last[piece] for piece in copies if piece in last}:
            between = sum(kept[piece] for piece in kept if last[piece] > before)
            # Half of the first wave's bytes, and of those that this wave has not read since.
            ends = sum(kept[piece] for piece in kept if last[piece] == before)
            ends += sum(each for piece, each in copies.items() if last.get(piece, -1) <= before)
            output = (
                1.5 * written * (sum(tiles[before + 1 : wave]) + (tiles[before] + tiles[wave]) / 2)
            )
            shares[before] = full_sets((between + ends / 2 + output) / GPU.l2_bytes)
        for piece, each in copies.items():
            fetched += size[piece] * shares.get(last.get(piece, -1), 1)
            evicted += size[piece] * shares.get(last.get(piece, -1), 0)
            last[piece] = wave
            kept[piece] = each
        totals.append((fetched, evicted))
    return np.array(totals)


LAUNCHES = [
    (8192, 8192, 8192, 1),
    (8192, 8192, 8192, 8),
    (16000, 16000, 1000, 2),
]


@pytest.mark.parametrize(("m", "n", "k", "size"), LAUNCHES)
def test_each_wave_fetches_what_a_replay_of_all_uses_fetches(m, n, k, size):
    own = plan(m, n, k, BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP_SIZE=size, num_warps=8)
    for order in (own, row_major(own)):
        known, launch, written = predict(order)
        fetched, evicted = replay(order, launch, written).T
        assert known.fetched[1:] == pytest.approx(fetched, rel=0.02)
        assert known.evicted[1:] == pytest.approx(evicted, abs=0.02 * fetched[-1])
        assert known.fetched[-1] == pytest.approx(reuse(order, 0.0).lockstep_bytes, rel=0.03)
        # A use that misses fetches a block of A, of 128 × 64 elements, or of B, of 64 × 256 elements.
        assert known.requested[-1] == 2 * own.programs * own.k_blocks
        missed = known.requested[-1] - known.hits[-1]
        assert known.fetched[-1] / (2 * 64 * 256) <= missed * 1.001
        assert missed <= 1.05 * known.fetched[-1] / (2 * 64 * 128)


def test_the_articles_nine_programs_load_54_blocks_grouped_and_90_in_row_major_order():
    own = plan(576, 576, 288, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP_SIZE=3)
    for order, blocks in ((own, 54), (row_major(own), 90)):
        known, _, _ = predict(order, first=9)
        assert known.blocks[[0, 9]].tolist() == [blocks, blocks]
        # A block has 64 × 32 elements of two bytes. Both halves of the L2 keep copies, but all inputs fit.
        assert known.fetched[9] == blocks * 64 * 32 * 2
        assert known.held[:, 9].sum() == known.fetched[9]
        assert known.evicted[-1] == 0
        assert (known.requested[9], known.hits[9]) == (9 * 18, 9 * 18 - blocks)


def test_a_wave_holds_its_own_pieces_and_those_of_earlier_waves():
    own = plan(2048, 2048, 512, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64, GROUP_SIZE=4)
    known, launch, _ = predict(own)
    assert known.is_small
    rows, columns = launch.timed.pieces
    seen = set()
    begin = 0
    for wave, end in enumerate(np.cumsum(launch.tiles).tolist(), 1):
        used = {("A", row) for row in rows[begin:end]} | {
            ("B", column) for column in columns[begin:end]
        }
        new, reused, before = known.held[:, wave] / (64 * 512 * 2)
        assert (new, reused) == (len(used - seen), len(used & seen))
        assert before == len(seen - used)
        assert known.part_bytes[wave] == len(used) * 64 * 512 * 2
        seen |= used
        begin = end


def test_many_single_programs_have_the_l2_of_their_wave():
    own = plan(4096, 4096, 64, BLOCK_M=32, BLOCK_N=32, BLOCK_K=64, GROUP_SIZE=4)
    by_program, _, _ = predict(own, "program")
    by_wave, _, _ = predict(own, "wave")
    assert len(by_program.blocks) == own.programs + 1
    assert by_program.ends.tolist() == by_wave.ends.tolist()
    assert by_program.fetched.tolist() == by_wave.fetched.tolist()
