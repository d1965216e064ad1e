"""/healthz: whether this app still works, for a hub or a container that asks now and then."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from dataclasses import asdict, dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from kernels.jit import HAS_TRITON
from kernels.measuring.session import MAX_JOBS, Session
from kernels.results import Failure


@dataclass(frozen=True)
class Health:
    """What is said.

    Attributes:
        status: "ok"; "starting" while the run worker does; "stuck" where an idle one does not answer.
        uptime_s: since the page was made.
        gpu: this machine's, or null.
        backend: cuda or interpreter.
        run_worker: "ready", "busy" with a run, "starting", "silent", "on demand" where a GPU is lent for
            each run, or "none" without Triton.
        jobs, most_jobs: runs and counts under way or waiting, and the most that are taken.
        compiles: under way or waiting.
        store: what is wrong with the stored results; "" where nothing is.
    """

    status: str
    uptime_s: int
    gpu: str | None
    backend: str
    run_worker: str
    jobs: int
    most_jobs: int
    compiles: int
    store: str


class HealthRoute:
    """Answers for one session. The worker is asked once at a time, however many ask us.

    Args:
        patience_s: an idle worker answers within milliseconds; one that starts, in a few seconds.
    """

    def __init__(self, session: Session, patience_s: float = 1.0) -> None:
        self._session, self._patience_s = session, patience_s
        self._began = time.monotonic()
        self._has_answered = False
        self._asked: concurrent.futures.Future[int | Failure] | None = None

    def route(self) -> Route:
        return Route("/healthz", self.answer)

    async def answer(self, _: Request) -> JSONResponse:
        """200 where the app works or is about to, 503 where it should be started anew."""
        health = await self.health()
        return JSONResponse(asdict(health), 503 if health.status == "stuck" else 200)

    async def health(self) -> Health:
        session = self._session
        run_worker = await self._run_worker()
        status = {"silent": "stuck", "starting": "starting"}.get(run_worker, "ok")
        return Health(
            status=status,
            uptime_s=int(time.monotonic() - self._began),
            gpu=session.gpu.name if session.gpu else None,
            backend=session.backend,
            run_worker=run_worker,
            jobs=len(session.jobs),
            most_jobs=MAX_JOBS,
            compiles=len(session.compilers),
            store=session.store.problem,
        )

    async def _run_worker(self) -> str:
        if not HAS_TRITON:
            return "none"
        if self._session.jobs:
            return "busy"
        if self._asked is None or self._asked.done():
            self._asked = self._session.ping_runner()
            if self._asked is None:
                return "on demand"
        with_us = asyncio.wrap_future(self._asked)
        await asyncio.wait([with_us], timeout=self._patience_s)
        if self._asked.done() and not isinstance(self._asked.result(), Failure):
            self._has_answered = True
            return "ready"
        if self._session.jobs:
            return "busy"
        return "silent" if self._has_answered else "starting"
