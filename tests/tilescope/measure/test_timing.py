"""When sampling ends, what a call costs, and ratios of paired times: with made-up times and a fake clock."""

import numpy as np
import pytest

from tests.tables import read_table
from tilescope.measure import timing
from tilescope.measure.timing import (
    FEWEST,
    MEASURED,
    MOST_TURNS,
    RUN,
    STUDY,
    Batch,
    pair,
    sample,
    summarize_clocks,
)
from tilescope.results.run import Clocks


class Stream:
    """Calls with given times on a GPU that warms up; the fake clock advances as they run.

    Args:
        medians_ms: per call.
        noise: per launch, as a share.
        cold: how much slower the first launches are; this halves every 10 ms.
        drift: factor on all medians after each batch.
    """

    def __init__(
        self,
        medians_ms,
        noise=0.0,
        cold=0.0,
        drift=1.0,
        clock_mhz=None,
        most_turns=MOST_TURNS,
    ):
        self.medians_ms = np.array(medians_ms)
        self.noise = np.broadcast_to(noise, len(medians_ms))[:, None]
        self.cold = cold
        self.drift = drift
        self.clock_mhz = clock_mhz
        self.now_s = 0.0
        self.most_turns = most_turns
        self.launches_per_sample = 1
        self.dice = np.random.default_rng(0)
        self.turns = []

    def batch(self, turns):
        assert 0 < turns <= self.most_turns, "a stream holds no more"
        self.turns.append(turns)
        slower = 1 + self.cold * 0.5 ** (self.now_s / 0.01)
        noise = np.exp(self.noise * self.dice.standard_normal((len(self.medians_ms), turns)))
        times_ms = slower * self.medians_ms[:, None] * noise
        self.medians_ms = self.medians_ms * self.drift
        self.now_s += times_ms.sum() / 1000
        return Batch(times_ms, self.clock_mhz)

    def sample(self, effort=RUN):
        return sample(self, effort, lambda: self.now_s)


def samples_of(stream, effort=RUN):
    return stream.sample(effort).times_ms.shape[1]


@pytest.mark.parametrize("noise", [0.002, 0.01])
def test_sampling_ends_once_the_interval_is_narrow_enough(noise):
    kernel, library = Stream([0.1, 0.102], noise).sample().times_ms
    ratio = pair(library, kernel)
    assert ratio.noise <= RUN.half_width
    assert ratio.low <= 1.02 <= ratio.high


def test_sampling_ends_after_a_bounded_time_whatever_the_noise():
    stream = Stream([20.0, 20.0], noise=0.3)
    assert 10 <= samples_of(stream) < RUN.most
    assert stream.now_s < RUN.warm_s + RUN.most_s + 0.3
    assert samples_of(Stream([0.01, 0.01], noise=0.5)) == RUN.most


def test_the_ratio_of_every_call_must_be_known():
    assert samples_of(Stream([1.0] * 3, [0.01, 0.01, 0.022])) > samples_of(Stream([1.0] * 2, 0.01))


def test_a_launch_of_seconds_is_sampled_three_times():
    assert samples_of(Stream([2500.0, 2500.0], noise=0.01)) == 3


def test_a_study_takes_200_ms_of_launches_and_at_most_200_turns():
    assert samples_of(Stream([0.006, 0.007], 0.1), STUDY) == 200
    assert 200 <= Stream([3.0, 4.0], 0.1).sample(STUDY).times_ms.sum() < 500
    assert samples_of(Stream([100.0, 100.0], 0.1), STUDY) == STUDY.fewest


def test_samples_before_the_times_are_steady_do_not_count():
    samples = Stream([1.0, 1.0], noise=0.001, cold=0.5).sample()
    assert samples.times_ms.max() < 1.02
    assert samples.note == "The SM clock could not be read."


def test_warm_up_ends_after_a_bounded_time_and_the_note_says_so():
    note = Stream([5.0, 5.0], drift=0.98, clock_mhz=1980).sample(STUDY).note
    assert note.startswith("Warm-up ended after 0.")
    assert "before times were steady" in note


BATCHES = """
0.006 | 20 | 20
30.0 | 20 | 1
0.006 | 3 | 3
"""


@pytest.mark.parametrize(("ms", "most_turns", "longest"), read_table(BATCHES))
def test_the_queue_and_a_time_limit_bound_a_batch(ms, most_turns, longest):
    stream = Stream([ms, ms], most_turns=most_turns)
    stream.sample()
    assert max(stream.turns) == longest


def test_the_clock_spans_all_batches_and_a_drop_is_explained():
    batches = [
        Batch(np.ones((1, 1)), mhz, ("power limit",) * (mhz < 1900))
        for mhz in (1980.0, 1755.0, 1740.0)
    ]
    clocks = summarize_clocks([*batches, Batch(np.ones((1, 1)))])
    assert clocks == Clocks(1755.0, 1740.0, 1980.0, MEASURED, ("power limit",))
    assert "between 1,740 and 1,980 MHz (12 %)" in clocks.note
    assert "power limit" in clocks.note


def test_a_steady_clock_needs_no_note_unless_it_is_limited():
    assert Clocks(1980.0, 1970.0, 1985.0, MEASURED).note == ""
    note = Clocks(1200.0, 1195.0, 1205.0, MEASURED, ("temperature, by the driver",)).note
    assert "1,200 MHz" in note
    assert "temperature, by the driver" in note


class Machine:
    """A host that takes 30 µs per call, and a GPU that runs one launch after another. The first call is slow."""

    def __init__(self, kernel_s):
        self.kernel_s = kernel_s
        self.now_s = 0.0
        self.free_s = 0.0
        self.launches = 0

    def call(self):
        self.now_s += 0.01 if self.launches == 0 else 30e-6
        self.launches += 1
        self.free_s = max(self.free_s, self.now_s) + self.kernel_s

    def synchronize(self):
        self.now_s = max(self.now_s, self.free_s) + 5e-6

    def overhead(self):
        return timing.measure_launch_overhead(
            self.call, self.synchronize, self.kernel_s * 1000, lambda: self.now_s
        )


@pytest.mark.parametrize("kernel_s", [7e-6, 1.4e-3])
def test_a_call_costs_the_hosts_time_and_a_synchronized_one_the_kernels_too(kernel_s):
    cost = Machine(kernel_s).overhead()
    assert cost.enqueue_ms == pytest.approx(0.030)
    assert cost.synchronized_ms == pytest.approx(0.035 + kernel_s * 1000)


@pytest.mark.parametrize(("kernel_s", "calls"), [(7e-6, 200), (2e-3, 50), (0.5, 5)])
def test_a_long_kernel_is_called_fewer_times(kernel_s, calls):
    machine = Machine(kernel_s)
    assert machine.overhead().calls == calls
    assert machine.launches == 2 * calls


SEEDS = range(300)


def drawn(dice, count, ratio, noise):
    """Return times of two calls with independent noise; the first takes `ratio` times as long."""
    return ratio * dice.lognormal(0, noise, count), dice.lognormal(0, noise, count)


def test_a_difference_below_the_noise_does_not_count_and_swapped_calls_give_the_inverse_ratio():
    dice = np.random.default_rng(0)
    assert not pair(
        dice.normal(1.001, 0.05, 20).tolist(), dice.normal(1.0, 0.05, 20).tolist()
    ).differs
    ours, theirs = drawn(np.random.default_rng(2), 41, 0.9, 0.01)
    there = pair(ours, theirs)
    back = pair(theirs, ours)
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert back.low == pytest.approx(1 / there.high, rel=1e-3)


@pytest.mark.parametrize("count", [20, 61, 200])
def test_the_interval_holds_the_true_ratio_in_95_of_100_runs(count):
    held = 0
    for seed in SEEDS:
        found = pair(*drawn(np.random.default_rng(seed), count, 0.98, 0.02))
        held += found.low <= 0.98 <= found.high
    assert 0.92 <= held / len(SEEDS) <= 0.99


@pytest.mark.parametrize("ratio", [0.98, 1.02])
def test_a_drift_that_hits_both_calls_cancels(ratio):
    """The clock falls by a third during the run, and one turn in ten is disturbed as a whole."""
    dice = np.random.default_rng(0)
    drift = np.linspace(1, 1.5, 60) * np.where(dice.random(60) < 0.1, 2.0, 1.0)
    ours, theirs = drawn(dice, 60, ratio, 0.002)
    with_drift = pair(ours * drift, theirs * drift)
    without = pair(ours, theirs)
    assert with_drift.ratio == pytest.approx(without.ratio, rel=1e-12)
    assert (with_drift.low, with_drift.high) == pytest.approx((without.low, without.high))
    assert with_drift.differs
    assert with_drift.noise < 0.002


def test_times_that_all_are_a_tick_apart_are_known_to_half_a_tick():
    """6 µs in ticks of 32 ns: the median can be off by half a tick, and a bootstrap would not show it."""
    tick = 32e-6
    ours = np.full(100, 187 * tick)
    theirs = np.full(100, 188 * tick)
    ours[:10] += tick
    found = pair(ours, theirs)
    assert found.resolution == pytest.approx((1 / 187 + 1 / 188) / 2, rel=1e-3)
    assert found.low == pytest.approx(186 / 188, rel=2e-4)
    assert found.high == pytest.approx(1, rel=2e-4)


def test_the_interval_of_too_few_pairs_is_their_whole_range():
    found = pair([1.0, 1.2, 1.1], [1.0, 1.0, 1.0])
    assert found.low == 1.0
    assert found.ratio == 1.1
    assert found.high == 1.2
    assert FEWEST == 6, "2 · (1/2)^6 is below 5 %, 2 · (1/2)^5 is not"


@pytest.mark.parametrize("others", [[], [1.0, 2.0]])
def test_different_numbers_of_times_are_refused(others):
    with pytest.raises(ValueError, match="can't be paired"):
        pair([1.0], others)
