"""How many times are taken: on a stream that makes its times up, and a clock that the test moves."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.measuring.clocks import Nvml, megahertz, named_limits
from kernels.measuring.sampling import (
    DRIVERS,
    MEASURED,
    MOST_TURNS,
    RUN,
    STUDY,
    Batch,
    clocks_of,
    sampled,
)
from kernels.pairs import pair
from kernels.results import Clocks

MEGA = 1_000_000


class Clock:
    """Seconds that pass when somebody lets them."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


class Stream:
    """Calls of given times on a GPU that warms up and drifts; its clock advances as they run.

    Args:
        medians_ms: of each call.
        noise: of each launch, as a share.
        cold: how much slower the first launches are; half of that is lost every 10 ms.
    """

    launches_per_sample = 1
    most_turns = MOST_TURNS
    driver_note = "NVML could not be asked: there is none."

    def __init__(self, medians_ms, noise=0.0, cold=0.0, clock=None, clock_mhz=None, driver_mhz=None):
        self.medians_ms, self.noise, self.cold = np.array(medians_ms), noise, cold
        self.clock, self.clock_mhz, self.driver_mhz = clock or Clock(), clock_mhz, driver_mhz
        self.dice = np.random.default_rng(0)
        self.turns = []

    def batch(self, turns):
        self.turns.append(turns)
        slower = 1 + self.cold * 0.5 ** (self.clock.now_s / 0.01)
        times_ms = slower * self.medians_ms[:, None] * self.dice.lognormal(0, self.noise, (len(self.medians_ms), turns))
        self.clock.now_s += times_ms.sum() / 1000
        return Batch(times_ms, self.clock_mhz, self.driver_mhz)


def taken(stream, effort=RUN):
    return sampled(stream, effort, stream.clock)


def test_less_noise_takes_fewer_pairs():
    quiet, loud = (taken(Stream([1.0, 1.02], noise)).times_ms.shape[1] for noise in (0.002, 0.02))
    assert RUN.fewest <= quiet < loud


@pytest.mark.parametrize("noise", [0.002, 0.01])
def test_sampling_ends_where_the_interval_is_narrow_enough(noise):
    samples = taken(Stream([0.1, 0.102], noise))
    ours, theirs = samples.times_ms
    assert pair(theirs, ours).noise <= RUN.half_width
    assert pair(theirs, ours).low <= 1.02 <= pair(theirs, ours).high


def test_sampling_ends_after_a_bounded_time_whatever_the_noise():
    stream = Stream([20.0, 20.0], noise=0.3)
    samples = taken(stream)
    assert 10 <= samples.times_ms.shape[1] < RUN.most
    assert stream.clock.now_s < RUN.warm_s + RUN.most_s + 0.3


def test_a_short_launch_is_taken_no_more_than_the_most_times():
    assert taken(Stream([0.01, 0.01], noise=0.5)).times_ms.shape[1] == RUN.most


def test_every_call_must_be_known_and_not_the_first_pair_alone():
    both = taken(Stream([1.0, 1.0], 0.01)).times_ms.shape[1]

    class OneIsLoud(Stream):
        def batch(self, turns):
            batch = super().batch(turns)
            batch.times_ms[2] *= self.dice.lognormal(0, 0.02, turns)
            return batch

    assert taken(OneIsLoud([1.0, 1.0, 1.0], 0.01)).times_ms.shape[1] > both


def test_a_launch_of_seconds_is_taken_three_times():
    samples = taken(Stream([2500.0, 2500.0], noise=0.01))
    assert samples.times_ms.shape == (2, 3)


def test_a_study_takes_200_ms_of_launches_and_no_more_than_200_turns():
    assert taken(Stream([0.006, 0.007], 0.1), STUDY).times_ms.shape == (2, 200)
    long = taken(Stream([3.0, 4.0], 0.1), STUDY).times_ms
    assert 200 <= long.sum() < 500
    assert taken(Stream([100.0, 100.0], 0.1), STUDY).times_ms.shape[1] == STUDY.fewest


def test_what_comes_before_it_is_steady_is_not_counted():
    stream = Stream([1.0, 1.0], noise=0.001, cold=0.5)
    samples = taken(stream)
    assert samples.times_ms.max() < 1.02
    assert samples.note.startswith("The SM clock could not be read. NVML could not be asked")


def test_warming_up_ends_after_a_bounded_time_and_the_note_says_so():
    class Endless(Stream):
        def batch(self, turns):
            self.medians_ms = self.medians_ms * 0.98
            return super().batch(turns)

    stream = Endless([5.0, 5.0], clock_mhz=1980)
    samples = taken(stream, STUDY)
    assert samples.note.startswith("Warm-up ended after 0.")
    assert "before times were steady" in samples.note


def test_a_batch_is_no_longer_than_the_queue_and_the_bound_on_its_time_allow():
    short, long = Stream([0.006, 0.006]), Stream([30.0, 30.0])
    taken(short)
    taken(long)
    assert max(short.turns) == MOST_TURNS
    assert set(long.turns) == {1}
    narrow = Stream([0.006, 0.006])
    narrow.most_turns = 3
    taken(narrow)
    assert max(narrow.turns) == 3


def test_several_launches_in_one_time_count_as_so_many():
    class Graphs(Stream):
        launches_per_sample = 20

    one, many = (taken(kind([0.02, 0.02], 0.0001)).times_ms for kind in (Stream, Graphs))
    assert many.shape[1] < one.shape[1]


def test_the_clock_is_that_of_all_batches_and_its_fall_is_named():
    batches = [Batch(np.ones((1, 1)), mhz, 1900.0, ("power limit",) * (mhz < 1900)) for mhz in (1980.0, 1755.0, 1740.0)]
    clocks = clocks_of(batches)
    assert clocks == Clocks(1755.0, 1740.0, 1980.0, MEASURED, ("power limit",))
    assert "between 1,740 and 1,980 MHz (12 %)" in clocks.note
    assert "power limit" in clocks.note


def test_a_clock_that_stands_needs_no_word_unless_it_is_held_down():
    assert Clocks(1980.0, 1970.0, 1985.0, MEASURED).note == ""
    held = Clocks(1200.0, 1195.0, 1205.0, MEASURED, ("temperature, by the driver",)).note
    assert held == "The SM clock stood at 1,200 MHz; the driver limited it: temperature, by the driver."


def test_where_no_clock_was_measured_the_drivers_counts_and_says_so():
    clocks = clocks_of([Batch(np.ones((1, 1)), None, 1500.0)] * 2)
    assert clocks == Clocks(1500.0, 1500.0, 1500.0, DRIVERS)
    assert clocks_of([Batch(np.ones((1, 1)))]) is None


def probed(sms, start_cycles, time_ns, mhz):
    """What a probe writes on some SMs whose counters stand at different values."""
    rows = [(sm, 1000 * sm + start_cycles + time_ns * mhz // 1000, 5 * MEGA + time_ns, 1) for sm in sms]
    return np.array(rows, dtype=np.int64)


def test_the_clock_is_cycles_over_time_on_the_sms_that_both_probes_ran_on():
    before, after = probed([0, 1, 2, 3], 7, 0, 1755), probed([2, 3, 4, 4], 7, 400_000, 1755)
    assert megahertz(before, after) == pytest.approx(1755, rel=1e-3)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (probed([0], 0, 0, 1755), probed([1], 0, 400_000, 1755)),
        (probed([0], 0, 0, 1755), probed([0], 0, 20_000, 1755)),
        (probed([0], 0, 0, 1755), probed([0], 0, 400_000, 9)),
        (probed([0], 0, 0, 1755), probed([0], 0, 400_000, 90_000)),
        (np.zeros((4, 4), dtype=np.int64), probed([0], 0, 400_000, 1755)),
    ],
    ids=["no SM of both", "too short", "a counter that stops", "a counter that starts anew", "never written"],
)
def test_what_can_be_no_clock_is_none(before, after):
    assert megahertz(before, after) is None


def test_a_clock_that_is_idle_or_chosen_is_not_called_limited():
    assert named_limits(0x1 | 0x2 | 0x100) == ()
    assert named_limits(0x4 | 0x40) == ("power limit", "temperature, by the hardware")


class Library:
    """A driver's library that knows one device, under the names that drivers had before 535."""

    def __init__(self, reasons=0x4, may_read=True):
        self.reasons, self.may_read = reasons, may_read

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, device):
        device._obj.value = 7
        return 0 if uuid == b"GPU-1" else 6

    def nvmlDeviceGetClockInfo(self, device, kind, value):
        value._obj.value = 1755
        return 0 if self.may_read and (device.value, kind) == (7, 1) else 3

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device, value):
        value._obj.value = self.reasons
        return 0 if self.may_read else 3


def test_the_driver_is_asked_for_its_clock_and_what_limits_it():
    driver = Nvml(Library(), "GPU-1")
    assert (driver.clock_mhz(), driver.limits()) == (1755.0, ("power limit",))
    assert Nvml(Library(reasons=0x1), "GPU-1").limits() == ()


def test_a_driver_that_may_not_be_asked_tells_nothing():
    driver = Nvml(Library(may_read=False), "GPU-1")
    assert (driver.clock_mhz(), driver.limits()) == (None, ())
    with pytest.raises(RuntimeError, match="nvmlDeviceGetHandleByUUID gave 6"):
        Nvml(Library(), "MIG-2")
