"""One trial in the run worker: check each config, then launch the correct ones in turns on the same inputs.

A first turn of one launch each finds the configs that cannot win. They keep that one sample, so a config that is a
hundred times slower does not cost a hundred times more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kernels.gpus import Gpu
from kernels.measuring.check import InsufficientMemory
from kernels.measuring.gated_stream import GatedStream
from kernels.measuring.run import Prepared, library_calls, prepare
from kernels.measuring.timing import Effort, Stream, sample
from kernels.measuring.worker import interprets
from kernels.results import Check
from kernels.spec import Allowance
from kernels.sweep.search import Outcome, Outcomes, Trial

# Time the finalists until their ratios are known to 0.1 %, within these limits.
_FINAL_EFFORT = Effort(half_width=0.001, fewest=40, most=2000, least_ms=200.0, most_s=4.0, warm_s=0.5)

# Correct outputs kept to compare others with; each takes as much memory as the launch's own output.
_MAX_KEPT_OUTPUTS = 2

# A config whose first launch takes this many times the fastest one's is not timed again.
_HOPELESS = 2.0


def run_trial(trial: Trial, gpu: Gpu) -> Outcomes:
    """Carry out a trial on this worker's device. Under the interpreter, configs are checked and not timed."""
    import torch

    first = prepare(trial.experiments[0], gpu)
    configs = [dataclasses.replace(first, experiment=experiment) for experiment in trial.experiments]
    if interprets():
        return carry_out(trial, configs, lambda: None)
    run = first.experiment.run
    reference = None if trial.reference is None else dataclasses.replace(first, experiment=trial.reference)

    def time_in_turns(calls: Sequence[Callable[[], Any]]) -> GatedStream:
        return GatedStream(calls, run.l2, run.timer)

    def library() -> dict[str, Callable[[], Any]]:
        output = torch.empty_like(first.output)
        return library_calls(first.kernel.family, first.inputs, output, first.setting.problem)[0]

    return carry_out(trial, configs, torch.cuda.synchronize, reference, library, time_in_turns)


def carry_out(
    trial: Trial,
    configs: Sequence[Prepared],
    synchronize: Callable[[], object],
    reference: Prepared | None = None,
    library: Callable[[], Mapping[str, Callable[[], Any]]] = dict,
    time_in_turns: Callable[[Sequence[Callable[[], Any]]], Stream] | None = None,
) -> Outcomes:
    """Check and time prepared configs.

    Args:
        configs: prepared launches of the trial's experiments, in their order.
        synchronize: waits until all launches have ended.
        reference: the prepared launch of the trial's reference.
        library: makes the library's calls by name.
        time_in_turns: makes a stream that times calls in turns; None where nothing is timed.
    """
    if trial.phase == "explore":
        correct: list[tuple[Allowance | None, Any]] = []
        outcomes = [_check(config, correct, synchronize) for config in configs]
        correct.clear()
    else:
        outcomes = [_launch(config, synchronize) for config in configs]
    passed = [place for place, outcome in enumerate(outcomes) if outcome.status == "checked"]
    if time_in_turns is None or not passed:
        return Outcomes(tuple(outcomes))
    baselines = library() if trial.phase == "final" else {}
    # The reference is launched first in each turn.
    before = [] if reference is None else [reference]
    calls = [config.ready() for config in (*before, *(configs[place] for place in passed))]
    times = _time_calls([*calls, *baselines.values()], trial, time_in_turns)
    for place, (times_ms, reference_ms) in zip(passed, times[len(before) : len(calls)], strict=True):
        outcomes[place] = Outcome("timed", "", times_ms, reference_ms)
    library_times = zip(baselines, times[len(calls) :], strict=True)
    return Outcomes(tuple(outcomes), tuple((name, times_ms) for name, (times_ms, _) in library_times))


def _check(config: Prepared, correct: list[tuple[Allowance | None, Any]], synchronize: Callable[[], object]) -> Outcome:
    """Launch on a poisoned output, and compare the result with the reference.

    Args:
        correct: (what was allowed, output) of configs that passed; a new one is added. An output that is equal bit for
            bit passes too, and most are: computing the reference of a large product takes longer than a dozen launches.
    """
    import torch

    config.output.fill_(0.0 if config.kernel.zeroed_output else float("nan"))
    outcome = _launch(config, synchronize)
    if outcome.status == "failed":
        return outcome
    if any(allowance == config.allowance and torch.equal(output, config.output) for allowance, output in correct):
        return outcome
    try:
        check = config.check()[0]
    except (InsufficientMemory, torch.cuda.OutOfMemoryError):
        if not correct:
            raise
        correct.clear()  # they took the memory that the check needs
        check = config.check()[0]
    if not check.passed:
        return Outcome("wrong", describe_wrong_result(check))
    if len(correct) < _MAX_KEPT_OUTPUTS:
        correct.append((config.allowance, config.output.clone()))
    return outcome


def _launch(config: Prepared, synchronize: Callable[[], object]) -> Outcome:
    """Launch once and wait. If Triton refuses the launch, only this config has failed."""
    import torch

    try:
        config.launch()
        synchronize()
    except (torch.AcceleratorError, torch.cuda.OutOfMemoryError):  # these concern every config
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or ["no message"]
        return Outcome("failed", f"It could not be launched: {type(error).__name__}: {lines[0]}")
    return Outcome("checked", "Right under the interpreter, which takes no times.")


def describe_wrong_result(check: Check) -> str:
    """Say in a sentence what is wrong with a result that failed its check."""
    of_all = f"of {check.elements:,} elements are"
    rms = f"relative RMS error {check.relative_rms:.2g} (limit {check.tolerance:.2g})"
    if check.nonfinite:
        return f"The result is wrong: {check.nonfinite:,} {of_all} not finite."
    if check.mismatched:
        return f"The result is wrong: {check.mismatched:,} {of_all} outside the allowed error; {rms}."
    return f"The result is wrong: {rms}."


def _time_calls(
    calls: Sequence[Callable[[], Any]], trial: Trial, time_in_turns: Callable[[Sequence[Callable[[], Any]]], Stream]
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Time each call; return its times with those of the first call, the reference, from the same turns."""
    stream = time_in_turns(calls)
    if trial.phase == "final":
        every = sample(stream, _FINAL_EFFORT).times_ms
        return [(times_ms, every[0]) for times_ms in every]
    once = stream.batch(1).times_ms
    kept = select_contenders(once[:, 0])
    stream = time_in_turns([calls[place] for place in kept])
    most = stream.most_turns  # the GPU's queue holds no more
    batches = [stream.batch(min(most, trial.turns - done)).times_ms for done in range(0, trial.turns, most)]
    times_ms = np.concatenate(batches, axis=1)
    timed = {place: (times, times_ms[0]) for place, times in zip(kept, times_ms, strict=True)}
    return [timed.get(place, (once[place], once[0])) for place in range(len(calls))]


def select_contenders(first_ms: np.ndarray) -> list[int]:
    """Return the places of the calls to time again: the reference, which is first, and those that may still win.

    >>> select_contenders(np.array([3.0, 1.0, 1.9, 2.1]))
    [0, 1, 2]
    """
    return [place for place, ms in enumerate(first_ms) if place == 0 or ms <= _HOPELESS * first_ms.min()]
