"""One trial: check each config, then launch the correct ones alternately on the same inputs.

A `LocalDevice` has the run worker carry it out. The first turn launches each config once and finds the configs that
can't win. They keep this single sample, so a very slow config costs only one launch.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy import ndarray

from tilescope.declare.experiment import Experiment, launch_of, resolve_gpu
from tilescope.declare.gpus import Gpu, this_gpu
from tilescope.declare.spec import Allowance, explain_slow_launch
from tilescope.measure.check import InsufficientMemory
from tilescope.measure.gated_stream import GatedStream
from tilescope.measure.measurement import Job
from tilescope.measure.pool import cancellation
from tilescope.measure.run import Prepared, library_calls, prepare
from tilescope.measure.session import Session
from tilescope.measure.timing import Effort, Stream, sample
from tilescope.measure.worker import interprets, to_failure
from tilescope.results import Device, Failure
from tilescope.results.sweep import ConfigOutcome, ConfigTrial, Outcomes
from tilescope.search.cases import CaseTrial, PreparedCase

# Time the finalists until their ratios are known to 0.2 %, within these limits.
_FINAL_EFFORT = Effort(
    half_width=0.002, fewest=40, most=2000, least_ms=50.0, most_s=0.5, warm_s=0.1
)

V = TypeVar("V")
MakeStream = Callable[[Sequence[Callable[[], Any]]], Stream]

# Number of configs whose correct outputs are kept for comparison; each copy takes as much memory as the outputs.
_MAX_KEPT_OUTPUTS = 2

# A config is not timed again if its first launch takes more than this many times as long as the fastest first launch.
_HOPELESS = 2.0


# Failure kind of a permanently lost device, which ends the sweep.
DEVICE_LOST = "device_gone"

# Each compile process uses hundreds of megabytes.
_MAX_COMPILES = 64


def run_trial(trial: ConfigTrial, gpu: Gpu) -> Outcomes:
    """Carry out a trial on this worker's device. Under the interpreter, configs are checked and not timed."""
    import torch

    base = trial.experiments[0]
    make_stream: MakeStream | None = None
    if not interprets():
        rests = trial.load == "single"
        make_stream = functools.partial(
            GatedStream, l2=base.run.l2, timer=base.run.timer, rests=rests
        )
    if base.is_case:
        return carry_out(trial, CaseTrial(trial).prepare, {}, make_stream)
    first = prepare(base, gpu)
    library: Mapping[str, Callable[[], Any]] = {}
    if trial.phase == "final" and make_stream:
        output = torch.empty_like(first.output)
        library, _ = library_calls(first.kernel.family, first.inputs, output, base.problem)
    return carry_out(
        trial,
        lambda experiment: dataclasses.replace(first, experiment=experiment),
        library,
        make_stream,
    )


def carry_out(
    trial: ConfigTrial,
    prepare_config: Callable[[Experiment], Prepared | PreparedCase],
    library: Mapping[str, Callable[[], Any]],
    make_stream: MakeStream | None,
) -> Outcomes:
    """Check and time the configs of a trial.

    Args:
        prepare_config: returns a config, ready to launch.
        library: name → a library call that is timed with the configs.
        make_stream: makes a stream that times calls in turns; None to check without timing.
    """
    # (allowed error, outputs) of configs that passed
    correct: list[tuple[Allowance | None, Sequence[Any]]] = []
    outcomes = []
    calls = []
    passed = []
    for place, experiment in enumerate(trial.experiments):
        config = prepare_config(experiment)
        outcomes.append(_check(config, correct) if trial.phase == "explore" else _launch(config))
        if outcomes[-1].status == "checked":
            passed.append(place)
            calls.append(config.bind())
    correct.clear()
    if make_stream is None or not passed:
        return Outcomes(tuple(outcomes))
    # The reference is launched first in each turn.
    before = []
    if trial.reference is not None:
        reference = prepare_config(trial.reference)
        reference.launch()
        before = [reference.bind()]
    times = _time_calls([*before, *calls, *library.values()], trial, make_stream)
    known = len(before) + len(calls)
    for place, (times_ms, reference_ms) in zip(passed, times[len(before) : known], strict=True):
        outcomes[place] = ConfigOutcome("timed", "", times_ms, reference_ms)
    library_times = zip(library, times[known:], strict=True)
    return Outcomes(
        tuple(outcomes), tuple((name, times_ms) for name, (times_ms, _) in library_times)
    )


def _check(
    config: Prepared | PreparedCase, correct: list[tuple[Allowance | None, Sequence[Any]]]
) -> ConfigOutcome:
    """Launch on poisoned outputs, and compare them with the reference.

    Args:
        correct: (allowed error, outputs) of configs that passed; this config's may be added. Bitwise equal outputs with
            the same allowed error need no check. Most outputs are equal, and computing the reference of a large
            product takes longer than a dozen launches.
    """
    import torch

    config.poison()
    outcome = _launch(config)
    if outcome.status == "failed":
        return outcome
    for allowance, outputs in correct:
        is_alike = allowance == config.allowance and len(outputs) == len(config.outputs)
        if is_alike and all(map(torch.equal, outputs, config.outputs)):
            return outcome
    try:
        reason = config.explain_wrong()
    except (InsufficientMemory, torch.cuda.OutOfMemoryError):
        if not correct:
            raise
        correct.clear()  # the kept outputs took the memory that the check needs
        reason = config.explain_wrong()
    if reason:
        return ConfigOutcome("wrong", reason)
    if len(correct) < _MAX_KEPT_OUTPUTS:
        correct.append((config.allowance, [output.clone() for output in config.outputs]))
    return outcome


def _launch(config: Prepared | PreparedCase) -> ConfigOutcome:
    """Launch once and wait. If Triton refuses the launch, only this config fails."""
    import torch

    try:
        config.launch()
        if any(output.is_cuda for output in config.outputs):
            torch.cuda.synchronize()
    except (torch.AcceleratorError, torch.cuda.OutOfMemoryError):  # these affect every config
        raise
    except Exception as error:
        return ConfigOutcome(
            "failed", f"It could not be launched: {to_failure('launch', error).message}"
        )
    return ConfigOutcome("checked", "Correct under the interpreter, which does not measure time.")


def _time_calls(
    calls: Sequence[Callable[[], Any]], trial: ConfigTrial, make_stream: MakeStream
) -> list[tuple[ndarray, ndarray]]:
    """Time each call. Return its times, and the reference's (first call's) times from the same turns."""
    stream = make_stream(calls)
    if trial.phase == "final":
        final_ms = sample(stream, _FINAL_EFFORT).times_ms
        return [(times_ms, final_ms[0]) for times_ms in final_ms]
    first_ms = stream.batch(1).times_ms
    kept = select_contenders(first_ms[:, 0])
    stream = make_stream([calls[place] for place in kept])
    most = stream.most_turns  # a limit of the GPU's queue
    batches = [
        stream.batch(min(most, trial.turns - done)).times_ms for done in range(0, trial.turns, most)
    ]
    times_ms = np.concatenate(batches, axis=1)
    timed = {place: (times, times_ms[0]) for place, times in zip(kept, times_ms, strict=True)}
    return [timed.get(place, (first_ms[place], first_ms[0])) for place in range(len(calls))]


def select_contenders(first_ms: ndarray) -> list[int]:
    """Return the indices of the calls to time again: the reference, which is first, and the calls that may still win.

    >>> select_contenders(np.array([3.0, 1.0, 1.9, 2.1]))
    [0, 1, 2]
    """
    return [
        place for place, ms in enumerate(first_ms) if place == 0 or ms <= _HOPELESS * first_ms.min()
    ]


def concurrent_compiles() -> int:
    """Return the number of a sweep's compile workers: one per usable core, except one core for the timing on a GPU."""
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
    else:  # macOS
        usable = os.cpu_count() or 1
    return max(1, min(_MAX_COMPILES, usable - bool(this_gpu())))


class LocalDevice:
    """Checks and times configs on a session's GPU, or checks them in the interpreter if there is none.

    Each trial is a job in the run worker's queue, so a run on the page waits for one trial, not for the whole sweep.

    Args:
        base: the experiment of the sweep's space.

    Attributes:
        gpu: the GPU that the experiment is for.
        takes_times: whether configs are timed; otherwise they are only checked, or not run at all.
    """

    def __init__(self, session: Session, base: Experiment) -> None:
        self._session = session
        self._base = base
        self.gpu = resolve_gpu(base, session.gpu)
        self.takes_times = session.gpu == self.gpu and not session.zero_gpu
        self._interprets = session.gpu is None and base.gpu in ("", "this") and not base.is_case
        self._job: Job | None = None
        self._is_cancelled = False

    def describe(self) -> Device | Failure:
        """Return the device's name and versions; start its worker if needed."""
        if not (self.takes_times or self._interprets):
            return Device("predicted", self.gpu.name, torch="", triton="")
        return self._run(Job.device)

    def refusal(self, experiment: Experiment) -> str:
        """Return why this device can't check a config, as a sentence; "" if it can."""
        if self.takes_times:
            return ""
        if self._session.zero_gpu and self.gpu == self._session.gpu:
            return "ZeroGPU lends this GPU for one run at a time: a sweep only compiles and predicts configs."
        if not self._interprets:
            here = self._session.gpu.name if self._session.gpu else "no GPU"
            return f"This machine has {here}: configs for {self.gpu.name} are only compiled and predicted."
        return explain_slow_launch(*launch_of(experiment, self.gpu))

    def attempt(self, trial: ConfigTrial) -> Outcomes | Failure:
        """Carry out a trial, and wait for it. A Failure, such as a dead worker, concerns all configs of the trial."""
        stage = "time" if self.takes_times else "check"
        return self._run(lambda job: job.work(stage, run_trial, trial, self.gpu))

    def _run(self, work: Callable[[Job], V]) -> V | Failure:
        """Wait for the run worker, call it, and free it for the next job."""
        self._job = job = Job(self._session, self._base, "sweep")
        if self._is_cancelled:  # `cancel` came before the job existed
            return cancellation("time")
        result = job.run(work)
        self._job = None
        if isinstance(result, Failure) and self._is_cancelled:
            return dataclasses.replace(result, kind="cancelled")
        if isinstance(result, Failure) and self._session.runner.is_closed:
            return dataclasses.replace(result, kind=DEVICE_LOST)
        return result

    def cancel(self) -> None:
        """Kill the current trial: its `attempt` returns a Failure."""
        self._is_cancelled = True
        if (job := self._job) is not None:
            job.cancel()
