"""What the models predict of each recorded launch, as a shipped file: to predict all takes longer than a tab may.

A line of the file is one Prediction. `python -m scripts.predict_records` writes it, and tests/oracle holds it to what
the models say today.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from kernels import discover, once
from kernels.experiment import Experiment, from_json, nest
from kernels.gpus import GPUS
from kernels.results import Counters
from kernels.results.records import Recording
from kernels.spec import Launch
from visualize.predict.agreement import Verdicts, launch_totals
from visualize.state.state import short_experiment

FILE = Path(__file__).parent / "predictions.jsonl"


@dataclass(frozen=True)
class Prediction:
    """What is predicted of one recording.

    Of counters it has operations, of a comparison of GROUP_SIZEs it has reads.

    Attributes:
        launch: its Experiment, flat; what is the kernel's default is left out. `gpu` is where it was recorded.
        triton: the version that compiled what the models were given.
        operations: requests (None of boxes) and sectors, by the kind of operation.
        lower_bounds: the kinds of which these are lower bounds.
        reads: of each GROUP_SIZE (None where there is none) the bytes read from DRAM, and whether they are flagged.
    """

    launch: dict[str, int | str]
    triton: str
    operations: dict[str, tuple[int | None, int]] = field(default_factory=dict)
    lower_bounds: tuple[str, ...] = ()
    reads: tuple[tuple[int | None, int, bool], ...] = ()

    @property
    def recorded(self) -> str:
        """The word of the recording's kind."""
        return "reuse" if self.reads else "counters"

    @property
    def experiment(self) -> Experiment:
        """The launch, with its GPU.

        Raises:
            ConfigError: where it is none.
        """
        return from_json(nest(self.launch))

    def line(self) -> str:
        """As a line of the file, without its end; what is empty is left out."""
        fields = {name: value for name, value in dataclasses.asdict(self).items() if value}
        return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


class UnreadablePrediction(ValueError):
    """A line that holds no prediction: which one, and what is wrong with it."""


# Types are held to the letter, and a field that there is not is an error, as in recordings.
_ADAPTER = TypeAdapter(tuple[Prediction], config=ConfigDict(strict=True, extra="forbid"))


def read(lines: Iterable[str]) -> tuple[Prediction, ...]:
    """The predictions that a file's lines hold.

    Raises:
        UnreadablePrediction: with the line's number and what is wrong.
    """
    found: list[Prediction] = []
    for number, line in enumerate(lines, start=1):
        try:
            found += _ADAPTER.validate_json(f"[{line}]")
        except ValidationError as error:
            raise UnreadablePrediction(f"{FILE.name}, line {number}: {error.errors()[0]['msg']}.") from error
    return tuple(found)


@once
def shipped() -> tuple[Prediction, ...]:
    """All predictions that come with the product."""
    return read(FILE.read_text(encoding="utf-8").splitlines())


def beside_counters(recording: Recording[Counters]) -> Verdicts:
    """Predict a counted launch. Nothing is compiled: what was compiled then is recorded with what was counted."""
    counted, gpu = recording.measured, GPUS[recording.gpu]
    kernel = discover()[counted.experiment.kernel]
    launch = Launch(counted.experiment.problem, counted.experiment.config, gpu)
    return Verdicts(kernel, launch, None, counted)


def of_counters(recording: Recording[Counters], found: Verdicts) -> Prediction:
    """What was predicted of a counted launch, as `beside_counters` finds it."""
    counted, totals = recording.measured, launch_totals(found)
    return Prediction(
        flat(counted.experiment, recording.gpu),
        counted.device.triton or "",
        operations={
            kind: (predicted.requests if counted.has_requests else None, predicted.sectors)
            for kind, (predicted, counted) in totals.items()
        },
        lower_bounds=tuple(kind for kind, (predicted, _) in totals.items() if predicted.is_lower_bound),
    )


def of_study(
    experiment: Experiment, gpu: str, triton: str, reads: Sequence[tuple[int | None, float, bool]]
) -> Prediction:
    """What was predicted of a recorded comparison of GROUP_SIZEs.

    Args:
        gpu: the one that it was recorded on.
        triton: the version that compiled the kernels.
        reads: as of Prediction, bytes with a fraction.
    """
    whole = tuple((size, round(bytes_read), flagged) for size, bytes_read, flagged in reads)
    return Prediction(flat(experiment, gpu), triton, reads=whole)


def flat(experiment: Experiment, gpu: str) -> dict[str, int | str]:
    """A recording's launch as a Prediction names it."""
    return short_experiment(dataclasses.replace(experiment, gpu=gpu))
