"""Serve the page: start Gradio, then the workers.

The log goes to stderr, one line per record: text or, with TILESCOPE_LOG=json, JSON. Each finished job is a record with
its id, stages and outcome in `fields`.
"""

import asyncio
import atexit
import concurrent.futures
import ctypes
import datetime
import functools
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import brotli
import gradio as gr
import gradio.routes
import orjson
from gradio import processing_utils
from gradio.server_messages import ProcessCompletedMessage
from gradio.state_holder import SessionState
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tilescope.declare.jit import HAS_TRITON
from tilescope.measure.pool import kill_fork_server
from tilescope.measure.session import MAX_JOBS, Session
from tilescope.results import Failure
from visualize.views.library import recordings
from visualize.views.panel import PredictionProcess
from visualize.web import assets
from visualize.web.actions import Actions
from visualize.web.api import argument_defaults, offer_tools_alone
from visualize.web.guard import (
    Guard,
    allowed_hosts,
    framing_sites,
    limit_queue,
    trust_hub_proxies,
)
from visualize.web.page import HEAD, OPENING, THEME, FirstReply, first_picture, page
from visualize.web.redraw import Redraw
from visualize.web.scripts import Scripts

# Maximum connections, maximum concurrent events, including those that wait for a slot, a worker or a sweep (most occupy
# no thread), and maximum clients that Gradio remembers.
_MAX_CLIENTS = 1000

# Idle seconds until the server closes a connection. uvicorn's default is 5 s, possibly just as a client sends its next
# request.
_KEEP_ALIVE_S = 75

# Seconds after SIGTERM before the process exits without waiting for threads and workers.
_END_DEADLINE_S = 4.0

# Environment variable with the format of the log.
LOG_FORMAT = "TILESCOPE_LOG"

# Options of mallopt(3), <malloc.h>.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8

_FOREVER = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}


async def _send_file(request: Request) -> Response:
    path = request.path_params["path"]
    if path not in assets.FILES:
        return Response("No such file.\n", 404)
    kind = "text/css" if path.endswith(".css") else "text/javascript"
    if "br" not in request.headers.get("accept-encoding", ""):
        return Response(assets.FILES[path], media_type=kind, headers=_FOREVER)
    return Response(_compress(path), media_type=kind, headers=_FOREVER | {"content-encoding": "br"})


@functools.cache
def _compress(path: str) -> bytes:
    """Compress a file better than Gradio does, in a tenth of a second at most."""
    return brotli.compress(assets.FILES[path].encode(), quality=9)


FILES = Route(f"/{assets.FOLDER}/{{path:path}}", _send_file)


def serve(
    host: str,
    port: int,
    mcp: bool,
    scripts: Scripts,
    login: tuple[str, str] | None = None,
) -> None:
    """Serve the page until the process ends.

    Workers start after the server, so that the first request does not wait for torch.

    Args:
        mcp: also serve MCP at /gradio_api/mcp/. Requires the package mcp.
        scripts: in the list of kernels.
        login: user name and password that visitors must enter.
    """
    configure_logging()
    return_large_arrays()
    # Threads that compute yield to the event loop after 1 ms instead of 5 ms.
    sys.setswitchinterval(0.001)
    trust_hub_proxies()
    skip_copies_and_searches()
    session = Session.here()
    atexit.register(session.close)

    def shut_down(*_: object) -> None:
        # Ignore further signals, which a hub may send while the workers end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # The steps below can block on a stopped process or a lock.
        timer = threading.Timer(_END_DEADLINE_S, exit_now)
        timer.daemon = True
        timer.start()
        session.close()
        # Python would first join all threads, some of which wait for a compile, and then list what Triton leaks.
        exit_now()

    def exit_now() -> None:
        kill_fork_server()
        os._exit(0)

    signal.signal(signal.SIGTERM, shut_down)
    redraw = Redraw(session, PredictionProcess(session), scripts)
    actions = Actions(redraw)
    blocks = page(redraw, actions, mcp)
    guard = Middleware(
        Guard,
        hosts=allowed_hosts(host),
        frames=framing_sites(bool(login)),
        defaults=argument_defaults(blocks),
    )
    # The picture must not appear before the login, and is not a script's.
    has_picture = not login and not scripts.opened
    first_reply = Middleware(
        FirstReply,
        picture=first_picture(session.gpu) if has_picture else "",
        is_cached=not login,
        head=assets.HEAD + ("" if login else OPENING),
    )
    bypass_proxy(host)
    blocks.launch(
        server_name=host,
        server_port=port,
        theme=THEME,
        head=HEAD,
        favicon_path=assets.ICON,
        footer_links=["api"],
        prevent_thread_lock=True,
        ssr_mode=False,
        auth=login,
        mcp_server=mcp,
        max_threads=_MAX_CLIENTS,
        state_session_capacity=_MAX_CLIENTS,
        run_history=False,
        _frontend=False,  # otherwise launch() raises if its own page takes more than 3 s to respond
        app_kwargs={
            "middleware": [guard, first_reply],
            "routes": [
                Route("/healthz", Health(session).reply),
                actions.route,
                FILES,
            ],
        },
    )
    limit_queue(blocks._queue)
    # uvicorn reads these for each connection.
    blocks.server.config.limit_concurrency = _MAX_CLIENTS
    blocks.server.config.timeout_keep_alive = _KEEP_ALIVE_S
    if blocks.mcp_server_obj:
        offer_tools_alone(blocks.mcp_server_obj)
    elif mcp:
        sys.exit(f"The MCP server did not start: {blocks.mcp_error}")
    session.warm_up()
    recordings()  # fills the cache: the first call reads all recordings (3 s)
    gc.freeze()  # a full collection would traverse the recordings for 0.4 s
    threading.Thread(target=return_memory, daemon=True).start()
    blocks.block_thread()  # until Ctrl+C
    shut_down()


def return_memory(every_s: float = 5.0) -> None:
    """Regularly return free memory to the system. glibc keeps the gaps between used blocks: 30 MB after an attack."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    while True:
        gc.collect()  # rarely runs automatically
        if trim:
            trim(0)
        time.sleep(every_s)


def skip_copies_and_searches() -> None:
    """Remove work that Gradio 6.31 does for each client and each reply, and that this page does not need.

    Gradio copies all components and their configs for each client (30 ms of CPU time), and keeps the client's last
    values. It searches each reply three times for files and Pydantic models (0.3 s for 1 MB) on the event loop, and
    encodes some with `json` (30 ms). No event of this page changes a component, the guard refuses files, and each reply
    is JSON. No upstream issue reports this.
    """

    def share_components(self: SessionState, blocks: gr.Blocks) -> None:
        self.blocks_config = blocks.default_config
        self.config_values = {}
        self.state_data = {}
        self.is_closed = False

    async def return_unchanged(data: Any, *_: Any, **__: Any) -> Any:
        return data

    SessionState.__init__ = share_components  # type: ignore[method-assign]
    SessionState._update_value_in_config = lambda *_: None  # type: ignore[method-assign]
    ProcessCompletedMessage.model_dump = lambda self: dict(self)  # type: ignore
    processing_utils.async_move_files_to_cache = return_unchanged
    processing_utils.add_root_url = lambda data, *_: data
    fast_json: Any = vars(json) | {"dumps": lambda value: orjson.dumps(value).decode()}
    gradio.routes.json = SimpleNamespace(**fast_json)  # type: ignore


class Health:
    """The endpoint /healthz of one session. At most one ping of its run worker is pending.

    Args:
        timeout_s: deadline for a ping. An idle worker responds within milliseconds, a starting one in a few seconds.
    """

    def __init__(self, session: Session, timeout_s: float = 1.0) -> None:
        self._session = session
        self._timeout_s = timeout_s
        self._began = time.monotonic()
        self._ping: concurrent.futures.Future[int | Failure] | None = None

    async def reply(self, _: Request) -> JSONResponse:
        """Reply with status 200, or with 503 if the app should be restarted.

        Fields of the reply:
            status: "ok"; "starting" while a run worker starts; "stuck" if an idle worker does not respond.
            uptime_s: seconds since the page was built.
            gpu: this machine's GPU, or null.
            backend: cuda or interpreter.
            run_worker: "ready", "busy" with a run or a sweep, "starting", "silent", "on demand" on
                ZeroGPU, or "none" without Triton.
            jobs, most_jobs: measurements in progress or queued, and their maximum.
            compiles: compiles in progress or queued.
            store: the problem with the stored results, or "".
        """
        session = self._session
        run_worker = await self._run_worker()
        status = {"silent": "stuck", "starting": "starting"}.get(run_worker, "ok")
        body = {
            "status": status,
            "uptime_s": int(time.monotonic() - self._began),
            "gpu": session.gpu.name if session.gpu else None,
            "backend": session.backend,
            "run_worker": run_worker,
            "jobs": len(session.jobs),
            "most_jobs": MAX_JOBS,
            "compiles": len(session.compilers),
            "store": session.store.problem,
        }
        return JSONResponse(body, 503 if status == "stuck" else 200)

    async def _run_worker(self) -> str:
        if not HAS_TRITON:
            return "none"
        if self._session.jobs:
            return "busy"
        if self._ping is None or self._ping.done():
            self._ping = self._session.ping_runner()
            if self._ping is None:
                return "on demand"
        pool = self._session.runner
        was_idle = pool.has_ready_worker and len(pool) == 1  # the ping
        await asyncio.wait([asyncio.wrap_future(self._ping)], timeout=self._timeout_s)
        if self._ping.done():
            return "starting" if isinstance(self._ping.result(), Failure) else "ready"
        if not pool.has_ready_worker:
            return "starting"
        return "silent" if was_idle and len(pool) == 1 and not self._session.jobs else "busy"


def bypass_proxy(host: str) -> None:
    """Exclude this page from the environment's proxy. Gradio requests its own URL at start-up, and exits on failure."""
    names = ("no_proxy", "NO_PROXY")
    parts = ",".join(os.environ.get(name, "") for name in names).split(",")
    hosts = filter(None, map(str.strip, parts))
    excluded = ",".join(dict.fromkeys([*hosts, "localhost", "127.0.0.1", "::1", host]))
    os.environ.update(dict.fromkeys(names, excluded))  # if both are set, only the first is read


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, logger, message, the record's `fields`, and a traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(
                timespec="milliseconds"
            ),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging() -> None:
    """Configure logging. Text logs contain only warnings and errors."""
    is_json = os.environ.get(LOG_FORMAT, "").strip().lower() == "json"
    stream = logging.StreamHandler(sys.stderr)
    stream.setFormatter(
        JsonLines() if is_json else logging.Formatter("%(levelname)s: %(name)s: %(message)s")
    )
    logger = logging.getLogger("tilescope")
    logger.handlers[:] = [stream]
    logger.propagate = False
    logger.setLevel(logging.INFO if is_json else logging.WARNING)


def return_large_arrays() -> None:
    """Make glibc return each large array to the system when it is freed, and keep the memory of smaller ones.

    By default, glibc raises its mmap threshold up to 32 MiB as large arrays are freed. The arrays of a large
    launch would then stay in the heap of the thread that drew it. A redraw of 512 × 512 tiles allocates dozens of
    arrays of 2 MiB. If glibc returned these, too, page faults would dominate the redraw.

    All threads share one arena. By default each has its own, which keeps the memory that it frees.
    """
    with suppress(
        AttributeError, TypeError
    ):  # musl and macOS have no mallopt, and Windows has no CDLL(None)
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, 1 << 22)
        mallopt(_TRIM_THRESHOLD, 1 << 26)
        mallopt(_ARENA_MAX, 1)
