"""Tuning over many problems: regret on recorded times, hints, lost workers, stored rows, and the short list."""

import dataclasses
import math
from concurrent.futures import Future

import pytest
from fakes import GPU, FakeBuilder, FakeDevice, FakeTuner, explored, grid, swept, true_ms

from benchmarks.search import TUNINGS, read_tunings, replay_tuning
from tests.waiting import PATIENCE_S
from tilescope.declare.experiment import Experiment, Settings
from tilescope.declare.space import Space, space_from_json
from tilescope.results.store import Store
from tilescope.search.tune import (
    StoredRows,
    find_hints,
    short_list,
    tune,
    tuned_json,
    tuned_text,
)

SIZES = {"BLOCK_M": [16, 32, 64, 128], "BLOCK_N": [16, 64], "num_warps": [4, 8]}
SPACES = [grid(SIZES, M=size) for size in (256, 512, 1024)]


class DyingTuner(FakeTuner):
    """A tuner whose processes may die, and whose times a test may change.

    Attributes:
        dies: indices of the submitted tasks whose process dies.
    """

    def __init__(self, store, ms_of=true_ms):
        super().__init__(StoredRows(store))
        self.ms_of = ms_of
        self.dies = set()

    def before(self, device):
        device.ms_of = self.ms_of
        if len(self.devices) - 1 in self.dies and len(device.trials) == 3:
            device.cancel()

    def submit(self, task):
        done = super().submit(task)
        done.result(PATIENCE_S)
        if len(self.tasks) - 1 in self.dies:
            done = Future()
            done.set_exception(RuntimeError("killed"))
        return done


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "rows.db")


def run_tuning(tuner, store, spaces=SPACES, tries_all=False):
    *_, sweeps = tune(tuner, spaces, store, tries_all, from_scratch=False)
    return sweeps


@pytest.mark.parametrize("kernel", ["softmax", "rms_norm_backward"])
def test_timing_a_quarter_of_the_configs_finds_ones_within_half_a_percent_of_the_best(kernel):
    """An H200 has timed all 48 configs of 12 problems."""
    regrets, timed = replay_tuning(read_tunings(TUNINGS)[kernel], seed=0)
    assert sum(regrets) / len(regrets) < 0.005
    assert max(regrets) < 0.03
    assert timed <= 0.25


def test_the_current_config_and_the_winners_of_the_most_similar_problem_are_tried_first(store):
    tuner = DyingTuner(store)
    sweeps = run_tuning(tuner, store)
    first, second, third = (explored(device) for device in tuner.devices)
    assert SPACES[0].base not in SPACES[0].experiments
    winners = [row.experiment.config for row in sweeps[1].ranked[:3]]
    assert {each.config for each in third[:3]} == set(winners)
    assert len(first) == len(second) == 8
    current = dataclasses.replace(SPACES[0], base=SPACES[0].experiments[5])
    assert find_hints(current, []).first == (5,)
    nearest = find_hints(SPACES[2], [sweeps[0], sweeps[1]])
    assert nearest == find_hints(SPACES[2], [sweeps[1]])


def test_a_problem_whose_worker_dies_resumes_from_the_rows_that_had_arrived(store):
    tuner = DyingTuner(store)
    tuner.dies = {0, 2}
    sweeps = run_tuning(tuner, store, tries_all=True)
    assert [task.space for task in tuner.tasks] == [
        SPACES[0],
        SPACES[0],
        SPACES[1],
        SPACES[1],
        SPACES[2],
    ]
    assert all(sweep.count("timed") == sweep.space.size for sweep in sweeps)
    kept = {row.experiment for row in tuner.tasks[1].earlier.rows if row.status == "timed"}
    assert kept
    assert not kept & set(explored(tuner.devices[1]))


def test_a_worker_that_dies_at_every_attempt_ends_the_tuning_with_its_error(store):
    tuner = DyingTuner(store)
    tuner.dies = set(range(9))
    with pytest.raises(RuntimeError, match="killed"):
        run_tuning(tuner, store)
    assert len(tuner.tasks) == 3


def test_few_configs_serve_most_problems():
    """Two problems need BLOCK_M = 128, the third a small one."""

    def ms_of(experiment):
        small = experiment.problem.M == 1024
        return 1.0 + abs(math.log2(experiment.config.BLOCK_M / (16 if small else 128)))

    tuner = DyingTuner(Store(None), ms_of)
    sweeps = run_tuning(tuner, Store(None), tries_all=True)
    configs, served = short_list(sweeps)
    assert [each.config.BLOCK_M for each in configs] == [128, 16]
    assert served == 1
    text = tuned_text(sweeps)
    assert (
        "For 3 of 3 problems, one of these 2 configs is within 2 % of the best by measured time."
        in text
    )
    assert 'triton.Config({"BLOCK_M": 128' in text
    result = tuned_json(sweeps)
    assert [each["best"]["BLOCK_M"] for each in result["problems"]] == [128, 128, 16]
    assert result["problems"][0]["gain"] is None, "the space does not contain the current config"


def test_configs_without_a_predicted_time_are_counted():
    sweep = swept(FakeDevice(), within=SPACES[0])
    reason = "The launch is too large."
    rows = (
        dataclasses.replace(row, status="predicted", reason=reason, predicted=None, estimate=None)
        for row in sweep.rows
    )
    unknown = dataclasses.replace(sweep, rows=tuple(rows), final=None)
    assert f"16 configs without a predicted time: {reason}" in tuned_text([unknown])
    assert "16 configs without a predicted time for 2 of 2 problems: The" in tuned_text(
        [unknown, unknown]
    )
    assert tuned_json([unknown])["problems"][0]["best"] is None


def test_rows_of_single_launches_and_of_sustained_load_are_kept_apart(store):
    run_tuning(DyingTuner(store), store, tries_all=True)
    single = [dataclasses.replace(each, load="single") for each in SPACES]
    tuner = DyingTuner(store)
    assert run_tuning(tuner, store, single, tries_all=True)[0].space.load == "single"
    assert [len(explored(device)) for device in tuner.devices] == [16, 16, 16]
    assert {trial.load for trial in tuner.devices[0].trials} == {"single"}
    assert space_from_json(single[0].to_json()) == single[0]


def test_the_store_returns_a_cases_space_and_rows_unchanged(store):
    base = Experiment("/x/softmax.py:case", Settings(rows=7), Settings(BLOCK=1, num_warps=None))
    within = Space(
        base, (("BLOCK", (1, 2)), ("num_warps", (None, 4))), ((1, None), (2, 4)), source="abc"
    )
    assert space_from_json(within.to_json()) == within
    assert within.size == 2
    other = dataclasses.replace(within, source="def")
    assert other.identity != within.identity
    device = FakeDevice()
    device.ms_of = lambda experiment: float(experiment.config.BLOCK)
    swept(device, within=within, builder=FakeBuilder(lambda *_: 1.0), store=store)
    loaded = store.load_sweep(within, GPU)
    assert [row.experiment for row in loaded.rows] == list(within.experiments)
    assert loaded.best.experiment.config.BLOCK == 1
    assert store.load_sweep(other, GPU) is None


def test_without_times_a_config_that_writes_less_than_another_is_set_aside():
    base = Experiment("/x/copy.py:case", Settings(n=4096), Settings(part=1))
    within = Space(base, (("part", (1, 2, 4)),))
    device = FakeDevice()
    device.takes_times = False
    device.refusal = lambda experiment: "No GPU."
    shares = {1: 1.0, 2: 0.5, 4: None}
    builder = FakeBuilder(lambda *_: 1.0, written=lambda each: shares[each.config.part])
    found = swept(device, within=within, builder=builder)
    assert [row.status for row in found.rows] == ["predicted", "set aside", "predicted"]
    assert "writes fewer" in found.rows[1].reason
    assert "1 config set aside: It writes fewer elements" in tuned_text([found])
