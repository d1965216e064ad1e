"""/healthz: the app's health, for periodic checks by a hub or a container."""

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
    """The body of a reply.

    Attributes:
        status: "ok"; "starting" while the run worker starts; "stuck" if an idle worker does not respond.
        uptime_s: seconds since the page was built.
        gpu: this machine's GPU, or null.
        backend: cuda or interpreter.
        run_worker: "ready", "busy" with a run, "starting", "silent", "on demand" on ZeroGPU, or "none" without Triton.
        jobs, most_jobs: measurements in progress or queued, and their maximum.
        compiles: compiles in progress or queued.
        store: trouble with the stored results, or "".
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
    """Reports one session's health. At most one ping of its run worker is pending.

    Args:
        patience_s: deadline for a ping. An idle worker responds within milliseconds, a starting one in a few seconds.
    """

    def __init__(self, session: Session, patience_s: float = 1.0) -> None:
        self._session, self._patience_s = session, patience_s
        self._began = time.monotonic()
        self._has_responded = False
        self._ping: concurrent.futures.Future[int | Failure] | None = None

    def route(self) -> Route:
        return Route("/healthz", self.answer)

    async def answer(self, _: Request) -> JSONResponse:
        """Reply with status 200, or with 503 if the app should be restarted."""
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
