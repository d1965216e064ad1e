"""The search on devices with known, noisy times: the best config, ties, wrong results and failures."""

from concurrent.futures import Future

import numpy as np
import pytest
from fakes import ALL, FakeBuilder, FakeDevice, explored, grid, predicting, swept, true_ms

from tilescope.measure.timing import median_interval
from tilescope.results import Failure
from tilescope.results.sweep import ConfigOutcome, Outcomes
from tilescope.search import sweep_run
from tilescope.search.search import ETA, FINALISTS, MAX_PER_TRIAL, MAX_TURNS
from tilescope.search.trial import DEVICE_LOST

BEST_MS = min(map(true_ms, ALL))
SEEDS = range(8)
SQUARE = grid({"BLOCK_M": [16, 32, 64, 128], "BLOCK_N": [16, 32, 64, 128]})


def regret(sweep):
    """Return how much slower the best of the timed configs is than the best of all, by their true times."""
    return min(true_ms(row.experiment) for row in sweep.rows if row.turn is not None) / BEST_MS - 1


def final_regret(sweep):
    return true_ms(sweep.best.experiment) / BEST_MS - 1


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_an_exhaustive_search_finds_the_best_within_1_percent_despite_noise(seed):
    sweep = swept(FakeDevice(noise=0.03, seed=seed))
    assert final_regret(sweep) <= 0.01
    assert sweep.ended == "complete"
    assert sweep.count("timed") == len(ALL)


def test_a_search_ends_at_its_budget_and_finds_the_best_if_the_model_is_right():
    sweep = swept(FakeDevice(noise=0.02), predicting(error=0.05), budget=31)
    assert sweep.ended == "budget"
    assert sweep.count("timed") == 31
    assert sweep.count("not tried") == len(ALL) - 31
    assert final_regret(sweep) <= 0.01


def test_timed_configs_correct_a_model_that_is_off_by_20_percent():
    corrected = []
    plain = []
    for seed in SEEDS:
        predict = predicting(error=0.2, seed=seed)
        corrected.append(regret(swept(FakeDevice(noise=0.01, seed=seed), predict, budget=8)))
        by_model = sorted(ALL, key=lambda experiment: predict(None, experiment))
        plain.append(min(map(true_ms, by_model[:8])) / BEST_MS - 1)
    assert np.mean(corrected) < 0.8 * np.mean(plain)


def test_the_order_depends_on_predictions_and_not_on_the_order_of_compiles():
    devices = FakeDevice(), FakeDevice()
    for device in devices:
        swept(device, budget=20)
    assert explored(devices[0]) == explored(devices[1])
    assert true_ms(explored(devices[0])[0]) == BEST_MS


def test_a_compile_that_takes_much_longer_than_the_others_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(sweep_run, "_SLOW_S", 0.1)
    monkeypatch.setattr(sweep_run, "_SLOW", 0.1)
    slowest = max(SQUARE.experiments, key=true_ms)

    class SlowBuilder(FakeBuilder):
        def submit(self, call):
            return Future() if call.args[0] == slowest else super().submit(call)

    device = FakeDevice()
    sweep = swept(device, within=SQUARE, builder=SlowBuilder(), budget=8)
    assert len(explored(device)) == 8
    assert sweep.best.median_ms == pytest.approx(min(map(true_ms, SQUARE.experiments)), rel=0.01)
    assert next(row.status for row in sweep.rows if row.experiment == slowest) == "not tried"


def test_a_race_gives_losers_few_samples_and_a_quarter_of_the_configs_more():
    device = FakeDevice(noise=0.01)
    sweep = swept(device)
    by_time = sorted(sweep.rows, key=lambda row: true_ms(row.experiment))
    assert {row.samples for row in by_time[len(ALL) // ETA + 20 :]} == {10}
    assert min(row.samples for row in by_time[: FINALISTS // 2]) >= 100
    sizes = dict.fromkeys((10, 40, MAX_TURNS), 0)
    for trial in device.trials[:-1]:
        sizes[trial.turns] += len(trial.experiments)
    assert sizes[10] == 288
    assert sizes[40] in (71, 72), "the reference is in each trial and not counted if it survives"
    assert sizes[MAX_TURNS] in (17, 18)
    assert len(sweep.final.finalists) == len(device.trials[-1].experiments) == FINALISTS
    first = min(sweep.rows, key=lambda row: row.turn)
    assert {trial.reference for trial in device.trials[1:-1]} == {first.experiment}
    assert first.relative == 1.0


def test_a_clock_that_slows_from_trial_to_trial_does_not_change_the_ranking():
    device = FakeDevice(noise=0.003)
    device.ms_of = lambda experiment: true_ms(experiment) * 1.3 ** len(device.trials)
    sweep = swept(device, within=SQUARE)
    ranked = [round(true_ms(row.experiment), 6) for row in sweep.ranked][FINALISTS:]
    assert ranked == sorted(ranked)


def test_the_simplest_of_the_tied_configs_wins():
    """Warps and stages have no effect here. Fewest warps win, then fewest stages, then the smaller tile."""
    device = FakeDevice(noise=0.01)
    device.ms_of = lambda experiment: 1.0 if experiment.config.BLOCK_M >= 64 else 2.0
    sweep = swept(device, within=grid({"BLOCK_M": [16, 64, 128], "num_warps": [4, 8]}))
    ties = [finalist.experiment for finalist in sweep.final.finalists if finalist.is_tie]
    assert {experiment.config.BLOCK_M for experiment in ties} == {64, 128}
    assert sweep.best.experiment.config.num_warps == 4
    assert sweep.best.experiment.config.BLOCK_M == 64


def test_a_config_that_is_slower_beyond_its_interval_does_not_win_by_being_simple():
    device = FakeDevice(noise=0.005)
    device.ms_of = lambda experiment: 1.02 if experiment.config.num_warps == 4 else 1.0
    sweep = swept(device, within=grid({"num_warps": [4, 8]}))
    assert sweep.best.experiment.config.num_warps == 8
    slower = sweep.final.finalists[1]
    assert not slower.is_tie
    assert slower.low <= 1.02 <= slower.high


def test_a_wrong_result_is_never_ranked_however_fast():
    device = FakeDevice(wrong=lambda experiment: experiment.config.BLOCK_M == 128)
    device.ms_of = lambda experiment: (
        0.001 if experiment.config.BLOCK_M == 128 else true_ms(experiment)
    )
    sweep = swept(device)
    wrong = [row for row in sweep.rows if row.status == "wrong"]
    assert {row.experiment.config.BLOCK_M for row in wrong} == {128}
    assert all(row.reason and row.median_ms is None for row in wrong)
    assert not {row.experiment for row in wrong} & {row.experiment for row in sweep.ranked}


@pytest.mark.parametrize(
    ("kind", "status"),
    [("out_of_resources", "set aside"), ("compile_error", "set aside"), ("timeout", "set aside"),
     ("worker_died", "failed"), ("error", "failed")],
)  # fmt: skip
def test_a_compile_failure_due_to_the_config_sets_it_aside_and_others_fail_it(kind, status):
    three = grid({"BLOCK_M": [16, 32, 64]})
    device = FakeDevice()
    failure = Failure("compile", kind, "Why.")
    builder = FakeBuilder(
        failures=lambda experiment: failure if experiment == three.experiments[1] else None
    )
    rows = swept(device, within=three, builder=builder).rows
    assert [row.status for row in rows] == ["timed", status, "timed"]
    assert rows[1].reason == "Why."
    assert three.experiments[1] not in explored(device)


def test_a_compile_whose_worker_is_killed_is_repeated_once():
    died = Failure("compile", "worker_died", "It was killed.")
    dies_once = set(SQUARE.experiments[3:4])
    dies = {SQUARE.experiments[5]}

    def fail(experiment):
        is_killed = experiment in dies_once | dies
        dies_once.discard(experiment)
        return died if is_killed else None

    sweep = swept(within=SQUARE, builder=FakeBuilder(failures=fail))
    assert sweep.count("timed") == SQUARE.size - 1
    assert [row.experiment for row in sweep.rows if row.status == "failed"] == [*dies]


def test_a_config_that_would_spill_is_not_compiled():
    builder = FakeBuilder()
    sweep = swept(builder=builder, within=grid({"BLOCK_M": [16, 256], "BLOCK_N": [256]}))
    assert [row.status for row in sweep.rows] == ["timed", "set aside"]
    assert {experiment.config.BLOCK_M for experiment in builder.submitted} == {16}


def test_a_config_that_kills_its_worker_twice_is_reported_and_one_that_kills_it_once_is_timed():
    device = FakeDevice(deadly=lambda experiment: experiment == ALL[3], dies_once=ALL[40:41])
    sweep = swept(device)
    assert [row.experiment for row in sweep.rows if row.status == "failed"] == [ALL[3]]
    assert "SIGKILL" in sweep.rows[3].reason
    assert sweep.count("timed") == len(ALL) - 1
    assert explored(device).count(ALL[3]) == 2
    assert "A resumed sweep tries failed configs again." in sweep.note


@pytest.mark.parametrize(
    ("failure", "phase", "timed"),
    [
        (Failure("time", "worker_died", "It died."), "final", 3),
        (Failure("time", "out_of_memory", "No."), "explore", 0),
    ],
    ids=["every final kills its worker", "no config fits in memory"],
)
def test_a_phase_that_always_fails_ends_the_sweep_and_keeps_the_times(failure, phase, timed):
    device = FakeDevice()
    device.before = lambda trial: failure if trial.phase == phase else None
    sweep = swept(device, within=grid({"BLOCK_M": [16, 32, 64]}))
    assert sweep.final is None
    assert sweep.count("timed") == timed
    assert sweep.count("failed") == 3 - timed
    assert (sweep.best is None) == (timed == 0)
    assert phase == "final" or len(device.trials) == 1, "each config needs the same memory"


def test_a_device_on_which_everything_fails_is_given_up_early():
    device = FakeDevice(deadly=lambda experiment: True)
    sweep = swept(device)
    assert len(device.trials) == 40
    assert sweep.ended == "failed"
    assert "SIGKILL" in sweep.note
    assert sweep.count("not tried") > len(ALL) / 2


def test_a_sweep_whose_only_device_is_lost_keeps_its_rows():
    lost = FakeDevice()
    lost.before = lambda trial: (
        Failure("worker", DEVICE_LOST, "It's gone.") if len(lost.trials) > 1 else None
    )
    sweep = swept(lost)
    assert sweep.count("timed") == MAX_PER_TRIAL
    assert sweep.ended == "failed"
    assert sweep.note == "It's gone."


def test_without_times_every_config_is_checked_whatever_the_budget():
    device = FakeDevice()
    device.takes_times = False
    device.attempt = lambda trial: Outcomes((ConfigOutcome("checked"),) * len(trial.experiments))
    sweep = swept(device, within=SQUARE, budget=8)
    assert sweep.count("checked") == SQUARE.size
    assert sweep.ended == "complete"


@pytest.mark.parametrize("count", [6, 10, 40])
def test_the_interval_of_a_median_contains_it_in_95_of_100_cases(count):
    dice = np.random.default_rng(0)
    intervals = (median_interval(dice.normal(size=count)) for _ in range(1000))
    assert 930 <= sum(low <= 0 <= high for low, high in intervals) <= 990
