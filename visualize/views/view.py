"""Panels: parts of a view. A panel lays out its slots, fills them from a snapshot, and declares endpoints."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from markupsafe import Markup

from kernels.measuring.session import Session
from visualize.views.endpoint import Api, Endpoint
from visualize.views.numbers import Number
from visualize.views.slots import form_of
from visualize.views.state import Snapshot, State

# New values by slot. A slot that is left out stays unchanged.
Slots = dict[str, str]

# (session, the page's state, the page's name) → values as the answer grows. Raises ConfigError if it cannot start.
Question = Callable[[Session, State, str], Iterator[Slots]]


@dataclass(frozen=True)
class RunAction:
    """A button that starts a measurement. Its result becomes part of the snapshot that the view is drawn from.

    Attributes:
        measurement: the name of one of `session.MEASUREMENTS`.
    """

    measurement: str


@dataclass(frozen=True)
class StreamAction:
    """A button that asks a question whose answer grows, for example because it takes several compiles.

    Attributes:
        clears: slots that are emptied if the question cannot be asked.
    """

    question: Question
    clears: tuple[str, ...] = ()


class Panel(ABC):
    """A panel of the page. It holds no state of a browser.

    Attributes:
        options: types of its part of the View, dataclasses of knobs.
        forms: those of them that have controls, each with the slot of its form.
        uses_compiler: whether its picture changes once the kernel is compiled.
        is_compared: whether a pinned experiment's values appear next to its own.
    """

    options: ClassVar[tuple[type, ...]] = ()
    forms: ClassVar[tuple[tuple[str, type], ...]] = ()
    uses_compiler: ClassVar[bool] = True
    is_compared: ClassVar[bool] = True

    @abstractmethod
    def layout(self) -> Markup:
        """Return its HTML, with slots."""

    def actions(self) -> Mapping[str, RunAction | StreamAction]:
        """Return its actions by the name of their button."""
        return {}

    def draw(self, snapshot: Snapshot) -> Slots:
        """Fill its slots. Its view is open.

        Raises:
            ConfigError: if it cannot be drawn, with the field that caused it.
        """
        return {}

    def seconds(self, snapshot: Snapshot) -> float:
        """Estimate the seconds of a core that `draw` takes beyond what is quick for every launch."""
        return 0.0

    def waiting(self, snapshot: Snapshot, seconds: float) -> Slots:
        """Fill its slots while the compiler has been working for some seconds."""
        return {}

    def predicting(self, snapshot: Snapshot) -> Slots:
        """Fill its slots while another process draws it, which takes `seconds`."""
        return {}

    def has_live_updates(self, snapshot: Snapshot) -> bool:
        """Return whether something is running that `stream_updates` draws.

        Raises:
            ConfigError: if it cannot be drawn.
        """
        return False

    def stream_updates(self, snapshot: Snapshot, page: str) -> Generator[Slots, None, None]:
        """Draw what is running until it ends: {} if nothing has changed since the last value.

        Args:
            page: the name of the open page that watches.
        """
        yield from ()

    def fill(self, snapshot: Snapshot) -> Slots:
        """Fill its forms with the View."""
        return {slot: form_of(snapshot.state.view.of(kind)) for slot, kind in self.forms}

    def summary(self, snapshot: Snapshot) -> tuple[Number, ...]:
        """Return the numbers that are compared with a pinned experiment's.

        Raises:
            ConfigError: if it cannot be drawn.
        """
        return ()

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        """Return the functions that answer for it in the API."""
        return ()
