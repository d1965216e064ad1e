"""View: what a person looks at, beside the Experiment. Both stand in the page's address."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from kernels.gpus import GPUS
from kernels.knobs import knob
from visualize.figures import schedule_figure
from visualize.figures.coalescing_figure import COLORS
from visualize.models.textbook import Textbook

TABS = ("result", "schedule", "reuse", "coalescing", "compiler")


@dataclass(frozen=True)
class ScheduleView:
    """Options of the schedule's picture."""

    color: str = knob("order", "Schedule", "What the colour of a tile shows.", choices=schedule_figure.COLORS)
    programs_per_sm: int = knob(
        0, "Schedule", "Programs that one SM holds at once: assumed. 0: as many as the compiled kernel allows.",
        low=0, high=32,
    )  # fmt: skip
    first: int = knob(
        9, "Schedule", "Count the loads of the first so many programs.", low=1, high=2**21, stops="powers"
    )
    step: int = knob(0, "", "The step that is shown: set by the player. 0: the whole launch.", low=0, high=2**21)


@dataclass(frozen=True)
class LaneView:
    """Which execution of which memory operation is drawn."""

    operation: int = knob(0, "Picture", "The memory operation, in source order.", low=0, high=15)
    program: int = knob(0, "Picture", "The program (pid) whose first tile is drawn.", low=0, high=2**28, stops="powers")
    request: int = knob(0, "Picture", "The warp request that is drawn lane by lane.", low=0, high=2**20)
    model: str = knob(
        "compiled", "Picture",
        "compiled: the lanes that the compiler chose. textbook: those of the blackboard.",
        choices=("compiled", "textbook"),
    )  # fmt: skip
    tile_color: str = knob("request", "Picture", "What the colour of an element of the tile shows.", choices=COLORS)


@dataclass(frozen=True)
class WhatIfView:
    """What is changed to see what it does."""

    dimension: str = knob("M", "What if", "The dimension that the shape cliff slides along.", choices=("M", "N", "K"))
    other_gpu: str = knob("A100-80GB", "What if", "The GPU that the chosen one is compared with.", choices=tuple(GPUS))


@dataclass(frozen=True)
class View:
    tab: str = "schedule"
    schedule: ScheduleView = ScheduleView()
    board: Textbook = Textbook()
    lanes: LaneView = LaneView()
    whatif: WhatIfView = WhatIfView()

    def to_address(self) -> dict[str, Any]:
        """Every field, flat."""
        return {
            "tab": self.tab,
            **dataclasses.asdict(self.schedule),
            **dataclasses.asdict(self.board),
            **dataclasses.asdict(self.lanes),
            **dataclasses.asdict(self.whatif),
        }
