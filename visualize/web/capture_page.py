"""The page of a capture, built from the main page's components and reachable only from this machine."""

import asyncio
import json
import threading
import urllib.parse
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gradio as gr
from markupsafe import Markup
from starlette.middleware import Middleware

from kernels.capture.reader import Capture
from kernels.evaluate.findings import Compiler
from kernels.examples import EXAMPLES
from kernels.knobs import ConfigError, knobs, read_fields
from visualize.startup import bypass_proxy, configure_logging
from visualize.views import slots
from visualize.views.capture.view import (
    EXAMPLE,
    GPU,
    TABS,
    CapturePictures,
    CaptureView,
    capture_options,
    layout,
)
from visualize.views.panel import Slots
from visualize.views.slots import PLOTLY_JS, slot
from visualize.views.state import query
from visualize.web import assets
from visualize.web.api import argument_defaults, offer_tools_alone
from visualize.web.guard import Guard, allowed_hosts, framing_sites
from visualize.web.page import (
    DRAWER,
    HEAD,
    PROBLEM,
    THEME,
    VIEW,
    add_stage,
    frame,
    glossary_dialog,
    keys,
)
from visualize.web.redraw import OpenPages, read_message, refused

# Seconds between checks of the script's modification time.
_POLL_S = 0.2


class CapturePage:
    """The event handlers of the page.

    Args:
        path: the capture.
        script: the script, with its case, as on the command line.
        recapture: captures a script with further options of record.py, or raises an exception. None if the page shows
            a capture file.
        compiler: see `findings.find`.
    """

    def __init__(
        self,
        path: Path,
        script: str,
        recapture: Callable[[str, Sequence[str]], None] | None,
        compiler: Compiler | None = None,
    ) -> None:
        self._path = path
        self._script = script
        self._recapture = recapture
        self._compiler = compiler
        self.pictures = CapturePictures(Capture(path), compiler)
        self._before: CapturePictures | None = None
        self._changed = self._modified()
        self._pages = OpenPages()
        self._problem = ""
        self._version = 0  # incremented by each capture
        # For each page, its view and the capture's version when it was drawn.
        self._drawn: dict[str, tuple[CaptureView, int]] = {}
        # Values of the script's controls that differ from the defaults, and the GPU if it was chosen on the page.
        self._chosen: dict[str, Any] = {}
        self._is_stale = False  # whether the pictures are of an earlier version of the script
        self._lock = threading.Lock()

    def on_message(self, request: gr.Request, message: object) -> str:
        """Redraw after the user changes the view or a control."""
        page = self._pages.find(request)
        page.changes += 1
        fields = dict[str, Any]()
        try:
            fields = read_message(message)
            link = fields.get("open", fields.get("follow"))
            given = (
                dict(urllib.parse.parse_qsl(str(link).removeprefix("?")))
                if link is not None
                else fields["settings"]
            )
            if self._recapture and link is None:
                self._choose(given)
            version = self._version
            # URL parameters are strings, which `read_fields` converts.
            values = {name: given[name] for name in knobs(CaptureView) if name in given}
            view = self.pictures.clip(read_fields(CaptureView, values, "the page"))
            if link is not None and "operation" not in given:
                view = self.pictures.most_wasteful(view)
            self._drawn[page.name] = view, version
            update = self._fill(view)
        except ConfigError as error:
            update = refused(error)
        return page.update(update, fields.get("number"), has_more=self._recapture is not None)

    def requests(self) -> dict[str, Any]:
        """Count the memory requests of every Triton launch in the capture, as `show --json` does."""
        return self.pictures.report().to_json()

    def mcp_requests(self) -> str:
        """Count the memory requests of every Triton launch in the capture.

        Returns JSON.

        Each entry of `launches` has the kernel, config, registers and `totals`. Its `ops` give the requests, sectors,
        ideal sectors and findings (`why`) of each source line.
        """
        return json.dumps(self.requests())

    async def on_stream(self, request: gr.Request) -> AsyncIterator[str]:
        """Watch the script, and redraw after each new capture."""
        page = self._pages.find(request)
        change = page.changes
        (view, drawn) = self._drawn.get(page.name, (CaptureView(), -1))
        while page.changes == change and self._recapture:
            await asyncio.sleep(_POLL_S)
            await asyncio.to_thread(self._refresh)
            if drawn != self._version and page.changes == change:
                drawn = self._version
                view = self.pictures.clip(view)
                yield page.update(self._fill(view))

    def _modified(self) -> tuple[int, int]:
        """Return the script's modification time in ns, and its size; zeros if there is no script."""
        path = Path(self._script.partition(":")[0])
        if not self._recapture or not path.exists():
            return 0, 0
        # Editors that first truncate a file may write it within one tick of the file system's clock.
        status = path.stat()
        return status.st_mtime_ns, status.st_size

    def _refresh(self) -> None:
        """Capture the script again if its file has changed."""
        with self._lock:
            if (changed := self._modified()) not in ((0, 0), self._changed):
                self._changed = changed
                self._capture_again()

    def _capture_again(self) -> None:
        """Replace the capture, unless the script fails before its first launch."""
        try:
            if self._recapture:
                self._recapture(self._script, capture_options(self._chosen))
            new = CapturePictures(Capture(self._path), self._compiler)
            content = new.content
            self._problem = "" if content.launches else "".join(content.not_captured[:1])
            if stopped := content.stopped:
                self._problem = (
                    f"{stopped.message} ({Path(stopped.file).name}, line {stopped.line})."
                )
            self._is_stale = bool(self._problem) and not content.launches
            if not self._is_stale:
                self._before = self.pictures
                self.pictures = new
        except Exception as error:
            self._problem = str(error)
            self._is_stale = True
        if self._is_stale:
            self._problem = (
                f"{self._problem.removesuffix('.')}. The report below is from an earlier version."
            )
        self._version += 1

    def _choose(self, given: Mapping[str, Any]) -> None:
        """Capture again if the user chose another example or changed one of the script's controls."""
        script = self._script
        chosen_gpu = given.get(GPU, self.pictures.gpu)
        with self._lock:
            gpu = (
                {GPU: chosen_gpu} if chosen_gpu != self.pictures.gpu or GPU in self._chosen else {}
            )
            if given.get(EXAMPLE) in EXAMPLES and given[EXAMPLE] != self._script:
                self._script = given[EXAMPLE]
                self._chosen = gpu
                self._changed = self._modified()
            else:
                chosen = gpu | self.pictures.chosen(given)
                if chosen == self._chosen:
                    return
                self._chosen = chosen
            self._capture_again()
            if self._script != script:
                self._before = None  # nothing to compare with

    def _fill(self, view: CaptureView) -> Slots:
        before = None
        if self._before and not self._is_stale and view.launch < len(self._before.content.launches):
            before = self._before.report().launches[view.launch]
        address = query({name: str(value) for name, value in asdict(view).items()})
        content = self.pictures.content
        link = {
            "full": address + "&picture=stale" * self._is_stale,
            "short": address,
            "title": content.script,
        }
        return {
            "settings": json.dumps(asdict(view)),
            "capture": self.pictures.form(
                view, self._chosen if self._recapture else None, self._script
            ),
            "tab": view.tab,
            "link": json.dumps(link),
            "title": Markup("<h1>{}</h1>").format(content.script),
            "about": f"{self.pictures.gpu}, Triton {content.triton}",
            "problems": slots.problems_value({"": self._problem} if self._problem else {}),
            **self.pictures.draw(view, before),
        }


def capture_blocks(page: CapturePage, mcp: bool = False) -> gr.Blocks:
    """Return the Gradio page of a capture."""
    content = page.pictures.content
    tabs = Markup("").join(VIEW.format(*tab) for tab in TABS.items())
    header = slots.row(
        slot("title"),
        slot("tab", "tabs", Markup('<nav aria-label="Views">{}</nav>').format(tabs)),
        slot("about"),
        slot("link", "link", '<button type="button" class="theme-switch">Light / dark</button>'),
        slot("drawer", content=DRAWER),
        name="header",
        classes="bar",
    )  # fmt: skip
    html = (
        frame(header, slots.form("capture", "Launch and operation"), PROBLEM, layout())
        + keys()
        + glossary_dialog()
    )
    with gr.Blocks(
        title=f"{content.script} – Tilescope", fill_width=True, analytics_enabled=False
    ) as blocks:
        add_stage(html, page.on_message, page.on_stream, base="", tours=[], needs_gpu=[])
        gr.api(page.requests, api_name="requests")
        if mcp:  # whose clients would get the repr of a dict
            gr.api(page.mcp_requests, api_name="mcp_requests")
    return blocks


def serve_capture(
    path: Path,
    script: str,
    recapture: Callable[[str, Sequence[str]], None] | None,
    compiler: Compiler | None,
    host: str,
    port: int,
    mcp: bool = False,
) -> None:
    """Serve the page of a capture until the process ends. With `mcp`, its report is also an MCP tool."""
    configure_logging()
    gr.set_static_paths([PLOTLY_JS])
    blocks = capture_blocks(CapturePage(path, script, recapture, compiler), mcp)
    guard = Middleware(
        Guard, hosts=allowed_hosts(host), frames=framing_sites(), defaults=argument_defaults(blocks)
    )
    bypass_proxy(host)
    blocks.launch(
        server_name=host, server_port=port, theme=THEME, head=HEAD + assets.HEAD,
        footer_links=["api"],
        favicon_path=assets.ICON, mcp_server=mcp, ssr_mode=False, _frontend=False,
        app_kwargs={"middleware": [guard], "routes": [assets.ROUTE]}, prevent_thread_lock=True,
    )  # fmt: skip
    if blocks.mcp_server_obj:
        offer_tools_alone(blocks.mcp_server_obj)
    blocks.block_thread()
