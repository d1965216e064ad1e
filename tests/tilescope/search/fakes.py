"""A device whose times are a known function with noise, so that the best config is known, and a builder for it."""

import zlib
from concurrent.futures import Future
from dataclasses import replace

import numpy as np

from tests.waiting import PATIENCE_S
from tilescope.declare.experiment import from_json
from tilescope.declare.gpus import GPUS
from tilescope.declare.space import space
from tilescope.results import Device, Failure, SweepPrediction
from tilescope.results.store import Store
from tilescope.results.sweep import ConfigBuild, ConfigOutcome, Outcomes
from tilescope.search.search import Task
from tilescope.search.sweep_run import SweepRun
from tilescope.search.tune import make_relay

VARY = {
    "BLOCK_M": [16, 32, 64, 128],
    "BLOCK_N": [16, 32, 64, 128],
    "BLOCK_K": [16, 32, 64],
    "num_warps": [4, 8, 16],
    "num_stages": [2, 3],
}
GPU = GPUS["H200"]
STEADY = 0.0005


def grid(vary=None, **problem):
    base = from_json({"kernel": "matmul.grouped", "problem": problem})
    return space(base, vary or VARY)


ALL = grid().experiments


def true_ms(experiment):
    """Return a made-up time. Large square tiles are fast, deep tiles a little faster, and four warps are the best."""
    config = experiment.config
    reuse = 1 / config.BLOCK_M + 1 / config.BLOCK_N
    ms = 0.2 + 6 * reuse + 1.5 / config.BLOCK_K
    return float(
        ms
        * (1 + 0.1 * abs(np.log2(config.num_warps / 4)))
        * (1.05 if config.num_stages == 2 else 1)
    )


def predicting(ms_of=true_ms, error=0.0, seed=0):
    """Return a model with a relative error that is random, but always the same for a config."""

    def predict(kernel, launch):
        experiment = replace(grid().base, problem=launch.problem, config=launch.config)
        key = zlib.crc32(repr((seed, launch.config)).encode())
        return ms_of(experiment) * float(np.random.default_rng(key).lognormal(0, error))

    return predict


class FakeDevice:
    """A `LocalDevice` with made-up times.

    Args:
        noise: relative noise of each launch, always the same for a config and a number of turns. Above STEADY, all
            launches of a turn also share half as much noise, as if the clock moved.
        wrong: whether a config's result is wrong.
        deadly: whether a config kills the worker each time.
        dies_once: configs that kill the worker the first time.

    Attributes:
        before: called with each trial. A Failure that it returns is the trial's result.
    """

    gpu = GPU
    takes_times = True

    def __init__(
        self,
        noise=STEADY,
        seed=0,
        wrong=lambda e: False,
        deadly=lambda e: False,
        dies_once=(),
    ):
        self.noise = noise
        self.seed = seed
        self.dice = np.random.default_rng(seed)
        self.wrong = wrong
        self.deadly = deadly
        self.dies_once = set(dies_once)
        self.trials = []
        self.ms_of = true_ms
        self.is_cancelled = False
        self.before = lambda trial: None

    def describe(self):
        return Device("cuda", "Fake H200", "none", "none")

    def refusal(self, experiment):
        return ""

    def attempt(self, trial):
        self.trials.append(trial)
        failure = self.before(trial)
        if isinstance(failure, Failure):
            return failure
        if self.is_cancelled:
            return Failure("time", "cancelled", "Cancelled.")
        experiments = trial.experiments
        dying = {each for each in experiments if self.deadly(each) or each in self.dies_once}
        if dying:
            self.dies_once -= dying
            return Failure(
                "time", "worker_died", "The worker died in the time stage (killed by SIGKILL)."
            )
        wrong = {each for each in experiments if trial.phase == "explore" and self.wrong(each)}
        right = [each for each in experiments if each not in wrong]
        if not right:
            return Outcomes((ConfigOutcome("wrong", "The result is wrong."),) * len(experiments))
        turns = 100 if trial.phase == "final" else trial.turns
        shared = (
            self.dice.lognormal(0, self.noise / 2, turns) if self.noise > STEADY else np.ones(turns)
        )
        reference = trial.reference or right[0]
        times = {each: shared * self._launches(each, turns) for each in {*right, reference}}
        each = [
            ConfigOutcome("wrong", "The result is wrong.")
            if experiment in wrong
            else ConfigOutcome("timed", "", times[experiment], times[reference])
            for experiment in experiments
        ]
        library = (("torch.matmul", shared * 0.5),) if trial.phase == "final" else ()
        return Outcomes(tuple(each), library)

    def _launches(self, experiment, turns):
        key = zlib.crc32(repr((self.seed, experiment.config, turns)).encode())
        return self.ms_of(experiment) * np.random.default_rng(key).lognormal(0, self.noise, turns)

    def cancel(self):
        self.is_cancelled = True


class FakeBuilder:
    """A pool whose compiles end immediately.

    Args:
        failures: experiment → the Failure of its compile, or None.
        written: experiment → the share of an expected output that it writes, or None.
    """

    max_concurrency = 4

    def __init__(
        self, predict=None, failures=lambda experiment: None, written=lambda experiment: None
    ):
        self.predict = predict or predicting()
        self.failures = failures
        self.written = written
        self.submitted = []

    def submit(self, call):
        experiment, *_ = call.args
        self.submitted.append(experiment)
        result = Future()
        failure = self.failures(experiment)
        config = vars(experiment.config)
        shared = config.get("BLOCK_M", 0) * config.get("num_stages", 0)
        predicted = SweepPrediction(self.predict(None, experiment), "arithmetic")
        built = ConfigBuild(64, 0, shared, 1.0, predicted, self.written(experiment))
        result.set_result(failure or built)
        return result

    def close(self):
        pass


class FakeTuner:
    """A tuner that runs a sweep at a time on a fake device. `before` is called with the device before each trial."""

    gpu = GPU
    before = staticmethod(lambda device: None)

    def __init__(self, rows):
        self.devices = []
        self.tasks = []
        self._relay = make_relay(rows.receive)
        self._runs = []

    def capacity(self):
        return 1

    def submit(self, task):
        device = FakeDevice()
        device.before = lambda trial: self.before(device)
        self.devices.append(device)
        self.tasks.append(task)
        self._runs.append(SweepRun(task, device, FakeBuilder(), self._relay, predicting()))
        return self._runs[-1].start()

    def cancel(self):
        for run in self._runs:
            run.cancel()


def make_run(
    device=None, predict=None, within=None, builder=None, earlier=None, store=None, budget=None
):
    """Make a sweep that resumes from the store by default."""
    predict = predict or predicting()
    store = store or Store(None)
    within = within or grid()
    task = Task(within, budget, earlier or store.load_sweep(within, GPU))
    return SweepRun(task, device or FakeDevice(), builder or FakeBuilder(predict), store, predict)


def swept(*arguments, **options):
    """Sweep to the end. For the arguments, see `make_run`."""
    return make_run(*arguments, **options).start().result(PATIENCE_S)


def explored(device):
    """Return the configs that a device explored, in order."""
    return [
        experiment
        for trial in device.trials
        if trial.phase == "explore"
        for experiment in trial.experiments
    ]
