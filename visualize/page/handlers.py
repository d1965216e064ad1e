"""What happens when something on the page changes or is pressed.

Handlers answer by component: what is not in an answer stays as it is. Those that take a while answer several times;
they read the settings when they begin, and an answer that something newer has overtaken is not given.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import gradio as gr

from kernels import discover
from kernels.experiment import kernel_named
from kernels.knobs import ConfigError
from kernels.measuring.job import Job
from kernels.results import Failure
from visualize.page.drawing import DRAWN, Components, Drawing
from visualize.page.runs import Runs
from visualize.panels.asker import asker
from visualize.panels.panel import Ask, Drawn, Measure
from visualize.panels.tabs import SETTINGS
from visualize.state.presets import with_preset
from visualize.state.state import State
from visualize.text import status_text
from visualize.widgets import form, link
from visualize.widgets import settings as page_settings

# Between two drawings of what goes on.
_FOLLOW_S = 0.7

# Questions that are answered at once: more than one address may have compiles waiting.
_QUESTIONS = 64


class Handlers:
    """Handlers of one page, for all the browsers that have it open."""

    def __init__(self, drawing: Drawing, components: Components) -> None:
        self.drawing = drawing
        self.session = drawing.session
        self.runs = Runs(self.session)
        self._asked = ThreadPoolExecutor(_QUESTIONS, "answers a question")
        self._at = components
        # How often something was set on each open page, and the compile that it has asked for last: an answer to what
        # was set before comes too late.
        self._changes: dict[str, int] = {}
        self._compiles: dict[str, int] = {}
        # What was drawn last on each open page, as its address: a compile draws that again, and nothing older.
        self._shown: dict[str, str] = {}
        # What goes on is drawn once on each open page: for what was drawn last.
        self._movings: dict[str, int] = {}

    def read(self, settings: object, tab: str = "") -> State:
        """What the controls say together.

        Where another kernel or a preset was just chosen, they still hold the old one's fields: then it is what the
        choice says that counts.

        Args:
            tab: one that was just opened; "" for the one that is open.

        Raises:
            ConfigError: for the first value that is not allowed.
        """
        flat = page_settings.read(settings) | ({"tab": tab} if tab else {})
        kernel = kernel_named(flat.get("kernel"), discover())
        if flat.get("preset") is not None:
            flat = {"tab": flat.get("tab"), **with_preset(flat, kernel, flat["preset"], self.session.gpu)}
        elif kernel.id != flat.get("form_of"):
            flat = {"tab": flat.get("tab"), **SETTINGS.with_kernel(flat, kernel.id)}
        return SETTINGS.state(flat, self.session.gpu)

    def on_load(self, request: gr.Request, kept: object) -> Drawn:
        """Open the page that the address describes; one that says nothing opens on a story.

        Args:
            kept: the last run, as the browser has kept it.
        """
        self.drawing.beside.warm_up()
        asked = {name: value for name, value in request.query_params.items() if not name.startswith("__")}
        return self._answered(request, self.drawing.opened(asked or SETTINGS.opening, kept))

    def on_change(self, request: gr.Request, settings: str) -> Drawn:
        """A value changed: redraw."""
        page = str(request.session_hash)
        change = self._changed(page)
        try:
            answer = self.drawing.redrawn(self.read(settings))
        except ConfigError as error:
            answer = self.drawing.refused(error)
        return self._answered(request, answer) if self._changes.get(page) == change else self.drawing.nothing

    def on_follow(self, request: gr.Request, wanted: str) -> Drawn:
        """A link within the page, or Back or Forward: open what it describes."""
        self._changed(str(request.session_hash))
        try:
            flat = link.followed(wanted)
        except ConfigError as error:
            return self.drawing.refused(error)
        return self._answered(request, self.drawing.opened(flat))

    def opening(self, name: str) -> Callable[[gr.Request, str], Drawn]:
        """The handler of a tab that is opened: draw it. What was wrong with a value stays said."""

        def on_tab(request: gr.Request, settings: str) -> Drawn:
            try:
                flat = page_settings.read(settings)
                if "kernel" not in flat:
                    # Gradio opens the first tab by itself, before the address has filled the forms.
                    return self.drawing.nothing
                if flat.get("tab") == name:
                    # Gradio tells of a tab that an answer has opened, too: the same answer has drawn it.
                    return {self._at.tab: name}
                answer = self._answered(request, self.drawing.redrawn(self.read(settings, name)))
            except ConfigError:
                answer = {}
            return {**answer, self._at.problems: gr.skip(), self._at.tab: name}

        return on_tab

    def on_select(self, request: gr.Request, settings: str) -> Drawn:
        """Another kernel, or a preset: the forms themselves change."""
        self._changed(str(request.session_hash))
        try:
            return self._answered(request, self.drawing.everything(self.read(settings)))
        except ConfigError as error:
            return self.drawing.refused(error)

    async def on_compile(self, request: gr.Request, wanted: object) -> AsyncIterator[Drawn]:
        """Compile what is wanted, unless something else is meanwhile, or all of it was known and drawn."""
        page = str(request.session_hash)
        self._compiles[page] = turn = self._compiles.get(page, 0) + 1
        query = wanted.partition(" ")[2] if isinstance(wanted, str) else ""
        still = lambda: self._compiles.get(page) == turn and self._shown.get(page, query) == query  # noqa: E731
        flat = link.fields(query)
        if "kernel" not in flat:
            return  # the page itself wants no such thing
        try:
            current = SETTINGS.state(flat, self.session.gpu)
        except ConfigError:
            return
        if not str(wanted).startswith(DRAWN):
            began = time.perf_counter()
            await asyncio.sleep(0.2)  # of a slider that is being moved, the last position is compiled
            if still():
                shown = [current.experiment, *([current.pinned] if current.pinned else [])]
                works = [asyncio.wrap_future(self.session.compiling(one, client=asker())) for one in shown]
                try:
                    await asyncio.wait(works, timeout=0.15)
                    while still() and not all(work.done() for work in works):
                        yield self.drawing.waiting(current, time.perf_counter() - began)
                        await asyncio.wait(works, timeout=0.25)
                finally:
                    for work in works:
                        work.cancel()  # which ends what nobody waits for any more
                if still():
                    yield await self.drawing.drawn_again(current, works[0].result(), still)
        yield self.drawing.nothing  # Gradio sends what was yielded last once more

    async def on_moving(self, request: gr.Request, moving: object, settings: str) -> AsyncIterator[Drawn]:
        """Something goes on in the open tab: draw it as it does, until it ends or something else is drawn."""
        page = str(request.session_hash)
        self._movings[page] = turn = self._movings.get(page, 0) + 1
        try:
            known = self.drawing.known(self.read(settings))
        except ConfigError:
            return  # the sentence stands next to its cause
        for panel in self.drawing.moving_panels(known.state) if moving else ():
            answers = panel.following(known, page)
            try:
                while self._movings.get(page) == turn:
                    answer = await asyncio.to_thread(next, answers, None)
                    if answer is None:
                        break
                    if answer and self._movings.get(page) == turn:
                        yield answer
                    await asyncio.sleep(_FOLLOW_S)
            finally:
                with suppress(ValueError):  # a thread is still in it: then it is closed when that leaves it
                    answers.close()
        yield self.drawing.nothing  # Gradio sends what was yielded last once more

    def measuring(self, action: Measure, opens: str = "") -> Callable[..., AsyncIterator[Drawn]]:
        """The handler of a button that has something measured.

        Args:
            opens: the tab that is opened for what comes of it; "" to stay.
        """
        at = self._at

        async def on_measure(request: gr.Request, settings: str) -> AsyncIterator[Drawn]:
            try:
                current = self.read(settings)
            except ConfigError as error:
                yield self.drawing.refused(error)
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
                yield self.drawing.nothing
                return
            outcome = job.result()
            ended = {**said, at.status: status_text.finished(outcome), at.cancel: gr.Button(interactive=False)}
            if isinstance(outcome, Failure):
                if outcome.field:
                    ended[at.problems] = form.placed({outcome.field: outcome.message})
                yield ended
            elif action.is_dated or self._compiles.get(page) == turn:
                drawn = await asyncio.to_thread(self.drawing.shown, action, outcome, self.drawing.known(current))
                # Made here: where the page is laid out, a component would become a part of it.
                opened: Drawn = {at.tab: opens, at.tabs: gr.Tabs(selected=opens)} if opens else {}
                yield {**ended, **opened, **drawn}
            else:
                yield ended

        return on_measure

    def on_ended(self, settings: str) -> Drawn:
        """A run has ended: draw anew what follows runs on the tab that is open now."""
        try:
            return self.drawing.following(self.read(settings))
        except ConfigError:
            return self.drawing.nothing  # what is wrong is said where it was set

    def asking(self, action: Ask) -> Callable[..., AsyncIterator[Drawn]]:
        """The handler of a button that asks: it answers as the answer grows, for what was set when it was asked."""

        async def on_ask(request: gr.Request, settings: str) -> AsyncIterator[Drawn]:
            said: Drawn = {self._at.problems: form.placed({})}
            try:
                current = self.read(settings)
                answers = action.question(self.session, current, str(request.session_hash))
                while (answer := await self._answer(answers)) is not None:
                    yield {**said, **answer}
                    said = {}
                if moving := self.drawing.moving(self.drawing.known(current), is_asked=True):
                    yield {**said, **moving}
            except ConfigError as error:
                yield {**self.drawing.refused(error), **({} if action.keeps else dict.fromkeys(action.outputs, ""))}

        return on_ask

    async def _answer(self, answers: Iterator[Drawn]) -> Drawn | None:
        """The next answer to a question, which may wait for the compiler: not in a thread of those that draw."""
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._asked, lambda: context.run(next, answers, None))

    def on_cancel(self, request: gr.Request) -> None:
        self.runs.cancel(str(request.session_hash))

    def on_unload(self, request: gr.Request) -> None:
        page = str(request.session_hash)
        self.runs.forget(page)
        self._compiles.pop(page, None)
        self._movings.pop(page, None)
        self._changes.pop(page, None)
        self._shown.pop(page, None)

    def _answered(self, request: gr.Request, answer: Drawn) -> Drawn:
        """An answer, of which is kept what it shows."""
        if shown := answer.get(self._at.link):
            self._shown[str(request.session_hash)] = link.shown_query(shown)
        return answer

    def _changed(self, page: str) -> int:
        """The number of a change on an open page."""
        self._changes[page] = number = self._changes.get(page, 0) + 1
        return number

    def _progress(self, job: Job) -> str:
        now = job.progress
        return status_text.status(self.session.backend, now.stage, now.before, now.seconds)
