"""One trial in the run worker: check each config, then launch those that are right in turns, on the same inputs.

A first turn of one launch each finds those that can't win: they keep that one sample, so that a config that is a
hundred times slower costs no hundred times more. Torch; runs in the worker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from kernels.experiment import Run
from kernels.gpus import Gpu
from kernels.measuring.check import InsufficientMemory
from kernels.measuring.gated_stream import GatedStream
from kernels.measuring.measurements.run_measurement import library_calls
from kernels.measuring.prepared import Prepared, interprets, prepare
from kernels.measuring.timing import sample
from kernels.measuring.worker import as_failure
from kernels.results import Check, Failure
from kernels.spec import Allowance
from kernels.sweep.device import NO_TIMES, Outcome, Outcomes, Trial

# Outputs that others are compared with: each takes as much memory as the launch's own.
_KEPT_OUTPUTS = 2

# Times of the first launch from which on a config is not timed again: so many times the fastest of the trial's.
_HOPELESS = 2.0


@as_failure("time")
def attempted(trial: Trial, gpu: Gpu) -> Outcomes:
    """Carry out a trial on this worker's device."""
    first = prepare(trial.experiments[0], gpu)
    each = [dataclasses.replace(first, experiment=experiment) for experiment in trial.experiments]
    passed: list[tuple[Allowance | None, Any]] = []
    found = [_checked(one, passed) if trial.is_checked else _launched(one) for one in each]
    passed.clear()
    if interprets():
        return Outcomes(tuple(found))
    right = [place for place, one in enumerate(found) if not one.wrong and one.failure is None]
    if not right:
        return Outcomes(tuple(found))
    library = _library(first) if trial.with_library else {}
    # The reference is the first that is launched in each turn.
    before = [dataclasses.replace(first, experiment=trial.reference)] if trial.reference is not None else []
    calls = [*(one.ready() for one in (*before, *(each[place] for place in right))), *library.values()]
    times = _timed(calls, trial)
    ours, others = times[len(before) : len(before) + len(right)], times[len(before) + len(right) :]
    for place, (times_ms, reference_ms) in zip(right, ours, strict=True):
        found[place] = Outcome(times_ms, reference_ms)
    return Outcomes(tuple(found), tuple((name, ms) for name, (ms, _) in zip(library, others, strict=True)))


def _checked(one: Prepared, passed: list[tuple[Allowance | None, Any]]) -> Outcome:
    """Launch on a poisoned output, and compare with the reference.

    Args:
        passed: what is allowed of outputs that were right, and these; a new one is added. One that equals them bit for
            bit is as right, and most do: the reference of a large product takes longer than a dozen launches.
    """
    import torch

    one.output.fill_(0.0 if one.kernel.zeroed_output else float("nan"))
    launched = _launched(one)
    if launched.failure is not None:
        return launched
    if any(allowance == one.allowance and torch.equal(output, one.output) for allowance, output in passed):
        return launched
    try:
        check = one.check()[0]
    except (InsufficientMemory, torch.cuda.OutOfMemoryError):
        if not passed:
            raise
        passed.clear()  # they took what the check needs
        check = one.check()[0]
    if not check.passed:
        return dataclasses.replace(launched, wrong=wrong_text(check))
    if len(passed) < _KEPT_OUTPUTS:
        passed.append((one.allowance, one.output.clone()))
    return launched


def _launched(one: Prepared) -> Outcome:
    """Launch once and wait. What Triton refuses to launch is this config's own failure."""
    import torch

    failure = None
    try:
        one.launch()
        if not interprets():
            torch.cuda.synchronize()
    except torch.AcceleratorError:  # the device is harmed, for all configs
        raise
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or ["no message"]
        failure = Failure("launch", "error", f"It could not be launched: {type(error).__name__}: {lines[0]}")
    return Outcome(NO_TIMES, NO_TIMES, failure=failure)


def wrong_text(check: Check) -> str:
    """What is wrong with a result, in a sentence."""
    if check.nonfinite:
        return f"The result is wrong: {check.nonfinite:,} of {check.elements:,} elements are not finite."
    if check.mismatched:
        return (
            f"The result is wrong: {check.mismatched:,} of {check.elements:,} elements are outside what is allowed; "
            f"relative RMS error {check.relative_rms:.2g} (limit {check.tolerance:.2g})."
        )
    return f"The result is wrong: relative RMS error {check.relative_rms:.2g} (limit {check.tolerance:.2g})."


def _library(first: Prepared) -> dict[str, Callable[[], Any]]:
    import torch

    calls, _ = library_calls(first.kernel.family, first.inputs, torch.empty_like(first.output), first.setting.problem)
    return calls


def _timed(calls: list[Callable[[], Any]], trial: Trial) -> list[tuple[np.ndarray, np.ndarray]]:
    """Times of each call, and of the first one, the reference, in the same turns."""
    run = trial.experiments[0].run
    if trial.effort is not None:
        every = sample(GatedStream(calls, run.l2, run.timer), trial.effort).times_ms
        return [(ms, every[0]) for ms in every]
    once = GatedStream(calls, run.l2, run.timer).batch(1).times_ms
    kept = contenders(once[:, 0])
    again = _turns([calls[place] for place in kept], run, trial.turns)
    times = {place: (ms, again[0]) for place, ms in zip(kept, again, strict=True)}
    return [times.get(place, (once[place], once[0])) for place in range(len(calls))]


def _turns(calls: list[Callable[[], Any]], run: Run, turns: int) -> np.ndarray:
    """Times of so many turns, (calls, turns): as many of them queued at once as a stream holds."""
    stream = GatedStream(calls, run.l2, run.timer)
    at_once = range(0, turns, stream.most_turns)
    batches = [stream.batch(min(stream.most_turns, turns - begin)).times_ms for begin in at_once]
    return np.concatenate(batches, axis=1)


def contenders(once_ms: np.ndarray) -> list[int]:
    """Places of those that are timed again: the reference, which is first, and what may still win.

    >>> contenders(np.array([3.0, 1.0, 1.9, 2.1]))
    [0, 1, 2]
    """
    return [place for place, ms in enumerate(once_ms) if place == 0 or ms <= _HOPELESS * once_ms.min()]
