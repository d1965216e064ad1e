"""The sweep of the Tune view: its options, its picture and rows as it runs, and the endpoints /sweep and /history."""

import asyncio
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from tilescope.compiling.estimates import estimate_time
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import GPU_CHOICES, Experiment, Json, JsonSchema, from_json
from tilescope.declare.gpus import Gpu
from tilescope.declare.knobs import ConfigError, knob
from tilescope.declare.space import (
    MAX_NEARBY,
    Space,
    nearby_values,
    parse_varied,
    space,
)
from tilescope.measure.session import MEASUREMENTS, Session
from tilescope.results import Device, Sweep, SweepRow
from tilescope.results.store import ResultFilter, Store, StoredResult, StoredSweep, experiment_key
from tilescope.search.sweep_run import SweepRun, estimate_seconds, initial_rows
from tilescope.search.trial import concurrent_compiles
from tilescope.search.tune import Sweeps
from visualize.views import slots
from visualize.views.library import ALL, address
from visualize.views.panel import (
    Api,
    Endpoint,
    Panel,
    Slots,
    select_fields,
)
from visualize.views.slots import CLOSED, DISABLED, ENABLED, NONE, OPEN, plot_value
from visualize.views.state import Snapshot, State, query
from visualize.views.tune import text
from visualize.views.tune.figures import heatmap_figure, problems_figure

# An estimate takes 2 ms, except for configs that differ only in GROUP_SIZE, and each change of the problem estimates
# all configs again.
MAX_ESTIMATED = 400

# Limits of /sweep: the page and the command line, which can be cancelled, take more. At 1.9 s per compile, this many
# configs take six minutes on one core. In the interpreter a config takes up to 20 s.
MAX_CONFIGS_PER_CALL = MAX_NEARBY
MAX_CALL_S = 600.0

# Maximum number of problems in the figure of problems.
MAX_PROBLEMS = 30
_POLL_S = 0.2


@dataclass(frozen=True)
class SweepOptions:
    """The knobs that vary."""

    of_kernel = True

    sweep_vary: str = knob(
        "", "Sweep", "Knobs and their values: BLOCK_M=64,128 num_warps=4,8. Empty: tiles around the current one.",
        longest=400, label="Knobs",
    )  # fmt: skip


def swept_space(state: State) -> Space:
    """Return the space that the options describe.

    Raises:
        ConfigError: for the field `sweep_vary`.
    """
    varied = state.view.of(SweepOptions).sweep_vary
    try:
        vary = (
            parse_varied([varied], "sweep_vary")
            if varied.strip()
            else nearby_values(state.experiment)
        )
        return space(state.experiment, vary)
    except ConfigError as error:
        raise ConfigError(error.kind, str(error), "sweep_vary") from None


STORE_OFF = "Results are lost when the server stops: TILESCOPE_DB is off."


@dataclass(frozen=True)
class HistoryOptions:
    """The options of /history, which select the results of a reply."""

    kernel: str = knob(ALL, "", "The measured kernel.", choices=(ALL, *discover()))
    device: str = knob(ALL, "", "The device's own name.", longest=100)
    kind: str = knob(ALL, "", "The kind of measurement.", choices=(ALL, *MEASUREMENTS))
    limit: int = knob(50, "", "Maximum number of results in a reply.", low=1, high=500)
    # Up to JavaScript's largest integer.
    before: int = knob(
        0, "", "Only results before the result of this number; 0: the latest.", low=0, high=2**53
    )


class SweepPanel(Panel):
    """A sweep of the current settings, redrawn as it runs.

    Attributes:
        max_call_s: seconds after which a call of /sweep gets the rows so far.
    """

    # "sweep-instead" replaces the plot if there is nothing to draw.
    layout = """
{{ slot("sweep-headline") }}
<div id="sweep-row" class="row">
{{ button("sweep-start", "Sweep", " primary") }}{{ button("sweep-cancel", "Cancel", is_enabled=false) }}
{{ slot("sweep-progress") }}
</div>
<div class="row picture">
{{ plot("sweep-plot", "The configs of the sweep, by time") }}{{ slot("sweep-instead") }}
</div>
{% call fold("sweep-problems-fold", "The same configs on other problems") %}
{{ slot("sweep-problems-text") }}{{ plot("sweep-problems-plot", "Configs by problem") }}
{% endcall %}
{% call fold("sweep-search-fold", "Options: values to try") %}{{ form("sweep-form", "Values to try") }}{% endcall %}
{% call fold("sweep-ranking", "Configs, the best first") %}{{ slot("sweep-table") }}{% endcall %}
{% call fold("sweep-take", "Export: triton.Config lines") %}{{ slot("sweep-lines") }}{% endcall %}
"""
    options = (SweepOptions,)
    uses_compiler = False
    is_compared = False
    max_call_s = MAX_CALL_S

    def __init__(self) -> None:
        self.sweeps = Sweeps()
        self.actions = {"sweep-start": self._start, "sweep-cancel": self._cancel}
        self.endpoints = (
            Endpoint("sweep", self.reply, launches=True, others=VARY, is_flat=False),
            Endpoint("history", history, options=HistoryOptions),
        )

    def fill(self, snapshot: Snapshot) -> Slots:
        view = snapshot.state.view
        has_values = bool(view.of(SweepOptions).sweep_vary)
        return {
            "sweep-form": slots.form_value(slots.controls(SweepOptions), view.to_address()),
            "sweep-search-fold": OPEN if has_values else CLOSED,
        }

    def draw(self, snapshot: Snapshot) -> Slots:
        state = snapshot.state
        space = swept_space(state)
        sweep = self.sweeps.find(snapshot.store, space, state.gpu)
        if sweep is not None and (sweep.ranked or sweep.ended != "cancelled"):
            headline = text.sweep_headline(sweep)
            advice = text.ended_hint(sweep)
        else:
            advice = text.NOT_SWEPT if sweep is None else text.CANCELLED_EARLY
            sweep = plan_sweep(space, state.gpu)
            count = len(sweep.rows) - sweep.count("set aside")
            seconds = estimate_seconds(count, concurrent_compiles())
            headline = text.plan_headline(sweep, seconds, has_times=snapshot.here == state.gpu)
        instead = Markup() if sweep.ranked else text.NO_RESULT
        return {
            "sweep-headline": headline,
            "sweep-instead": instead,
            **_draw_rows(sweep, state),
            **self._draw_problems(snapshot.store, space, state),
            **self._draw_progress(state, instead or advice),
        }

    def _draw_problems(self, store: Store, space: Space, state: State) -> Slots:
        """Draw all problems with a sweep of the same configs, by this page or by `tilescope tune`."""
        spaces: dict[Any, Space] = {}
        for stored in store.sweeps(MAX_PROBLEMS, (space.base.kernel,)):
            other = stored.swept_space
            if other and _without_sizes(other) == _without_sizes(space):
                spaces.setdefault(other.base.problem, other)  # the latest comes first
        found = (self.sweeps.find(store, other, state.gpu) for other in spaces.values())
        swept = [sweep for sweep in found if sweep and sweep.has_times]
        sweeps = sorted(
            [sweep for sweep in swept if sweep.is_timed] or swept,
            key=lambda sweep: tuple(vars(sweep.experiment.problem).values()),
        )
        command = text.tune_command(space)
        if len(sweeps) < 2:
            return {"sweep-problems-text": text.tune_hint(command), "sweep-problems-plot": NONE}
        about = text.sweep_caption(sweeps[0])
        return {
            "sweep-problems-text": text.short_list_text(sweeps, command),
            "sweep-problems-plot": plot_value(problems_figure(sweeps), about=about),
        }

    def _draw_progress(self, state: State, hint: str = "") -> Slots:
        """Draw the running sweep's progress, or `hint` if no sweep is running."""
        run = self._running(state)
        if run is None:
            return {"sweep-progress": hint, "sweep-cancel": DISABLED}
        now = run.progress
        cancel = DISABLED if now.phase == "cancelled" else ENABLED
        return {"sweep-progress": text.progress(now), "sweep-cancel": cancel}

    def _running(self, state: State) -> SweepRun | None:
        return self.sweeps.running(swept_space(state), state.gpu)

    def has_live_updates(self, snapshot: Snapshot) -> bool:
        return self._running(snapshot.state) is not None

    def stream_updates(self, snapshot: Snapshot) -> Generator[Slots, None, None]:
        before: tuple[SweepRun, int] | None = None
        while (run := self._running(snapshot.state)) is not None:
            now = run, run.changes
            yield self._draw_progress(snapshot.state) if now == before else self.draw(snapshot)
            before = now
        yield self.draw(snapshot)

    def _start(self, session: Session, state: State) -> Iterator[Slots]:
        """Start a sweep unless these settings' sweep is running. Resume an interrupted one, but not a finished one."""
        if self._running(state) is None:
            space = swept_space(state)
            latest = self.sweeps.find(session.store, space, state.gpu)
            has_ended = latest is not None and latest.ended in ("complete", "budget", "patience")
            self.sweeps.start(session, space, from_scratch=has_ended)
        yield self.draw(Snapshot(state, store=session.store, here=session.gpu))

    def _cancel(self, session: Session, state: State) -> Iterator[Slots]:
        is_running = self._running(state) is not None
        if is_running:
            self.sweeps.cancel()
        status = text.CANCELLING if is_running else text.NOTHING_TO_CANCEL
        yield {"sweep-progress": status, "sweep-cancel": DISABLED}

    async def reply(self, api: Api, experiment: Json, vary: Json | None = None) -> Json:
        """Finds the fastest config of a kernel among all combinations of some values. Takes minutes, 10 at most.

        `rows`: each config, the best first; without a GPU by `predicted_ms`. Configs that can't launch have a `reason`.
        """
        space = space_of_call(api.read(experiment), vary)
        run = await asyncio.to_thread(self.sweeps.start, api.session, space)
        deadline = time.monotonic() + self.max_call_s
        try:
            # Poll: a blocked thread would delay the app's exit.
            while self.sweeps.running(space, run.gpu) is run:
                await asyncio.sleep(_POLL_S)
                if time.monotonic() > deadline:
                    run.cancel()
        except asyncio.CancelledError:  # the client has left
            await asyncio.to_thread(run.cancel)
            raise
        return await asyncio.to_thread(build_reply, run.result())


def plan_sweep(space: Space, gpu: Gpu) -> Sweep:
    """Return the order that the model expects before any compile; no order for more than MAX_ESTIMATED configs."""
    initial = initial_rows(
        space, gpu, False, estimate_time if space.size <= MAX_ESTIMATED else lambda *_: None, ()
    )
    is_estimated = any(row.estimate for row in initial)
    rows = [
        # Configs without an estimate beside others are not expected to fit on an SM
        replace(row, status="set aside" if is_estimated and not row.estimate else "predicted")
        if row.status == "not tried"
        else row
        for row in initial
    ]
    device = Device("predicted", gpu.name, torch="", triton="")
    return Sweep(space, device, tuple(rows), None, "running", 0.0)


def _without_sizes(space: Space) -> Json:
    """Return a space's JSON without its GPU, the sizes of its problem, and its own values of the varied knobs."""
    payload = space.to_json()
    experiment = payload["experiment"]
    experiment.pop("gpu", None)  # the store's rows name theirs
    problem, config = experiment["problem"], experiment["config"]
    experiment["problem"] = {n: value for n, value in problem.items() if isinstance(value, str)}
    experiment["config"] = {n: value for n, value in config.items() if n not in payload["vary"]}
    return payload


def _draw_rows(sweep: Sweep, state: State) -> Slots:
    lines = ""
    picture = NONE
    varied = dict(sweep.space.varied)
    current = state.short_address(sweep_vary=text.varied_text(sweep.space)).items()
    others = {name: value for name, value in current if name not in varied}

    def address(row: SweepRow) -> str:
        return query({**others, **row.experiment.short_address()})

    if sweep.ranked:
        words = [text.point_label(row, sweep) for row in sweep.rows]
        meta = {"words": words, "addresses": list(map(address, sweep.rows))}
        zoom = str(sweep.space.identity)
        picture = plot_value(heatmap_figure(sweep), zoom, meta, about=text.sweep_caption(sweep))
        lines = text.config_lines(sweep)
    table = text.ranking_table(sweep, address)
    return {"sweep-plot": picture, "sweep-table": table, "sweep-lines": lines}


# /sweep

VARY: dict[str, JsonSchema] = {
    "vary": {
        "type": "object",
        "additionalProperties": {"type": "array", "items": {"type": "integer"}},
        "description": f"Values by knob of the config; {MAX_CONFIGS_PER_CALL} combinations at most. "
        "Default: tiles near its own.",
    },
}


def space_of_call(base: Experiment, vary: object) -> Space:
    """Return the space that a call of /sweep describes.

    Raises:
        ConfigError: for the argument `vary`.
    """
    if not isinstance(vary, Mapping | None):
        message = 'vary must be a JSON object of lists, such as {"BLOCK_M": [64, 128]}.'
        raise ConfigError("not_an_object", message, "vary")
    within = space(
        base, {str(name): values for name, values in (vary or nearby_values(base)).items()}
    )
    if within.size > MAX_CONFIGS_PER_CALL:
        message = f"The values give {within.size:,} configs; /sweep takes at most {MAX_CONFIGS_PER_CALL}. Vary fewer "
        raise ConfigError(
            "too_many_configs", f"{message}values, or use the page or tilescope tune.", "vary"
        )
    return within


def build_reply(sweep: Sweep) -> dict[str, Any]:
    """Return the body of /sweep: the best config first, then the configs without a result in grid order."""
    gpu = sweep.rows[0].device
    best = sweep.best
    return {
        "gpu": gpu,
        "experiment": replace(sweep.experiment, gpu=gpu).to_json(),
        "vary": {name: list(values) for name, values in sweep.space.varied},
        "strategy": {"budget": sweep.budget, "patience": None},
        "device": vars(sweep.device),
        "rows": [text.row_json(row, sweep) for row in text.rows_by_rank(sweep)],
        "best": replace(best.experiment, gpu=gpu).to_json() if best else None,
        "triton_config": best.experiment.config_line() if best else None,
        "baselines": [vars(ratio) for ratio in sweep.baselines],
        **select_fields(sweep, "backend", "ended", "seconds", "note"),
    }


# /history


def history(api: Api, experiment: Json | None = None, *, options: HistoryOptions) -> Json:
    """Lists this machine's stored results, latest first.

    `history` has, per result, the kind, experiment, device, versions, UTC time, median with 20th and 80th
    percentile, the library's time divided by the median, the check, and the page's address. With an experiment, it
    lists only that experiment's results. `sweeps` lists sweeps. `next` is the `before` of the next page.
    """
    base = from_json(experiment) if experiment else None
    keys = {name: experiment_key(m.form.key(base)) for name, m in MEASUREMENTS.items() if base}
    chosen = select_fields(options, "kind", "kernel", "device").items()
    allowed = {name: (value,) for name, value in chosen if value != ALL}
    selected = ResultFilter(**allowed, key=tuple(keys.values()))
    store = api.session.store
    results = store.latest(selected, options.limit, options.before)
    sweeps = store.sweeps(options.limit, (base.kernel,) if base else selected.kernel)
    return {
        "total": store.count(selected),
        "limit": options.limit,
        "next": results[-1].number if len(results) == options.limit else None,
        "history": list(map(_result_json, results)),
        "sweeps": [
            _sweep_json(sweep, space)
            for sweep in sweeps
            if (space := sweep.swept_space)
            and not space.base.is_case
            and (base is None or space.base.problem == base.problem)
        ],
        "problem": store.problem if store.path else STORE_OFF,
    }


def _result_json(result: StoredResult) -> Json:
    experiment = result.experiment
    link = None
    if experiment:
        # The GPU that ran it, if the GPU table has that GPU.
        is_listed = result.backend == "cuda" and result.gpu in GPU_CHOICES
        experiment = replace(experiment, gpu=result.gpu if is_listed else "")
        measurement = MEASUREMENTS.get(result.kind)
        link = address(experiment, measurement.form.word if measurement else "")
    return {
        **select_fields(result, "kind", "kernel", "gpu", "device", "backend", "torch", "triton"),
        "experiment": experiment and experiment.short_json(),
        "ended": result.ended.isoformat(),
        **result.summary,
        "address": link,
    }


def _sweep_json(sweep: StoredSweep, space: Space) -> Json:
    tab = {"tab": "sweep", "sweep_vary": text.varied_text(space)}
    return {
        "experiment": space.base.short_json(),
        "vary": {name: list(values) for name, values in space.varied},
        **select_fields(sweep, "gpu", "triton", "done", "total", "best_ms", "ended"),
        "began": sweep.began.isoformat(),
        "address": query({**space.base.short_address(), **tab}),
    }
