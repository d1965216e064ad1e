"""Serve the page: start Gradio, then the workers."""

from __future__ import annotations

import atexit
import signal
import sys

import gradio as gr
from starlette.middleware import Middleware

from kernels.measuring.session import Session
from visualize.startup import bypass_proxy, log_here, return_large_arrays
from visualize.views.plot import PLOTLY_JS
from visualize.views.theme import variables
from visualize.web import assets
from visualize.web.api import argument_defaults
from visualize.web.first_reply import FirstReply, first_picture
from visualize.web.guard import Guard, allowed_hosts, framing_sites
from visualize.web.health import HealthRoute
from visualize.web.look import HEAD, theme
from visualize.web.page import page
from visualize.web.tools import offer_tools_alone
from visualize.web.unread import bound

# Callers of whom Gradio keeps the last inputs and outputs. The page needs none of it: its state is the browser's.
_SESSIONS = 100


def serve(
    host: str, port: int, block: bool = True, mcp: bool = False, login: tuple[str, str] | None = None
) -> tuple[gr.Blocks, str]:
    """Serve on host:port, and return the blocks and the address (once closed, if `block`).

    With `mcp`, an MCP server too, at /gradio_api/mcp/. It takes the package mcp. With `login`, a name and a password,
    visitors must give these.

    Workers start after the page answers, so that the first request need not wait for torch.
    """
    log_here()
    return_large_arrays()
    session = Session.here()
    atexit.register(session.close)

    def end(*_: object) -> None:
        # Once: a hub may say so again while the workers end, and that would strike in the middle.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # First: Python waits for all threads before it calls what is registered, and some wait for a compile.
        session.close()
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    gr.set_static_paths([PLOTLY_JS])
    blocks = page(session, with_tools=mcp)
    bypass_proxy(host)
    _, address, _ = blocks.launch(
        server_name=host,
        server_port=port,
        theme=theme(),
        head=HEAD + assets.head(),
        css=variables() + assets.styles(),
        footer_links=["api"],
        prevent_thread_lock=True,
        quiet=False,
        ssr_mode=False,
        auth=login,
        mcp_server=mcp,
        state_session_capacity=_SESSIONS,
        _frontend=False,  # otherwise launch() raises if its own page takes more than 3 s to respond
        app_kwargs={
            "middleware": [
                Middleware(
                    Guard, hosts=allowed_hosts(host), frames=framing_sites(), defaults=argument_defaults(blocks)
                ),
                # What a login hides, its page does not show.
                Middleware(FirstReply, picture="" if login else first_picture(session.gpu)),
            ],
            "routes": [HealthRoute(session).route()],
        },
    )
    bound(blocks._queue)
    if blocks.mcp_server_obj:
        offer_tools_alone(blocks.mcp_server_obj)
    elif mcp:
        sys.exit(f"The MCP server did not start. {blocks.mcp_error}")
    session.warm_up()
    if block:
        blocks.block_thread()
    return blocks, address
