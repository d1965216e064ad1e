"""The state that the server keeps of each open page, for a bounded number of pages."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import gradio as gr

from kernels.measuring.measurement import Job

MAX_OPEN_PAGES = 1000


@dataclass(eq=False)
class OpenPage:
    """One open page. A handler whose number is no longer the latest has been superseded.

    Attributes:
        changes, compiles, streams: numbers of its latest change, compile and stream of live updates.
        query: the address that it showed last; a compile draws only that again.
        job: the measurement that it waits for.
    """

    changes: int = 0
    compiles: int = 0
    streams: int = 0
    query: str | None = None
    job: Job | None = None

    def replace_job(self, job: Job | None) -> None:
        before, self.job = self.job, job
        if before:
            before.cancel()


class OpenPages:
    """Open pages by session hash, which is the client's own choice. The least recently used page is forgotten first.

    A handler keeps the page that it began with, so that a forgotten page still gets its replies.
    """

    def __init__(self) -> None:
        self._pages: OrderedDict[str, OpenPage] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, request: gr.Request) -> OpenPage:
        """Return the page that sent a request."""
        with self._lock:
            page = self._pages.setdefault(str(request.session_hash), OpenPage())
            self._pages.move_to_end(str(request.session_hash))
            if len(self._pages) > MAX_OPEN_PAGES:
                self._pages.popitem(last=False)
            return page

    def close(self, request: gr.Request) -> None:
        """Forget a page that was closed: cancel its measurement, and supersede all its handlers."""
        with self._lock:
            page = self._pages.pop(str(request.session_hash), None)
        if page:
            page.changes = page.compiles = page.streams = -1
            page.replace_job(None)
