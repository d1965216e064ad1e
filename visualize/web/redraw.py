"""Redraw the page: one message from a browser becomes a State, a snapshot, and one update of the page's slots.

Quick predictions are drawn immediately. Results of the compiler, prediction processes and running sweeps follow in a
stream, which ends when the page changes again.
"""

import asyncio
import contextvars
import itertools
import json
import threading
import urllib.parse
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import gradio as gr
import segno

from kernels.experiment import Experiment, find_kernel
from kernels.knobs import ConfigError, quote
from kernels.measuring.measurement import Job
from kernels.measuring.request_slots import charge_cpu_time
from kernels.measuring.session import MEASUREMENTS, Session
from kernels.results import Compiled, Failure
from visualize.tours import tours
from visualize.tours.guide import Guide, expand_stop
from visualize.views import compare, status
from visualize.views.opening import opening_config
from visualize.views.panel import Panel, RunAction, Slots, StreamAction, current_client
from visualize.views.prediction_process import NEAR_S, PredictionProcess
from visualize.views.prose import stage_title
from visualize.views.result.view import ResultPanel
from visualize.views.slots import DISABLED, ENABLED, OPEN, problems_value
from visualize.views.state import Snapshot, State, query, take_snapshot
from visualize.views.tabs import SETTINGS, TABS
from visualize.web.controls import apply_preset, experiment_form
from visualize.web.scripts import Scripts, ScriptState

# Maximum number of pages whose state the server keeps.
MAX_OPEN_PAGES = 1000

# Maximum characters of a message. The page sends up to 42,000, with the last run from the browser's storage.
_MAX_MESSAGE = 64_000

# Maximum characters of a link with a QR code: more than the page's addresses have. A projector could not show a larger
# code legibly.
MAX_LINK = 1200

# Maximum concurrent StreamActions. Each may wait for the compiler in a thread.
_MAX_STREAM_ACTIONS = 64

# Debounce: seconds without a change before a compile starts.
_DEBOUNCE_S = 0.2

# Seconds between two polls of a measurement or of another process, and polls between two progress messages.
_POLL_S = 0.25
_POLLS_PER_MESSAGE = 4


@dataclass(eq=False)
class OpenPage:
    """One open page.

    Attributes:
        name: its session hash.
        changes: number of its latest change. A handler that began with an earlier one has been superseded.
        updates: number of the latest update; it makes each update a new value, which Gradio delivers.
        state: its current settings; None if it shows a script.
        script: what it shows of a script; None if it shows a kernel.
        job: its running measurement.
    """

    name: str = ""
    changes: int = 0
    updates: int = 0
    state: State | None = None
    script: ScriptState | None = None
    job: Job | None = None

    def replace_job(self, job: Job | None) -> None:
        before = self.job
        self.job = job
        if before:
            before.cancel()

    def update(
        self, slots: Mapping[str, str], reply_to: object = None, has_more: bool = False
    ) -> str:
        """Return an update as JSON, the value of a Gradio output.

        Args:
            slots: new values. They may be empty, because Gradio requires an output of each event.
            reply_to: the number of the message that the update replies to.
            has_more: whether the page should request a stream: a compile, a prediction or a sweep may be running.
        """
        self.updates += 1
        message = {
            "number": self.updates,
            "reply_to": reply_to,
            "has_more": has_more,
            "slots": slots,
        }
        return json.dumps(message)  # in ASCII: other strings take two bytes per character


class OpenPages:
    """Open pages by session hash, which is the client's own choice. The least recently used page is forgotten first.

    A handler keeps the page that it began with, so that a forgotten page still gets its replies.
    """

    def __init__(self) -> None:
        self._pages: OrderedDict[str, OpenPage] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, request: gr.Request) -> OpenPage:
        """Return the page that sent a request."""
        name = str(request.session_hash)
        with self._lock:
            page = self._pages.setdefault(name, OpenPage(name))
            self._pages.move_to_end(name)
            if len(self._pages) > MAX_OPEN_PAGES:
                self._pages.popitem(last=False)
            return page

    def close(self, request: gr.Request) -> None:
        """Forget a page that was closed: cancel its measurement, and supersede all its handlers."""
        with self._lock:
            page = self._pages.pop(str(request.session_hash), None)
        if page:
            page.changes = -1
            page.replace_job(None)


class Redraw:
    """The page's event handlers, shared by all browsers.

    Attributes:
        live_s: seconds between two live updates.
    """

    live_s = 0.7

    def __init__(
        self,
        session: Session,
        predictions: PredictionProcess,
        scripts: Scripts | None = None,
    ) -> None:
        self.session = session
        self.predictions = predictions
        self.scripts = scripts or Scripts({})
        self.panels = create_panels()
        self.all_panels = [panel for panels in self.panels.values() for panel in panels]
        self.actions: dict[str, RunAction | StreamAction] = {"run": RunAction("run")}
        for panel in self.all_panels:
            self.actions |= panel.actions()
        self._result = ResultPanel()
        self._guide = Guide(session)
        self._pages = OpenPages()
        self._threads = ThreadPoolExecutor(_MAX_STREAM_ACTIONS, "action")

    # Gradio event handlers.

    @charge_cpu_time
    def on_message(self, request: gr.Request, message: object) -> str:
        """Redraw after a change of settings, a change of view or a click on a link."""
        page = self._pages.find(request)
        page.changes += 1
        change = page.changes
        # The change ended the stream of the previous state. If it is invalid, that state may have more updates.
        fields = dict[str, Any]()
        slots = Slots()
        problems = dict[str, str]()
        has_more = True
        try:
            fields = read_message(message)
            before = page.script
            page.script = self.scripts.find(fields)
            if page.script:
                has_more = self._show_script(page, page.script, before, slots)
            else:
                has_more = self._show_experiment(page, fields, slots, problems)
        except ConfigError as error:
            problems[error.field] = str(error)
        slots.setdefault("problems", problems_value(problems))
        if page.changes != change:
            slots = {}
            has_more = False
        return page.update(slots, fields.get("number"), has_more)

    def _show_script(
        self, page: OpenPage, script: ScriptState, before: ScriptState | None, slots: Slots
    ) -> bool:
        """Fill the slots with a script. Return whether `on_stream` can add to them."""
        page.state = None
        page.replace_job(None)
        slots |= self.scripts.fill(script)
        if not before or before.id != script.id:
            slots["operations-fold"] = OPEN
        return self.scripts.is_live(script)

    def _show_experiment(
        self, page: OpenPage, fields: Mapping[str, Any], slots: Slots, problems: dict[str, str]
    ) -> bool:
        """Fill the slots that a message about an experiment changes. Return whether `on_stream` can add to them.

        Raises:
            ConfigError: for the first invalid value. `slots` then lacks the picture.
        """
        if "open" in fields or "follow" in fields:
            state, invalid = self._open(fields)
            problems |= invalid
            keeps_forms = False
        else:
            state = self.read(fields, page.state)
            settings = fields["settings"]
            keeps_forms = (
                settings.get("form_of") == state.kernel.id and settings.get("preset") is None
            )
        if not keeps_forms:
            slots |= self.fill(state, fields.get("stored_run", ""))
        elif page.state and page.state.gpu != state.gpu:
            slots |= self._settings(state)
        if (
            keeps_forms
            and state.pinned
            and page.state
            and page.state.experiment != state.experiment
        ):
            # Beside the pinned run, an older run would look current.
            slots |= self._fill_run(*self.take_snapshots(state))
        page.state = state
        slots["link"] = self._link(state)
        drawing, has_more = self.draw(state)
        slots |= drawing
        return has_more

    def initial_update(self) -> str:
        """Return the update of a page without URL parameters, which a browser draws before it sends a message."""
        state = SETTINGS.state(SETTINGS.opening, self.session.gpu)
        # Without results: reading all recordings would delay the start.
        picture = draw_view(self.panels[state.view.tab], Snapshot(state), None)
        return OpenPage().update(self._settings(state) | picture)

    async def on_stream(self, request: gr.Request) -> AsyncIterator[str]:
        """Stream the open view's slower parts: compiled results, slow predictions and running sweeps."""
        page = self._pages.find(request)
        change = page.changes

        def is_current() -> bool:
            return page.changes == change

        if page.script:
            updates = self.scripts.watch(page.script, is_current)
        elif page.state:
            updates = self._stream(page, page.state, is_current)
        else:
            return
        async for slots in updates:
            if page.changes != change:
                break
            yield page.update(slots)

    async def on_action(self, request: gr.Request, message: object) -> AsyncIterator[str]:
        """Start a button's action, and stream its progress and its result."""
        page = self._pages.find(request)
        try:
            fields = read_message(message)
            name = str(fields.get("action"))
            action = self.actions.get(name)
            if name == "share":
                yield page.update({"share": qr(fields)})
            elif name == "tour":
                async for bar in self._guide.show_stop(fields):
                    yield page.update({"tour": bar})
            elif isinstance(action, RunAction):
                async for update in self._measure(page, self.read(fields), action.measurement):
                    yield update
            elif isinstance(action, StreamAction):
                async for update in self._answer(page, self.read(fields), action):
                    yield update
            else:
                raise ConfigError("no_action", f"The page has no action {quote(name)}.")
        except ConfigError as error:
            yield page.update(refused(error))

    def on_cancel(self, request: gr.Request) -> None:
        if job := self._pages.find(request).job:
            job.cancel()

    def on_unload(self, request: gr.Request) -> None:
        self._pages.close(request)

    # Drawing.

    def read(self, fields: Mapping[str, Any], before: State | None = None) -> State:
        """Return the state that a message describes.

        A new kernel or a preset replaces the previous kernel's values. If the GPU changes while the config is still the
        one that the kernel opened with, the kernel takes the new GPU's opening config.

        Args:
            before: the page's state before this message.

        Raises:
            ConfigError: for the first invalid value.
        """
        flat = fields.get("settings")
        if not isinstance(flat, dict):
            raise ConfigError("not_settings", "The page sent no settings. Reload it.")
        names = [str(flat.get(name)) for name in ("kernel", "form_of")]
        if {*names} & self.scripts.scripts.keys():
            # A script's other settings are not a kernel's. The Library shows no script.
            is_library = names[0] in self.scripts.scripts
            opened = SETTINGS.opening if is_library else {"kernel": names[0]}
            return SETTINGS.state({**opened, "tab": flat.get("tab")}, self.session.gpu)
        kernel = find_kernel(flat.get("kernel"))
        if flat.get("preset") is not None:
            flat = {
                "tab": flat.get("tab"),
                **apply_preset(flat, kernel, flat["preset"], self.session.gpu),
            }
        elif kernel.id != flat.get("form_of"):
            flat = {"tab": flat.get("tab"), **SETTINGS.change_kernel(flat, kernel.id)}
        state = SETTINGS.state(flat, self.session.gpu)
        if before and before.gpu != state.gpu:
            opened = opening_config(kernel, state.experiment.problem, before.gpu)
            if state.experiment.config == opened:
                flat = {name: value for name, value in flat.items() if name not in vars(opened)}
                return SETTINGS.state(flat, self.session.gpu)
        return state

    def _open(self, fields: Mapping[str, Any]) -> tuple[State, dict[str, str]]:
        """Read a link. An empty link opens the initial state, and invalid fields take their defaults."""
        self.predictions.warm_up()
        link = fields.get("open", fields.get("follow"))
        if not isinstance(link, str):
            raise ConfigError("not_a_link", "The page sent no link.", "")
        flat = dict(urllib.parse.parse_qsl(link.removeprefix("?")))
        # Talk mode and the embed view do not describe an experiment.
        flat = {
            name: flat[name]
            for name in flat
            if not name.startswith("__") and name not in ("talk", "embed")
        }
        described: Mapping[str, object] = flat or (SETTINGS.opening if "open" in fields else {})
        state, problems = SETTINGS.state_or_defaults(expand_stop(described), self.session.gpu)
        if (tour := flat.get("tour", "")) not in ("", *tours()):
            problems["tour"] = f"tour is {quote(tour)}; allowed are {', '.join(tours())}."
        return state, problems

    def _settings(self, state: State) -> Slots:
        return {
            "settings": json.dumps(state.to_settings(), ensure_ascii=False),
            "experiment": experiment_form(state, self.session.gpu, self.scripts.titles),
            "tab": state.view.tab,
            "run": ENABLED,
        }

    def fill(self, state: State, stored_run: object = "") -> Slots:
        """Fill all forms. Show this state's run if it is known or in the browser's storage."""
        snapshot, pinned = self.take_snapshots(state)
        slots = self._settings(state) | merge(panel.fill(snapshot) for panel in self.all_panels)
        return slots | self._fill_run(snapshot, pinned, stored_run)

    def _fill_run(
        self, snapshot: Snapshot, pinned: Snapshot | None, stored_run: object = ""
    ) -> Slots:
        run = self._result.draw_placeholder(snapshot) | self._result.draw_run(snapshot, stored_run)
        return self._pair_run(run, pinned)

    def _link(self, state: State) -> str:
        # Browsers detect other experiments' results by the full address. Talk mode shows the title.
        full = query(state.to_address())
        short = query(SETTINGS.short_address(state))
        return json.dumps(
            {"full": full, "short": short, "title": stage_title(state.experiment, state.gpu.name)}
        )

    def draw(self, state: State) -> tuple[Slots, bool]:
        """Fill the open view, except slow predictions. Also return whether `on_stream` can add to it.

        Raises:
            ConfigError: if it cannot be drawn.
        """
        panels = self.panels[state.view.tab]
        snapshots = self.take_snapshots(state)
        is_slow = draw_seconds(panels, *snapshots) > NEAR_S
        slots = (
            merge(panel.draw_predicting(snapshots[0]) for panel in panels)
            if is_slow
            else draw_view(panels, *snapshots)
        )
        has_live_updates = any(panel.has_live_updates(snapshots[0]) for panel in panels)
        return slots, is_slow or has_live_updates or bool(_missing_compiles(panels, snapshots))

    def take_snapshots(
        self, state: State, compiled: Compiled | Failure | None = None
    ) -> tuple[Snapshot, Snapshot | None]:
        """Return the snapshots of a state and of its pinned experiment."""
        pinned = state.pinned_state(self.session.gpu)
        return take_snapshot(self.session, state, compiled), take_snapshot(
            self.session, pinned
        ) if pinned else None

    def _pair_run(self, slots: Slots, pinned: Snapshot | None) -> Slots:
        """Return a run's slots, with the pinned experiment's run beside it."""
        return compare.pair_slots(slots, self._result.draw_run(pinned)) if pinned else slots

    # Streams.

    async def _stream(
        self, page: OpenPage, state: State, is_current: Callable[[], bool]
    ) -> AsyncIterator[Slots]:
        panels = self.panels[state.view.tab]
        client = current_client()
        snapshots = self.take_snapshots(state)
        if missing := _missing_compiles(panels, snapshots):
            await asyncio.sleep(_DEBOUNCE_S)
            if not is_current():
                return
            compiles = [self.session.compile(experiment, client=client) for experiment in missing]
            async for seconds in _wait(compiles, is_current):
                if waiting := merge(panel.draw_waiting(snapshots[0], seconds) for panel in panels):
                    yield waiting
            if not is_current():
                return
            outcome = self.session.find_compiled(state.experiment) or compiles[0].result()
            snapshots = self.take_snapshots(state, outcome)
        try:
            estimate_s = draw_seconds(panels, *snapshots)
            if estimate_s > NEAR_S:
                work = self.predictions.submit(
                    draw_in_process, *snapshots, client=client, estimate_s=estimate_s
                )
                async for _ in _wait([work], is_current):
                    pass
                if work.cancelled() or not is_current():
                    return
                drawing = work.result()
                if isinstance(drawing, Failure):
                    drawing = refused(ConfigError(drawing.kind, drawing.message))
                yield drawing
            elif any(panel.uses_compiler for panel in panels):
                yield await asyncio.to_thread(draw_view, panels, *snapshots)
            for panel in panels:
                if panel.has_live_updates(snapshots[0]):
                    async for slots in self._follow(
                        panel.stream_updates(snapshots[0], page.name), is_current
                    ):
                        yield slots
        except ConfigError as error:
            yield refused(error)

    async def _follow(
        self, updates: Generator[Slots, None, None], is_current: Callable[[], bool]
    ) -> AsyncIterator[Slots]:
        try:
            while (
                is_current() and (slots := await asyncio.to_thread(next, updates, None)) is not None
            ):
                yield slots
                await asyncio.sleep(self.live_s)
        finally:
            with suppress(ValueError):  # a thread is still running it, and will close it
                updates.close()

    # Actions.

    async def _answer(
        self, page: OpenPage, state: State, action: StreamAction
    ) -> AsyncIterator[str]:
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()  # for `current_client` in the thread
        answers = action.question(self.session, state, page.name)
        all_slots: Slots = {"problems": problems_value({})}

        def step() -> Slots | None:
            return context.run(next, answers, None)

        while (slots := await loop.run_in_executor(self._threads, step)) is not None:
            all_slots |= slots  # a browser may get only the latest of several updates
            yield page.update(all_slots)
        yield page.update(all_slots, has_more=True)

    async def _measure(self, page: OpenPage, state: State, measurement: str) -> AsyncIterator[str]:
        job = self.session.submit(
            state.experiment, measurement, current_client(), interprets_any_gpu=True
        )
        page.replace_job(job)
        change = page.changes
        ended = {"problems": problems_value({}), "cancel": DISABLED}
        # A run's progress and failure take the place of its card.
        place = "card" if measurement == "run" else "status"
        try:
            while not job.done.done() and page.job is job:
                now = job.progress
                progress = status.render_progress(
                    self.session.backend, now.stage, now.before, now.seconds
                )
                yield page.update({**ended, place: progress, "cancel": ENABLED})
                await asyncio.wait([asyncio.wrap_future(job.done)], timeout=_POLL_S)
                if page.changes != change:
                    ended.pop("problems", None)  # the reply to that change had its own
        except (asyncio.CancelledError, GeneratorExit):  # the page has left
            job.cancel()
            raise
        if page.job is not job:
            return  # another run has replaced it
        page.job = None
        has_more = False
        outcome = job.result()
        ended[place] = status.render_end(outcome)
        if not isinstance(outcome, Failure):
            if measurement == "run":
                ended |= await asyncio.to_thread(self._show_run, state, outcome)
            with suppress(ConfigError):  # its control shows the error already
                drawing, has_more = await asyncio.to_thread(self.draw, page.state or state)
                ended |= drawing
        elif outcome.field:
            ended["problems"] = problems_value({outcome.field: outcome.message})
        yield page.update(ended, has_more=has_more)

    def _show_run(self, state: State, outcome: Any) -> Slots:
        """Show a finished run. It names its experiment, so it appears even after a change of settings."""
        snapshot, pinned = self.take_snapshots(state)
        return self._pair_run(self._result.draw_end(outcome, snapshot), pinned)

    def missing_gpu(self) -> list[str]:
        """Return the names of the actions that need a GPU, if this machine has none."""
        runs = {
            name: action.measurement
            for name, action in self.actions.items()
            if isinstance(action, RunAction)
        }
        return [
            name
            for name in runs
            if not (self.session.gpu or MEASUREMENTS[runs[name]].is_interpreted)
        ]


async def _wait(
    futures: Sequence[Future[Any]], is_current: Callable[[], bool]
) -> AsyncIterator[float]:
    """Wait until all futures end or the page changes, then cancel them. Yield the elapsed time each second."""
    pending = {asyncio.wrap_future(future) for future in futures}
    try:
        for polls in itertools.count(1):
            _, pending = await asyncio.wait(pending, timeout=_POLL_S)
            if not pending or not is_current():
                return
            if polls % _POLLS_PER_MESSAGE == 1:
                yield polls * _POLL_S
    finally:
        for future in futures:
            future.cancel()


def read_message(message: object) -> dict[str, Any]:
    """Return a message that a browser sent.

    Raises:
        ConfigError: it is no JSON object, or too long.
    """
    try:
        fields = (
            json.loads(message)
            if isinstance(message, str) and len(message) <= _MAX_MESSAGE
            else None
        )
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        sentence = f"The message must be a JSON object of at most {_MAX_MESSAGE:,} characters (got {quote(message)})."
        raise ConfigError("not_settings", sentence)
    return fields


def qr(message: Mapping[str, Any]) -> str:
    """Return the value of the slot "share": a QR code, or "" if the message contains no link.

    Args:
        message: the page's, with the `link`.
    """
    link = str(message.get("link"))
    is_link = len(link) <= MAX_LINK and link.startswith(("http://", "https://"))
    return json.dumps({"link": link, "svg": draw_qr(link)}) if is_link else ""


def draw_qr(link: str) -> str:
    """Return a link as an SVG without a size. Scanners expect black on white, so it ignores the theme."""
    return segno.make(link, error="m", micro=False).svg_inline(
        border=4, dark="#000", light="#fff", omitsize=True
    )


def refused(error: ConfigError) -> Slots:
    """Show an error next to the control that caused it."""
    return {"problems": problems_value({error.field: str(error)})}


def merge(values: Iterable[Slots]) -> Slots:
    """Return the slots of several panels as one update."""
    return {name: value for slots in values for name, value in slots.items()}


def create_panels() -> dict[str, list[Panel]]:
    """Return new panels by the name of their tab."""
    return {tab.name: [panel() for panel in tab.panels] for tab in TABS}


def draw_seconds(panels: Sequence[Panel], snapshot: Snapshot, pinned: Snapshot | None) -> float:
    """Estimate the core seconds of `draw_view` beyond those of a small launch."""
    again = 2 if pinned else 1  # the comparison predicts the numbers of both once more
    return again * sum(
        panel.seconds(each) for each in (snapshot, pinned) if each for panel in panels
    )


def _missing_compiles(
    panels: Sequence[Panel], snapshots: Iterable[Snapshot | None]
) -> list[Experiment]:
    """Return the view's experiments that are not compiled yet."""
    if not any(panel.uses_compiler for panel in panels):
        return []
    return [
        each.state.experiment for each in snapshots if each and not (each.compiled or each.failure)
    ]


def draw_view(panels: Sequence[Panel], snapshot: Snapshot, pinned: Snapshot | None) -> Slots:
    """Fill a view's slots from a snapshot, with a pinned experiment's values beside them.

    Raises:
        ConfigError: if it cannot be drawn.
    """
    return compare.add_comparison(
        merge(panel.draw(snapshot) for panel in panels), snapshot, pinned, panels
    )


def draw_in_process(snapshot: Snapshot, pinned: Snapshot | None) -> Slots:
    """Call `draw_view` in a prediction process. If the view cannot be drawn, return a sentence that says why."""
    try:
        return draw_view(create_panels()[snapshot.state.view.tab], snapshot, pinned)
    except ConfigError as error:
        return refused(error)
