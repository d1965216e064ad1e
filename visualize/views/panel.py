"""Panels: parts of a view. A panel lays out its slots, fills them from a snapshot, and declares API endpoints.

Validation, conversion to JSON and error handling of all endpoints are here.
"""

import asyncio
import inspect
import os
import threading
import traceback
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import orjson
from markupsafe import Markup

from tilescope.declare.experiment import Experiment, Json, JsonSchema, argument_schemas, resolve_gpu
from tilescope.declare.knobs import ConfigError, knobs, read_fields
from tilescope.measure.fair_queue import INTERNAL, REQUEST_SLOTS, Call, Client
from tilescope.measure.pool import Pool
from tilescope.measure.session import Session
from tilescope.numbers import Number
from tilescope.results import Compiled, Failure
from visualize.views.slots import template
from visualize.views.state import (
    Snapshot,
    State,
    View,
    explain_opening,
    open_experiment,
    take_snapshot,
)

V = TypeVar("V")

# New values by slot. A slot that is left out stays unchanged.
Slots = dict[str, str]

# (session, the page's state) → values as they become available. Raises ConfigError if it cannot start.
Question = Callable[[Session, State], Iterator[Slots]]

# The parameter that takes an experiment.
EXPERIMENT = "experiment"

# Maximum characters of a page's name, which the client chooses.
_MAX_PAGE_NAME = 64

# The result of a body: the fields of a reply, its JSON, or a Failure.
Reply = Json | bytes | Failure


def current_client() -> Client:
    """Return the client of the current request; INTERNAL if there is none.

    The address is the connection's, or the one that a trusted proxy forwards: a proxy on this machine, the hub's on a
    Space, or one that uvicorn's FORWARDED_ALLOW_IPS names.
    """
    from gradio.context import LocalContext  # a report in a file needs no Gradio

    request = LocalContext.request.get(None)
    client = getattr(request, "client", None)
    if client is None:
        return INTERNAL
    return Client(str(client.host), str(getattr(request, "session_hash", ""))[:_MAX_PAGE_NAME])


# Maximum core seconds of a prediction in the page's process.
NEAR_S = 0.3

# Maximum estimate of a prediction that may use the reserved process.
_SHORT_S = 2.0

_PROCESSES = 2


class PredictionProcess:
    """A pool of processes for predictions of large launches, which take seconds and up to 1.2 GB.

    The page's process makes quick predictions itself, because a slider must not wait for another process.

    Attributes:
        warm_up_after_s: seconds from the first page view to the first process, so that the browser draws first.
    """

    warm_up_after_s = 3.0

    def __init__(self, session: Session) -> None:
        self.pool = Pool(
            "model", session.cache, _PROCESSES, (__name__, "visualize.web.redraw"), _SHORT_S
        )
        self._timer: threading.Timer | None = None
        session.before_close(self._close)

    def warm_up(self) -> None:
        """Start a process in the background, so that the first prediction need not wait 3 to 5 s for imports.

        Later calls do nothing.
        """
        if self._timer is None:
            self._timer = threading.Timer(
                self.warm_up_after_s, self.pool.submit, (Call("model", os.getpid),)
            )
            self._timer.daemon = True
            self._timer.start()

    def submit(
        self,
        function: Callable[..., V],
        snapshot: Snapshot,
        *args: Any,
        client: Client,
        estimate_s: float,
    ) -> Future[V | Failure]:
        """Call function(snapshot, *args) in another process. Cancel the returned future to give up.

        Args:
            function: a module-level function.
            args: hashable values.
        """
        identities = (
            arg.identity if isinstance(arg, Snapshot) else arg for arg in (snapshot, *args)
        )
        call = Call("model", function, (snapshot, *args), (function, *identities))
        return self.pool.submit(call, client, estimate_s)

    def _close(self) -> None:
        if self._timer:
            self._timer.cancel()
        self.pool.close()


@dataclass(frozen=True)
class NoOptions:
    """The options of most endpoints."""


@dataclass(frozen=True)
class Endpoint:
    """A named function of the API.

    Attributes:
        function: takes the Api and the arguments; its parameter `experiment` takes a JSON object. Its docstring is the
            description for clients.
        options: a dataclass of knobs, each of which is an argument; "" stands for its default. The function's parameter
            `options` takes an instance.
        launches: whether it launches the kernel. If not, its MCP tool has no `run` fields.
        others: JSON Schemas of arguments that are neither the experiment nor knobs.
        is_flat: as an MCP tool, it takes the experiment's fields as separate arguments.
    """

    name: str
    function: Callable[..., Any]
    options: type = NoOptions
    launches: bool = False
    others: Mapping[str, JsonSchema] = field(default_factory=dict)
    is_flat: bool = True

    @property
    def arguments(self) -> dict[str, tuple[Any, JsonSchema]]:
        """The default and the schema of each argument. The experiment has another schema, and may have no default."""
        _, *parameters = inspect.signature(self.function).parameters.values()
        own = {each.name: each.default for each in parameters if each.name != "options"}
        defaults = own | {name: knob.default for name, knob in knobs(self.options).items()}
        schemas = {**argument_schemas(self.options), **self.others, EXPERIMENT: {}}
        return {name: (default, schemas[name]) for name, default in defaults.items()}

    async def call(self, api: "Api", arguments: Json) -> orjson.Fragment:
        """Reply to a client with JSON text. An exception becomes a failure in the reply."""
        declared = knobs(self.options)
        given = {name: value for name, value in arguments.items() if name not in declared}
        try:
            if declared:
                chosen = {
                    name: arguments[name]
                    for name in declared
                    if arguments.get(name) not in ("", None)
                }
                given["options"] = read_fields(self.options, chosen, f"/{self.name}")
            if inspect.iscoroutinefunction(self.function):
                reply = await asyncio.to_thread(encode, await self.function(api, **given))
            else:
                reply = await run_in_slot(lambda: encode(self.function(api, **given)))
        except Exception as error:
            reply = encode(failure(error))
        return orjson.Fragment(reply)


class Api:
    """Replies to requests, with one session's workers and with prediction processes."""

    def __init__(self, session: Session, predictions: PredictionProcess | None = None) -> None:
        self.session = session
        self.predictions = predictions or PredictionProcess(session)
        self._unfinished: dict[Client, Future[Compiled | Failure]] = {}

    async def reply_compiled(
        self,
        payload: object,
        body: Callable[[Snapshot], Reply],
        allow_failure: bool = False,
        within_s: float | None = None,
        seconds: Callable[[Snapshot], float] = lambda snapshot: 0.0,
    ) -> Reply:
        """Compile, then reply with `body` of the snapshot.

        Args:
            allow_failure: also call `body` if compilation fails.
            within_s: deadline after which `body` is called without the compiled kernel. The compile continues for
                later requests, until its client requests another one.
            seconds: estimates the core time of `body`. A slow body runs in another process, so it must be a
                module-level function.
        """
        experiment = self.read(payload)
        client = current_client()
        compile_ = self.session.compile(experiment, client=client)
        try:
            await asyncio.wait([asyncio.wrap_future(compile_)], timeout=within_s)
        except asyncio.CancelledError:  # the client has left
            compile_.cancel()
            raise
        compiled = compile_.result() if compile_.done() else None
        if compiled is None:  # of a client's unfinished compiles, only the latest continues
            if before := self._unfinished.pop(client, None):
                before.cancel()
            self._unfinished[client] = compile_
            compile_.add_done_callback(lambda _: self._unfinished.pop(client, None))
        if isinstance(compiled, Failure) and not allow_failure:
            return compiled
        snapshot = await run_in_slot(self.take_snapshot, experiment, compiled)
        estimate_s = seconds(snapshot)
        if estimate_s <= NEAR_S:
            return await run_in_slot(build_reply, snapshot, body)
        work = self.predictions.submit(
            build_reply, snapshot, body, client=client, estimate_s=estimate_s
        )
        return await asyncio.wrap_future(work)  # cancels the prediction if the client leaves

    def reply_predicted(self, payload: object, body: Callable[[Snapshot], Reply]) -> Reply:
        """Reply with `body` of the snapshot, without compiling."""
        return build_reply(self.take_snapshot(self.read(payload)), body)

    async def reply_measured(
        self,
        payload: object,
        measurement: str,
        body: Callable[[Any, Snapshot], Json],
    ) -> Reply:
        """Measure, and reply with `body` of the result and the snapshot."""
        job = self.session.submit(self.read(payload), measurement, current_client())
        try:
            # Occupies no thread while the job is queued
            await asyncio.wait([asyncio.wrap_future(job.done)])
        except asyncio.CancelledError:  # the client has left
            job.cancel()
            raise
        outcome: Any = job.result()
        if isinstance(outcome, Failure):
            return outcome

        def reply() -> Reply:
            snapshot = self.take_snapshot(outcome.experiment)
            return build_reply(snapshot, partial(body, outcome))

        return await asyncio.to_thread(reply)

    def read(self, payload: object) -> Experiment:
        """Read an endpoint's experiment."""
        return open_experiment(payload, self.session.gpu)

    def take_snapshot(
        self, chosen: Experiment, compiled: Compiled | Failure | None = None
    ) -> Snapshot:
        """Return everything known about an experiment, with default options."""
        return take_snapshot(
            self.session, State(chosen, View(""), resolve_gpu(chosen, self.session.gpu)), compiled
        )


def reply_endpoint(
    name: str, method: Callable[..., Awaitable[Reply]], body: Callable[..., Reply], **how: Any
) -> Endpoint:
    """Return an endpoint that replies with `body`, whose docstring describes it.

    Args:
        method: `Api.reply_compiled` or `Api.reply_measured`.
        how: further arguments of the method.
    """

    async def function(api: Api, experiment: Json) -> Reply:
        return await method(api, experiment, body=body, **how)

    function.__doc__ = body.__doc__
    return Endpoint(name, function, launches=method is Api.reply_measured)


def build_reply(snapshot: Snapshot, body: Callable[[Snapshot], Reply]) -> Reply:
    """Return `body` of a snapshot with its experiment and GPU, and why the experiment has the offered config."""
    try:
        fields = body(snapshot)
    except Exception as error:  # a prediction process would report a ConfigError as a bug
        return failure(error)
    gpu = snapshot.state.gpu.name
    experiment = replace(snapshot.state.experiment, gpu=gpu).to_json()
    if not isinstance(fields, dict):
        return fields
    note = explain_opening(snapshot.state.kernel, snapshot.state.launch)
    about = {"config_note": note} if note else {}
    return encode({"gpu": gpu, "experiment": experiment, **about, **fields})


async def run_in_slot(function: Callable[..., V], *args: Any) -> V:
    """Call a function in a slot, for the current client."""
    return await asyncio.wrap_future(REQUEST_SLOTS.submit(current_client(), function, *args))


def failure(error: Exception) -> Failure:
    """Return the failure to send to the client. Log the stack trace of a bug."""
    if isinstance(error, ConfigError):
        return Failure("config", error.kind, str(error))
    traceback.print_exception(error)
    return Failure(
        "config", "internal_error", f"Tilescope had an internal error: {type(error).__name__}."
    )


def encode(reply: Any) -> bytes:
    """Return a reply as JSON. Its values would take ten times the memory."""
    if isinstance(reply, bytes):
        return reply
    return orjson.dumps(
        to_json(reply), default=np.ndarray.tolist, option=orjson.OPT_SERIALIZE_NUMPY
    )


def to_json(value: Any) -> Any:
    """Return a value as orjson expects it. NaN and infinity become null; `not_finite` next to them counts them."""
    if isinstance(value, Failure):
        return {"failure": select_fields(value, "stage", "kind", "message")}
    if isinstance(value, dict):
        plain = {str(key): to_json(item) for key, item in value.items()}
        nulls = sum(map(_count_not_finite, value.values()))
        return {**plain, "not_finite": nulls} if nulls else plain
    return [to_json(item) for item in value] if isinstance(value, list | tuple) else value


def select_fields(value: object, *names: str) -> Json:
    """Return some fields of a value by name, for JSON."""
    return {name: getattr(value, name) for name in names}


def _count_not_finite(value: Any) -> int:
    """Count the numbers that become null in a value or its lists. Inner objects count their own."""
    if isinstance(value, list | tuple):
        return sum(map(_count_not_finite, value))
    if isinstance(value, float | np.floating | np.ndarray) and np.asarray(value).dtype.kind == "f":
        return int(np.count_nonzero(~np.isfinite(value)))
    return 0


# A button's action: the name of one of `session.MEASUREMENTS`, whose result becomes part of the snapshot, or a question
# whose result arrives in parts, for example because it takes several compiles.
Action = str | Question


def merge(values: Iterable[Slots]) -> Slots:
    """Return the slots of several panels as one update."""
    return {name: value for slots in values for name, value in slots.items()}


class Panel:
    """A panel of the page. It holds no state of a browser.

    Attributes:
        layout: the template of its HTML, with slots (see `templates`).
        options: the dataclasses of knobs that are its part of the View.
        actions: its actions by the name of their button.
        endpoints: its endpoints in the API.
        uses_compiler: whether its picture changes once the kernel is compiled.
        uses_inspection: whether it needs an inspection of the programs.
        tries_changes: whether it shows the times with changes.
        is_compared: whether a pinned experiment's values appear next to its own.
    """

    layout: ClassVar[str]
    options: ClassVar[tuple[type, ...]] = ()
    actions: Mapping[str, Action] = {}
    endpoints: tuple[Endpoint, ...] = ()
    uses_compiler: ClassVar[bool] = True
    uses_inspection: ClassVar[bool] = False
    tries_changes: ClassVar[bool] = False
    is_compared: ClassVar[bool] = True

    def render_layout(self) -> Markup:
        return template(self.layout)(panel=self)

    def draw(self, snapshot: Snapshot) -> Slots:
        """Fill its slots. Its view is open.

        Raises:
            ConfigError: if it cannot be drawn, with the field that caused it.
        """
        return {}

    def draw_pinned(self, pinned: Snapshot, snapshot: Snapshot) -> Slots:
        """Fill its slots from the pinned experiment, which is shown beside `snapshot`."""
        return self.draw(pinned)

    def seconds(self, snapshot: Snapshot) -> float:
        """Estimate the core seconds of `draw` beyond those of a small launch."""
        return 0.0

    def draw_waiting(self, snapshot: Snapshot, seconds: float) -> Slots:
        """Fill its slots during a compile that began `seconds` ago."""
        return {}

    def has_live_updates(self, snapshot: Snapshot) -> bool:
        """Return whether something is running that `stream_updates` draws.

        Raises:
            ConfigError: if it cannot be drawn.
        """
        return False

    def stream_updates(self, snapshot: Snapshot) -> Generator[Slots, None, None]:
        """Draw what is running until it ends: {} if nothing has changed since the last value."""
        yield from ()

    def fill(self, snapshot: Snapshot) -> Slots:
        """Fill its forms with the View."""
        return {}

    def summary(self, snapshot: Snapshot) -> tuple[Number, ...]:
        """Return the numbers that are compared with a pinned experiment's.

        Raises:
            ConfigError: if it cannot be drawn.
        """
        return ()
