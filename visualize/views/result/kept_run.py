"""The last run of a browser, as the browser keeps it: it comes back after a reload, and after a restart of the app."""

from __future__ import annotations

import dataclasses
import datetime
import json
from dataclasses import dataclass

from kernels.experiment import without_gpu
from kernels.measuring.session import MEASUREMENTS
from kernels.results import RunResult
from kernels.results.codec import UnreadableRecording
from kernels.results.records import Recording
from visualize.views.state import State

# Characters. A run with its picture takes up to some 14,000; what is longer was not written here.
_LONGEST = 40_000


@dataclass(frozen=True)
class Kept:
    """A run that a browser has kept.

    Attributes:
        ended: when it ended, with its time zone.
    """

    run: RunResult
    ended: datetime.datetime

    def is_of(self, result: RunResult) -> bool:
        """Whether it is this very run."""
        return _alone(self.run) == _alone(result)


def _alone(result: RunResult) -> RunResult:
    """Return the run's own numbers, without the picture of its error and the recorded run beside it."""
    return dataclasses.replace(result, diff=None, recorded=None)


def written(result: RunResult, gpu: str, ended: datetime.datetime) -> str:
    """A run as text.

    Args:
        gpu: the name of the GPU that it was shown for.
        ended: when it ended, with a time zone.
    """
    return MEASUREMENTS["run"].form.line(Recording(gpu, ended.isoformat(timespec="minutes"), result))


def read(text: object, state: State) -> Kept | None:
    """The run that a browser has kept, if it is one of what is set; None for another one, and for what is no run."""
    if not isinstance(text, str) or not text or len(text) > _LONGEST:
        return None
    try:
        recording = MEASUREMENTS["run"].form.recording(json.loads(text))
        ended = datetime.datetime.fromisoformat(recording.date)
    except (ValueError, TypeError, AttributeError, RecursionError, UnreadableRecording):
        return None
    run = recording.measured
    is_set = without_gpu(run.experiment) == without_gpu(state.experiment) and recording.gpu == state.gpu.name
    return Kept(run, ended) if is_set and ended.tzinfo and _fits(run, state) else None


def _fits(run: RunResult, state: State) -> bool:
    """Whether a picture of the error is one of this output: what can't be drawn would keep the page from opening."""
    if run.diff is None:
        return True
    problem, family = state.experiment.problem, state.kernel.family
    output = family.tensors(problem)[family.output(problem)].shape
    return run.diff.shape == tuple(output) and min(run.diff.tile or (1, 1)) >= 1
