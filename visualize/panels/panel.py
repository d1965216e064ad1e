"""What a panel is: a part of a tab that lays itself out, draws what is known, and answers an endpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gradio as gr
from gradio.blocks import Block

from kernels.measuring.session import Session
from visualize.panels.endpoint import Api, Endpoint
from visualize.state.known import Known
from visualize.state.state import State
from visualize.views.numbers import Number
from visualize.widgets import form

# New values by component. What is not in it stays as it is.
Drawn = dict[Block, Any]


@dataclass(frozen=True)
class Measure:
    """A button that has something measured, and what its outcome draws.

    Attributes:
        measurement: the name of one of `session.MEASUREMENTS`.
        shown: (outcome, what is known now) → what is drawn of it.
        outputs: the components that `shown` may draw.
        is_dated: the drawing says which Experiment it belongs to, so it is shown even if another one was set meanwhile.
    """

    button: gr.Button
    measurement: str
    shown: Callable[[Any, Known], Drawn]
    outputs: Sequence[Block]
    is_dated: bool = False


# What takes several compiles: drawings, as the answer grows, for what is set on an open page, whose name is the last
# argument. Raises ConfigError where it can't be asked.
Question = Callable[[Session, State, str], Iterator[Drawn]]


@dataclass(frozen=True)
class Ask:
    """A button that asks a question, and the components that its answers draw.

    Attributes:
        keeps: what is drawn stays where it can't be asked.
    """

    button: gr.Button
    question: Question
    outputs: Sequence[Block]
    keeps: bool = False


class Panel(ABC):
    """A panel of one page. Its components are made by `build`.

    Attributes:
        options: types of its part of the View, dataclasses of knobs.
        uses_compiler: whether what it draws changes once the kernel is compiled.
        is_compared: whether what it draws is of the Experiment, so that a pinned one's stands beside it.
        follows_runs: whether what it draws changes once a run has ended.
        moves: whether something may go on while it is looked at, which is drawn as it does: `following`.
        forms: the form of each of `options` that has controls, filled by `fill`.
        outputs: the components that `draw` and `waiting` may draw.
        actions: its buttons.
    """

    options: ClassVar[tuple[type, ...]] = ()
    uses_compiler: ClassVar[bool] = True
    is_compared: ClassVar[bool] = True
    follows_runs: ClassVar[bool] = False
    moves: ClassVar[bool] = False

    def __init__(self) -> None:
        self.forms: dict[type, gr.HTML] = {}
        self.outputs: Sequence[Block] = []
        self.actions: list[Measure | Ask] = []

    @abstractmethod
    def build(self) -> None:
        """Lay out. Called once, inside the tab."""

    def draw(self, known: Known) -> Drawn:
        """Draw what is known. The panel's tab is open.

        Raises:
            ConfigError: where it can't be drawn, with the field that caused it.
        """
        return {}

    def seconds(self, known: Known) -> float:
        """Seconds of a core that `draw` takes besides what is quick for every launch, estimated."""
        return 0.0

    def waiting(self, known: Known, seconds: float) -> Drawn:
        """What is shown while the compiler works, for so long already."""
        return {}

    def predicting(self, known: Known) -> Drawn:
        """What is shown while it is drawn in another process, as that takes `seconds`."""
        return {}

    def is_moving(self, known: Known) -> bool:
        """Whether something goes on that `following` draws. Asked only where it `moves`.

        Raises:
            ConfigError: where it can't be drawn.
        """
        return False

    def following(self, known: Known, page: str) -> Generator[Drawn, None, None]:
        """What goes on, drawing by drawing, until it ends: {} where nothing has changed since the last one.

        Args:
            page: the name of the open page that follows it.
        """
        yield from ()

    def fill(self, known: Known) -> Drawn:
        """The forms, set to the View."""
        return {component: form.of(known.state.view.of(kind)) for kind, component in self.forms.items()}

    def summary(self, known: Known) -> tuple[Number, ...]:
        """The numbers that are compared where another Experiment is pinned.

        Raises:
            ConfigError: where it can't be drawn.
        """
        return ()

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        """The functions that answer for it in the API."""
        return ()
