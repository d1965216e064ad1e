"""Who asks: the client of the request that is being answered."""

from __future__ import annotations

from gradio.context import LocalContext

from kernels.measuring.turns import OURS, Client

# Characters of a page's name that are kept: it is the client's own choice.
_LONGEST = 64


def asker() -> Client:
    """The client whose request is being answered; this process itself outside of one.

    The address is that of the connection, or what a proxy on this machine says (uvicorn's FORWARDED_ALLOW_IPS names
    other proxies that are believed).
    """
    request = LocalContext.request.get(None)
    client = getattr(request, "client", None)
    if client is None:
        return OURS
    return Client(str(client.host), str(getattr(request, "session_hash", ""))[:_LONGEST])
