"""How an endpoint answers: one way validates, converts and catches for all. Each panel declares its own."""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from gradio.context import LocalContext

from kernels import discover, experiment
from kernels.experiment import Experiment, JsonSchema, resolve_gpu
from kernels.knobs import ConfigError, read_fields
from kernels.measuring.fair_queue import INTERNAL, Client
from kernels.measuring.session import MEASUREMENTS, Session
from kernels.results import Compiled, Failure, codec
from visualize.views.options import View
from visualize.views.prediction_process import NEAR_S, PredictionProcess
from visualize.views.snapshot import Known
from visualize.views.state import State

V = TypeVar("V")

# The parameter that takes an experiment.
EXPERIMENT = "experiment"

# Characters of a page's name that are kept: clients choose it.
_MAX_PAGE_NAME = 64

# What a body gives: the fields of a reply, or why there are none.
Reply = dict[str, Any] | Failure


def current_client() -> Client:
    """Return the client of the current request; INTERNAL if there is none.

    The address is the connection's, or what a proxy on this machine says (uvicorn's FORWARDED_ALLOW_IPS names other
    trusted proxies).
    """
    request = LocalContext.request.get(None)
    client = getattr(request, "client", None)
    if client is None:
        return INTERNAL
    return Client(str(client.host), str(getattr(request, "session_hash", ""))[:_MAX_PAGE_NAME])


@dataclass(frozen=True)
class Endpoint:
    """A named function of the API. Its docstring describes it to clients. Its parameter `experiment` takes one as JSON.

    Attributes:
        at_once: requests that are answered at once; None for as many as there are, where what takes long has turns
            of their own: of compiles, of predictions, of runs.
        launches: whether the kernel is launched: then how it is run is an argument.
        schemas: the JSON Schema of each other parameter, by name; what is left out has that of its type.
        is_flat: as a tool for agents it takes the experiment's fields as arguments of their own, and not as one object.
    """

    name: str
    function: Callable[..., Any]
    at_once: int | None = 4
    launches: bool = False
    schemas: Mapping[str, JsonSchema] = field(default_factory=dict)
    is_flat: bool = True


class Api:
    """The ways to answer, for the workers of one session, and for processes beside the page's."""

    def __init__(self, session: Session, predictions: PredictionProcess | None = None) -> None:
        self.session, self.predictions = session, predictions or PredictionProcess(session)
        self._going_on: dict[Client, Future[Compiled | Failure]] = {}

    async def compiled(
        self,
        payload: object,
        body: Callable[[Known], Reply],
        or_not: bool = False,
        within_s: float | None = None,
        seconds: Callable[[Known], float] = lambda known: 0.0,
    ) -> dict[str, Any]:
        """Compile, then answer with what `body` says of what is known.

        Args:
            or_not: `body` answers, too, where it can't be compiled.
            within_s: and where it is not compiled after so many seconds. The compile goes on, so that it is known when
                the same is asked again, until its client asks for another one.
            seconds: of a core that `body`, which is then one of a module, takes; what is not quick has another process.
        """
        client = current_client()
        try:
            asked = self.session.compile(from_payload(payload), client=client)
        except Exception as error:
            return to_json(failure(error))
        try:
            await asyncio.wait([asyncio.wrap_future(asked)], timeout=within_s)
        except asyncio.CancelledError:  # who asked has left
            asked.cancel()
            raise
        outcome = asked.result() if asked.done() else None
        if outcome is None:
            self._goes_on(asked, client)
        if isinstance(outcome, Failure) and not or_not:
            return to_json(outcome)
        found = await asyncio.to_thread(self._unless_far, payload, body, outcome, seconds)
        if isinstance(found, dict):
            return found
        known, needed_s = found
        work = self.predictions.submit(replied, known, body, client=client, estimate_s=needed_s)
        reply = await asyncio.wrap_future(work)
        return to_json(reply) if isinstance(reply, Failure) else reply

    def _unless_far(
        self,
        payload: object,
        body: Callable[[Known], Reply],
        outcome: Compiled | Failure | None,
        seconds: Callable[[Known], float],
    ) -> dict[str, Any] | tuple[Known, float]:
        """The reply, or what it takes to have it made by another process."""
        try:
            known = self.known(from_payload(payload), outcome)
            needed_s = seconds(known)
        except Exception as error:
            return to_json(failure(error))
        return replied(known, body) if needed_s <= NEAR_S else (known, needed_s)

    def _goes_on(self, asked: Future[Compiled | Failure], client: Client) -> None:
        """Let a compile go on that nobody waits for now; the one before of the same client has no use any more."""
        before, self._going_on[client] = self._going_on.get(client), asked
        if before is not None:
            before.cancel()

        def ended(_: object) -> None:
            if self._going_on.get(client) is asked:
                self._going_on.pop(client, None)

        asked.add_done_callback(ended)

    def predicted(
        self, payload: object, body: Callable[[Known], Reply], compiled: Compiled | Failure | None = None
    ) -> dict[str, Any]:
        """A model's reply to an experiment, with the experiment and the resolved GPU in it."""
        try:
            known = self.known(from_payload(payload), compiled)
        except Exception as error:
            return to_json(failure(error))
        return replied(known, body)

    async def measured(
        self,
        payload: object,
        measurement: str,
        body: Callable[[Any, Known], dict[str, Any]] = lambda outcome, _: codec.to_json(outcome),
    ) -> dict[str, Any]:
        """Measure, and answer with what `body` says of the outcome; by default all of it."""
        try:
            job = self.session.submit(from_payload(payload), measurement, current_client())
        except Exception as error:
            return to_json(failure(error))
        # Waits without a thread: many may wait for their turn, and the page must stay quick.
        return await asyncio.to_thread(self.outcome, await asyncio.wrap_future(job.done), body)

    def outcome(
        self, outcome: Any, body: Callable[[Any, Known], dict[str, Any]] = lambda outcome, _: codec.to_json(outcome)
    ) -> dict[str, Any]:
        """The reply to a measurement that has ended."""

        def reply() -> Reply:
            if isinstance(outcome, Failure):
                return outcome
            known = self.known(outcome.experiment)
            return {"gpu": known.state.gpu.name, **body(outcome, known)}

        return answered(reply)

    def known(self, chosen: Experiment, compiled: Compiled | Failure | None = None) -> Known:
        """What is known of an experiment, on a page that is set to nothing else."""
        kernel, gpu = discover()[chosen.kernel], resolve_gpu(chosen, self.session.gpu)
        return known(self.session, State(chosen, View(""), kernel, gpu), compiled)


def replied(known: Known, body: Callable[[Known], Reply]) -> dict[str, Any]:
    """The reply that `body` gives to what is known, with the experiment and the resolved GPU in it."""

    def reply() -> Reply:
        gpu = known.state.gpu.name
        found = body(known)
        if isinstance(found, Failure):
            return found
        return {"gpu": gpu, "experiment": replace(known.state.experiment, gpu=gpu).to_json(), **found}

    return answered(reply)


def known(session: Session, state: State, compiled: Compiled | Failure | None = None) -> Known:
    """All that is known of a state. Returns at once.

    Args:
        compiled: what compiling it came to; None to ask whether that is known.
    """
    chosen = state.experiment
    outcome = compiled or session.find_compiled(chosen)
    found = {name: one for name in MEASUREMENTS if (one := session.find_result(chosen, name)) is not None}
    measured = {name: one.value for name, one in found.items()}
    ended = {name: one.ended for name, one in found.items() if one.ended is not None}
    if isinstance(outcome, Failure):
        return Known(state, None, outcome, measured, ended, session.store, session.gpu)
    return Known(state, outcome, None, measured, ended, session.store, session.gpu)


def view_of(options: type[V], prefix: str, given: Mapping[str, object], endpoint: str) -> V:
    """Return a panel's options as an endpoint's arguments set them. Empty arguments take their defaults.

    Raises:
        ConfigError: for the first value that is not allowed, by the argument's name.
    """
    return read_fields(options, {name: value for name, value in given.items() if value}, endpoint, prefix=prefix)


def answered(body: Callable[[], Reply]) -> dict[str, Any]:
    """Call `body`; what is wrong with the arguments, and any defect of ours, becomes a failure in the reply."""
    try:
        reply = body()
    except Exception as error:
        reply = failure(error)
    return to_json(reply)


def failure(error: Exception) -> Failure:
    """A sentence for the client, never a stack trace; that of a defect of ours goes to the log."""
    if isinstance(error, ConfigError):
        return Failure("config", error.kind, str(error))
    traceback.print_exception(error)
    return Failure("config", "internal_error", f"Tilescope failed on this: {type(error).__name__}.")


def from_payload(payload: object) -> Experiment:
    """The experiment of a request."""
    return experiment.from_json(payload)


@dataclass(frozen=True)
class Plain:
    """What is JSON already, such as a long list of whole numbers, and need not be looked through."""

    json: Any


def to_json(value: Any) -> Any:
    """Plain JSON: NumPy numbers converted; NaN and infinity null, with their count beside them as `not_finite`."""
    if isinstance(value, Plain):
        return value.json
    if isinstance(value, Failure):
        return {"failure": {"stage": value.stage, "kind": value.kind, "message": value.message}}
    if isinstance(value, dict):
        plain = {str(key): to_json(item) for key, item in value.items()}
        lost = sum(_count_not_finite(item) for item in value.values())
        return {**plain, "not_finite": lost} if lost else plain
    if isinstance(value, np.ndarray):
        return value.tolist() if value.dtype.kind in "iub" else to_json(value.tolist())
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, np.generic):
        return to_json(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _count_not_finite(value: Any) -> int:
    """Numbers that became null, in `value` itself or in lists in it (an inner object counts its own)."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "iub":
        return 0
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return sum(_count_not_finite(item) for item in value)
    return int(isinstance(value, float) and not math.isfinite(value))
