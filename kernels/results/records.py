"""Shipped recordings: files of measurements for machines without that GPU, one JSON object per line.

A line names the GPU, the date, and holds the result under the word of its kind. Each kind of measurement declares a
RecordForm; this module knows no kinds. The store and the browser's last run use the same forms.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from kernels import once
from kernels.experiment import Experiment
from kernels.results import Measured
from kernels.results.codec import UnreadableRecording, from_json, to_json

DIRECTORY = Path(__file__).with_name("recorded")

T = TypeVar("T", bound=Measured)


@dataclass(frozen=True)
class Recording(Generic[T]):
    """A measured result, unchanged.

    Attributes:
        gpu: a name of the GPU table.
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
        key: experiment → the experiment that represents all with the same result, without its `gpu`.
        compact: result → the part of it that is recorded.
        verb: the first word of a recorded result's note: "Recorded on H200, …".
        keeps_run: a recorded result shows the run fields that it was recorded with, not the requested ones.
    """

    word: str
    result: type[T]
    key: Callable[[Experiment], Experiment]
    compact: Callable[[T], T] = lambda measured: measured
    verb: str = "Recorded"
    keeps_run: bool = False

    def line(self, recording: Recording[T]) -> str:
        """Return a recording as a line of a file, without the line's end."""
        measured = to_json(self.compact(recording.measured), omit_defaults=True)
        fields = {"gpu": recording.gpu, "date": recording.date, self.word: measured}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))

    def recording(self, fields: Mapping[str, Any], place: str = "line") -> Recording[T]:
        """Return the recording that a parsed line holds.

        Args:
            place: the file and the line's number, for the error.

        Raises:
            UnreadableRecording: with the place, the field, and what is wrong.
        """
        if not isinstance(fields, Mapping) or fields.keys() != {"gpu", "date", self.word}:
            raise UnreadableRecording(f"{place}: a recording has the fields gpu, date and {self.word}.")
        by_word = from_json(dict[str, self.result], {self.word: fields[self.word]}, place)  # type: ignore[name-defined]
        return Recording(fields["gpu"], fields["date"], by_word[self.word])

    def recall(self, measured: T, experiment: Experiment, note: str, backend: str = "recorded") -> T:
        """Return an earlier result as the answer to an experiment with the same key."""
        run = measured.experiment.run if self.keeps_run else experiment.run
        return dataclasses.replace(
            measured,
            experiment=dataclasses.replace(experiment, run=run),
            backend=backend,
            device=dataclasses.replace(measured.device, backend=backend),
            note=note,
        )


@once
def shipped(form: RecordForm[T], directory: Path = DIRECTORY) -> tuple[Recording[T], ...]:
    """Return all recordings of one kind in the files of a directory.

    Raises:
        UnreadableRecording: with the file and the line's number.
    """
    return tuple(form.recording(fields, place) for place, fields in _lines(directory).get(form.word, ()))


def find(form: RecordForm[T], experiment: Experiment, gpu: str) -> T | None:
    """Return the shipped result of an experiment on `gpu`, marked as recorded, or None.

    The experiment's own `gpu` is ignored, like everything that the form's key omits.
    """
    recording = _index(form).get((form.key(experiment), gpu))
    if recording is None:
        return None
    return form.recall(recording.measured, experiment, f"{form.verb} on {recording.gpu}, {recording.date}.")


def experiments(form: RecordForm[T], gpu: str) -> tuple[Experiment, ...]:
    """Return the experiments with a shipped recording on `gpu`."""
    return tuple(recording.measured.experiment for recording in shipped(form) if recording.gpu == gpu)


@once
def _lines(directory: Path) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Return (place, fields) of each shipped line, by the word of its kind."""
    lines: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for file in sorted(directory.glob("*.jsonl")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if line.strip():
                place = f"{file.name}, line {number}"
                try:
                    fields = json.loads(line)
                except json.JSONDecodeError as error:
                    raise UnreadableRecording(f"{place}: this is not JSON: {error}.") from error
                if not isinstance(fields, dict) or len(fields) != 3:
                    raise UnreadableRecording(f"{place}: a recording has the fields gpu, date and its kind's word.")
                for word in fields.keys() - {"gpu", "date"}:
                    lines.setdefault(word, []).append((place, fields))
    return lines


@once
def _index(form: RecordForm[Any]) -> dict[tuple[Experiment, str], Recording[Any]]:
    # The first of several recordings with one key counts.
    return {(form.key(one.measured.experiment), one.gpu): one for one in reversed(shipped(form))}
