"""The sweep of the Tune view: its options, its pictures and rows as it runs, and /sweep."""

import asyncio
import itertools
import math
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from markupsafe import Markup

from tilescope.compiling.estimated_time import estimate_time
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Experiment, JsonSchema, argument_schemas
from tilescope.declare.gpus import Gpu
from tilescope.declare.knobs import ConfigError, knob, knobs, quote
from tilescope.declare.space import MAX_CONFIGS, Space, parse_varied, space
from tilescope.export.script import config_line
from tilescope.measure.session import Session
from tilescope.results import Device, Strategy, Sweep, SweepRow
from tilescope.results.sweep import STRATEGIES
from tilescope.search import files
from tilescope.search.devices import concurrent_compiles
from tilescope.search.sweep_run import SweepRun, estimate_seconds, initial_rows
from visualize.views import slots
from visualize.views.panel import (
    Api,
    Endpoint,
    Panel,
    Slots,
    StreamAction,
    read_options,
    select_fields,
)
from visualize.views.slots import (
    CLOSED,
    DISABLED,
    ENABLED,
    NONE,
    OPEN,
    button,
    fold,
    plot,
    plot_value,
    slot,
)
from visualize.views.state import PINNED, Snapshot, State, pin_text, query
from visualize.views.tables import save_file
from visualize.views.tune import figures, text
from visualize.views.tune.history import history_endpoint
from visualize.views.tune.shared_sweeps import SharedSweeps
from visualize.views.tune.text import KNOBS, RankingView

AUTO = "auto"
PICTURES = ("heatmap", "convergence", "library")
_HEATMAP = ("sweep_picture", ("heatmap",))

# An estimate takes 2 ms, except for configs that differ only in GROUP_SIZE, and each change of the problem estimates
# all configs again.
MAX_ESTIMATED = 400

# Each size takes as long as a sweep.
MAX_SIZES = 12

# Limits of /sweep: the page and the command line, which can be cancelled, take more. At 1.9 s per compile, this many
# configs take six minutes on one core. In the interpreter a config takes up to 20 s.
MAX_CONFIGS_PER_CALL = 200
MAX_CALL_S = 600.0
_POLL_S = 0.2
_CALLS = itertools.count()


@dataclass(frozen=True)
class SweepOptions:
    """The knobs and sizes that vary, and the picture of the sweep."""

    of_kernel = True

    sweep_vary: str = knob(
        "", "Sweep", "Knobs and their values: BLOCK_M=64,128 num_warps=4,8. Empty: tiles around the current one.",
        longest=400, label="Knobs",
    )  # fmt: skip
    sweep_over: str = knob(
        "", "Sweep", "A dimension and its sizes, each with its own sweep: K=512,1024. Empty: the current shape.",
        longest=200, label="Sizes",
    )  # fmt: skip
    sweep_picture: str = knob(
        "heatmap", "Sweep", "heatmap: two knobs, the best of the others. "
        "convergence: fastest so far. library: its time over the best, by size.",
        choices=PICTURES, label="Picture",
    )  # fmt: skip
    sweep_x: str = knob(
        AUTO,
        "Sweep",
        "The knob on the heatmap's horizontal axis.",
        choices=(AUTO, *KNOBS),
        only_with=_HEATMAP,
        label="Across",
    )
    sweep_y: str = knob(
        AUTO,
        "Sweep",
        "The knob on the heatmap's vertical axis.",
        choices=(AUTO, *KNOBS),
        only_with=_HEATMAP,
        label="Up",
    )


@dataclass(frozen=True)
class SweepSearch:
    """How a space is searched."""

    sweep_strategy: str = knob(
        "guided", "Sweep", "guided: in the expected order, ends early. grid: all, in order. random: all, shuffled.",
        choices=STRATEGIES, label="Strategy",
    )  # fmt: skip
    sweep_budget: int = knob(
        0, "Sweep", "Maximum number of configs to time. 0: no limit.", low=0, high=MAX_CONFIGS, stops="powers",
        label="Budget",
    )  # fmt: skip
    sweep_seed: int = knob(
        0,
        "Sweep",
        "The seed of the random order.",
        low=0,
        high=999,
        only_with=("sweep_strategy", ("random",)),
        label="Seed",
    )

    @property
    def strategy(self) -> Strategy:
        seed = self.sweep_seed if self.sweep_strategy == "random" else 0
        return Strategy(self.sweep_strategy, seed, self.sweep_budget or None)


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
            else default_values(state.experiment)
        )
        return space(state.experiment, vary)
    except ConfigError as error:
        raise ConfigError(error.kind, str(error), "sweep_vary") from None


def swept_sizes(state: State) -> tuple[str, dict[int, Space]]:
    """Return the dimension that the options vary, and the space of each size, ascending; ("", {}) if there is none.

    Raises:
        ConfigError: for the field `sweep_over` or `sweep_vary`.
    """
    over = state.view.of(SweepOptions).sweep_over
    own = swept_space(state)
    if not over.strip():
        return "", {}
    problem = own.base.problem
    dimensions = {
        name: declared
        for name, declared in knobs(type(problem)).items()
        if declared.choices is None
    }
    try:
        values = parse_varied([over], "sweep_over")
        name, *others = values
        if others or name not in dimensions:
            takes = f"one of {', '.join(dimensions)} and its sizes, as in {list(dimensions)[-1]}=512,1024"
            raise ConfigError("not_a_dimension", f"sweep_over is {quote(over)}; it takes {takes}.")
        sizes = sorted({int(dimensions[name].validate(name, value)) for value in values[name]})
        if len(sizes) > MAX_SIZES:
            raise ConfigError(
                "too_many_sizes", f"{len(sizes)} sizes are given; at most {MAX_SIZES} are allowed."
            )
    except ConfigError as error:
        raise ConfigError(error.kind, str(error), "sweep_over") from None
    problems = {size: replace(problem, **{name: size}) for size in sizes}
    return name, {
        size: replace(own, base=replace(own.base, problem=sized))
        for size, sized in problems.items()
    }


def heatmap_axes(
    options: SweepOptions, varied: Mapping[str, tuple[int | str, ...]]
) -> tuple[str, str]:
    """Return the heatmap's knobs, across and up: the chosen ones if they vary, else those with the most values."""
    longest = sorted(varied, key=lambda name: -len(varied[name]))
    x = (
        options.sweep_x
        if options.sweep_x in varied
        else next((n for n in longest if n != options.sweep_y), longest[0])
    )
    return x, options.sweep_y if options.sweep_y in varied else next(
        (n for n in longest if n != x), x
    )


class SweepPanel(Panel):
    """A sweep of the current settings, redrawn as it runs.

    Attributes:
        max_call_s: seconds after which a call of /sweep gets the rows so far.
    """

    options = (SweepOptions, SweepSearch, RankingView)
    uses_compiler = False
    is_compared = False
    max_call_s = MAX_CALL_S

    def __init__(self) -> None:
        self.sweeps = SharedSweeps()

    def layout(self) -> Markup:
        start = button("sweep-start", "Sweep", primary=True)
        cancel = button("sweep-cancel", "Cancel", is_enabled=False)
        form = slots.form("sweep-form", "Values to try, search, picture")
        restart = slots.row(button("sweep-again", "Sweep again, ignoring stored rows"))
        save = slots.row(button("sweep-json", "The sweep as JSON"))
        return (
            slot("sweep-headline")
            + slots.row(start, cancel, slot("sweep-progress"), name="sweep-row")
            # "sweep-instead" replaces the plot if there is nothing to draw.
            + slots.picture(
                plot("sweep-plot", "The configs of the sweep, by time"), slot("sweep-instead")
            )
            + fold("sweep-search-fold", "Options: values to try, search, picture", form, restart)
            + fold("sweep-ranking", "All configs, the best first", slot("sweep-table"))
            + fold(
                "sweep-take",
                "Export: triton.Config lines, JSON",
                slot("sweep-lines"),
                save,
            )
        )

    def actions(self) -> Mapping[str, StreamAction]:
        return {
            "sweep-start": StreamAction(self._start),
            "sweep-again": StreamAction(partial(self._start, from_scratch=True)),
            "sweep-cancel": StreamAction(self._cancel),
            "sweep-json": StreamAction(partial(self._save, False)),
            "ranking-csv": StreamAction(partial(self._save, True)),
        }

    def fill(self, snapshot: Snapshot) -> Slots:
        options = snapshot.state.view.of(SweepOptions)
        is_set = bool(options.sweep_vary or options.sweep_over)
        return {
            "sweep-form": _form(snapshot.state),
            "sweep-search-fold": OPEN if is_set else CLOSED,
        }

    def draw(self, snapshot: Snapshot) -> Slots:
        return {
            **self._draw(snapshot),
            "sweep-form": _form(snapshot.state, swept_space(snapshot.state)),
        }

    def _draw(self, snapshot: Snapshot) -> Slots:
        """Draw the sweep, its plan, or the sizes; all slots except the form."""
        state = snapshot.state
        store = snapshot.store
        name = snapshot.state.view.of(SweepOptions).sweep_picture
        space = swept_space(state)
        (dimension, sizes) = swept_sizes(state)
        if sizes and name == "library":
            sweeps = {size: self.sweeps.find(store, sizes[size], state.gpu) for size in sizes}
            return {
                **_draw_sizes(state, dimension, sweeps),
                **self._draw_progress(state, text.SIZES_HINT),
            }
        sweep = self.sweeps.find(store, space, state.gpu)
        if sweep is not None and (sweep.ranked or sweep.ended != "cancelled"):
            headline = text.sweep_headline(sweep)
            advice = text.CLICK_HINT
        else:
            advice = text.NOT_SWEPT if sweep is None else text.CANCELLED_EARLY
            sweep = plan_sweep(space, state.gpu)
            count = len(sweep.rows) - sweep.count("set aside")
            budget = state.view.of(SweepSearch).sweep_budget
            seconds = estimate_seconds(min(count, budget or count), concurrent_compiles())
            headline = text.plan_headline(sweep, seconds, has_times=snapshot.here == state.gpu)
        instead = text.explain_no_picture(sweep, name)
        return {
            "sweep-headline": headline,
            "sweep-instead": instead,
            **_draw_rows(sweep, state, has_picture=not instead),
            **self._draw_progress(state, instead or advice),
        }

    def _draw_progress(self, state: State, hint: str = "") -> Slots:
        """Draw the running sweep's progress; without one, `hint`."""
        run = self._running(state)
        if run is None:
            return {"sweep-progress": hint, "sweep-cancel": DISABLED}
        dimension, _ = swept_sizes(state)
        size = f"{dimension} {getattr(run.space.base.problem, dimension):,}" if dimension else ""
        return {"sweep-progress": text.progress(run.progress, size), "sweep-cancel": ENABLED}

    def _running(self, state: State) -> SweepRun | None:
        spaces = [swept_space(state), *swept_sizes(state)[1].values()]
        return next(
            (run for space in spaces if (run := self.sweeps.running(space, state.gpu))), None
        )

    def has_live_updates(self, snapshot: Snapshot) -> bool:
        return self._running(snapshot.state) is not None

    def stream_updates(self, snapshot: Snapshot, page: str) -> Generator[Slots, None, None]:
        before: tuple[SweepRun, int] | None = None
        with self.sweeps.watched(page):
            while (run := self._running(snapshot.state)) is not None:
                now = run, run.changes
                yield self._draw_progress(snapshot.state) if now == before else self._draw(snapshot)
                before = now
        yield self._draw(snapshot)

    def _start(
        self, session: Session, state: State, page: str, from_scratch: bool = False
    ) -> Iterator[Slots]:
        spaces = list(swept_sizes(state)[1].values()) or [swept_space(state)]
        if len(spaces) > 1 and not from_scratch:  # skip finished sizes, unless all are finished
            sweeps = {space: self.sweeps.find(session.store, space, state.gpu) for space in spaces}
            spaces = [
                space for space, sweep in sweeps.items() if sweep is None or sweep.final is None
            ] or spaces
        self.sweeps.start(session, spaces, state.view.of(SweepSearch).strategy, page, from_scratch)
        yield {
            **self._draw(Snapshot(state, store=session.store, here=session.gpu)),
            "sweep-search-fold": CLOSED,
        }

    def _cancel(self, session: Session, state: State, page: str) -> Iterator[Slots]:
        left = (
            text.say_left(self.sweeps.leave(page))
            if self._running(state)
            else text.NOTHING_TO_CANCEL
        )
        yield {"sweep-progress": left, "sweep-cancel": DISABLED}

    def _save(self, is_csv: bool, session: Session, state: State, page: str) -> Iterator[Slots]:
        space = swept_space(state)
        sweep = self.sweeps.find(session.store, space, state.gpu) or plan_sweep(space, state.gpu)
        if is_csv:
            yield text.ranking_table(sweep).save(text.rows_by_rank(sweep), state)
        else:
            yield save_file("tilescope_sweep.json", files.format_sweep(".json", sweep))

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def sweep(
            experiment: dict[str, Any],
            vary: dict[str, Any] | None = None,
            strategy: str = "guided",
            seed: int = 0,
            budget: int = 0,
        ) -> dict[str, Any]:
            """Finds the fastest config of a kernel among all combinations of some values. Takes minutes, 10 at most.

            `rows`: each config, the best first; without a GPU by `predicted_ms`. What can't launch has a `reason`.
            """
            search = {"strategy": strategy, "seed": seed, "budget": budget}
            options = read_options(SweepSearch, "sweep_", search, "/sweep")
            space = space_of_call(api.read(experiment), vary)
            name = f"/sweep {next(_CALLS)}"
            with self.sweeps.watched(name):
                run = await asyncio.to_thread(
                    self.sweeps.start, api.session, [space], options.strategy, name
                )
                deadline = time.monotonic() + self.max_call_s
                try:
                    while not run.has_ended:  # poll: a blocked thread would delay the app's exit
                        await asyncio.sleep(_POLL_S)
                        if time.monotonic() > deadline and self.sweeps.leave(name):
                            break  # the sweep continues for its other watchers
                except asyncio.CancelledError:  # the client has left
                    await asyncio.to_thread(self.sweeps.leave, name)
                    raise
                sweep = run.result() if run.has_ended else run.snapshot()
            return await asyncio.to_thread(build_reply, sweep)

        return (
            Endpoint("sweep", sweep, launches=True, schemas=SCHEMAS, is_flat=False),
            history_endpoint(api.session),
        )


def plan_sweep(space: Space, gpu: Gpu) -> Sweep:
    """Return the order that the model expects before any compile; none for more than MAX_ESTIMATED configs."""
    initial = initial_rows(
        space, gpu, False, estimate_time if space.size <= MAX_ESTIMATED else lambda *_: None, ()
    )
    rows = (
        replace(row, status="predicted") if row.status == "not tried" else row for row in initial
    )
    device = Device("predicted", gpu.name, torch="", triton="")
    return Sweep(space, Strategy(), "predicted", device, tuple(rows), None, "running", 0.0)


def _form(state: State, space: Space | None = None) -> str:
    """Return the form's value. With a space, it offers the varied knobs as axes, and its values as the default."""
    fields = {
        field["name"]: field
        for kind in (SweepOptions, SweepSearch)
        for field in slots.controls(kind)
    }
    if space:
        fields["sweep_vary"]["placeholder"] = text.varied_text(space)
        for axis in ("sweep_x", "sweep_y"):
            fields[axis]["choices"] = [AUTO, *(name for name, _ in space.varied)]
    return slots.form_value(list(fields.values()), state.view.to_address())


def _draw_rows(sweep: Sweep, state: State, has_picture: bool) -> Slots:
    lines = ""
    picture = NONE
    varied = dict(sweep.space.varied)
    current = state.short_address(sweep_vary=text.varied_text(sweep.space)).items()
    others = {name: value for name, value in current if name not in varied}

    def address(row: SweepRow) -> str:
        return query({**others, **row.experiment.short_address()})

    if has_picture:
        options = state.view.of(SweepOptions)
        name = options.sweep_picture
        axes = heatmap_axes(options, varied) if name == "heatmap" else ()
        words = [text.point_label(row, sweep) for row in sweep.rows]
        meta = {"words": words, "addresses": list(map(address, sweep.rows))}
        figure = getattr(figures, f"{name}_figure")(sweep, *axes)
        zoom = f"{name} {axes} {sweep.space.identity}"
        picture = plot_value(figure, zoom, meta, about=text.sweep_caption(sweep))
    if sweep.best:
        pinned = state.link(**{PINNED: pin_text(sweep.best.experiment)})
        lines = text.config_lines(sweep, address(sweep.best), pinned)
    table = text.ranking_table(sweep).render(text.rows_by_rank(sweep), state, address)
    return {"sweep-plot": picture, "sweep-table": table, "sweep-lines": lines}


def _draw_sizes(state: State, dimension: str, sweeps: Mapping[int, Sweep | None]) -> Slots:
    """Draw the best config at each size against the library."""
    timed = [(size, sweep) for size, sweep in sweeps.items() if sweep and sweep.baselines]
    picture = NONE
    if timed:
        first = timed[0][1]
        zoom = f"library {[size for size, _ in timed]} {timed[0][1].space.identity}"
        picture = plot_value(
            figures.baselines_figure(dimension, timed), zoom, about=text.sweep_caption(first)
        )
    table = text.sizes_table(
        dimension, sweeps, lambda size: state.link(**{dimension: size, "sweep_picture": ""})
    )
    headline = text.sizes_headline(dimension, len(sweeps), timed)
    tables: Slots = {
        "sweep-instead": "" if timed else table,
        "sweep-table": table,
        "sweep-lines": "",
    }
    return {"sweep-headline": headline, "sweep-plot": picture, **tables}


# /sweep

SCHEMAS: dict[str, JsonSchema] = {
    "vary": {
        "type": "object",
        "additionalProperties": {"type": "array", "items": {"type": "integer"}},
        "description": f"Values by knob of the config; {MAX_CONFIGS_PER_CALL} combinations at most. "
        "Default: tiles near its own.",
    },
    **argument_schemas(SweepSearch, "sweep_"),
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
        base, {str(name): values for name, values in (vary or default_values(base)).items()}
    )
    if within.size > MAX_CONFIGS_PER_CALL:
        message = f"The values give {within.size:,} configs; /sweep takes at most {MAX_CONFIGS_PER_CALL}. Vary fewer "
        raise ConfigError(
            "too_many_configs", f"{message}values, or use the page or tilescope sweep.", "vary"
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
        "strategy": vars(sweep.strategy),
        "device": vars(sweep.device),
        "rows": [text.row_json(row, sweep) for row in text.rows_by_rank(sweep)],
        "best": replace(best.experiment, gpu=gpu).to_json() if best else None,
        "triton_config": config_line(discover()[best.experiment.kernel], best.experiment)
        if best
        else None,
        "baselines": [vars(ratio) for ratio in sweep.baselines],
        **select_fields(sweep, "backend", "ended", "seconds", "note"),
    }


def default_values(experiment: Experiment) -> dict[str, list[Any]]:
    """Return default values: 4 or 8 warps, and num_stages and Tile choices with their neighbours.

    A Tile knob keeps its own value if the combinations would be more than a call of /sweep takes.
    """
    stages = experiment.config.num_stages
    values: dict[str, list[Any]] = {
        "num_warps": [4, 8],
        "num_stages": list(range(max(1, stages - 1), min(8, stages + 1) + 1)),
    }
    for name, declared in knobs(type(experiment.config)).items():
        if declared.group == "Tile" and declared.choices is not None:
            place = declared.choices.index(getattr(experiment.config, name))
            near = list(declared.choices[max(0, place - 1) : place + 2])
            if math.prod(map(len, (*values.values(), near))) <= MAX_CONFIGS_PER_CALL:
                values[name] = near
    return values
