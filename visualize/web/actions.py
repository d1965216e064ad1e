"""The route of the page's messages, and its actions: the reply to a message streams updates of the page's slots."""

import asyncio
import contextvars
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import gradio as gr
import segno
from gradio.context import LocalContext
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from tilescope.declare.experiment import Json
from tilescope.declare.knobs import ConfigError, quote
from tilescope.measure.measurement import Job
from tilescope.measure.session import MEASUREMENTS
from tilescope.results import Failure
from visualize.tours import show_stop
from visualize.views import prose
from visualize.views.panel import Action, Question, Slots, current_client, failure, run_in_slot
from visualize.views.slots import DISABLED, ENABLED, REDRAW, WATCH, problems_value
from visualize.views.state import State
from visualize.web.assets import MESSAGES
from visualize.web.redraw import Redraw, refused

# Maximum characters of a link with a QR code: more than the page's addresses have. A projector could not show a larger
# code legibly.
MAX_LINK = 1200

# Maximum concurrent questions. Each may wait for the compiler in a thread.
_MAX_STREAM_ACTIONS = 64

# Seconds between two progress messages of a measurement.
_POLL_S = 0.25


# Proxies such as nginx otherwise collect a reply before they pass it on.
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class Actions:
    """Replies to the messages of all pages, and their actions, by the id of their button."""

    def __init__(self, redraw: Redraw) -> None:
        self.session = redraw.session
        self.actions: dict[str, Action] = {"run": "run"}
        for panel in redraw.all_panels:
            self.actions |= panel.actions
        self.route = Route(MESSAGES, self._reply, methods=["POST"])
        self._redraw = redraw
        self._jobs: dict[str, Job] = {}  # each page's running measurement
        self._threads = ThreadPoolExecutor(_MAX_STREAM_ACTIONS, "action")

    async def _reply(self, request: Request) -> StreamingResponse:
        message = await request.json()  # a JSON object: the guard refuses other bodies
        # `current_client` reads this, and so does ZeroGPU's hub, for the visitor's quota.
        LocalContext.request.set(gr.Request(request, session_hash=str(message.get("page"))))
        lines = self._lines(message, current_client().page)
        return StreamingResponse(lines, media_type="application/x-ndjson", headers=_HEADERS)

    async def _lines(self, message: Json, page: str) -> AsyncIterator[str]:
        try:
            if "action" in message:
                updates = self.start(message, page)
            elif WATCH in message:
                updates = self._redraw.stream(message)
            else:
                updates = once(await run_in_slot(self._redraw.change, message))
            async for slots in updates:
                yield encode(slots)
        except Exception as error:
            if not isinstance(error, ConfigError):
                error = ConfigError("internal_error", failure(error).message, "")
            yield encode(refused(error))

    def start(self, message: Json, page: str) -> AsyncIterator[Slots]:
        """Return the progress and the result of an action, which starts with the iteration.

        Args:
            message: the name of the `action`, the page's `settings`, and fields of some actions.
            page: the page's name.

        Raises:
            ConfigError: if it cannot start, also during the iteration.
        """
        name = str(message.get("action"))
        if name == "cancel":
            self._cancel(page)
            return once({})
        if name == "share":
            return self._share(message)
        if name == "tour":
            return once(show_stop(message, self.session.gpu))
        action = self.actions.get(name)
        if action is None:
            raise ConfigError("no_action", f"The page has no action {quote(name)}.")
        state = self._redraw.read(message)
        if isinstance(action, str):
            return self._measure(page, state, action)
        return self._answer(state, action)

    def _cancel(self, page: str) -> None:
        if job := self._jobs.get(page):
            job.cancel()

    async def _share(self, message: Json) -> AsyncIterator[Slots]:
        yield {"share": await run_in_slot(qr, message)}

    async def _answer(self, state: State, question: Question) -> AsyncIterator[Slots]:
        context = contextvars.copy_context()  # for `current_client` in the thread
        loop = asyncio.get_running_loop()
        answers = question(self.session, state)

        def step() -> Slots | None:
            return context.run(next, answers, None)

        while (slots := await loop.run_in_executor(self._threads, step)) is not None:
            yield {"problems": problems_value({}), **slots}
        yield {REDRAW: ""}

    async def _measure(self, page: str, state: State, measurement: str) -> AsyncIterator[Slots]:
        job = self.session.submit(
            state.experiment, measurement, current_client(), interprets_any_gpu=True
        )
        self._cancel(page)
        self._jobs[page] = job
        # A run's progress and failure take the place of its card.
        place = "card" if measurement == "run" else "status"
        try:
            yield {"problems": problems_value({}), "cancel": ENABLED}
            while not job.done.done() and self._jobs.get(page) is job:
                now = job.progress
                yield {
                    place: prose.render_progress(
                        self.session.backend, now.stage, now.before, now.seconds
                    )
                }
                await asyncio.wait([asyncio.wrap_future(job.done)], timeout=_POLL_S)
        finally:
            job.cancel()  # if the page has left
            is_latest = self._jobs.get(page) is job
            if is_latest:
                del self._jobs[page]
        if not is_latest:
            return
        outcome = job.result()
        ended = {place: prose.render_end(outcome), "cancel": DISABLED}
        if not isinstance(outcome, Failure):
            if measurement == "run":
                ended |= await asyncio.to_thread(self._redraw.end_run, state, outcome)
            ended[REDRAW] = ""
        elif outcome.field:
            ended["problems"] = problems_value({outcome.field: outcome.message})
        yield ended

    def missing_gpu(self) -> list[str]:
        """Return the names of the actions that need a GPU, if this machine has none."""
        if self.session.gpu:
            return []
        runs = [name for name, each in MEASUREMENTS.items() if not each.is_interpreted]
        return [name for name, action in self.actions.items() if action in runs]


async def once(slots: Slots) -> AsyncIterator[Slots]:
    """Yield one update."""
    yield slots


def qr(message: Json) -> str:
    """Return the value of the slot "share": a QR code, or "" if the message contains no link.

    Args:
        message: the page's, with the `link`.
    """
    link = str(message.get("link"))
    is_link = len(link) <= MAX_LINK and link.isascii() and link.startswith(("http://", "https://"))
    return json.dumps({"link": link, "svg": draw_qr(link)}) if is_link else ""


def draw_qr(link: str) -> str:
    """Return a link as an SVG without a size. Scanners expect black on white, so it ignores the theme."""
    return segno.make(link, error="m", micro=False).svg_inline(
        border=4, dark="#000", light="#fff", omitsize=True
    )


def encode(slots: Slots) -> str:
    """Return an update as a line of JSON."""
    return f"{json.dumps(slots)}\n"  # in ASCII: other strings take two bytes per character
