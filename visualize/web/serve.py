"""Serve the page: start Gradio, then the workers."""

import atexit
import signal
import sys

import gradio as gr
from starlette.middleware import Middleware
from starlette.routing import Route

from kernels.measuring.session import Session
from visualize.startup import bypass_proxy, log_here, return_large_arrays
from visualize.views.slots import PLOTLY_JS
from visualize.views.theme import variables
from visualize.web import assets
from visualize.web.api import argument_defaults
from visualize.web.first_reply import FirstReply, first_picture
from visualize.web.guard import Guard, allowed_hosts, framing_sites
from visualize.web.health import Health
from visualize.web.look import HEAD, theme
from visualize.web.page import page
from visualize.web.tools import offer_tools_alone
from visualize.web.unread import bound_unread

# Maximum clients whose last inputs and outputs Gradio keeps. The page does not use them; a reply can take megabytes.
_SESSIONS = 10


def serve(
    host: str, port: int, block: bool = True, mcp: bool = False, login: tuple[str, str] | None = None
) -> tuple[gr.Blocks, str]:
    """Serve the page, and return its blocks and its address.

    Workers start after the server, so that the first request does not wait for torch.

    Args:
        block: whether to wait until the server is closed.
        mcp: also serve MCP at /gradio_api/mcp/. Requires the package mcp.
        login: user name and password that visitors must enter.
    """
    log_here()
    return_large_arrays()
    session = Session.here()
    atexit.register(session.close)

    def end(*_: object) -> None:
        # Ignore further signals, which a hub may send while the workers end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # Before `atexit`: Python first waits for all threads, and some of them wait for a compile.
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
        head=HEAD,
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
                # The picture must not appear before the login.
                Middleware(FirstReply, picture="" if login else first_picture(session.gpu)),
            ],
            "routes": [Route("/healthz", Health(session).reply)],
        },
    )
    bound_unread(blocks._queue)
    if blocks.mcp_server_obj:
        offer_tools_alone(blocks.mcp_server_obj)
    elif mcp:
        sys.exit(f"The MCP server did not start. {blocks.mcp_error}")
    session.warm_up()
    if block:
        blocks.block_thread()
    return blocks, address
