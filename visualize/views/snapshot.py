"""What is known of the page's Experiment: asked once for a redraw or a reply, and passed to all that draw from it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from kernels.gpus import Gpu
from kernels.results import Compiled, Failure
from kernels.results.store import Store
from kernels.spec import Launch
from visualize.predict.schedule import Schedule, schedule
from visualize.views.options import ScheduleView
from visualize.views.state import State

T = TypeVar("T")


@dataclass(frozen=True)
class Known:
    """A State, and what a compiler and a GPU have said of it so far.

    Attributes:
        compiled: the compiled kernel; None while it is not known.
        failure: why it can't be compiled, where it can't.
        measured: live or recorded results, by the names of measurements; what there is none of is left out.
        ended: when those of them were measured that this machine measured before it started anew, by the same names.
        store: of this machine.
        here: this machine's GPU; None without one.
    """

    state: State
    compiled: Compiled | None = None
    failure: Failure | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    ended: Mapping[str, datetime.datetime] = field(default_factory=dict)
    store: Store = field(default_factory=lambda: Store(None))
    here: Gpu | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """As it is sent to another process: without the store, which is this one's."""
        fields = self.state, self.compiled, self.failure, dict(self.measured), dict(self.ended)
        return _sent, (*fields, self.here)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for what draws the same, as long as both are known."""
        state = self.state
        said = id(self.compiled), self.failure, *((name, id(one)) for name, one in sorted(self.measured.items()))
        return state.experiment, state.view, state.pinned, state.gpu.name, *said

    @property
    def launch(self) -> Launch:
        return self.state.launch

    def result(self, kind: type[T]) -> T | None:
        """The result of that type, if there is one."""
        return next((one for one in self.measured.values() if type(one) is kind), None)

    @cached_property
    def schedule(self) -> Schedule:
        """The launch in ideal waves.

        Raises:
            ConfigError: where it has too many tiles, or the GPU can't hold that many programs.
        """
        assumed = self.state.view.of(ScheduleView).programs_per_sm
        return schedule(self.state.kernel, self.launch, assumed, self.compiled)


def _sent(
    state: State,
    compiled: Compiled | None,
    failure: Failure | None,
    measured: Mapping[str, Any],
    ended: Mapping[str, datetime.datetime],
    here: Gpu | None,
) -> Known:
    return Known(state, compiled, failure, measured, ended, here=here)
