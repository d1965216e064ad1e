"""What every measurement's result has."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from kernels.experiment import Experiment
from kernels.results.run_times import Device


class Measured(Protocol):
    """The result of a measurement: a frozen dataclass with at least these fields.

    Attributes:
        experiment: what was measured.
        backend: "cuda" or "interpreter" where it was measured now; "recorded" where it was on another day.
        note: what a reader must know, in sentences.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def experiment(self) -> Experiment: ...

    @property
    def backend(self) -> str: ...

    @property
    def device(self) -> Device: ...

    @property
    def note(self) -> str: ...

    def to_json(self) -> dict[str, Any]:
        """The API's reply."""
        ...
