"""How results are written down and read back: one JSON object per line, checked against the result's own type."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from kernels import discover
from kernels.experiment import Experiment, from_json
from kernels.knobs import ConfigError
from kernels.results import Measured

T = TypeVar("T", bound=Measured)

# Types are held to the letter: a number in quotes is no number, and a field that the type has not is an error. An
# array says itself how it is read.
_STRICT = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)


class UnreadableRecording(ValueError):
    """A line that holds no recording: which one, and what is wrong with it."""


@dataclass(frozen=True)
class Recording(Generic[T]):
    """What was measured of an experiment.

    Attributes:
        gpu: a name of the GPU table.
        date: the day, or the day and the time, as in ISO 8601.
        measured: the result, as it was measured.
    """

    gpu: str
    date: str
    measured: T


@dataclass(frozen=True, eq=False)
class RecordForm(Generic[T]):
    """How results of one kind are recorded.

    Attributes:
        word: the field of a line that holds the result.
        result: the result's type, a dataclass.
        key: experiment → the one that stands for all with the same result, its `gpu` left out.
        written: result → the fields that a line holds.
        read: those fields → the fields of the dataclass.
        is_compact: a line is written without blanks.
        verb: how the note of a recorded result begins: "Recorded on H200, …".
        keeps_run: a recorded result shows the run fields that it was recorded with, and not those asked for.
    """

    word: str
    result: type[T]
    key: Callable[[Experiment], Experiment]
    written: Callable[[T], dict[str, Any]] = lambda measured: measured.to_json()
    read: Callable[[dict[str, Any]], dict[str, Any]] = lambda fields: fields
    is_compact: bool = True
    verb: str = "Recorded"
    keeps_run: bool = False

    @cached_property
    def _adapter(self) -> TypeAdapter[tuple[T]]:
        # Pydantic takes no settings for a dataclass itself; those of a tuple hold for what is in it.
        return TypeAdapter(tuple[self.result], config=_STRICT)  # type: ignore[name-defined]

    def line(self, recording: Recording[T]) -> str:
        """A recording as a line of a file, without its end."""
        fields = {"gpu": recording.gpu, "date": recording.date, self.word: self.written(recording.measured)}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":") if self.is_compact else None)

    def recording(self, fields: Mapping[str, Any], place: str = "line") -> Recording[T]:
        """The recording that a line holds.

        Args:
            fields: the line, as JSON reads it.
            place: the file and the line's number, for the error.

        Raises:
            UnreadableRecording: with the place and what is wrong.
        """
        try:
            plain = self.read(fields[self.word])
            (measured,) = self._adapter.validate_json(json.dumps([plain]))
            experiment = from_json(plain["experiment"], discover())
            return Recording(fields["gpu"], fields["date"], dataclasses.replace(measured, experiment=experiment))
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in (self.word, *first["loc"][1:]))
            raise UnreadableRecording(f"{place}: {field}: {first['msg']}.") from error
        except KeyError as error:
            raise UnreadableRecording(f"{place}: there is no field {error}.") from error
        except ConfigError as error:
            raise UnreadableRecording(f"{place}: {self.word}.experiment: {error}") from error

    def recalled(self, recording: Recording[T]) -> T:
        """What was measured, marked as recorded: in `backend`, and in a note that says where and when."""
        measured = recording.measured
        return dataclasses.replace(
            measured,
            backend="recorded",
            device=dataclasses.replace(measured.device, backend="recorded"),
            note=f"{self.verb} on {recording.gpu}, {recording.date}.",
        )

    def fitted(self, measured: T, experiment: Experiment) -> T:
        """What was measured of another experiment with the same result, as one of `experiment`."""
        run = measured.experiment.run if self.keeps_run else experiment.run
        return dataclasses.replace(measured, experiment=dataclasses.replace(experiment, run=run))
