"""Snapshot: everything known about the page's Experiment, taken once per redraw or reply."""

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from kernels.gpus import Gpu
from kernels.measuring.session import MEASUREMENTS, Session
from kernels.results import Compiled, Failure
from kernels.results.store import Store
from kernels.spec import Launch
from visualize.predict.schedule import Schedule, schedule
from visualize.views.state import ScheduleView, State

T = TypeVar("T")


@dataclass(frozen=True)
class Snapshot:
    """A State, and the results of compiling and measuring its Experiment so far.

    Attributes:
        compiled: the compiled kernel, or None if it is not known.
        failure: why the kernel can't be compiled, or None.
        measured: live or recorded results by the measurement's name.
        ended: when stored results from before this process's start were measured, by the measurement's name.
        store: this machine's results. It is empty in another process.
        here: this machine's GPU, or None.
    """

    state: State
    compiled: Compiled | None = None
    failure: Failure | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    ended: Mapping[str, datetime.datetime] = field(default_factory=dict)
    store: Store = Store(None)
    here: Gpu | None = None

    def __getstate__(self) -> dict[str, Any]:
        # A store belongs to one process; unpickled snapshots have the class's empty one.
        return {name: value for name, value in vars(self).items() if name not in ("store", "schedule")}

    @property
    def identity(self) -> tuple[Any, ...]:
        """A key that is equal for snapshots with equal pictures, while both snapshots exist."""
        state = self.state
        results = id(self.compiled), self.failure, *((name, id(value)) for name, value in sorted(self.measured.items()))
        return state.experiment, state.view, state.pinned, state.gpu.name, *results

    @property
    def launch(self) -> Launch:
        return self.state.launch

    def result(self, kind: type[T]) -> T | None:
        """Return the result of a type, if there is one."""
        return next((value for value in self.measured.values() if type(value) is kind), None)

    @cached_property
    def schedule(self) -> Schedule:
        """The launch in ideal waves.

        Raises:
            ConfigError: the launch has too many tiles, or the GPU can't hold that many programs.
        """
        assumed = self.state.view.of(ScheduleView).programs_per_sm
        return schedule(self.state.kernel, self.launch, assumed, self.compiled)


def take_snapshot(session: Session, state: State, compiled: Compiled | Failure | None = None) -> Snapshot:
    """Return everything known about a state. Return immediately.

    Args:
        compiled: the result of compiling its experiment; by default the cached one.
    """
    compiled = compiled or session.find_compiled(state.experiment)
    results = {name: result for name in MEASUREMENTS if (result := session.find_result(state.experiment, name))}
    return Snapshot(
        state,
        compiled if isinstance(compiled, Compiled) else None,
        compiled if isinstance(compiled, Failure) else None,
        {name: result.value for name, result in results.items()},
        {name: result.ended for name, result in results.items() if result.ended},
        session.store,
        session.gpu,
    )
