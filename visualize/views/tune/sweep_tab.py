"""The Sweep panel: what varies, what a sweep would take, its progress, its pictures, what to take from it. /sweep."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from markupsafe import Markup

from kernels.experiment import JsonSchema
from kernels.knobs import ConfigError
from kernels.measuring.session import Session
from kernels.results import Sweep, SweepRow
from kernels.sweep import files
from kernels.sweep.sweep_run import SweepRun
from visualize.views import pin, slots
from visualize.views.address import query
from visualize.views.endpoint import Api, Endpoint
from visualize.views.plot import NONE
from visualize.views.slots import CLOSED, DISABLED, ENABLED, OPEN, button, fold, plot, slot
from visualize.views.snapshot import Known
from visualize.views.state import State, short_experiment
from visualize.views.tune import sweep_endpoint, sweep_sizes
from visualize.views.tune import text as sweep_text
from visualize.views.tune.running_sweeps import RunningSweeps
from visualize.views.tune.sweep_options import (
    SweepPicture,
    SweepSearch,
    SweptKnobs,
    chosen_axes,
    options_form,
    plan,
    strategy,
    swept_space,
)
from visualize.views.tune.sweep_pictures import picture
from visualize.views.tune.sweep_sizes import Sizes, swept_sizes
from visualize.views.view import Panel, Question, Slots, StreamAction

# The files that all rows are saved as, by the button's word: suffix and type.
_FILES = {"CSV": ("csv", "text/csv;charset=utf-8"), "JSON": ("json", "application/json")}


class SweepPanel(Panel):
    """A sweep of what is set, drawn as it goes on."""

    options = (SweptKnobs, SweepSearch, SweepPicture)
    forms = (("swept-knobs", SweptKnobs), ("sweep-search", SweepSearch), ("sweep-view", SweepPicture))
    uses_compiler = False
    is_compared = False

    def __init__(self) -> None:
        super().__init__()
        self.sweeps = RunningSweeps()

    def layout(self) -> Markup:
        saves = [button(f"sweep-{word.lower()}", f"All rows as {word}") for word in _FILES]
        return Markup("").join(
            [
                slot("sweep-claim"),
                slots.row(
                    button("sweep-start", "Sweep", primary=True),
                    button("sweep-cancel", "Cancel the sweep", is_enabled=False),
                    slot("sweep-progress"),
                    name="sweep-row",
                ),
                fold(
                    "sweep-search-fold",
                    "What varies, and how it is searched",
                    slots.form("swept-knobs", "What varies"),
                    slots.form("sweep-search", "How it is searched"),
                    button("sweep-anew", "Sweep again, ignoring stored rows"),
                ),
                slots.form("sweep-view", "How it is shown"),
                slots.picture(
                    plot("sweep-plot", "The configs of the sweep, by time"),
                    slot("sweep-instead"),  # takes the plot's place if there is nothing to draw
                ),
                fold("sweep-ranking", "Configs, the best first", slot("sweep-table", "sortable")),
                fold("sweep-aside", "Configs without a result, and why", slot("sweep-reasons")),
                fold(
                    "sweep-take",
                    "Take it with you: triton.Config lines, CSV, JSON",
                    slot("sweep-lines"),
                    slots.row(*saves),
                    slot("sweep-file", "saved_file"),
                ),
            ]
        )

    def actions(self) -> Mapping[str, StreamAction]:
        return {
            "sweep-start": StreamAction(self._starting(anew=False)),
            "sweep-anew": StreamAction(self._starting(anew=True)),
            "sweep-cancel": StreamAction(self._cancelled),
            **{f"sweep-{word.lower()}": StreamAction(self._saving(word)) for word in _FILES},
        }

    def draw(self, known: Known) -> Slots:
        space = swept_space(known.state)
        forms: Slots = {name: options_form(kind, known.state, space) for name, kind in self.forms}
        return {**self._drawn(known), **forms}

    def _drawn(self, known: Known) -> Slots:
        """What is known of what is set, found or planned; without the forms."""
        state, sizes = known.state, swept_sizes(known.state)
        running = self._under_way(state)
        found = self.sweeps.found(known.store, swept_space(state), state.gpu)
        shown = self._planned(known) if found is None else self._found(found, state)
        hint = sweep_text.NOT_SWEPT if found is None else _hint(found, state)
        if sizes and state.view.of(SweepPicture).sweep_picture == "library":
            each = sweep_sizes.each(sizes, lambda space: self.sweeps.found(known.store, space, state.gpu))
            table = sweep_sizes.table(sizes, each, state)
            pictured = sweep_sizes.picture(sizes, each)
            shown |= {"sweep-claim": sweep_sizes.claim(sizes, each), "sweep-plot": pictured, "sweep-table": table}
            shown["sweep-instead"] = table if pictured == NONE else ""
            hint = sweep_text.SIZES_HINT
        return {**shown, **self._progress(running, hint, sizes)}

    def _under_way(self, state: State) -> SweepRun | None:
        """The sweep under way, where it is one of what is set."""
        sizes = swept_sizes(state)
        spaces = [swept_space(state), *(sizes.spaces.values() if sizes else ())]
        return next((one for space in spaces if (one := self.sweeps.running(space, state.gpu))), None)

    def fill(self, known: Known) -> Slots:
        """The forms; how it is searched is folded away where something was found."""
        try:
            is_known = self.sweeps.knows(known.store, swept_space(known.state), known.state.gpu)
        except ConfigError:  # said beside the field, which is shown
            is_known = False
        return {**super().fill(known), "sweep-search-fold": CLOSED if is_known else OPEN}

    def has_live_updates(self, known: Known) -> bool:
        return self._under_way(known.state) is not None

    def stream_updates(self, known: Known, page: str) -> Generator[Slots, None, None]:
        state, sizes = known.state, swept_sizes(known.state)
        before: tuple[SweepRun, int] | None = None
        with self.sweeps.followed(page):
            while (running := self._under_way(state)) is not None:
                now = running, running.changes
                yield self._progress(running, sizes=sizes) if now == before else self._drawn(known)
                before = now
        yield self._drawn(known)

    def _planned(self, known: Known) -> Slots:
        """What is known before it starts."""
        planned = plan(swept_space(known.state), known.state.gpu, strategy(known.state).budget)
        has_times = known.here == known.state.gpu
        return {
            "sweep-claim": sweep_text.plan_headline(planned.space, planned.refused, planned.seconds, has_times),
            "sweep-plot": NONE,
            "sweep-instead": sweep_text.plan_tables(planned.space, planned.refused),
            "sweep-table": "",
            "sweep-reasons": "",
            "sweep-lines": "",
        }

    def _found(self, found: Sweep, state: State) -> Slots:
        """What is known of a sweep, under way or ended."""
        address = _addresses(found, state)
        view = state.view.of(SweepPicture)
        pictured = picture(found, view.sweep_picture, chosen_axes(state, found.space), address)
        best = found.best
        return {
            "sweep-claim": sweep_text.sweep_headline(found),
            "sweep-plot": pictured,
            "sweep-instead": _hint(found, state) if pictured == NONE else "",
            "sweep-table": sweep_text.ranking(found, address),
            "sweep-reasons": sweep_text.failures(found),
            "sweep-lines": sweep_text.config_lines(state.kernel, found, address(best)) if best else "",
        }

    def _progress(self, running: SweepRun | None, otherwise: str = "", sizes: Sizes | None = None) -> Slots:
        """Where a sweep is, and whether it can be cancelled; `otherwise` where none is under way."""
        if running is None:
            return {"sweep-progress": otherwise, "sweep-cancel": DISABLED}
        now = running.progress
        name = sizes.names.get(running.space.identity, "") if sizes else ""
        said = sweep_text.progress(now.phase, now.done, now.total, now.seconds, now.remaining_s, name)
        return {"sweep-progress": said, "sweep-cancel": ENABLED}

    def _starting(self, anew: bool) -> Question:
        """The answer of a button that starts a sweep, from what is known of its space or anew."""

        def started(session: Session, state: State, page: str) -> Iterator[Slots]:
            sizes = swept_sizes(state)
            spaces = list(sizes.spaces.values()) if sizes else [swept_space(state)]
            if sizes and not anew:  # those that are over stay as they are, unless all are
                spaces = [one for one in spaces if not self.sweeps.is_over(session.store, one, state.gpu)] or spaces
            first, *others = spaces
            self.sweeps.start(session, first, strategy(state), page, anew, others)
            drawn = self._drawn(Known(state, store=session.store, here=session.gpu))
            yield {**drawn, "sweep-search-fold": CLOSED}

        return started

    def _cancelled(self, session: Session, state: State, page: str) -> Iterator[Slots]:
        running = self._under_way(state)
        if running is None:
            yield self._progress(None, sweep_text.NOTHING_TO_CANCEL)
            return
        others = self.sweeps.leave(running, page)
        said = sweep_text.left(others) if others else sweep_text.CANCELLING
        yield {"sweep-progress": said, "sweep-cancel": DISABLED}

    def _saving(self, word: str) -> Question:
        def saved(session: Session, state: State, page: str) -> Iterator[Slots]:
            found = self.sweeps.found(session.store, swept_space(state), state.gpu)
            if found is None:
                raise ConfigError("nothing_swept", "Nothing was swept yet, so there are no rows to save. Press Sweep.")
            suffix, kind = _FILES[word]
            name = f"{found.experiment.kernel.replace('.', '_')}_{state.gpu.name}_sweep.{suffix}"
            content = {"name": name, "type": kind, "text": files.format_sweep(f".{suffix}", found)}
            yield {"sweep-file": json.dumps(content)}

        return saved

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
            return await sweep_endpoint.answer(api, self.sweeps, experiment, vary, strategy, seed, budget)

        schemas: dict[str, JsonSchema] = sweep_endpoint.SCHEMAS
        return (Endpoint("sweep", sweep, at_once=None, schemas=schemas, is_flat=False),)


def _hint(found: Sweep, state: State) -> str:
    """What a click on the picture does, or why there is none."""
    view = state.view.of(SweepPicture)
    return sweep_text.picture_hint(found, view.sweep_picture, view.sweep_click)


def _addresses(found: Sweep, state: State) -> Callable[[SweepRow], str]:
    """The query that sets a row's config, or pins it, with the same sweep beside it."""
    pins = state.view.of(SweepPicture).sweep_click == "pin"
    knobs = [name for name, _ in found.space.varied]
    there = state.moved_to(sweep_vary=sweep_text.varied_text(found.space))
    rest = {name: value for name, value in there.items() if name not in knobs}

    def address(row: SweepRow) -> str:
        if pins:
            return query({**there, pin.FIELD: pin.to_text(short_experiment(row.experiment))})
        own = {name: value for name, value in short_experiment(row.experiment).items() if name in knobs}
        return query({**rest, **own})

    return address
