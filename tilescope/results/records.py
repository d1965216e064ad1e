"""Shipped recordings: files of measurements for machines without that GPU, one JSON object per line.

A line names the GPU and the date, and holds the result in a field named after its kind. Each kind of measurement
declares a RecordForm, so this module depends on no kind. The store uses the same forms.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from tilescope.caching import once
from tilescope.declare.discovery import package_folder
from tilescope.declare.experiment import Experiment, Json, distance
from tilescope.results import Measured, codec

DIRECTORY = package_folder() / "recorded"

# Checks by Triton's interpreter, for machines without a GPU. Their `gpu` is the GPU that predictions are for.
INTERPRETED = DIRECTORY / "interpreter"

T = TypeVar("T", bound=Measured)


@dataclass(frozen=True)
class Recording(Generic[T]):
    """A measured result, unchanged.

    Attributes:
        gpu: a name in the GPU table.
        date: the day, or day and time, in ISO 8601.
    """

    gpu: str
    date: str
    measured: T


@dataclass(frozen=True, eq=False)
class RecordForm(Generic[T]):
    """How results of one kind are recorded and looked up.

    Attributes:
        word: the field of a line that holds the result.
        result: the result's type, a dataclass.
        key: experiment → the representative of all experiments with the same result, without its `gpu`.
        verb: the first word of a recorded result's note: "Recorded on H200, …".
        keeps_run: whether a recorded result shows its own run fields instead of the requested ones.
    """

    word: str
    result: type[T]
    key: Callable[[Experiment], Experiment]
    verb: str = "Recorded"
    keeps_run: bool = False

    def encode(self, measured: T) -> Any:
        """Return the recorded part of a result as JSON, which a recording's line and the store hold."""
        return codec.to_json(measured.compact(), omit_defaults=True)

    def line(self, recording: Recording[T]) -> str:
        """Return a recording as a line of a file, without the newline."""
        measured = self.encode(recording.measured)
        fields = {"gpu": recording.gpu, "date": recording.date, self.word: measured}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

    def recording(self, fields: Mapping[str, Any], place: str = "line") -> Recording[T]:
        """Return the recording in a parsed line.

        Args:
            place: the file and line number for error messages.

        Raises:
            UnreadableRecording: the message names the place, the field and the reason.
        """
        if fields.keys() != {"gpu", "date", self.word}:
            raise codec.UnreadableRecording(
                f"{place}: a recording must have the fields gpu, date and {self.word}."
            )
        measured = codec.from_json(self.result, fields[self.word], f"{place}: {self.word}")
        return Recording(fields["gpu"], fields["date"], measured)

    def recall(self, measured: T, experiment: Experiment, note: str) -> T:
        """Adapt an earlier result to an experiment with the same key. Mark a GPU's result as recorded."""
        backend = "recorded" if measured.backend == "cuda" else measured.backend
        run = measured.experiment.run if self.keeps_run else experiment.run
        adapted = replace(experiment, run=run)
        device = replace(measured.device, backend=backend)
        return replace(measured, experiment=adapted, backend=backend, device=device, note=note)


@once
def shipped(form: RecordForm[T], directory: Path = DIRECTORY) -> tuple[Recording[T], ...]:
    """Return all recordings of one kind in a directory's files.

    Raises:
        UnreadableRecording: the message names the file and the line number.
    """
    return tuple(
        form.recording(fields, place) for place, fields in _lines(directory) if form.word in fields
    )


def find(form: RecordForm[T], experiment: Experiment, gpu: str, backend: str = "cuda") -> T | None:
    """Return the shipped result of an experiment on `gpu`, or None. A GPU's result is marked as recorded.

    The experiment's own `gpu` is ignored, as is everything that the form's key omits.

    Args:
        backend: "cuda", or "interpreter" for a shipped result of Triton's interpreter.
    """
    is_interpreted = backend == "interpreter"
    recording = _index(form, INTERPRETED if is_interpreted else DIRECTORY).get(
        (form.key(experiment), gpu)
    )
    if recording is None:
        return None
    where = "under Triton's interpreter" if is_interpreted else f"on {recording.gpu}"
    return form.recall(recording.measured, experiment, f"{form.verb} {where}, {recording.date}.")


def experiments(form: RecordForm[T], gpu: str) -> tuple[Experiment, ...]:
    """Return the experiments with a shipped recording on `gpu`."""
    return tuple(
        recording.measured.experiment for recording in shipped(form) if recording.gpu == gpu
    )


def nearest(form: RecordForm[T], experiment: Experiment, gpu: str) -> Experiment | None:
    """Return the kernel's most similar experiment with a shipped recording on `gpu`, or None."""
    wanted = experiment.to_address()
    same_kernel = [each for each in experiments(form, gpu) if each.kernel == experiment.kernel]
    return min(same_kernel, key=lambda each: distance(each.to_address(), wanted, 1), default=None)


@once
def _lines(directory: Path) -> list[tuple[str, Json]]:
    """Return the place and the fields of each shipped line."""
    files = sorted(directory.glob("*.jsonl"))
    return [
        line
        for file in files
        for line in codec.parse_lines(file.read_text(encoding="utf-8"), file.name)
    ]


@once
def _index(form: RecordForm[Any], directory: Path) -> dict[tuple[Experiment, str], Recording[Any]]:
    # If several recordings have the same key, the first wins.
    return {
        (form.key(each.measured.experiment), each.gpu): each
        for each in reversed(shipped(form, directory))
    }
