"""What is pinned, beside what is set: generic over panels, so that none knows of it.

A panel draws the pinned state as it draws any other. Values of the same component become one value that shows both: two
figures of one plot, two columns of text. What is neither (a form, a listing) shows what is set alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gradio.blocks import Block
from markupsafe import Markup

from kernels.experiment import Experiment
from kernels.knobs import ConfigError
from kernels.results import RunResult
from visualize.panels.panel import Drawn, Panel
from visualize.state import pin
from visualize.state.known import Known
from visualize.state.state import State, short_experiment
from visualize.views import compare as compared_text
from visualize.views.numbers import Number, key_numbers, source
from visualize.widgets import plot
from visualize.widgets.link import query


def beside(drawn: Drawn, twins: Drawn) -> Drawn:
    """What is drawn, each with its twin where it has one."""
    return {component: _both(component, value, twins.get(component)) for component, value in drawn.items()}


def _both(component: Block, own: object, twin: object) -> object:
    if plot.is_plot(component) and isinstance(own, str) and isinstance(twin, str):
        return plot.with_twin(own, twin)
    if isinstance(own, Markup) and isinstance(twin, Markup):
        columns = '<div class="beside"><div class="own">{}</div><div class="pinned">{}</div></div>'
        return Markup(columns).format(own, twin)
    return own


def compared(
    drawn: Drawn, known: Known, twin: Known | None, panels: Sequence[Panel], draw: Callable[[Known], Drawn]
) -> tuple[Drawn, Markup]:
    """What is drawn, each with its twin, and what stands above the tabs: the way to pin, or what differs.

    Args:
        twin: what is pinned; None where nothing is.
        panels: those of the open tab.
        draw: all that they draw of what is known.
    """
    state = known.state
    if twin is None:
        return drawn, compared_text.pin_link(query(state.moved_to(**{pin.FIELD: _text(state.experiment)})))
    problem, theirs = "", []
    alone = {component for panel in panels if not panel.is_compared for component in panel.outputs}
    try:
        twins = {component: value for component, value in draw(twin).items() if component not in alone}
        drawn, theirs = beside(drawn, twins), numbers(twin, panels)
    except ConfigError as error:
        problem = str(error)
    swapped = State(twin.state.experiment, state.view, twin.state.kernel, twin.state.gpu, state.experiment)
    now, then = ({**one.experiment.to_address(), "gpu": one.gpu.name} for one in (state, twin.state))
    ways = compared_text.pin_actions(query(swapped.moved_to()), query(state.moved_to(**{pin.FIELD: ""})), problem)
    return drawn, compared_text.comparison(now, then, numbers(known, panels), theirs, ways)


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
