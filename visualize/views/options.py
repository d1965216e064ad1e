"""View: what a person looks at, beside the Experiment. Both stand in the page's address."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

from kernels.knobs import knob
from visualize.predict.schedule import STEPPING

V = TypeVar("V")

COLORS = ("order", "group", "wave", "sm")


@dataclass(frozen=True)
class ScheduleView:
    """Options of the schedule, in ideal waves and as it ran."""

    color: str = knob("order", "Schedule", "What the colour of a tile shows.", choices=COLORS)
    programs_per_sm: int = knob(
        0, "Schedule", "Programs that one SM holds at once: assumed. 0: as many as the compiled kernel allows.",
        low=0, high=32,
    )  # fmt: skip
    by: str = knob(
        "auto", "Schedule", "What a step is. auto: single programs where they are few, or all in one wave.",
        choices=STEPPING,
    )  # fmt: skip
    picture: str = knob(
        "steps", "Schedule", "The picture at the top. timeline: the launch as it ran, where that is known.",
        choices=("steps", "timeline"),
    )  # fmt: skip
    first: int = knob(
        0, "Schedule", "Compare what the first so many programs load. 0: as many as run at once.",
        low=0, high=2**21, stops="powers",
    )  # fmt: skip


@dataclass(frozen=True)
class PlayerView:
    """Where the player stands. Another kernel has other steps."""

    of_kernel = True

    step: int = knob(0, "", "The step that is shown: set by the player. 0: the whole launch.", low=0, high=2**21)


@dataclass(frozen=True)
class View:
    """The open tab, and the options of its panels and all others: frozen dataclasses of knobs, one of a type."""

    tab: str
    options: tuple[Any, ...] = ()

    def of(self, kind: type[V]) -> V:
        """The options of one type: its defaults where the view has none."""
        return next((one for one in self.options if type(one) is kind), kind())

    def to_address(self) -> dict[str, Any]:
        """Every field, flat."""
        fields: dict[str, Any] = {"tab": self.tab}
        for one in self.options:
            fields |= dataclasses.asdict(one)
        return fields

    def short_address(self) -> dict[str, Any]:
        """The tab, and the fields that differ from their defaults."""
        usual = View(self.tab, tuple(type(one)() for one in self.options)).to_address()
        return {n: value for n, value in self.to_address().items() if n == "tab" or value != usual[n]}
