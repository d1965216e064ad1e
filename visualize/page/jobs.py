"""What takes a while: runs, comparisons, counts and compiles, and what the page says while they are under way.

Handlers of the page that answer several times. They read the forms when they begin; an answer that something newer has
overtaken is not given.
"""

from __future__ import annotations

import asyncio
import html
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import gradio as gr

from kernels.knobs import ConfigError
from kernels.results import Failure
from kernels.runner.session import Session
from visualize.panels import (
    coalescing_tab,
    compiler_tab,
    layouts_panel,
    result_tab,
    reuse_tab,
    schedule_tab,
    timeline_panel,
    whatif_panel,
)
from visualize.state.state import State
from visualize.widgets import form, link

# How what is wanted of the compiler begins where it was known, so that the panel is drawn already.
_DRAWN = "drawn"


class Jobs:
    """Handlers for one session.

    Args:
        read: the values of the page's inputs → State; raises ConfigError.
        placed: (tab, what it draws) → that in its place among what all tabs draw.

    Attributes:
        outputs: how many components the page lets each handler answer, by its name. The page fills it.
    """

    def __init__(
        self,
        session: Session,
        read: Callable[..., State],
        placed: Callable[[str, tuple[Any, ...] | None], tuple[Any, ...]],
    ) -> None:
        self.session = session
        self.runs = result_tab.Runs(session)
        self.outputs: dict[str, int] = {}
        self._read = read
        self._placed = placed
        # The compile that each open page has asked for last.
        self._compiles: dict[str, int] = {}
        self._numbers = itertools.count()

    def forget(self, page: str) -> None:
        """A page was closed."""
        self.runs.forget(page)
        self._compiles.pop(page, None)

    def draw(self, state: State, failure: Failure | None = None) -> tuple[str, ...] | None:
        """What the open tab draws, as far as it is known; None where it waits for a worker.

        Args:
            failure: why the experiment can't be compiled.
        """
        made, counted = self.session.compiled_before(state.experiment), self.session.known(state.experiment, "counters")
        status = result_tab.finished(failure) if failure else "" if made else compiler_tab.waiting(state.gpu.name)
        if state.view.tab == "schedule":
            ran = self.session.known(state.experiment, "timeline")
            return *schedule_tab.draw(state, made, failure), *timeline_panel.draw(state, made, ran)
        if state.view.tab == "reuse":
            return reuse_tab.draw(state, made, self.session.known(state.experiment, "reuse"), failure)
        if state.view.tab == "coalescing":
            return coalescing_tab.draw(state, made, counted, status)
        if state.view.tab == "compiler" and failure:
            return status, ""
        if state.view.tab == "compiler" and made:
            return compiler_tab.draw(state.kernel, state.launch, made)
        return None

    def lanes_form(self, state: State) -> str:
        """The choice of what the pictures show."""
        return coalescing_tab.lanes_form(state, self.session.compiled_before(state.experiment))

    def wanted(self, state: State) -> str:
        """What the open tab wants of the compiler; "" where it wants nothing. Each change of it is an event.

        To be asked before the tab is drawn, so that no picture that waits goes without it. A picture that waits wants
        something new each time: a browser may put it in place after the answer to an earlier one.
        """
        if state.view.tab == "result":
            return ""
        if self.session.compiled_before(state.experiment) is not None:
            return f"{_DRAWN} {link.query(state.to_address())}"
        return f"{next(self._numbers)} {link.query(state.to_address())}"

    async def on_compile(self, request: gr.Request, wanted: str, *values: str) -> AsyncIterator[tuple[Any, ...]]:
        """Compile what is set, unless something else has been set meanwhile, or all of it was known and drawn."""
        page = str(request.session_hash)
        self._compiles[page] = turn = self._compiles.get(page, 0) + 1
        try:
            current = self._read(*values)
        except ConfigError:
            return  # the sentence stands next to its cause
        if wanted.startswith(_DRAWN):
            yield (gr.skip(),) * self.outputs["on_compile"]
            return
        began = time.perf_counter()
        await asyncio.sleep(0.2)  # of a slider that is being moved, the last position is compiled
        kept = (gr.skip(),) * self.outputs["on_compile"]
        if self._compiles.get(page) != turn:
            yield kept
            return
        still = lambda: self._compiles.get(page) == turn  # noqa: E731
        work = asyncio.ensure_future(asyncio.to_thread(self.session.compiled, current.experiment, wanted=still))
        await asyncio.wait([work], timeout=0.15)
        while not work.done() and self._compiles.get(page) == turn:
            waiting = compiler_tab.waiting(current.gpu.name, time.perf_counter() - began), gr.skip()
            yield (*self._placed("compiler", waiting), gr.skip()) if current.view.tab == "compiler" else kept
            await asyncio.wait([work], timeout=0.25)
        outcome = await work
        if self._compiles.get(page) == turn:
            failure = outcome if isinstance(outcome, Failure) else None
            drawn = await asyncio.to_thread(self.draw, current, failure)
            yield *self._placed(current.view.tab, drawn), self.lanes_form(current)
        yield kept  # Gradio sends what was yielded last once more

    async def on_run(self, request: gr.Request, *values: str) -> AsyncIterator[tuple[Any, ...]]:
        """Run, and show where it is until it has ended. The last good result stays when this one fails."""

        def shown(outcome: Any) -> tuple[Any, ...]:
            return "result", gr.Tabs(selected="result"), *result_tab.drawn_result(outcome, self.session.gpu)

        async for answer in self._submitted("run", shown, self.outputs["on_run"], request, *values):
            yield answer

    async def on_compare(self, request: gr.Request, *values: str) -> AsyncIterator[tuple[Any, ...]]:
        """Compare how B is stored."""
        async for answer in self._submitted(
            "layouts", lambda study: (layouts_panel.drawn_study(study),), self.outputs["on_compare"], request, *values
        ):
            yield answer

    async def on_count(self, request: gr.Request, *values: str) -> AsyncIterator[tuple[Any, ...]]:
        """Count a launch, and draw what was counted beside what is predicted."""
        outputs = self.outputs["on_count"]

        def drawn(_: Any) -> tuple[Any, ...]:
            again = self.draw(self._read(*values))
            return (*again[:2], gr.skip(), gr.skip()) if again else (gr.skip(),) * 4

        shown = self._unless_overtaken(request, outputs, drawn)
        async for answer in self._submitted("counters", shown, outputs, request, *values):
            yield answer

    async def on_compare_sizes(self, request: gr.Request, *values: str) -> AsyncIterator[tuple[Any, ...]]:
        """Count and time every GROUP_SIZE, and draw what was found beside what is predicted."""
        outputs = self.outputs["on_compare_sizes"]

        def drawn(_: Any) -> tuple[Any, ...]:
            return self.draw(self._read(*values)) or ()

        shown = self._unless_overtaken(request, outputs, drawn)
        async for answer in self._submitted("reuse", shown, outputs, request, *values):
            yield answer

    async def on_timeline(self, request: gr.Request, *values: str) -> AsyncIterator[tuple[Any, ...]]:
        """Record when each program ran, and draw it."""
        outputs = self.outputs["on_timeline"]

        def drawn(ran: Any) -> tuple[Any, ...]:
            current = self._read(*values)
            return timeline_panel.draw(current, self.session.compiled_before(current.experiment), ran)

        shown = self._unless_overtaken(request, outputs, drawn)
        async for answer in self._submitted("timeline", shown, outputs, request, *values):
            yield answer

    async def on_faults(self, *values: str) -> AsyncIterator[tuple[Any, ...]]:
        """Compile with one fact changed at a time."""
        async for answer in self._asked(whatif_panel.faults, *values):
            yield answer

    async def on_cliff(self, *values: str) -> AsyncIterator[tuple[Any, ...]]:
        """Compile for one size after the other."""
        async for answer in self._asked(whatif_panel.cliff, *values):
            yield answer

    async def on_across(self, *values: str) -> AsyncIterator[tuple[Any, ...]]:
        """Compile for two GPUs."""
        async for answer in self._asked(whatif_panel.across, *values):
            yield answer

    async def _asked(
        self, question: Callable[[Session, State], Iterator[tuple[str, str]]], *values: str
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Answer with a table as it grows, and a picture, for what was set when it was asked."""
        try:
            current = self._read(*values)
            yield form.placed({}), compiler_tab.waiting(current.gpu.name), ""
            answers = question(self.session, current)
            address = html.escape(link.query(current.experiment.to_address()))
            while (answer := await asyncio.to_thread(next, answers, None)) is not None:
                yield gr.skip(), f'<div data-experiment="{address}">{answer[0]}</div>', answer[1]
        except ConfigError as error:
            yield form.placed({error.field: str(error)}), "", ""

    def _unless_overtaken(
        self, request: gr.Request, outputs: int, drawn: Callable[[Any], tuple[Any, ...]]
    ) -> Callable[[Any], tuple[Any, ...]]:
        """What is `drawn` of an outcome; nothing where something else was set meanwhile, and drawn with its own."""
        page = str(request.session_hash)
        turn = self._compiles.get(page)
        skipped = (gr.skip(),) * (outputs - 3)
        return lambda outcome: drawn(outcome) if self._compiles.get(page) == turn else skipped

    async def _submitted(
        self, what: str, shown: Callable[[Any], tuple[Any, ...]], outputs: int, request: gr.Request, *values: str
    ) -> AsyncIterator[tuple[Any, ...]]:
        """Submit, and answer with sentence, status and Cancel until it has ended, then with what is `shown` of it.

        Args:
            outputs: how many components are answered: those three, and what `shown` gives.
        """
        skip = gr.skip()
        try:
            current = self._read(*values)
        except ConfigError as error:
            yield (form.placed({error.field: str(error)}), *(skip,) * (outputs - 1))
            return
        page = str(request.session_hash)
        job = self.runs.start(page, current.experiment, what)
        said: Any = form.placed({})
        kept = (skip,) * (outputs - 3)
        while not job.done.done() and self.runs.is_latest(page, job):
            yield (said, result_tab.progress(self.session, job), gr.Button(interactive=True), *kept)
            said = skip
            await asyncio.wait([asyncio.wrap_future(job.done)], timeout=0.25)
        if not self.runs.is_latest(page, job):
            # Another run has replaced it: it has nothing more to say. (Gradio sends what was yielded last once more.)
            yield (skip,) * outputs
            return
        outcome, idle = job.result(), gr.Button(interactive=False)
        if isinstance(outcome, Failure):
            said = form.placed({outcome.field: outcome.message}) if outcome.field else said
            yield (said, result_tab.finished(outcome), idle, *kept)
        else:
            yield (said, result_tab.finished(outcome), idle, *await asyncio.to_thread(shown, outcome))

    def on_cancel(self, request: gr.Request) -> None:
        self.runs.cancel(str(request.session_hash))
