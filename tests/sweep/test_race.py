"""The race of those that were timed: who goes on, and how trials are shared out."""

from __future__ import annotations

from fakes import FakeDevice, swept

from kernels.results import Strategy
from kernels.sweep.race import Race
from kernels.sweep.ranking import FINALISTS, survivors
from kernels.sweep.search import REFERENCE_AMONG


def test_a_quarter_survives_a_round_and_never_fewer_than_the_finalists():
    assert survivors([(n, float(-n)) for n in range(100)]) == list(range(99, 74, -1))
    assert survivors([(n, 1.0) for n in range(8)]) == list(range(FINALISTS))


def test_a_round_of_the_race_is_shared_evenly_among_devices():
    """Whatever the number of configs: as many trials for each device, of as many configs."""
    for devices, count in ((1, 84), (2, 84), (2, 21), (2, 40), (3, 70)):
        race = Race(
            range(4 * count), lambda n: float(n), lambda numbers, turns: (numbers, turns), lambda n: n == 0, 15, devices
        )
        sizes = [len(task.numbers) for task in race.tasks]
        assert sum(sizes) == count - 1, "all but the reference, which is timed in each"
        assert len(sizes) % devices == 0
        assert max(sizes) <= min(15, min(sizes) + 1)


def test_all_wait_for_the_reference_so_its_trial_is_small():
    device = FakeDevice()
    swept(Strategy("grid"), device)
    assert [len(trial.experiments) for trial in device.trials[:2]] == [REFERENCE_AMONG, FakeDevice.at_once]
