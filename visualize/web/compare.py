"""What is pinned, beside what is set: generic over panels, so that none knows of it.

A panel draws the pinned state as it draws any other. Two values of one slot become one value that shows both: two
figures in one plot, two columns of text. A form or a listing shows only the current experiment.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from kernels.experiment import Experiment
from kernels.knobs import ConfigError
from kernels.results import RunResult
from visualize.views import compare as compared_text
from visualize.views import pin, plot
from visualize.views.address import query
from visualize.views.numbers import Number, key_numbers, source
from visualize.views.result.result_tab import ResultPanel
from visualize.views.snapshot import Known
from visualize.views.state import State, short_experiment
from visualize.views.view import Panel, Slots


def beside(slots: Slots, twins: Slots) -> Slots:
    """Return a view's slots, each with the pinned experiment's value beside it if it has one."""
    return {name: _both(name, value, twins.get(name)) for name, value in slots.items()}


def _both(name: str, own: str, twin: str | None) -> str:
    if name.endswith("-plot") and twin is not None:
        return plot.with_twin(own, twin)
    if isinstance(own, Markup) and isinstance(twin, Markup):
        columns = '<div class="beside"><div class="own">{}</div><div class="pinned">{}</div></div>'
        return Markup(columns).format(own, twin)
    return own


def compared(slots: Slots, known: Known, twin: Known | None, panels: Sequence[Panel], result: ResultPanel) -> Slots:
    """Return a view's slots with the pinned experiment's beside them, and the slot above the tabs.

    That slot offers to pin the experiment, or lists what differs from the pinned one.

    Args:
        twin: the pinned experiment's snapshot; None if nothing is pinned.
        panels: those of the open view.
        result: the panel of the last run, which may be one of them.
    """
    state = known.state
    if twin is None:
        return {
            **slots,
            "compare": compared_text.pin_link(query(state.moved_to(**{pin.FIELD: _text(state.experiment)}))),
        }
    problem, theirs = "", []
    try:
        twins = result.known_run(twin) if result in panels else {}
        for panel in panels:
            twins |= panel.draw(twin) if panel.is_compared else {}
        slots, theirs = beside(slots, twins), numbers(twin, panels)
    except ConfigError as error:
        problem = str(error)
    swapped = State(twin.state.experiment, state.view, twin.state.kernel, twin.state.gpu, state.experiment)
    now, then = ({**one.experiment.to_address(), "gpu": one.gpu.name} for one in (state, twin.state))
    ways = compared_text.pin_actions(query(swapped.moved_to()), query(state.moved_to(**{pin.FIELD: ""})), problem)
    return {**slots, "compare": compared_text.comparison(now, then, numbers(known, panels), theirs, ways)}


def numbers(known: Known, panels: Sequence[Panel]) -> list[Number]:
    """What the panels of the open tab count, and the run where it is known: its check and its time."""
    found = [one for panel in panels for one in panel.summary(known)]
    run = known.result(RunResult)
    if run is None:
        return found
    # A run of the interpreter has no time, and may have the one of a recorded run beside it.
    timed = run.recorded or run
    wrong = Number("wrong elements", timed.check.mismatched, "", source(timed.backend))
    return [*found, wrong, *(one for one in key_numbers(timed) if one.name != wrong.name)]


def _text(chosen: Experiment) -> str:
    return pin.to_text(short_experiment(chosen))
