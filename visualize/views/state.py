"""State: the page's settings (an Experiment, a View and a pinned Experiment), validated once.

Snapshot: everything known about a State's Experiment, taken once per redraw or reply.
"""

import dataclasses
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

from tilescope.compiling.estimates import estimate_shared_bytes, explain_spill, uses_matrix_units
from tilescope.declare import experiment
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment, Json
from tilescope.declare.gpus import Gpu
from tilescope.declare.knobs import ConfigError, knob, quote
from tilescope.declare.spec import Kernel, Launch
from tilescope.inside.inspect import Inspection
from tilescope.measure.run import RUN
from tilescope.measure.session import MEASUREMENTS, Session
from tilescope.numbers import join_names
from tilescope.results import Compiled, Failure, records
from tilescope.results.store import Store
from visualize.predict.offer import offer
from visualize.predict.schedule import KernelSchedule, schedule

T = TypeVar("T")

# The URL parameter that holds the pinned experiment.
PINNED = "with"

# Names of tabs in old addresses, and titles that differ from the names.
_TABS = {
    "tune": "sweep",
    "library": "scoreboard",
    "schedule": "program-order",
    "order": "program-order",
    "reuse": "dram-reads",
    "coalescing": "requests",
    "code": "compiler",
    "recorded": "scoreboard",
    "history": "sweep",
    "memory-map": "compiler",
    "layouts": "compiler",
}


@dataclass(frozen=True)
class ProgramOrderView:
    """Options of the program order, which addresses set."""

    picture: str = knob(
        "steps", "", "The picture at the top. timeline: the launch as it ran, if measured or recorded.",
        choices=("steps", "timeline"),
    )  # fmt: skip
    first: int = knob(
        0,
        "",
        "Compare the loads of this many programs. 0: all resident programs.",
        low=0,
        high=2**21,
    )


@dataclass(frozen=True)
class PlayerView:
    """The player's position. Each kernel has its own steps."""

    of_kernel = True

    step: int = knob(
        0, "", "The current step, set by the player. 0: the whole launch.", low=0, high=2**21
    )


@dataclass(frozen=True)
class View:
    """The open tab and the options of all panels: frozen dataclasses of knobs, one per type.

    A type may have a method `refuse(problem)`, which raises ConfigError if the options don't fit the problem, and
    `of_kernel = True` if its values make no sense for another kernel.
    """

    tab: str
    options: tuple[Any, ...] = ()

    def of(self, kind: type[T]) -> T:
        """Return the options of one type, or its defaults."""
        return next((options for options in self.options if type(options) is kind), kind())

    def to_address(self) -> Json:
        """Return every field, flat."""
        return {"tab": self.tab} | {
            name: value for options in self.options for name, value in vars(options).items()
        }


@dataclass(frozen=True)
class State:
    """An Experiment, a View and the GPU that the Experiment resolves to.

    Attributes:
        pinned: the Experiment to compare with, if any.
    """

    experiment: Experiment
    view: View
    gpu: Gpu
    pinned: Experiment | None = None

    @property
    def kernel(self) -> Kernel:
        return discover()[self.experiment.kernel]

    @property
    def launch(self) -> Launch:
        return Launch(self.experiment.problem, self.experiment.config, self.gpu)

    def to_address(self) -> Json:
        """Return all URL parameters."""
        return {**self.experiment.to_address(), **self.view.to_address(), **self._pin()}

    def to_settings(self) -> Json:
        """Return the values of all controls, and the kernel that the controls belong to."""
        return {**self.to_address(), "gpu": self.experiment.gpu, "form_of": self.experiment.kernel}

    def short_address(self, **changes: object) -> Json:
        """Return the kernel, the tab and the URL parameters that differ from their defaults, for a link.

        Args:
            changes: parameters to replace; "" removes one.
        """
        defaults = View("", tuple(type(options)() for options in self.view.options)).to_address()
        view = {
            name: value for name, value in self.view.to_address().items() if value != defaults[name]
        }
        short = self.experiment.short_address()
        # A link without a config may open another one.
        if opening_config(self.kernel, self.experiment.problem, self.gpu) != self.kernel.config():
            short |= vars(self.experiment.config)
        address = {**short, **view, **self._pin(), **changes}
        return {name: value for name, value in address.items() if value != ""}

    def link(self, **changes: object) -> str:
        """Return the query of the short address."""
        return query(self.short_address(**changes))

    def with_options(self, kind: type, **changes: object) -> "State":
        """Return this state with other values of a panel's options."""
        others = (options for options in self.view.options if type(options) is not kind)
        options = *others, dataclasses.replace(self.view.of(kind), **changes)
        return dataclasses.replace(self, view=View(self.view.tab, options))

    def pinned_state(self, this: Gpu | None) -> "State | None":
        """Return the pinned experiment with this view, compared with this one, or None."""
        if self.pinned is None:
            return None
        options = tuple(self._fit(options, self.pinned) for options in self.view.options)
        gpu = experiment.resolve_gpu(self.pinned, this)
        return State(self.pinned, View(self.view.tab, options), gpu, self.experiment)

    def _fit(self, options: Any, pinned: Experiment) -> Any:
        """Return a panel's options, or its defaults if the options make no sense for the pinned experiment."""
        is_foreign = (
            getattr(options, "of_kernel", False) and self.experiment.kernel != pinned.kernel
        )
        try:
            if not is_foreign and (refuse := getattr(options, "refuse", None)):
                refuse(pinned.problem)
        except ConfigError:
            is_foreign = True
        return type(options)() if is_foreign else options

    def _pin(self) -> dict[str, str]:
        return {PINNED: pin_text(self.pinned)} if self.pinned else {}


def query(fields: Json) -> str:
    """Return the query of flat fields."""
    return urllib.parse.urlencode(fields)


def pin_text(pinned: Experiment) -> str:
    """Return the URL parameter's value that pins an experiment: its short address."""
    return query(pinned.short_address())


def read_pinned(text: object, this: Gpu | None) -> Experiment | None:
    """Return the experiment that a URL pins, or None.

    Raises:
        ConfigError: for the field "with" if its value describes no experiment.
    """
    if not text:
        return None
    try:
        pinned = experiment.from_json(experiment.nest(dict(urllib.parse.parse_qsl(str(text)))))
        experiment.resolve_gpu(pinned, this)
    except ConfigError as error:
        raise ConfigError(
            error.kind, f"The pinned experiment can't be shown: {error}", PINNED
        ) from error
    return pinned


def read_tab(flat: Json, opened: str) -> str:
    """Return the tab that flat fields open."""
    tab = str(flat.get("tab", opened)).lower().replace(" ", "-")
    return _TABS.get(tab, tab)


def refuse_tab(tab: object, titles: Iterable[str]) -> ConfigError:
    """Return the error of an address whose tab does not exist.

    Args:
        titles: of the pictures that exist.
    """
    pictures = join_names(list(titles))
    message = f"There is no picture {quote(tab)}. The pictures are {pictures}."
    return ConfigError("not_a_choice", message, "tab")


def read_valid(read: Callable[[Json], T], flat: Json) -> tuple[T, dict[str, str]]:
    """Read the valid fields of a URL that somebody typed. Bad fields take their defaults.

    Returns:
        What `read` returns, and a sentence about each bad field.
    """
    remaining = dict(flat)
    sentences = dict[str, str]()
    while True:
        try:
            return read(remaining), sentences
        except ConfigError as error:
            sentences[error.field] = str(error)
            if remaining.pop(error.field, None) is None:
                remaining = {}


def open_experiment(payload: object, this: Gpu | None) -> Experiment:
    """Read an experiment. If it has no config, and its kernel's default does not launch on its GPU, use the offer.

    Raises:
        ConfigError: as for `from_json`.
    """
    chosen = experiment.from_json(payload)
    # Without a GPU, "this" is the interpreter, which launches every config.
    if (isinstance(payload, Mapping) and payload.get("config")) or (
        chosen.gpu == "this" and this is None
    ):
        return chosen
    gpu = experiment.resolve_gpu(chosen, this)
    return replace(chosen, config=opening_config(discover()[chosen.kernel], chosen.problem, gpu))


@dataclass(frozen=True)
class Snapshot:
    """A State, and the results of compiling and measuring its Experiment so far.

    Attributes:
        compiled: the compiled kernel, or None if it is not known.
        failure: why the kernel can't be compiled, or None.
        inspected: the inspection of its programs, or why it failed; None before the inspection.
        measured: live or recorded results by the measurement's name.
        store: this machine's results. It is empty in another process.
        here: this machine's GPU, or None.
    """

    state: State
    compiled: Compiled | None = None
    failure: Failure | None = None
    inspected: Inspection | Failure | None = None
    measured: Json = field(default_factory=dict)
    store: Store = Store(None)
    here: Gpu | None = None

    def __getstate__(self) -> Json:
        # A store belongs to one process; unpickled snapshots have the class's empty one.
        return {
            name: value for name, value in vars(self).items() if name not in ("store", "schedule")
        }

    @property
    def identity(self) -> tuple[Any, ...]:
        """A key that is equal for snapshots with equal pictures, while both snapshots exist."""
        state = self.state
        results = (
            id(self.compiled),
            self.failure,
            id(self.inspected),
            *((name, id(value)) for name, value in sorted(self.measured.items())),
        )
        return state.experiment, state.view, state.pinned, state.gpu.name, *results

    @property
    def launch(self) -> Launch:
        return self.state.launch

    def result(self, kind: type[T]) -> T | None:
        """Return the result of a type, if there is one."""
        return next((value for value in self.measured.values() if type(value) is kind), None)

    @cached_property
    def schedule(self) -> KernelSchedule:
        """The launch in ideal waves.

        Raises:
            ConfigError: the launch has too many tiles.
        """
        return schedule(self.state.kernel, self.launch, self.compiled)


def take_snapshot(
    session: Session,
    state: State,
    compiled: Compiled | Failure | None = None,
    inspections: Mapping[Experiment, Inspection | Failure] = MappingProxyType({}),
) -> Snapshot:
    """Return everything known about a state. Return immediately.

    Args:
        compiled: the result of compiling its experiment; by default the cached one.
        inspections: results of inspecting experiments; by default the cached ones.
    """
    compiled = compiled or session.find_compiled(state.experiment)
    measured = {
        name: value
        for name in MEASUREMENTS
        if (value := session.find_value(state.experiment, name))
    }
    counters = measured.get("counters")
    if counters and len(counters.compiled.operations) not in (
        0,
        len(state.kernel.accesses(state.launch)),
    ):
        del measured["counters"]  # stored by a version that copied A and B in a separate launch
    return Snapshot(
        state,
        compiled if isinstance(compiled, Compiled) else None,
        compiled if isinstance(compiled, Failure) else None,
        inspections.get(state.experiment) or session.find_inspection(state.experiment),
        measured,
        session.store,
        session.gpu,
    )


_KIB = 1024


# Cached, because each move of a slider repeats the call.
@lru_cache(maxsize=256)
def _choose_config(kernel: Kernel, problem: Any, gpu: Gpu) -> tuple[Any, str]:
    """Return a config, and why it is not the published default; "" if it is.

    The estimate of shared memory may be too high, but a recorded run proves that the default launches. Without matrix
    units, a kernel whose accumulator spills takes minutes to compile.
    """
    default = kernel.config()
    launch = Launch(problem, default, gpu)
    needed = estimate_shared_bytes(kernel, launch)
    most = gpu.shared_bytes_per_program
    why = ""
    if not uses_matrix_units(kernel, launch) and explain_spill(kernel, launch):
        why = "The default config would spill registers and take minutes to compile."
    if needed > most and not records.find(
        RUN.form, Experiment(kernel.id, problem, default), gpu.name
    ):
        needs = f"The default config takes {needed / _KIB:.0f} KiB of shared memory"
        why = f"{needs}; {gpu.name} has {most / _KIB:.0f} KiB."
    offered = offer(kernel, problem, gpu) if why else None
    if offered is None:
        return default, ""
    return offered.experiment.config, f"{why} The recommended config replaces it."


def opening_config(kernel: Kernel, problem: Any, gpu: Gpu) -> Any:
    """Return the config with which a kernel opens on a GPU."""
    return _choose_config(kernel, problem, gpu)[0]


def explain_opening(kernel: Kernel, launch: Launch) -> str:
    """Return why a launch has the offered config and not the published default; "" if it does not have it."""
    config, why = _choose_config(kernel, launch.problem, launch.gpu)
    return why if launch.config == config else ""
