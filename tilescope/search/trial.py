"""One trial in the run worker: check each config, then launch the correct ones alternately on the same inputs.

The first turn launches each config once and finds the configs that can't win. They keep this single sample, so a very
slow config costs only one launch.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy import ndarray

from tilescope.declare.experiment import Experiment
from tilescope.declare.gpus import Gpu
from tilescope.declare.spec import Allowance
from tilescope.measure.check import InsufficientMemory
from tilescope.measure.gated_stream import GatedStream, SpacedStream
from tilescope.measure.run import library_calls, prepare
from tilescope.measure.timing import Effort, Stream, sample
from tilescope.measure.worker import interprets, to_failure
from tilescope.search.cases import CaseTrial
from tilescope.search.search import ConfigOutcome, ConfigTrial, Outcomes

# Time the finalists until their ratios are known to 0.2 %, within these limits.
_FINAL_EFFORT = Effort(
    half_width=0.002, fewest=40, most=2000, least_ms=50.0, most_s=0.5, warm_s=0.1
)

MakeStream = Callable[[Sequence[Callable[[], Any]]], Stream]

# Number of configs whose correct outputs are kept for comparison; each copy takes as much memory as the outputs.
_MAX_KEPT_OUTPUTS = 2

# A config is not timed again if its first launch takes more than this many times as long as the fastest first launch.
_HOPELESS = 2.0


class Candidate(Protocol):
    """One config of a trial, ready to launch.

    Attributes:
        allowance: the allowed error. Configs with equal allowances and outputs are equally correct.
        outputs: the tensors to check after a launch.
    """

    @property
    def allowance(self) -> Allowance | None: ...

    @property
    def outputs(self) -> Sequence[Any]: ...

    def poison(self) -> None:
        """Fill the outputs with values that no launch writes."""

    def launch(self) -> Any:
        """Launch once, without waiting for the GPU."""

    def bind(self) -> Callable[[], Any]:
        """Return a function to time, which launches on tensors that the trial's configs share."""

    def explain_wrong(self) -> str:
        """Return a sentence that says what is wrong with the last launch's outputs; "" if nothing is."""


def run_trial(trial: ConfigTrial, gpu: Gpu) -> Outcomes:
    """Carry out a trial on this worker's device. Under the interpreter, configs are checked and not timed."""
    import torch

    base = trial.experiments[0]
    make_stream: MakeStream | None = None
    if not interprets():
        make_stream = functools.partial(GatedStream, l2=base.run.l2, timer=base.run.timer)
        if trial.load == "single":
            make_stream = functools.partial(SpacedStream, make_stream)
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
    prepare_config: Callable[[Experiment], Candidate],
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
    config: Candidate, correct: list[tuple[Allowance | None, Sequence[Any]]]
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


def _launch(config: Candidate) -> ConfigOutcome:
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
