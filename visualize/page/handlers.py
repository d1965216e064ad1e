"""What happens when something on the page changes or is pressed.

Handlers answer by component: what is not in an answer stays as it is. Those that take a while answer several times;
they read the forms when they begin, and an answer that something newer has overtaken is not given.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from kernels import discover
from kernels.knobs import ConfigError
from kernels.results import Compiled, Failure
from kernels.runner.job import Job
from kernels.runner.session import Session
from visualize.page.guide import expanded
from visualize.page.runs import Runs
from visualize.panels import compare
from visualize.panels.controls import experiment_form
from visualize.panels.endpoint import known
from visualize.panels.panel import Ask, Drawn, Measure, Panel
from visualize.panels.result_tab import ResultPanel
from visualize.panels.tabs import SETTINGS
from visualize.state.known import Known
from visualize.state.state import State, with_preset
from visualize.text import status_text
from visualize.widgets import form, link

# How what is wanted of the compiler begins where it was known, so that the panel is drawn already.
_DRAWN = "drawn"


@dataclass(frozen=True)
class Components:
    """What the page itself has, besides its panels.

    Attributes:
        experiment: the form of the Experiment.
        problems: puts sentences next to the controls that caused them.
        wanted: what the open tab wants of the compiler: each change is an event.
        status, cancel: of what was pressed last.
        pin: holds what is pinned.
        compare: the way to pin, or what differs from what is pinned.
        tabs, tab: the row of tabs, and the name of the open one.
    """

    experiment: gr.HTML
    link: gr.HTML
    problems: gr.HTML
    wanted: gr.HTML
    status: gr.HTML
    cancel: gr.Button
    pin: gr.HTML
    compare: gr.HTML
    tabs: gr.Tabs
    tab: gr.State


class Handlers:
    """Handlers of one page, for all the browsers that have it open.

    Args:
        panels: by the name of their tab.
        result: the one of them that shows the last run.
    """

    def __init__(
        self, session: Session, components: Components, panels: Mapping[str, Sequence[Panel]], result: ResultPanel
    ) -> None:
        self.session = session
        self.runs = Runs(session)
        self._at = components
        self._panels = panels
        self._result = result
        # An answer that changes nothing: Gradio takes no empty one.
        self.nothing: Drawn = {components.problems: gr.skip()}
        # How often something was set on each open page, and the compile that it has asked for last: an answer to what
        # was set before comes too late.
        self._changes: dict[str, int] = {}
        self._compiles: dict[str, int] = {}
        self._numbers = itertools.count()

    def read(self, tab: str, *forms: str) -> State:
        """What the forms say together.

        Where another kernel or a preset was just chosen, the forms still hold the old one's fields: then it is what the
        choice says that counts.

        Raises:
            ConfigError: for the first value that is not allowed.
        """
        flat: dict[str, Any] = {"tab": tab}
        for value in reversed(forms):
            flat |= form.settings(value)
        kernel = str(flat["kernel"])
        if "preset" in flat:
            flat = {"tab": tab, **with_preset(flat, discover()[kernel], int(flat["preset"]))}
        elif kernel != flat["form_of"]:
            flat = {"tab": tab, **SETTINGS.with_kernel(flat, kernel)}
        return SETTINGS.state(flat, self.session.gpu)

    def draw(self, known: Known) -> Drawn:
        """What the panels of the open tab draw, with what is pinned beside it.

        Raises:
            ConfigError: where one can't be drawn.
        """
        return self._compared(self._alone(known), known)

    def _alone(self, known: Known) -> Drawn:
        drawn: Drawn = {}
        for panel in self._panels[known.state.view.tab]:
            drawn |= panel.draw(known)
        return drawn

    def _compared(self, drawn: Drawn, known: Known) -> Drawn:
        """What is drawn, each with its twin where something is pinned; and what differs."""
        panels, twin = self._panels[known.state.view.tab], self._twin(known.state)
        shown, bar = compare.compared(drawn, known, twin, panels, self._whole)
        return {**shown, self._at.compare: bar}

    def _whole(self, known: Known) -> Drawn:
        return {**self._result.known_run(known), **self._alone(known)}

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
        is_known = all(self.session.compiled_before(one) is not None for one in shown)
        return f"{_DRAWN if is_known else next(self._numbers)} {link.query(state.to_address())}"

    def on_load(self, request: gr.Request) -> Drawn:
        """Open the page that the address describes; one that says nothing opens on a story."""
        asked = {name: value for name, value in request.query_params.items() if not name.startswith("__")}
        return {**self._result.before(self.session), **self._opened(asked or SETTINGS.opening)}

    def on_change(self, request: gr.Request, *values: str) -> Drawn:
        """A value changed: redraw."""
        page = str(request.session_hash)
        change = self._changed(page)
        try:
            answer = self._redrawn(self.read(*values))
        except ConfigError as error:
            answer = self._refused(error)
        return answer if self._changes.get(page) == change else self.nothing

    def on_follow(self, request: gr.Request, wanted: str) -> Drawn:
        """A link within the page, or Back or Forward: open what it describes."""
        self._changed(str(request.session_hash))
        try:
            flat = link.followed(wanted)
        except ConfigError as error:
            return self._refused(error)
        return self._opened(flat)

    def on_tab(self, name: str, _: str, *forms: str) -> Drawn:
        """Another tab was opened: draw it. What was wrong with a value stays said."""
        if "kernel" not in form.settings(forms[0]):
            # Gradio opens the first tab by itself, before the address has filled the forms.
            return self.nothing
        try:
            answer = self._redrawn(self.read(name, *forms))
        except ConfigError:
            answer = {}
        return {**answer, self._at.problems: gr.skip(), self._at.tab: name}

    def on_select(self, request: gr.Request, *values: str) -> Drawn:
        """Another kernel, or a preset: the forms themselves change."""
        self._changed(str(request.session_hash))
        try:
            return self._everything(self.read(*values))
        except ConfigError as error:
            return self._refused(error)

    async def on_compile(self, request: gr.Request, wanted: str, *values: str) -> AsyncIterator[Drawn]:
        """Compile what is set, unless something else has been set meanwhile, or all of it was known and drawn."""
        page = str(request.session_hash)
        self._compiles[page] = turn = self._compiles.get(page, 0) + 1
        still = lambda: self._compiles.get(page) == turn  # noqa: E731
        try:
            current = self.read(*values)
        except ConfigError:
            return  # the sentence stands next to its cause
        if not wanted.startswith(_DRAWN):
            began = time.perf_counter()
            await asyncio.sleep(0.2)  # of a slider that is being moved, the last position is compiled
            if still():
                work = asyncio.ensure_future(asyncio.to_thread(self.session.compiled, current.experiment, wanted=still))
                await asyncio.wait([work], timeout=0.15)
                while not work.done() and still():
                    yield self._waiting(current, time.perf_counter() - began)
                    await asyncio.wait([work], timeout=0.25)
                outcome = await work
                if current.pinned and still():
                    await asyncio.to_thread(self.session.compiled, current.pinned, wanted=still)
                if still():
                    yield await asyncio.to_thread(self._drawn_again, current, outcome)
        yield self.nothing  # Gradio sends what was yielded last once more

    def measuring(self, action: Measure, opens: str = "") -> Callable[..., AsyncIterator[Drawn]]:
        """The handler of a button that has something measured.

        Args:
            opens: the tab that is opened for what comes of it; "" to stay.
        """
        at = self._at

        async def on_measure(request: gr.Request, *values: str) -> AsyncIterator[Drawn]:
            try:
                current = self.read(*values)
            except ConfigError as error:
                yield self._refused(error)
                return
            page = str(request.session_hash)
            turn = self._compiles.get(page)
            job = self.runs.start(page, current.experiment, action.measurement)
            said: Drawn = {at.problems: form.placed({})}
            while not job.done.done() and self.runs.is_latest(page, job):
                yield {**said, at.status: self._progress(job), at.cancel: gr.Button(interactive=True)}
                said = {}
                await asyncio.wait([asyncio.wrap_future(job.done)], timeout=0.25)
            if not self.runs.is_latest(page, job):
                # Another run has replaced it: it has nothing more to say. (Gradio sends what was yielded last again.)
                yield self.nothing
                return
            outcome = job.result()
            ended = {**said, at.status: status_text.finished(outcome), at.cancel: gr.Button(interactive=False)}
            if isinstance(outcome, Failure):
                if outcome.field:
                    ended[at.problems] = form.placed({outcome.field: outcome.message})
                yield ended
            elif action.is_dated or self._compiles.get(page) == turn:
                drawn = await asyncio.to_thread(self._shown, action, outcome, self.known(current))
                # Made here: where the page is laid out, a component would become a part of it.
                opened = {at.tab: opens, at.tabs: gr.Tabs(selected=opens)} if opens else {}
                yield {**ended, **opened, **drawn}
            else:
                yield ended

        return on_measure

    def asking(self, action: Ask) -> Callable[..., AsyncIterator[Drawn]]:
        """The handler of a button that asks: it answers as the answer grows, for what was set when it was asked."""

        async def on_ask(*values: str) -> AsyncIterator[Drawn]:
            said: Drawn = {self._at.problems: form.placed({})}
            try:
                answers = action.question(self.session, self.read(*values))
                while (answer := await asyncio.to_thread(next, answers, None)) is not None:
                    yield {**said, **answer}
                    said = {}
            except ConfigError as error:
                yield {**self._refused(error), **dict.fromkeys(action.outputs, "")}

        return on_ask

    def on_cancel(self, request: gr.Request) -> None:
        self.runs.cancel(str(request.session_hash))

    def on_unload(self, request: gr.Request) -> None:
        page = str(request.session_hash)
        self.runs.forget(page)
        self._compiles.pop(page, None)
        self._changes.pop(page, None)

    def _changed(self, page: str) -> int:
        """The number of a change on an open page."""
        self._changes[page] = number = self._changes.get(page, 0) + 1
        return number

    def _shown(self, action: Measure, outcome: Any, known: Known) -> Drawn:
        """What an outcome draws, beside what is pinned."""
        drawn = action.shown(outcome, known)
        try:
            return self._compared(drawn, known)
        except ConfigError:
            return drawn  # what is set can't be drawn, which is said where it was set

    def _progress(self, job: Job) -> str:
        now = job.progress
        return status_text.status(self.session.backend, now.stage, now.before, now.seconds)

    def _redrawn(self, state: State, sentences: Mapping[str, str] | None = None) -> Drawn:
        """The address, the open tab, and what is wrong; other tabs wait until they are opened."""
        said = dict(sentences or {})
        answer: Drawn = {self._at.link: link.shown(state.to_address(), SETTINGS.short_address(state))}
        if wanted := self.wanted(state):
            answer[self._at.wanted] = wanted
        try:
            answer |= self.draw(self.known(state))
        except ConfigError as error:
            said[error.field] = str(error)
        return {**answer, self._at.problems: form.placed(said)}

    def _opened(self, flat: Mapping[str, object]) -> Drawn:
        """Everything as an address describes it."""
        opened, sentences = SETTINGS.forgiving_state(expanded(flat), self.session.gpu)
        return self._everything(opened, sentences)

    def _refused(self, error: ConfigError) -> Drawn:
        """A sentence next to its cause; everything else stays as it was."""
        return {self._at.problems: form.placed({error.field: str(error)})}

    def _everything(self, state: State, sentences: Mapping[str, str] | None = None) -> Drawn:
        """All forms, and the open tab."""
        at, known = self._at, self.known(state)
        forms: Drawn = {at.experiment: experiment_form(state, self.session.gpu), at.pin: compare.held(state)}
        for panel in (panel for panels in self._panels.values() for panel in panels):
            forms |= panel.fill(known)
        opened = {at.tab: state.view.tab, at.tabs: gr.Tabs(selected=state.view.tab)}
        run = self._result.known_run(known)
        if twin := self._twin(state):
            run = compare.beside(run or self._result.before(self.session), self._result.known_run(twin))
        return {**opened, **forms, **run, **self._redrawn(state, sentences)}

    def _waiting(self, state: State, seconds: float) -> Drawn:
        known = Known(state)
        waiting: Drawn = {}
        for panel in self._panels[state.view.tab]:
            waiting |= panel.waiting(known, seconds)
        return waiting or self.nothing

    def _drawn_again(self, state: State, outcome: Compiled | Failure) -> Drawn:
        """The open tab with what the compiler said; what can't be drawn is said where it was set."""
        try:
            return self.draw(self.known(state, outcome)) or self.nothing
        except ConfigError as error:
            return self._refused(error)
