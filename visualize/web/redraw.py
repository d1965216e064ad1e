"""Redraw the page: one message from a browser becomes a State, a snapshot, and one update of the page's slots.

Quick predictions are drawn immediately. Results of the compiler, prediction processes and running sweeps follow in a
stream, which ends when the page changes again.
"""

import asyncio
import contextvars
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import gradio as gr

from kernels import once
from kernels.experiment import find_kernel
from kernels.knobs import ConfigError, quote
from kernels.measuring.measurement import Job
from kernels.measuring.session import MEASUREMENTS, Session
from kernels.results import Compiled, Failure
from visualize.tours.guide import Guide, expand_stop
from visualize.views import address as link
from visualize.views import compare, status
from visualize.views.endpoint import current_client
from visualize.views.prediction_process import NEAR_S, PredictionProcess
from visualize.views.prose import stage_title
from visualize.views.result.view import ResultPanel
from visualize.views.slots import DISABLED, ENABLED, problems_value
from visualize.views.snapshot import Snapshot, take_snapshot
from visualize.views.state import State
from visualize.views.tabs import SETTINGS, TABS
from visualize.views.view import Panel, RunAction, Slots, StreamAction
from visualize.web.controls import experiment_form, with_preset
from visualize.web.dialogs import qr
from visualize.web.open_pages import OpenPage, OpenPages

# Maximum characters of a message. The page sends up to 42,000, with the last run from the browser's storage.
_MAX_MESSAGE = 64_000

# Maximum concurrent StreamActions. Each may wait for the compiler in a thread.
_QUESTIONS = 64

# Seconds without a change before a compile starts, seconds of compiling before the page says so, and seconds between
# live updates.
_REST_S, _ANNOUNCE_S, _LIVE_S = 0.2, 0.15, 0.7


class Redraw:
    """The page's event handlers, shared by all browsers.

    Attributes:
        live_s: seconds between two live updates.
    """

    live_s = _LIVE_S

    def __init__(self, session: Session, predictions: PredictionProcess) -> None:
        self.session, self.predictions = session, predictions
        self.panels = {tab.name: [panel() for panel in tab.panels] for tab in TABS}
        every = [panel for panels in self.panels.values() for panel in panels]
        (self.result,) = (panel for panel in every if isinstance(panel, ResultPanel))
        actions: dict[str, RunAction | StreamAction] = {"run": RunAction("run")}
        self.actions = actions | {name: action for panel in every for name, action in panel.actions().items()}
        self._guide = Guide(session)
        self._pages = OpenPages()
        self._threads = ThreadPoolExecutor(_QUESTIONS, "question")

    # Gradio event handlers.

    def on_message(self, request: gr.Request, message: object) -> str:
        """Redraw after a change of settings, a change of view or a click on a link."""
        page = self._pages.find(request)
        page.changes += 1
        change, sent = page.changes, {}
        try:
            sent = read_message(message)
            if "open" in sent or "follow" in sent:
                slots = self._open(page, sent)
            else:
                slots = self._change(page, sent)
        except ConfigError as error:
            slots = refused(error)
        if page.changes != change:
            return page.update({}, sent.get("number"))
        return page.update(slots, sent.get("number"), has_more=page.state is not None and self._has_more(page.state))

    def opening(self) -> str:
        """Return the update of a page without an address, which a browser draws before it has sent a message."""
        state = SETTINGS.state(SETTINGS.opening, self.session.gpu)
        slots: Slots = {
            "settings": json.dumps(state.to_settings(), ensure_ascii=False),
            "experiment": experiment_form(state, self.session.gpu),
            "tab": state.view.tab,
        }
        # Without results: to read all recordings would hold up the start.
        return OpenPage().update(slots | draw_view(self.panels[state.view.tab], self.result, Snapshot(state), None))

    async def on_stream(self, request: gr.Request) -> AsyncIterator[str]:
        """Stream the open view's slower parts: compiled results, slow predictions and running sweeps."""
        page = self._pages.find(request)
        change, state = page.changes, page.state
        if state is None:
            return
        async for slots in self._stream(page, state, lambda: page.changes == change):
            if page.changes != change:
                break
            yield page.update(slots)

    async def on_action(self, request: gr.Request, message: object) -> AsyncIterator[str]:
        """Start a button's action, and stream its progress and its result."""
        page = self._pages.find(request)
        sent: dict[str, Any] = {}
        try:
            sent = read_message(message)
            async for update in self._act(page, sent):
                yield update
        except ConfigError as error:
            action = self.actions.get(str(sent.get("action")))
            cleared = action.clears if isinstance(action, StreamAction) else ()
            yield page.update({**refused(error), **dict.fromkeys(cleared, "")})

    def on_cancel(self, request: gr.Request) -> None:
        if job := self._pages.find(request).job:
            job.cancel()

    def on_unload(self, request: gr.Request) -> None:
        self._pages.close(request)

    # Drawing.

    def read(self, sent: Mapping[str, Any]) -> State:
        """Return the state that a message describes.

        A new kernel or a preset replaces the previous kernel's values.

        Raises:
            ConfigError: for the first invalid value.
        """
        flat = sent.get("settings")
        if not isinstance(flat, dict):
            raise ConfigError("not_settings", "The page sent no settings. Reload it.")
        kernel = find_kernel(flat.get("kernel"))
        if flat.get("preset") is not None:
            flat = {"tab": flat.get("tab"), **with_preset(flat, kernel, flat["preset"], self.session.gpu)}
        elif kernel.id != flat.get("form_of"):
            flat = {"tab": flat.get("tab"), **SETTINGS.with_kernel(flat, kernel.id)}
        return SETTINGS.state(flat, self.session.gpu)

    def _open(self, page: OpenPage, sent: Mapping[str, Any]) -> Slots:
        """Fill the whole page from its address. An empty address opens the opening state."""
        self.predictions.warm_up()
        flat = link.fields(link.requested_link(sent, "open" if "open" in sent else "follow"))
        # Talk mode and the embed view do not describe an experiment.
        flat = {name: flat[name] for name in flat if not name.startswith("__") and name not in ("talk", "embed")}
        described: Mapping[str, object] = flat or (SETTINGS.opening if "open" in sent else {})
        page.state, sentences = SETTINGS.forgiving_state(expand_stop(described), self.session.gpu)
        return self.fill(page.state, sentences, sent.get("kept", ""))

    def _change(self, page: OpenPage, sent: Mapping[str, Any]) -> Slots:
        state = self.read(sent)
        page.state = state
        settings = sent["settings"]
        if state.kernel.id != settings.get("form_of") or settings.get("preset") is not None:
            return self.fill(state)
        return self.redraw(state)

    def fill(self, state: State, sentences: Mapping[str, str] | None = None, kept: object = "") -> Slots:
        """Fill all forms and the open view. Show this state's run if it is known or in the browser's storage."""
        snapshot = self.take_snapshot(state)
        slots: Slots = {
            "settings": json.dumps(state.to_settings(), ensure_ascii=False),
            "experiment": experiment_form(state, self.session.gpu),
        }
        for panel in (panel for panels in self.panels.values() for panel in panels):
            slots |= panel.fill(snapshot)
        run = self.result.before(snapshot) | self.result.known_run(snapshot, kept)
        if twin := self._twin(state):
            run = compare.pair_slots(run, self.result.known_run(twin))
        return {**slots, "tab": state.view.tab, **run, **self.redraw(state, sentences)}

    def redraw(self, state: State, sentences: Mapping[str, str] | None = None) -> Slots:
        """Fill the open view, the address and the sentences about bad values."""
        problems = dict(sentences or {})
        title = stage_title(state.experiment, state.gpu.name)
        slots: Slots = {"link": link.link_value(state.to_address(), SETTINGS.short_address(state), title)}
        try:
            slots |= self.draw(state)
        except ConfigError as error:
            problems[error.field] = str(error)
        return {**slots, "problems": problems_value(problems)}

    def draw(self, state: State) -> Slots:
        """Fill the open view, except slow predictions.

        Raises:
            ConfigError: if it cannot be drawn.
        """
        snapshot, twin = self.take_snapshot(state), self._twin(state)
        panels = self.panels[state.view.tab]
        if draw_seconds(panels, snapshot, twin) > NEAR_S:
            slots: Slots = {}
            for panel in panels:
                slots |= panel.predicting(snapshot)
            return slots
        return draw_view(panels, self.result, snapshot, twin)

    def take_snapshot(self, state: State, compiled: Compiled | Failure | None = None) -> Snapshot:
        return take_snapshot(self.session, state, compiled)

    def _twin(self, state: State) -> Snapshot | None:
        twin = state.pinned_state(self.session.gpu)
        return self.take_snapshot(twin) if twin else None

    def _compiles(self, state: State) -> list[Any]:
        """Return the open view's experiments that are not compiled yet."""
        if not any(panel.uses_compiler for panel in self.panels[state.view.tab]):
            return []
        shown = [state.experiment, *([state.pinned] if state.pinned else [])]
        return [each for each in shown if self.session.find_compiled(each) is None]

    def _has_more(self, state: State) -> bool:
        """Return whether `on_stream` can add to the result of `draw`."""
        if self._compiles(state):
            return True
        try:
            snapshot, panels = self.take_snapshot(state), self.panels[state.view.tab]
            is_far = draw_seconds(panels, snapshot, self._twin(state)) > NEAR_S
            return is_far or any(panel.has_live_updates(snapshot) for panel in panels)
        except ConfigError:
            return False

    async def _stream(self, page: OpenPage, state: State, is_current: Callable[[], bool]) -> AsyncIterator[Slots]:
        panels = self.panels[state.view.tab]
        outcome: Compiled | Failure | None = None
        if missing := self._compiles(state):
            await asyncio.sleep(_REST_S)
            if not is_current():
                return
            compiles = [self.session.compile(each, client=current_client()) for each in missing]
            async for slots in self._wait_for_compiles(state, compiles, is_current):
                yield slots
            if not is_current():
                return
            outcome = self.session.find_compiled(state.experiment) or compiles[0].result()
        try:
            snapshot, twin = self.take_snapshot(state, outcome), self._twin(state)
            seconds = draw_seconds(panels, snapshot, twin)
            if seconds > NEAR_S:
                async for slots in self._predict_elsewhere(snapshot, twin, seconds, is_current):
                    yield slots
            elif any(panel.uses_compiler for panel in panels):
                yield await asyncio.to_thread(draw_view, panels, self.result, snapshot, twin)
            for panel in panels:
                async for slots in self._stream_panel(panel, snapshot, page.name, is_current):
                    yield slots
        except ConfigError as error:
            yield refused(error)

    async def _wait_for_compiles(
        self, state: State, compiles: list[Future[Compiled | Failure]], is_current: Callable[[], bool]
    ) -> AsyncIterator[Slots]:
        """Wait for compiles, and yield a progress message each second. Cancel them if the page changes or closes."""
        futures = [asyncio.wrap_future(future) for future in compiles]
        began = asyncio.get_running_loop().time()
        last = -1
        try:
            _, pending = await asyncio.wait(futures, timeout=_ANNOUNCE_S)
            while pending and is_current():
                seconds = asyncio.get_running_loop().time() - began
                if int(seconds) > last:
                    last, waiting = int(seconds), Slots()
                    for panel in self.panels[state.view.tab]:
                        waiting |= panel.waiting(Snapshot(state), seconds)
                    if waiting:
                        yield waiting
                _, pending = await asyncio.wait(futures, timeout=0.25)
        finally:
            for future in futures:
                future.cancel()

    async def _predict_elsewhere(
        self, snapshot: Snapshot, twin: Snapshot | None, seconds: float, is_current: Callable[[], bool]
    ) -> AsyncIterator[Slots]:
        work = asyncio.wrap_future(
            self.predictions.submit(draw_in_process, snapshot, twin, client=current_client(), estimate_s=seconds)
        )
        try:
            while is_current() and not work.done():
                await asyncio.wait([work], timeout=0.25)
        finally:
            work.cancel()
        if work.cancelled() or not is_current():
            return
        outcome = work.result()
        if isinstance(outcome, Failure):
            outcome = ConfigError(outcome.kind, outcome.message)
        yield refused(outcome) if isinstance(outcome, ConfigError) else outcome

    async def _stream_panel(
        self, panel: Panel, snapshot: Snapshot, name: str, is_current: Callable[[], bool]
    ) -> AsyncIterator[Slots]:
        if not panel.has_live_updates(snapshot):
            return
        updates = panel.stream_updates(snapshot, name)
        try:
            while is_current():
                slots = await asyncio.to_thread(next, updates, None)
                if slots is None:
                    break
                if slots:
                    yield slots
                await asyncio.sleep(self.live_s)
        finally:
            with suppress(ValueError):  # a thread is still running it, and will close it
                updates.close()

    # Actions.

    async def _act(self, page: OpenPage, sent: Mapping[str, Any]) -> AsyncIterator[str]:
        name = str(sent.get("action"))
        if name == "share":
            yield page.update({"share": qr(sent)})
            return
        if name == "tour":
            async for bar in self._guide.show_stop(sent):
                yield page.update({"tour": bar})
            return
        action, state = self.actions.get(name), self.read(sent)
        if isinstance(action, RunAction):
            async for update in self._measure(page, state, action.measurement):
                yield update
        elif isinstance(action, StreamAction):
            answers = action.question(self.session, state, page.name)
            all_slots: Slots = {"problems": problems_value({})}
            while (slots := await self._next(answers)) is not None:
                all_slots |= slots  # a browser may get only the latest of several updates
                yield page.update(all_slots)
            yield page.update(all_slots, has_more=page.state is not None and self._has_more(page.state))
        else:
            raise ConfigError("no_action", f"The page has no action {quote(name)}.")

    async def _measure(self, page: OpenPage, state: State, measurement: str) -> AsyncIterator[str]:
        job = self.session.submit(state.experiment, measurement, current_client())
        page.replace_job(job)
        problems: Slots = {"problems": problems_value({})}
        # A run's progress and failure take the place of its card.
        place = "card" if measurement == "run" else "status"
        while not job.done.done() and page.job is job:
            yield page.update({**problems, place: self._progress(job), "cancel": ENABLED})
            await asyncio.wait([asyncio.wrap_future(job.done)], timeout=0.25)
        if page.job is not job:
            return  # another run has replaced it
        page.job = None
        outcome = job.result()
        ended: Slots = {**problems, place: status.render_end(outcome), "cancel": DISABLED}
        if isinstance(outcome, Failure):
            if outcome.field:
                ended["problems"] = problems_value({outcome.field: outcome.message})
            yield page.update(ended)
            return
        if measurement == "run":
            ended |= await asyncio.to_thread(self._show_run, state, outcome)
        current = page.state
        if current is not None:
            with suppress(ConfigError):  # the sentence stands next to the control already
                ended |= await asyncio.to_thread(self.draw, current)
        yield page.update(ended, has_more=current is not None and self._has_more(current))

    def _show_run(self, state: State, outcome: Any) -> Slots:
        """Show a finished run. It names its experiment, so it appears even after a change of settings."""
        slots = self.result.ended(outcome, self.take_snapshot(state))
        twin = self._twin(state)
        return compare.pair_slots(slots, self.result.known_run(twin)) if twin else slots

    async def _next(self, answers: Iterator[Slots]) -> Slots | None:
        """Return a StreamAction's next slots, from a thread that may wait for the compiler."""
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: context.run(next, answers, None))

    def _progress(self, job: Job) -> str:
        now = job.progress
        return status.render_progress(self.session.backend, now.stage, now.before, now.seconds)

    def missing_gpu(self) -> list[str]:
        """Return the names of the actions that need a GPU, if this machine has none."""
        if self.session.gpu is not None:
            return []
        return [
            name
            for name, action in self.actions.items()
            if isinstance(action, RunAction) and not MEASUREMENTS[action.measurement].is_interpreted
        ]


def read_message(message: object) -> dict[str, Any]:
    """Return a message that a browser sent.

    Raises:
        ConfigError: the page sends no such message.
    """
    try:
        sent = json.loads(message) if isinstance(message, str) and len(message) <= _MAX_MESSAGE else None
    except (ValueError, RecursionError):
        sent = None
    if not isinstance(sent, dict):
        raise ConfigError("not_settings", f"The message is {quote(message)}, which the page does not send.")
    return sent


def refused(error: ConfigError) -> Slots:
    """Show a sentence next to the control that caused it."""
    return {"problems": problems_value({error.field: str(error)})}


def draw_seconds(panels: list[Panel], snapshot: Snapshot, twin: Snapshot | None) -> float:
    """Estimate the core seconds of `draw_view` beyond those of a small launch."""
    again = 1 if twin is None else 2  # a pinned experiment's numbers are predicted once more for the comparison
    return again * sum(panel.seconds(one) for one in (snapshot, twin) if one for panel in panels)


def draw_view(panels: list[Panel], result: ResultPanel, snapshot: Snapshot, twin: Snapshot | None) -> Slots:
    """Fill a view's slots from a snapshot, with a pinned experiment's values beside them.

    Raises:
        ConfigError: if it cannot be drawn.
    """
    slots: Slots = {}
    for panel in panels:
        slots |= panel.draw(snapshot)
    return compare.add_comparison(slots, snapshot, twin, panels, result)


def draw_in_process(snapshot: Snapshot, twin: Snapshot | None) -> Slots | ConfigError:
    """Call `draw_view` in a prediction process."""
    panels = _panels()
    (result,) = (panel for several in panels.values() for panel in several if isinstance(panel, ResultPanel))
    try:
        return draw_view(panels[snapshot.state.view.tab], result, snapshot, twin)
    except ConfigError as error:
        return error


@once
def _panels() -> dict[str, list[Panel]]:
    return {tab.name: [panel() for panel in tab.panels] for tab in TABS}
