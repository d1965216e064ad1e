"""The search, on a device whose times are a known function with noise: what it finds, ties, wrong results, failures."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from fakes import ALL, FakeBuilder, FakeDevice, grid, predicting, swept, true_ms

from kernels.results import Failure, Strategy
from kernels.results.sweep import PATIENCE
from kernels.sweep.devices import DEVICE_LOST
from kernels.sweep.ranking import correct_predictions, encode_knobs, median_interval
from kernels.sweep.search import ETA, FINALISTS, MAX_PER_TRIAL, MAX_TURNS, REFERENCE_AMONG
from scripts import search_configs

BEST_MS = min(map(true_ms, ALL))
SEEDS = range(8)


def regret(sweep, timed):
    """How much slower than the best the best of the first configs that were timed is, by their true times."""
    first = [row for row in sweep.rows if row.turn is not None and row.turn < timed]
    return min(true_ms(row.experiment) for row in first) / BEST_MS - 1


def found_regret(sweep):
    return true_ms(sweep.best.experiment) / BEST_MS - 1


def test_guided_is_within_3_percent_after_8_configs_where_the_model_is_right_and_random_is_not():
    guided, shuffled = [], []
    for seed in SEEDS:
        device = FakeDevice(noise=0.02, seed=seed)
        strategy = Strategy("guided", budget=8)
        guided.append(regret(swept(strategy, device, predicting(error=0.03, seed=seed)), 8))
        device = FakeDevice(noise=0.02, seed=seed)
        shuffled.append(regret(swept(Strategy("random", seed=seed, budget=8), device), 8))
    assert max(guided) <= 0.03
    assert np.median(shuffled) > 0.03


def test_an_exhaustive_search_finds_the_best_within_1_percent_whatever_the_noise():
    for seed in SEEDS[:4]:
        found = swept(Strategy("grid"), FakeDevice(noise=0.03, seed=seed))
        assert found.ended == "complete"
        assert found_regret(found) <= 0.01
        assert found.count("timed") == len(ALL)


def test_a_guided_search_ends_early_and_still_finds_it_where_the_model_is_right():
    found = swept(Strategy(), FakeDevice(noise=0.02), predicting(error=0.05))
    assert found.ended == "patience"
    assert PATIENCE <= found.count("timed") < len(ALL) / 3
    assert found_regret(found) <= 0.01
    assert found.count("not tried") == len(ALL) - found.count("timed")


def test_a_guided_search_whose_model_is_wrong_is_no_better_than_random_and_says_how_many_it_tried():
    """A model that prefers the slowest: an honest search can't find the best early, and the rows show it."""
    misled = predicting(lambda one: 1 / true_ms(one))
    found = swept(Strategy("guided", budget=8), FakeDevice(), misled)
    assert regret(found, 8) > 0.5
    assert found.ended == "budget"
    assert found.count("timed") == 8


def test_what_was_timed_corrects_a_model_that_is_off():
    """It is off by 20 %: the same predictions without the correction are what `grid` in the model's order gives."""
    corrected, plain = [], []
    for seed in range(8):
        predict = predicting(error=0.2, seed=seed)
        corrected.append(regret(swept(Strategy("guided", budget=8), FakeDevice(noise=0.01, seed=seed), predict), 8))
        by_model = sorted(ALL, key=lambda one: predict(None, one, None).ms)
        plain.append(min(map(true_ms, by_model[:8])) / BEST_MS - 1)
    assert np.mean(corrected) < 0.8 * np.mean(plain)


def test_a_correction_is_the_sum_of_what_each_knobs_value_is_off_by():
    of = encode_knobs(ALL)
    assert of.shape == (len(ALL), sum(len(values) for _, values in grid().varied))
    assert not correct_predictions(of, [(0, 1.0)]).any()
    slow = [(n, 0.2 * (one.config.num_warps == 16)) for n, one in enumerate(ALL)]
    found = correct_predictions(of, slow)
    by_warps = {w: np.mean([found[n] for n, one in enumerate(ALL) if one.config.num_warps == w]) for w in (4, 8, 16)}
    assert by_warps[16] - by_warps[8] == pytest.approx(0.2, abs=0.005)
    assert by_warps[4] == pytest.approx(by_warps[8], abs=0.001)


def test_the_order_depends_on_predictions_and_not_on_which_compile_ends_first():
    orders = []
    for _ in range(2):
        device = FakeDevice()
        swept(Strategy("guided", budget=20), device)
        orders.append([trial.experiments for trial in device.trials if trial.phase == "explore"])
    assert orders[0] == orders[1]
    first = orders[0][0][0]
    assert true_ms(first) == BEST_MS


def test_a_race_gives_losers_few_samples_and_survivors_more():
    device = FakeDevice(noise=0.01)
    found = swept(Strategy("grid"), device)
    by_time = sorted((row for row in found.rows), key=lambda row: true_ms(row.experiment))
    assert {row.samples for row in by_time[len(ALL) // ETA + 20 :]} == {10}
    assert min(row.samples for row in by_time[: FINALISTS // 2]) >= 100
    spent = sum(row.samples for row in found.rows if row.samples == 10)
    assert spent < 0.5 * sum(len(trial.experiments) * trial.turns for trial in device.trials)
    assert len(found.final.finalists) == FINALISTS


def test_every_trial_holds_the_one_reference():
    device = FakeDevice()
    found = swept(Strategy("grid"), device)
    first = min((row for row in found.rows if row.turn is not None), key=lambda row: row.turn)
    references = {trial.reference for trial in device.trials[1:] if trial.phase != "final"}
    assert references == {first.experiment}
    assert first.relative == 1.0


def test_a_clock_that_slows_from_trial_to_trial_does_not_change_the_ranking():
    device = FakeDevice(noise=0.003)
    device.ms_of = lambda one: true_ms(one) * 1.3 ** len(device.trials)
    found = swept(Strategy("grid"), device, within=grid({"BLOCK_M": [16, 32, 64, 128], "BLOCK_N": [16, 32, 64, 128]}))
    ranked = [true_ms(row.experiment) for row in found.ranked]
    assert found_of(ranked) == sorted(found_of(ranked))


def found_of(times):
    return [round(ms, 6) for ms in times][FINALISTS:]


def test_a_tie_is_a_tie_and_the_simpler_config_wins_it():
    """Warps and stages make no difference here: fewest warps first, then fewest stages, then the smaller tile."""
    device = FakeDevice(noise=0.01)
    device.ms_of = lambda one: 1.0 if one.config.BLOCK_M >= 64 else 2.0
    within = grid({"BLOCK_M": [16, 64, 128], "num_warps": [4, 8], "num_stages": [2]})
    found = swept(Strategy("grid"), device, within=within)
    tied = [one.experiment.config for one in found.final.finalists if one.is_tie]
    assert {config.BLOCK_M for config in tied} == {64, 128}
    simplest = min(tied, key=lambda config: (config.num_warps, config.num_stages, config.BLOCK_M))
    assert found.best.experiment.config == simplest
    assert (simplest.num_warps, simplest.BLOCK_M) == (4, 64)


def test_a_config_that_is_slower_beyond_its_interval_does_not_win_by_being_simple():
    device = FakeDevice(noise=0.005)
    device.ms_of = lambda one: 1.02 if one.config.num_warps == 4 else 1.0
    found = swept(Strategy("grid"), device, within=grid({"num_warps": [4, 8]}))
    assert found.best.experiment.config.num_warps == 8
    slower = found.final.finalists[1]
    assert not slower.is_tie
    assert slower.low <= 1.02 <= slower.high


def test_a_wrong_result_is_out_however_fast():
    device = FakeDevice(wrong=lambda one: one.config.BLOCK_M == 128)
    device.ms_of = lambda one: 0.001 if one.config.BLOCK_M == 128 else true_ms(one)
    found = swept(Strategy("grid"), device)
    wrong = [row for row in found.rows if row.status == "wrong"]
    assert {row.experiment.config.BLOCK_M for row in wrong} == {128}
    assert all(row.reason and row.median_ms is None for row in wrong)
    assert not {row.experiment for row in wrong} & {row.experiment for row in found.ranked}


def test_where_every_result_is_wrong_there_is_no_best():
    found = swept(Strategy("grid"), FakeDevice(wrong=lambda one: True), within=grid({"BLOCK_M": [16, 32]}))
    assert found.best is None
    assert found.final is None
    assert found.ended == "complete"


def test_what_can_not_be_compiled_is_set_aside_with_its_reason_and_never_tried():
    refused = Failure("compile", "out_of_resources", "This config needs 300,000 bytes of shared memory.")
    builder = FakeBuilder(failures=lambda one: refused if one.config.num_stages == 3 else None)
    device = FakeDevice()
    found = swept(Strategy("grid"), device, builder=builder)
    aside = [row for row in found.rows if row.status == "set aside"]
    assert len(aside) == len(ALL) // 2
    assert {row.reason for row in aside} == {refused.message}
    tried = {one for trial in device.trials for one in trial.experiments}
    assert not tried & {row.experiment for row in aside}


def test_what_is_not_worth_a_compile_is_not_compiled():
    builder = FakeBuilder()
    found = swept(Strategy("grid"), builder=builder, within=grid({"BLOCK_M": [16, 256], "BLOCK_N": [256]}))
    assert [row.status for row in found.rows] == ["timed", "set aside"]
    assert {one.config.BLOCK_M for one in builder.submitted} == {16}


def test_a_config_that_kills_its_worker_once_is_tried_again_and_its_neighbours_lose_nothing():
    device = FakeDevice(dies_once=ALL[3:4])
    found = swept(Strategy("grid"), device)
    assert found.count("timed") == len(ALL)


def test_a_config_that_kills_its_worker_each_time_is_reported_and_the_others_are_timed():
    device = FakeDevice(deadly=lambda one: one == ALL[3])
    found = swept(Strategy("grid"), device)
    assert [row.experiment for row in found.rows if row.status == "failed"] == [ALL[3]]
    assert "SIGKILL" in found.rows[3].reason
    assert found.count("timed") == len(ALL) - 1
    tries = sum(ALL[3] in trial.experiments for trial in device.trials)
    assert tries == 2
    assert "1 of 288 configs failed" in found.note


def test_a_final_that_kills_its_worker_each_time_ends_without_finalists_and_keeps_the_times():
    device = FakeDevice()
    attempt = device.attempt
    device.attempt = lambda trial: (
        Failure("time", "worker_died", "It died.") if trial.phase == "final" else attempt(trial)
    )
    found = swept(Strategy("grid"), device, within=grid({"BLOCK_M": [16, 32, 64]}))
    assert found.final is None
    assert found.count("timed") == 3
    assert found.best.experiment.config.BLOCK_M == 64


def test_out_of_memory_is_reported_at_once_for_every_config():
    device = FakeDevice()
    device.attempt = lambda trial: Failure("time", "out_of_memory", "The GPU has 80 GiB.")
    found = swept(Strategy("grid"), device, within=grid({"BLOCK_M": [16, 32, 64]}))
    assert found.count("failed") == 3
    assert found.best is None


def test_two_devices_share_the_work_and_find_the_same():
    one = swept(Strategy("grid"), FakeDevice(noise=0.01))
    devices = [FakeDevice(noise=0.01, seed=seed, where=f"GPU {seed}") for seed in (1, 2)]
    both = swept(Strategy("grid"), devices)
    assert both.count("timed") == len(ALL)
    assert {row.where for row in both.rows} == {"GPU 1", "GPU 2"}
    assert min(len(device.trials) for device in devices) > 3
    assert found_regret(both) <= 0.01
    assert found_regret(one) <= 0.01


def test_what_one_device_failed_is_tried_again_on_the_other():
    broken, whole = FakeDevice(deadly=lambda one: True, where="broken"), FakeDevice(where="whole")
    found = swept(Strategy("grid"), [whole, broken], within=grid({"BLOCK_M": [16, 32, 64, 128], "BLOCK_N": [16, 64]}))
    assert found.count("failed") == 0
    assert {row.where for row in found.rows} == {"whole"}


def test_a_device_that_is_lost_for_good_leaves_its_configs_to_the_other():
    lost, whole = FakeDevice(where="lost"), FakeDevice(where="whole")
    attempt = lost.attempt
    lost.attempt = lambda trial: (
        Failure("worker", DEVICE_LOST, "lost did not come back.") if lost.trials else attempt(trial)
    )
    found = swept(Strategy("grid"), [lost, whole], within=grid({"BLOCK_M": [16, 32, 64], "BLOCK_N": [16, 32, 64, 128]}))
    assert found.count("timed") == 12
    assert len(lost.trials) <= 1


def test_a_device_on_which_all_fails_is_given_up_before_every_config_was_tried_twice():
    device = FakeDevice(deadly=lambda one: True)
    found = swept(Strategy("grid"), device)
    assert len(device.trials) == 40
    assert found.ended == "failed"
    assert "SIGKILL" in found.note
    assert found.count("not tried") > len(ALL) / 2


def test_where_the_only_device_is_lost_what_was_done_is_kept():
    lost = FakeDevice()
    attempt = lost.attempt
    lost.attempt = lambda trial: (
        Failure("worker", DEVICE_LOST, "It did not come back.") if lost.trials else attempt(trial)
    )
    found = swept(Strategy("grid"), lost)
    assert found.count("timed") == REFERENCE_AMONG
    assert found.ended == "failed"
    assert "It did not come back." in found.note


def test_a_budget_is_kept_by_every_strategy():
    for name in ("grid", "random", "guided"):
        found = swept(Strategy(name, budget=11), FakeDevice())
        assert found.count("timed") == 11
        assert found.ended == "budget"


def test_random_is_the_same_for_a_seed_and_another_for_another():
    def order(seed):
        found = swept(Strategy("random", seed=seed, budget=20))
        return [row.experiment for row in sorted(found.rows, key=lambda row: row.turn or 0) if row.turn is not None]

    assert order(1) == order(1) != order(2)


def test_the_library_is_timed_in_the_final_and_its_ratio_is_to_the_best():
    found = swept(Strategy("guided", budget=8), FakeDevice())
    (library,) = found.final.baselines
    assert library.ratio == pytest.approx(0.5 / true_ms(found.best.experiment), rel=1e-3)


def test_convergence_never_rises_and_ends_at_the_fastest():
    found = swept(Strategy("random", budget=30), FakeDevice())
    curve = [ms for _, ms in found.convergence]
    assert [count for count, _ in found.convergence] == list(range(1, 31))
    assert curve == sorted(curve, reverse=True)
    assert math.isclose(curve[-1], min(row.median_ms for row in found.rows if row.median_ms))


@pytest.mark.parametrize("count", [6, 10, 40])
def test_the_interval_of_a_median_holds_it_in_95_of_100_cases(count):
    dice = np.random.default_rng(0)
    held = sum(low <= 0 <= high for low, high in (median_interval(dice.normal(size=count)) for _ in range(1000)))
    assert 930 <= held <= 990


def test_a_row_says_what_was_compiled_and_predicted():
    found = swept(Strategy("guided", budget=3))
    row = found.best
    assert (row.registers, row.spilled_bytes, row.compile_s, row.device) == (64, 0, 1.0, "H200")
    assert row.predicted.ms == pytest.approx(true_ms(row.experiment))
    assert row.low_ms <= row.median_ms <= row.high_ms
    assert replace(row, samples=0) != row


def test_what_a_search_recommends_is_the_best_with_the_librarys_first_call():
    found = swept(Strategy("grid"), within=grid({"BLOCK_M": [32, 64], "num_warps": [4, 8]}))
    one = search_configs.recommendation(found)
    (library,) = found.final.baselines
    assert one.experiment == found.final.best
    assert (one.gpu, one.compared, one.library, one.ratio) == ("H200", 4, library.name, library.ratio)
    assert search_configs.recommendation(replace(found, final=None)) is None


def test_a_list_of_configs_that_is_no_product_is_swept_as_it_is():
    few = [ALL[0], ALL[100], ALL[-1]]
    found = swept(Strategy("grid"), within=search_configs.ListedSpace(grid().base, (), tuple(few)))
    assert [row.experiment for row in found.rows] == few
    assert found.best.experiment == min(few, key=true_ms)


def test_a_quarter_of_the_configs_survives_a_round_and_never_fewer_than_the_finalists():
    device = FakeDevice()
    swept(Strategy("grid"), device)
    sizes = dict.fromkeys((10, 40, MAX_TURNS), 0)
    for trial in device.trials:
        if trial.phase != "final":
            sizes[trial.turns] += len(trial.experiments)
    assert sizes == {10: 288, 40: 72, MAX_TURNS: 18}
    few = FakeDevice()
    swept(Strategy("grid"), few, within=grid({"BLOCK_M": [16, 32, 64, 128], "BLOCK_N": [16, 32]}))
    assert len(few.trials[-1].experiments) == FINALISTS


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_a_round_of_the_race_is_shared_evenly_among_devices(devices):
    shared = [FakeDevice(where=f"GPU {number}") for number in range(devices)]
    swept(Strategy("grid"), shared)
    sizes = [len(trial.experiments) for device in shared for trial in device.trials if trial.turns == 40]
    assert sum(sizes) in (71, 72), "the reference is in each trial and not counted if it survives"
    assert len(sizes) % devices == 0
    assert max(sizes) <= min(15, min(sizes) + 1)


def test_the_first_trial_is_small_because_all_others_wait_for_its_reference():
    device = FakeDevice()
    swept(Strategy("grid"), device)
    assert [len(trial.experiments) for trial in device.trials[:2]] == [REFERENCE_AMONG, MAX_PER_TRIAL]
