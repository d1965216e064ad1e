"""Serve the page: start Gradio, then the workers."""

import asyncio
import atexit
import concurrent.futures
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from typing import Any

import gradio as gr
from gradio import processing_utils
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from kernels.jit import HAS_TRITON
from kernels.measuring.pool import kill_fork_server
from kernels.measuring.session import MAX_JOBS, Session
from kernels.results import Failure
from visualize.startup import bypass_proxy, log_here, return_large_arrays
from visualize.views.slots import PLOTLY_JS
from visualize.views.theme import variables
from visualize.web import assets
from visualize.web.api import argument_defaults, offer_tools_alone
from visualize.web.first_reply import FirstReply, first_picture
from visualize.web.guard import (
    KEEP_ALIVE_S,
    Connection,
    Guard,
    allowed_hosts,
    bound_queue,
    framing_sites,
    raise_file_limit,
)
from visualize.web.page import HEAD, THEME, page

# Maximum clients whose last inputs and outputs Gradio keeps. The page does not use them; a reply can take megabytes.
_SESSIONS = 10

# Maximum events that run or wait for a turn, a worker or a sweep; most of them occupy no thread.
_MAX_EVENTS = 1000

# Number of glibc's parameter for the number of arenas (malloc.h).
_M_ARENA_MAX = -8

# Seconds after SIGTERM until the process ends without waiting for threads and workers.
_END_DEADLINE_S = 4.0


def serve(host: str, port: int, mcp: bool = False, login: tuple[str, str] | None = None) -> None:
    """Serve the page until the process ends.

    Workers start after the server, so that the first request does not wait for torch.

    Args:
        mcp: also serve MCP at /gradio_api/mcp/. Requires the package mcp.
        login: user name and password that visitors must enter.
    """
    log_here()
    return_large_arrays()
    # A thread that computes yields to the event loop after this many seconds instead of 0.005.
    sys.setswitchinterval(0.001)
    raise_file_limit()
    share_arenas()
    processing_utils.async_move_files_to_cache = _leave_files_out
    session = Session.here()
    atexit.register(session.close)

    def end(*_: object) -> None:
        # Ignore further signals, which a hub may send while the workers end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # A stopped process or a lock may block everything below.
        timer = threading.Timer(_END_DEADLINE_S, end_now)
        timer.daemon = True
        timer.start()
        # Before `atexit`: Python first waits for all threads, and some of them wait for a compile.
        session.close()
        sys.exit(0)

    def end_now() -> None:
        kill_fork_server()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    gr.set_static_paths([PLOTLY_JS])
    blocks = page(session, with_tools=mcp)
    guard = Middleware(Guard, hosts=allowed_hosts(host), frames=framing_sites(), defaults=argument_defaults(blocks))
    # The picture must not appear before the login.
    first_reply = Middleware(FirstReply, picture="" if login else first_picture(session.gpu), is_cached=not login)
    bypass_proxy(host)
    blocks.launch(
        server_name=host,
        server_port=port,
        theme=THEME,
        head=HEAD,
        css=variables() + assets.styles(),
        favicon_path=assets.ICON,
        footer_links=["api"],
        prevent_thread_lock=True,
        ssr_mode=False,
        auth=login,
        mcp_server=mcp,
        state_session_capacity=_SESSIONS,
        max_threads=_MAX_EVENTS,
        _frontend=False,  # otherwise launch() raises if its own page takes more than 3 s to respond
        app_kwargs={"middleware": [guard, first_reply], "routes": [Route("/healthz", Health(session).reply)]},
    )
    bound_queue(blocks._queue)
    # uvicorn reads these for each connection. By default it closes idle ones after 5 s, when a client may be sending.
    blocks.server.config.http_protocol_class, blocks.server.config.timeout_keep_alive = Connection, KEEP_ALIVE_S
    if blocks.mcp_server_obj:
        offer_tools_alone(blocks.mcp_server_obj)
    elif mcp:
        sys.exit(f"The MCP server did not start. {blocks.mcp_error}")
    session.warm_up()
    blocks.block_thread()


def share_arenas() -> None:
    """Let all threads share two of glibc's arenas. By default, each thread's own keeps what the thread has freed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


async def _leave_files_out(data: Any, *_: Any, **__: Any) -> Any:
    """Replace Gradio's search for files in all inputs and replies: the guard refuses files, and no reply has one.

    Gradio 6.31 searches twice, node by node, on the event loop: 0.2 s for a reply of a megabyte.
    """
    return data


class Health:
    """Reports one session's health. At most one ping of its run worker is pending.

    Args:
        patience_s: deadline for a ping. An idle worker responds within milliseconds, a starting one in a few seconds.
    """

    def __init__(self, session: Session, patience_s: float = 1.0) -> None:
        self._session, self._patience_s = session, patience_s
        self._began = time.monotonic()
        self._has_responded = False
        self._ping: concurrent.futures.Future[int | Failure] | None = None

    async def reply(self, _: Request) -> JSONResponse:
        """Reply with status 200, or with 503 if the app should be restarted.

        Fields of the reply:
            status: "ok"; "starting" while the run worker starts; "stuck" if an idle worker does not respond.
            uptime_s: seconds since the page was built.
            gpu: this machine's GPU, or null.
            backend: cuda or interpreter.
            run_worker: "ready", "busy" with a run, "starting", "silent", "on demand" on ZeroGPU, or "none" without
                Triton.
            jobs, most_jobs: measurements in progress or queued, and their maximum.
            compiles: compiles in progress or queued.
            store: trouble with the stored results, or "".
        """
        session, run_worker = self._session, await self._run_worker()
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
        await asyncio.wait([asyncio.wrap_future(self._ping)], timeout=self._patience_s)
        if self._ping.done() and not isinstance(self._ping.result(), Failure):
            self._has_responded = True
            return "ready"
        if self._session.jobs:
            return "busy"
        return "silent" if self._has_responded else "starting"
