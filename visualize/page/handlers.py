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

from kernels.experiment import find_kernel
from kernels.knobs import ConfigError
from kernels.measuring.measurement import Job
from kernels.results import Failure
from visualize.page.drawing import DRAWN, Components, Drawing
from visualize.page.open_pages import OpenPage, OpenPages
from visualize.panels.endpoint import current_client
from visualize.panels.panel import Ask, Drawn, Measure
from visualize.panels.tabs import SETTINGS
from visualize.state.presets import with_preset
from visualize.state.state import State
from visualize.views import status
from visualize.widgets import form, link
from visualize.widgets import settings as page_settings

# Questions that are answered at once: more than one address may have compiles waiting.
_QUESTIONS = 64


class Handlers:
    """Handlers of one page, for all the browsers that have it open.

    Attributes:
        follow_s: seconds between two drawings of what goes on.
    """

    follow_s = 0.7

    def __init__(self, drawing: Drawing, components: Components) -> None:
        self.drawing = drawing
        self.session = drawing.session
        self._pages = OpenPages()
        self._asked = ThreadPoolExecutor(_QUESTIONS, "answers a question")
        self._at = components

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
        kernel = find_kernel(flat.get("kernel"))
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
        self.drawing.predictions.warm_up()
        asked = {name: value for name, value in request.query_params.items() if not name.startswith("__")}
        return self._answered(self._pages.find(request), self.drawing.opened(asked or SETTINGS.opening, kept))

    def on_change(self, request: gr.Request, settings: str) -> Drawn:
        """A value changed: redraw."""
        page = self._pages.find(request)
        page.changes = change = page.changes + 1
        try:
            answer = self.drawing.redrawn(self.read(settings))
        except ConfigError as error:
            answer = self.drawing.refused(error)
        return self._answered(page, answer) if page.changes == change else self.drawing.nothing

    def on_follow(self, request: gr.Request, wanted: str) -> Drawn:
        """A link within the page, or Back or Forward: open what it describes."""
        page = self._pages.find(request)
        page.changes += 1
        try:
            flat = link.followed(wanted)
        except ConfigError as error:
            return self.drawing.refused(error)
        return self._answered(page, self.drawing.opened(flat))

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
                answer = self._answered(self._pages.find(request), self.drawing.redrawn(self.read(settings, name)))
            except ConfigError:
                answer = {}
            return {**answer, self._at.problems: gr.skip(), self._at.tab: name}

        return on_tab

    def on_select(self, request: gr.Request, settings: str) -> Drawn:
        """Another kernel, or a preset: the forms themselves change."""
        page = self._pages.find(request)
        page.changes += 1
        try:
            return self._answered(page, self.drawing.everything(self.read(settings)))
        except ConfigError as error:
            return self.drawing.refused(error)

    async def on_compile(self, request: gr.Request, wanted: object) -> AsyncIterator[Drawn]:
        """Compile what is wanted, unless something else is meanwhile, or all of it was known and drawn."""
        page = self._pages.find(request)
        page.compiles = turn = page.compiles + 1
        query = wanted.partition(" ")[2] if isinstance(wanted, str) else ""
        still = lambda: page.compiles == turn and page.query in (None, query)  # noqa: E731
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
                works = [asyncio.wrap_future(self.session.compile(one, client=current_client())) for one in shown]
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
        page = self._pages.find(request)
        page.streams = turn = page.streams + 1
        try:
            known = self.drawing.known(self.read(settings))
        except ConfigError:
            return  # the sentence stands next to its cause
        for panel in self.drawing.moving_panels(known.state) if moving else ():
            answers = panel.following(known, str(request.session_hash))
            try:
                while page.streams == turn:
                    answer = await asyncio.to_thread(next, answers, None)
                    if answer is None:
                        break
                    if answer and page.streams == turn:
                        yield answer
                    await asyncio.sleep(self.follow_s)
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
            page = self._pages.find(request)
            turn = page.compiles
            job = self.session.submit(current.experiment, action.measurement, current_client())
            page.replace_job(job)
            said: Drawn = {at.problems: form.placed({})}
            while not job.done.done() and page.job is job:
                yield {**said, at.status: self._progress(job), at.cancel: gr.Button(interactive=True)}
                said = {}
                await asyncio.wait([asyncio.wrap_future(job.done)], timeout=0.25)
            if page.job is not job:
                # Another run has replaced it: it has nothing more to say. (Gradio sends what was yielded last again.)
                yield self.drawing.nothing
                return
            page.job = None
            outcome = job.result()
            ended = {**said, at.status: status.render_end(outcome), at.cancel: gr.Button(interactive=False)}
            if isinstance(outcome, Failure):
                if outcome.field:
                    ended[at.problems] = form.placed({outcome.field: outcome.message})
                yield ended
            elif action.is_dated or page.compiles == turn:
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
        if job := self._pages.find(request).job:
            job.cancel()

    def on_unload(self, request: gr.Request) -> None:
        self._pages.close(request)

    def _answered(self, page: OpenPage, answer: Drawn) -> Drawn:
        """An answer, of which is kept what it shows."""
        if shown := answer.get(self._at.link):
            page.query = link.shown_query(shown)
        return answer

    def _progress(self, job: Job) -> str:
        now = job.progress
        return status.render_progress(self.session.backend, now.stage, now.before, now.seconds)
