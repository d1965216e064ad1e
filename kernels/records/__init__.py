"""What a GPU measured, for machines that have none: files of recordings, one JSON object per line, and their look-up.

A line names the GPU of the table, the date, and under the word of its kind what was measured. Each kind of measurement
declares a RecordForm; here are no kinds. Shipped files and a local store share this schema.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kernels.experiment import Experiment
from kernels.once import once
from kernels.records.record_form import RecordForm, Recording, T, UnreadableRecording

__all__ = ["DIRECTORY", "RecordForm", "Recording", "UnreadableRecording", "experiments", "find", "shipped", "words"]

DIRECTORY = Path(__file__).parent


# The fields of a line besides the one that holds what was measured.
_ABOUT = {"gpu", "date"}


def shipped(form: RecordForm[T]) -> tuple[Recording[T], ...]:
    """All recordings of one kind that come with the product, as they were measured.

    Raises:
        UnreadableRecording: where a line holds none, with the file and the line's number.
    """
    return _shipped(form)


def find(form: RecordForm[T], experiment: Experiment, gpu: str) -> T | None:
    """What was recorded on `gpu` for this experiment, marked as recorded, or None.

    The experiment's own `gpu` is left aside, and so is what the form's key leaves out.
    """
    recording = _index(form).get((form.key(experiment), gpu))
    if recording is None:
        return None
    found: T = form.fitted(form.recalled(recording), experiment)
    return found


def experiments(form: RecordForm[T], gpu: str) -> tuple[Experiment, ...]:
    """What has a recording of this kind on `gpu`."""
    return tuple(one.measured.experiment for one in shipped(form) if one.gpu == gpu)


def words() -> frozenset[str]:
    """The words of all kinds that the shipped files hold."""
    return frozenset(_lines())


@once
def _lines() -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """(place, fields) of each shipped line, by the word of its kind."""
    found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for file in sorted(DIRECTORY.glob("*.jsonl")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if line.strip():
                place = f"{file.name}, line {number}"
                fields = _fields(line, place)
                for word in fields.keys() - _ABOUT:
                    found.setdefault(word, []).append((place, fields))
    return found


def _fields(line: str, place: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise UnreadableRecording(f"{place}: this is no JSON: {error}.") from error
    if not isinstance(fields, dict) or len(fields.keys() - _ABOUT) != 1:
        raise UnreadableRecording(f"{place}: besides gpu and date, a recording has one field, what was measured.")
    return fields


@once
def _shipped(form: RecordForm[Any]) -> tuple[Recording[Any], ...]:
    return tuple(form.recording(fields, place) for place, fields in _lines().get(form.word, ()))


@once
def _index(form: RecordForm[Any]) -> dict[tuple[Experiment, str], Recording[Any]]:
    # Of several, the first counts.
    return {(form.key(one.measured.experiment), one.gpu): one for one in reversed(_shipped(form))}
