"""The tabs of the page, in their order, and the panels that each is made of. A new tab or panel is a line here.

The page's settings are read here, because the tabs have options.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tilescope.declare import experiment
from tilescope.declare.discovery import opening
from tilescope.declare.experiment import Json, Run
from tilescope.declare.gpus import Gpu
from tilescope.declare.knobs import knobs, read_fields
from visualize.views.inside.view import INSIDE
from visualize.views.library import ScoreboardPanel
from visualize.views.memory.compiler import CompilerPanel
from visualize.views.memory.view import RequestsPanel
from visualize.views.order.view import DramReadsPanel, ProgramOrderPanel, TimelinePanel
from visualize.views.panel import Panel
from visualize.views.result.view import ExportPanel, ResultPanel
from visualize.views.state import (
    PINNED,
    State,
    View,
    open_experiment,
    read_pinned,
    read_tab,
    read_valid,
    refuse_tab,
)
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

# The titles by name in the address, and the types of the panels' options.
TITLES = {tab.name: tab.title for tab in TABS}
OPTIONS = tuple(kind for tab in TABS for panel in tab.panels for kind in panel().options)

# The views, each with its pictures; a view opens on its first one. The Library is opened from the header, too.
VIEWS = {
    "Order": ("program-order", "dram-reads"),
    "Memory": ("requests", "compiler"),
    "Inside": tuple(INSIDE),
    "Result": ("result",),
    "Tune": ("sweep",),
}
LIBRARY = "scoreboard"

# The pictures' titles on the page: a view with one picture is the picture's title.
PICTURES = [
    TITLES[name] if len(names) > 1 else view for view, names in VIEWS.items() for name in names
]

# The tab that is open at first.
OPENED = "program-order"


def read_state(flat: Json, this: Gpu | None) -> State:
    """Read a State from flat fields (a URL's, or those of all forms). Omitted fields take their defaults.

    Args:
        this: this machine's GPU, or None.

    Raises:
        ConfigError: with the field that caused it.
    """
    chosen = open_experiment(experiment.nest({"kernel": opening()["kernel"], **flat}), this)
    options = []
    for declared in OPTIONS:
        each = read_fields(
            declared, {k: flat[k] for k in knobs(declared) if k in flat}, declared.__name__
        )
        if refuse := getattr(each, "refuse", None):
            refuse(chosen.problem)
        options.append(each)
    tab = read_tab(flat, OPENED)
    if tab not in TITLES:
        raise refuse_tab(flat["tab"], [*PICTURES, "Library"])
    gpu = experiment.resolve_gpu(chosen, this)
    return State(chosen, View(tab, tuple(options)), gpu, read_pinned(flat.get(PINNED), this))


def short_address(state: State) -> Json:
    """Return the URL parameters that differ from their defaults, and the kernel."""
    return state.short_address(tab="" if state.view.tab == OPENED else state.view.tab)


def read_link(flat: Json, this: Gpu | None) -> tuple[State, dict[str, str]]:
    """Read a State from a URL that somebody typed. Bad fields take their defaults.

    Returns:
        The State, and a sentence about each bad field.
    """
    return read_valid(lambda valid: read_state(valid, this), flat)


def change_kernel(current: Json, kernel: str) -> dict[str, object]:
    """Return the fields after a change of kernel.

    The problem survives within a family. The config takes the new kernel's defaults. The run, the GPU and the view
    stay, except options that belong to a kernel.
    """
    declared = experiment.find_kernel(kernel)
    before = experiment.find_kernel(current.get("form_of"))
    options = [declared for declared in OPTIONS if not getattr(declared, "of_kernel", False)]
    names = ["gpu", PINNED, *(name for declared in (Run, *options) for name in knobs(declared))]
    if before.family.root is declared.family.root:
        names += knobs(declared.family.problem)
    if current.get("dtype") not in (declared.problem_knobs()["dtype"].choices or ()):
        names = [name for name in names if name != "dtype"]
    return {"kernel": kernel, **{name: current[name] for name in names if name in current}}
