"""The state that the server keeps of each open page, for a bounded number of pages."""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import gradio as gr

from kernels.measuring.measurement import Job
from visualize.views.state import State

MAX_OPEN_PAGES = 1000


@dataclass(eq=False)
class OpenPage:
    """One open page.

    Attributes:
        name: its session hash.
        changes: number of its latest change. A handler that began with an earlier one has been superseded.
        updates: number of the latest update; it makes each update a new value, which Gradio delivers.
        state: its current settings.
        job: its running measurement.
    """

    name: str = ""
    changes: int = 0
    updates: int = 0
    state: State | None = None
    job: Job | None = None

    def replace_job(self, job: Job | None) -> None:
        before, self.job = self.job, job
        if before:
            before.cancel()

    def update(self, slots: Mapping[str, str], reply_to: object = None, has_more: bool = False) -> str:
        """Return an update as JSON, the value of a Gradio output.

        Args:
            slots: new values. They may be empty, because Gradio requires an output of each event.
            reply_to: the number of the message that the update replies to.
            has_more: whether the page should request a stream: a compile, a prediction or a sweep is still running.
        """
        self.updates += 1
        message = {"number": self.updates, "reply_to": reply_to, "has_more": has_more, "slots": dict(slots)}
        return json.dumps(message, ensure_ascii=False)


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
