"""A uvicorn HTTP protocol that limits the connections of each address and the time to receive a request's headers."""

import asyncio
import resource
from collections import Counter
from contextlib import suppress
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# Seconds to receive a request's headers, and idle seconds until the server closes a connection.
HEADER_DEADLINE_S, KEEP_ALIVE_S = 10.0, 75

# Maximum open connections, unless the limit of open files is lower, and file descriptors reserved for other uses.
MAX_CONNECTIONS, _RESERVED_FILES = 4096, 256


class Connection(H11Protocol):
    """A connection to a client. It is closed if its address has too many, or if headers do not arrive in time."""

    _open: ClassVar = Counter[str]()
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._open[self._address] += 1
        limit = max_connections()
        if len(self.connections) > limit or self._open[self._address] > limit // 2:
            transport.abort()
        else:
            self._deadline = self.loop.call_later(HEADER_DEADLINE_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._end_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_DEADLINE_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_deadline()
        self._open[self._address] -= 1
        if not self._open[self._address]:
            del self._open[self._address]
        super().connection_lost(exc)

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def max_connections() -> int:
    """Return the maximum number of open connections, given this process's limit of open files."""
    return max(1, min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVED_FILES))


def raise_file_limit() -> None:
    """Raise this process's limit of open files as far as MAX_CONNECTIONS needs and the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = MAX_CONNECTIONS + _RESERVED_FILES
    if soft < enough:
        with suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough if hard < 0 else min(enough, hard), hard))
