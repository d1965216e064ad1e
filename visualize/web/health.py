"""/healthz: the app's health, for periodic checks by a hub or a container."""

import asyncio
import concurrent.futures
import time

from starlette.requests import Request
from starlette.responses import JSONResponse

from kernels.jit import HAS_TRITON
from kernels.measuring.session import MAX_JOBS, Session
from kernels.results import Failure


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
