"""The tabs of the page, in their order, and the panels that each is made of. A new tab or panel is a line here."""

import urllib.parse
from dataclasses import dataclass

from visualize.views.library.view import RecordedPanel, ScoreboardPanel
from visualize.views.memory.compiler import CompilerPanel
from visualize.views.memory.view import CoalescingPanel
from visualize.views.memory.whatif import WhatIfPanel
from visualize.views.order.view import ReusePanel, SchedulePanel, TimelinePanel
from visualize.views.panel import Panel
from visualize.views.result.view import ExportPanel, ResultPanel
from visualize.views.state import Settings
from visualize.views.tune.history import HistoryPanel
from visualize.views.tune.view import SweepPanel


@dataclass(frozen=True)
class Tab:
    """A tab: its name in the address, its title, and its panels from top to bottom."""

    name: str
    title: str
    panels: tuple[type[Panel], ...]


TABS = (
    Tab("result", "Result", (ResultPanel, ExportPanel)),
    Tab("schedule", "Program order", (SchedulePanel, TimelinePanel)),
    Tab("reuse", "DRAM reads", (ReusePanel,)),
    Tab("coalescing", "Requests", (CoalescingPanel, WhatIfPanel)),
    Tab("compiler", "Compiler", (CompilerPanel,)),
    Tab("sweep", "Sweep", (SweepPanel,)),
    Tab("scoreboard", "Scoreboard", (ScoreboardPanel,)),
    Tab("recorded", "Recorded", (RecordedPanel,)),
    Tab("history", "History", (HistoryPanel,)),
)

# The views, each with its pictures; a view opens on its first one. The Library is opened from the header, too.
VIEWS = {
    "Order": ("schedule", "reuse"),
    "Memory": ("coalescing", "compiler"),
    "Result": ("result",),
    "Tune": ("sweep", "history"),
}
LIBRARY = ("recorded", "scoreboard")

# A story that can be told in ten seconds: nine programs, 54 blocks instead of 90.
_OPENING = "kernel=matmul.grouped&M=576&N=576&K=288&tab=schedule&first=9&BLOCK_M=64&BLOCK_N=64&BLOCK_K=32&GROUP_SIZE=3"

SETTINGS = Settings(
    tabs={tab.name: tab.title for tab in TABS},
    opened="schedule",
    options=tuple(kind for tab in TABS for panel in tab.panels for kind in panel.options),
    opening=dict(urllib.parse.parse_qsl(_OPENING, strict_parsing=True)),
)

# Where to begin: a guided tour and states of the page, by the question that they answer.
WAYS = {
    "Why grouping?": "tour=why-grouping&stop=1",
    "Is my store coalesced?": "kernel=transpose.flat&tab=coalescing",
    "Watch a race": "kernel=matmul.split_k_race&tab=result",
}
