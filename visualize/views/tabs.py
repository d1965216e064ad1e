"""The tabs of the page, in their order, and the panels that each is made of. A new tab or panel is a line here."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tilescope.declare.discovery import opening
from visualize.views.inside.view import INSIDE
from visualize.views.library.view import ScoreboardPanel
from visualize.views.memory.compiler import CompilerPanel
from visualize.views.memory.view import RequestsPanel
from visualize.views.order.view import DramReadsPanel, ProgramOrderPanel, TimelinePanel
from visualize.views.panel import Panel
from visualize.views.result.export import ExportPanel
from visualize.views.result.view import ResultPanel
from visualize.views.state import Settings
from visualize.views.tune.view import SweepPanel


@dataclass(frozen=True)
class Tab:
    """A tab: its title, and functions that return its panels, from top to bottom."""

    title: str
    panels: tuple[Callable[[], Panel], ...]

    @property
    def name(self) -> str:
        """The tab in addresses and in the page's element IDs: "dram-reads" for "DRAM reads"."""
        return self.title.lower().replace(" ", "-")


TABS = (
    Tab("Result", (ResultPanel, ExportPanel)),
    Tab("Program order", (ProgramOrderPanel, TimelinePanel)),
    Tab("DRAM reads", (DramReadsPanel,)),
    Tab("Requests", (RequestsPanel,)),
    Tab("Compiler", (CompilerPanel,)),
    *(
        Tab(name.capitalize().replace("-", " "), (partial(INSIDE.__getitem__, name),))
        for name in INSIDE
    ),
    Tab("Sweep", (SweepPanel,)),
    Tab("Scoreboard", (ScoreboardPanel,)),
)

# The views, each with its pictures; a view opens on its first one. The Library is opened from the header, too.
VIEWS = {
    "Order": ("program-order", "dram-reads"),
    "Memory": ("requests", "compiler"),
    "Inside": tuple(INSIDE),
    "Result": ("result",),
    "Tune": ("sweep",),
}
LIBRARY = "scoreboard"

SETTINGS = Settings(
    tabs={tab.name: tab.title for tab in TABS},
    opened="program-order",
    options=tuple(kind for tab in TABS for panel in tab.panels for kind in panel().options),
    opening=opening(),
)
