"""What the page shows of a State: by component, with what is pinned beside it, and what is still to be compiled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kernels.knobs import ConfigError
from kernels.measuring.session import Session
from kernels.results import Compiled, Failure
from visualize.page.guide import expanded
from visualize.page.tab_drawing import TabDrawing, Values, values
from visualize.panels import compare
from visualize.panels.controls import experiment_form
from visualize.panels.endpoint import current_client, known
from visualize.panels.panel import Drawn, Measure, Panel
from visualize.panels.prediction_process import NEAR_S, PredictionProcess
from visualize.panels.result_tab import ResultPanel
from visualize.panels.tabs import SETTINGS
from visualize.state.known import Known
from visualize.state.state import State
from visualize.views.prose import stage_title
from visualize.widgets import form, link, settings

# How what is wanted of the compiler begins where it was known, so that the panel is drawn already.
DRAWN = "drawn"


@dataclass(frozen=True)
class Components:
    """What the page itself has, besides its panels.

    Attributes:
        settings: what all controls are set to.
        experiment: the form of the Experiment.
        problems: puts sentences next to the controls that caused them.
        wanted: what the open tab wants of the compiler: each change is an event.
        moving: whether something goes on in the open tab that is drawn as it does: each change is an event.
        status, cancel: of what was pressed last.
        compare: the way to pin, or what differs from what is pinned.
        tabs, tab: the row of tabs, and the name of the open one.
    """

    settings: gr.HTML
    experiment: gr.HTML
    link: gr.HTML
    problems: gr.HTML
    wanted: gr.HTML
    moving: gr.HTML
    status: gr.HTML
    cancel: gr.Button
    compare: gr.HTML
    tabs: gr.Tabs
    tab: gr.HTML


class Drawing:
    """Draws one page, for all the browsers that have it open.

    Args:
        predictions: processes that draw what takes long.
        panels: by the name of their tab.
        result: the one of them that shows the last run.
    """

    def __init__(
        self,
        session: Session,
        predictions: PredictionProcess,
        components: Components,
        panels: Mapping[str, Sequence[Panel]],
        result: ResultPanel,
    ) -> None:
        self.session = session
        self.predictions = predictions
        self._at = components
        self._tabs = TabDrawing(panels, result)
        outputs = [one for several in panels.values() for panel in several for one in panel.outputs]
        self._named = {str(one.elem_id): one for one in outputs}
        self._panels = panels
        self._result = result
        # An answer that changes nothing: Gradio takes no empty one.
        self.nothing: Drawn = {components.problems: gr.skip()}
        self._numbers = itertools.count()

    def draw(self, known: Known) -> Drawn:
        """What the panels of the open tab draw, with what is pinned beside it.

        Raises:
            ConfigError: where one can't be drawn.
        """
        drawn, bar = self._tabs.drawn(known, self._twin(known.state))
        return {**drawn, self._at.compare: bar}

    def following(self, state: State) -> Drawn:
        """What the open tab draws anew once a run has ended, whoever's it was.

        Raises:
            ConfigError: where it can't be drawn.
        """
        panels = [panel for panel in self._panels[state.view.tab] if panel.follows_runs]
        drawn: Drawn = {}
        for panel in panels:
            drawn |= panel.draw(self.known(state))
        return drawn or self.nothing

    def _twin(self, state: State) -> Known | None:
        twin = state.twin(self.session.gpu)
        return self.known(twin) if twin else None

    def known(self, state: State, compiled: Compiled | Failure | None = None) -> Known:
        return known(self.session, state, compiled)

    def wanted(self, state: State) -> str:
        """What the open tab wants of the compiler; "" where it wants nothing. Each change of it is an event.

        To be asked before the tab is drawn, so that no picture that waits goes without it. A picture that waits wants
        something new each time: a browser may put it in place after the answer to an earlier one.
        """
        if not any(panel.uses_compiler for panel in self._panels[state.view.tab]):
            return ""
        shown = [state.experiment, *([state.pinned] if state.pinned else [])]
        is_known = all(self.session.find_compiled(one) is not None for one in shown)
        with suppress(ConfigError):  # it can't be drawn, which is said when it is
            is_known = is_known and not self._is_far(self.known(state))
        return f"{DRAWN if is_known else next(self._numbers)} {link.query(state.to_address())}"

    def moving(self, known: Known, is_asked: bool = False) -> Drawn:
        """What tells the page whether something goes on in the open tab: something new each time where it does.

        Args:
            is_asked: something was just started, and may have ended already: its end is to be drawn, too.

        Raises:
            ConfigError: where a panel can't be drawn.
        """
        panels = self.moving_panels(known.state)
        if not panels:
            return {}
        is_moving = is_asked or any(panel.is_moving(known) for panel in panels)
        return {self._at.moving: str(next(self._numbers)) if is_moving else ""}

    def moving_panels(self, state: State) -> list[Panel]:
        """The panels of the open tab in which something may go on."""
        return [panel for panel in self._panels[state.view.tab] if panel.moves]

    def redrawn(self, state: State, sentences: Mapping[str, str] | None = None) -> Drawn:
        """The address, the open tab, and what is wrong; other tabs wait until they are opened."""
        said = dict(sentences or {})
        title = stage_title(state.experiment, state.gpu.name)
        answer: Drawn = {self._at.link: link.shown(state.to_address(), SETTINGS.short_address(state), title)}
        if wanted := self.wanted(state):
            answer[self._at.wanted] = wanted
        try:
            known = self.known(state)
            answer |= self._predicting(known) if self._is_far(known) else self.draw(known)
            answer |= self.moving(known)
        except ConfigError as error:
            said[error.field] = str(error)
        return {**answer, self._at.problems: form.placed(said)}

    def opened(self, flat: Mapping[str, object], kept: object = "") -> Drawn:
        """Everything as an address describes it."""
        opened, sentences = SETTINGS.forgiving_state(expanded(flat), self.session.gpu)
        return self.everything(opened, sentences, kept)

    def refused(self, error: ConfigError) -> Drawn:
        """A sentence next to its cause; everything else stays as it was."""
        return {self._at.problems: form.placed({error.field: str(error)})}

    def everything(self, state: State, sentences: Mapping[str, str] | None = None, kept: object = "") -> Drawn:
        """All controls, the open tab, and the run of what is set, where it is known or the browser has kept it."""
        at, known = self._at, self.known(state)
        forms: Drawn = {
            at.settings: settings.held(state.to_settings()),
            at.experiment: experiment_form(state, self.session.gpu),
        }
        for panel in (panel for panels in self._panels.values() for panel in panels):
            forms |= panel.fill(known)
        opened: Drawn = {at.tab: state.view.tab, at.tabs: gr.Tabs(selected=state.view.tab)}
        run = self._result.before(known)
        run |= self._result.known_run(known, kept)
        if twin := self._twin(state):
            run = compare.beside(run, self._result.known_run(twin))
        return {**forms, **opened, **run, **self.redrawn(state, sentences)}

    def waiting(self, state: State, seconds: float) -> Drawn:
        known = Known(state)
        waiting: Drawn = {}
        for panel in self._panels[state.view.tab]:
            waiting |= panel.waiting(known, seconds)
        return waiting or self.nothing

    async def drawn_again(self, state: State, outcome: Compiled | Failure | None, still: Callable[[], bool]) -> Drawn:
        """The open tab with what the compiler said; what can't be drawn is said where it was set.

        Args:
            still: asked now and then whether it is still wanted.
        """
        try:
            known, twin = self.known(state, outcome), self._twin(state)
            seconds = self._tabs.seconds(known, twin)
            if seconds <= NEAR_S:
                return await asyncio.to_thread(self.draw, known) or self.nothing
        except ConfigError as error:
            return self.refused(error)
        submitted = self.predictions.submit(values, known, twin, client=current_client(), estimate_s=seconds)
        work = asyncio.wrap_future(submitted)
        try:
            while still() and not work.done():
                await asyncio.wait([work], timeout=0.25)
        finally:
            work.cancel()  # which ends it, where nobody waits for it any more
        return self.nothing if work.cancelled() else self._placed(work.result())

    def _placed(self, found: Values | Failure) -> Drawn:
        """What another process drew, by our components."""
        if isinstance(found, Failure):
            return self.refused(ConfigError(found.kind, found.message))
        if isinstance(found, ConfigError):
            return self.refused(found)
        drawn, bar = found
        return {**{self._named[name]: value for name, value in drawn.items()}, self._at.compare: bar}

    def _is_far(self, known: Known) -> bool:
        """Whether the open tab is drawn in another process, as that takes long."""
        return self._tabs.seconds(known, self._twin(known.state)) > NEAR_S

    def _predicting(self, known: Known) -> Drawn:
        """What the open tab shows until another process has drawn it."""
        shown: Drawn = {}
        for panel in self._panels[known.state.view.tab]:
            shown |= panel.predicting(known)
        return shown

    def shown(self, action: Measure, outcome: Any, known: Known) -> Drawn:
        """What an outcome draws, beside what is pinned."""
        drawn = action.shown(outcome, known)
        try:
            shown, bar = self._tabs.compared(drawn, known, self._twin(known.state))
            return {**shown, self._at.compare: bar}
        except ConfigError:
            return drawn  # what is set can't be drawn, which is said where it was set
