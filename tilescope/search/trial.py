"""One trial in the run worker: check each config, then launch the correct ones alternately on the same inputs.

The first turn launches each config once and finds the configs that can't win. They keep this single sample, so a very
slow config costs only one launch.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from tilescope.declare.experiment import Experiment
from tilescope.declare.gpus import Gpu
from tilescope.declare.spec import Allowance
from tilescope.measure.check import InsufficientMemory
from tilescope.measure.gated_stream import GatedStream
from tilescope.measure.run import Prepared, library_calls, prepare
from tilescope.measure.timing import Effort, Stream, sample
from tilescope.measure.worker import interprets, to_failure
from tilescope.results import Check
from tilescope.search.search import ConfigOutcome, ConfigTrial, Outcomes

# Time the finalists until their ratios are known to 0.1 %, within these limits.
_FINAL_EFFORT = Effort(
    half_width=0.001, fewest=40, most=2000, least_ms=200.0, most_s=4.0, warm_s=0.5
)

MakeStream = Callable[[Sequence[Callable[[], Any]]], Stream]

# Number of correct outputs kept to compare others with; each takes as much memory as the launch's own output.
_MAX_KEPT_OUTPUTS = 2

# A config is not timed again if its first launch takes more than this many times as long as the fastest first launch.
_HOPELESS = 2.0


def run_trial(trial: ConfigTrial, gpu: Gpu) -> Outcomes:
    """Carry out a trial on this worker's device. Under the interpreter, configs are checked and not timed."""
    import torch

    first = prepare(trial.experiments[0], gpu)
    library: Mapping[str, Callable[[], Any]] = {}
    make_stream = None
    if not interprets():
        make_stream = functools.partial(
            GatedStream, l2=first.experiment.run.l2, timer=first.experiment.run.timer
        )
        if trial.phase == "final":
            output = torch.empty_like(first.output)
            library, _ = library_calls(
                first.kernel.family, first.inputs, output, first.setting.problem
            )
    return carry_out(
        trial,
        lambda experiment: dataclasses.replace(first, experiment=experiment),
        library,
        make_stream,
    )


def carry_out(
    trial: ConfigTrial,
    prepare_config: Callable[[Experiment], Prepared],
    library: Mapping[str, Callable[[], Any]],
    make_stream: MakeStream | None,
) -> Outcomes:
    """Check and time the configs of a trial.

    Args:
        prepare_config: returns a config's launch; all launches share inputs and output.
        library: the library's calls by name, which are timed with the configs.
        make_stream: makes a stream that times calls in turns; None to check without timing.
    """
    configs = [prepare_config(experiment) for experiment in trial.experiments]
    if trial.phase == "explore":
        correct: list[tuple[Allowance | None, Any]] = []
        outcomes = [_check(config, correct) for config in configs]
        correct.clear()
    else:
        outcomes = [_launch(config) for config in configs]
    passed = [place for place, outcome in enumerate(outcomes) if outcome.status == "checked"]
    if make_stream is None or not passed:
        return Outcomes(tuple(outcomes))
    # The reference is launched first in each turn.
    before = [] if trial.reference is None else [prepare_config(trial.reference)]
    calls = [config.bind() for config in (*before, *(configs[place] for place in passed))]
    times = _time_calls([*calls, *library.values()], trial, make_stream)
    for place, (times_ms, reference_ms) in zip(
        passed, times[len(before) : len(calls)], strict=True
    ):
        outcomes[place] = ConfigOutcome("timed", "", times_ms, reference_ms)
    library_times = zip(library, times[len(calls) :], strict=True)
    return Outcomes(
        tuple(outcomes), tuple((name, times_ms) for name, (times_ms, _) in library_times)
    )


def _check(config: Prepared, correct: list[tuple[Allowance | None, Any]]) -> ConfigOutcome:
    """Launch on a poisoned output, and compare the result with the reference.

    Args:
        correct: (allowed error, output) of configs that passed; this config's may be added. A bitwise equal output with
            the same allowed error needs no check. Most outputs are equal, and computing the reference of a large
            product takes longer than a dozen launches.
    """
    import torch

    config.output.fill_(0.0 if config.kernel.zeroed_output else float("nan"))
    outcome = _launch(config)
    if outcome.status == "failed":
        return outcome
    if any(
        allowance == config.allowance and torch.equal(output, config.output)
        for allowance, output in correct
    ):
        return outcome
    try:
        check = config.check()[0]
    except (InsufficientMemory, torch.cuda.OutOfMemoryError):
        if not correct:
            raise
        correct.clear()  # the kept outputs took the memory that the check needs
        check = config.check()[0]
    if not check.passed:
        return ConfigOutcome("wrong", describe_wrong_result(check))
    if len(correct) < _MAX_KEPT_OUTPUTS:
        correct.append((config.allowance, config.output.clone()))
    return outcome


def _launch(config: Prepared) -> ConfigOutcome:
    """Launch once and wait. If Triton refuses the launch, only this config fails."""
    import torch

    try:
        config.launch()
        if config.output.is_cuda:
            torch.cuda.synchronize()
    except (torch.AcceleratorError, torch.cuda.OutOfMemoryError):  # these affect every config
        raise
    except Exception as error:
        return ConfigOutcome(
            "failed", f"It could not be launched: {to_failure('launch', error).message}"
        )
    return ConfigOutcome("checked", "Correct under the interpreter, which does not measure time.")


def describe_wrong_result(check: Check) -> str:
    """Describe in a sentence why a result failed its check."""
    of_all = f"of {check.elements:,} elements are"
    rms = f"relative RMS error {check.relative_rms:.2g} (limit {check.tolerance:.2g})"
    if check.nonfinite:
        return f"The result is wrong: {check.nonfinite:,} {of_all} not finite."
    if check.mismatched:
        return (
            f"The result is wrong: {check.mismatched:,} {of_all} outside the allowed error; {rms}."
        )
    return f"The result is wrong: {rms}."


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
