"""The Sweep panel: what varies, what a sweep would take, its progress, its pictures, what to take from it. /sweep."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Generator, Iterator
from typing import Any

import gradio as gr

from kernels.experiment import JsonSchema
from kernels.knobs import ConfigError
from kernels.measuring.session import Session
from kernels.results import Sweep, SweepRow
from kernels.sweep import files
from kernels.sweep.sweep_run import SweepRun
from visualize.panels import sweep_endpoint, sweep_sizes
from visualize.panels.endpoint import Api, Endpoint
from visualize.panels.panel import Ask, Drawn, Panel, Question
from visualize.panels.running_sweeps import RunningSweeps
from visualize.panels.sweep_options import (
    SweepPicture,
    SweepSearch,
    SweptKnobs,
    chosen_axes,
    options_form,
    plan,
    strategy,
    swept_space,
)
from visualize.panels.sweep_pictures import picture
from visualize.panels.sweep_sizes import Sizes, swept_sizes
from visualize.state import pin
from visualize.state.known import Known
from visualize.state.state import State, short_experiment
from visualize.views.tune import text as sweep_text
from visualize.widgets import assets, form
from visualize.widgets.folded import folded
from visualize.widgets.link import query
from visualize.widgets.markup import markup
from visualize.widgets.plot import NONE, plot

# The files that all rows are saved as, by the button's word: suffix and type.
_FILES = {"CSV": ("csv", "text/csv;charset=utf-8"), "JSON": ("json", "application/json")}


class SweepPanel(Panel):
    """A sweep of what is set, drawn as it goes on."""

    options = (SweptKnobs, SweepSearch, SweepPicture)
    uses_compiler = False
    is_compared = False
    moves = True

    def __init__(self) -> None:
        super().__init__()
        self.sweeps = RunningSweeps()
        # A file that is saved again is a new value, which the browser notices.
        self._files = itertools.count()

    def build(self) -> None:
        self.claim = markup("sweep-claim")
        with gr.Row(elem_id="sweep-row"):
            start = gr.Button("Sweep", variant="primary", size="sm", elem_id="sweep-start")
            self.cancel = gr.Button("Cancel the sweep", size="sm", elem_id="sweep-cancel", interactive=False)
            self.progress = markup("sweep-progress", script=assets.text("points.js"))
        with folded("What varies, and how it is searched", "sweep-search-fold") as self.search:
            self.forms[SweptKnobs] = form.form("swept-knobs", "What varies")
            self.forms[SweepSearch] = form.form("sweep-search", "How it is searched")
            with gr.Row():
                anew = gr.Button("Sweep again, ignoring stored rows", size="sm", elem_id="sweep-anew")
        self.forms[SweepPicture] = form.form("sweep-view", "How it is shown")
        with gr.Row(elem_classes="picture"):
            self.plot = plot("sweep-plot", "The configs of the sweep, by time")
            # In its place where there is nothing to draw.
            self.instead = markup("sweep-instead")
        with folded("Configs, the best first", "sweep-ranking"):
            self.table = markup("sweep-table", script=assets.text("sortable.js"))
        with folded("Configs without a result, and why", "sweep-aside"):
            self.aside = markup("sweep-reasons")
        with folded("Take it with you: triton.Config lines, CSV, JSON", "sweep-take"):
            self.lines = markup("sweep-lines")
            with gr.Row():
                saves = {word: gr.Button(f"All rows as {word}", size="sm", elem_id=f"sweep-{word.lower()}")
                         for word in _FILES}  # fmt: skip
        self.file = markup("sweep-file", script=assets.text("saved_file.js"), visible="hidden")
        parts = [self.claim, self.cancel, self.progress, self.plot, self.instead, self.table, self.aside, self.lines]
        self.outputs = [*parts, *self.forms.values(), self.search]
        self.actions = [
            Ask(start, self._starting(anew=False), [*parts, self.search], keeps=True),
            Ask(anew, self._starting(anew=True), [*parts, self.search], keeps=True),
            Ask(self.cancel, self._cancelled, [self.cancel, self.progress], keeps=True),
            *(Ask(button, self._saving(word), [self.file], keeps=True) for word, button in saves.items()),
        ]

    def draw(self, known: Known) -> Drawn:
        space = swept_space(known.state)
        forms: Drawn = {self.forms[kind]: options_form(kind, known.state, space) for kind in self.options}
        return {**self._drawn(known), **forms}

    def _drawn(self, known: Known) -> Drawn:
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
            shown |= {self.claim: sweep_sizes.claim(sizes, each), self.plot: pictured, self.table: table}
            shown[self.instead] = table if pictured == NONE else ""
            hint = sweep_text.SIZES_HINT
        return {**shown, **self._progress(running, hint, sizes)}

    def _under_way(self, state: State) -> SweepRun | None:
        """The sweep under way, where it is one of what is set."""
        sizes = swept_sizes(state)
        spaces = [swept_space(state), *(sizes.spaces.values() if sizes else ())]
        return next((one for space in spaces if (one := self.sweeps.running(space, state.gpu))), None)

    def fill(self, known: Known) -> Drawn:
        """The forms; how it is searched is folded away where something was found."""
        try:
            is_known = self.sweeps.knows(known.store, swept_space(known.state), known.state.gpu)
        except ConfigError:  # said beside the field, which is shown
            is_known = False
        return {**super().fill(known), self.search: gr.Accordion(open=not is_known)}

    def is_moving(self, known: Known) -> bool:
        return self._under_way(known.state) is not None

    def following(self, known: Known, page: str) -> Generator[Drawn, None, None]:
        state, sizes = known.state, swept_sizes(known.state)
        before: tuple[SweepRun, int] | None = None
        with self.sweeps.followed(page):
            while (running := self._under_way(state)) is not None:
                now = running, running.changes
                yield self._progress(running, sizes=sizes) if now == before else self._drawn(known)
                before = now
        yield self._drawn(known)

    def _planned(self, known: Known) -> Drawn:
        """What is known before it starts."""
        planned = plan(swept_space(known.state), known.state.gpu, strategy(known.state).budget)
        has_times = known.here == known.state.gpu
        return {
            self.claim: sweep_text.plan_headline(planned.space, planned.refused, planned.seconds, has_times),
            self.plot: NONE,
            self.instead: sweep_text.plan_tables(planned.space, planned.refused),
            self.table: "",
            self.aside: "",
            self.lines: "",
        }

    def _found(self, found: Sweep, state: State) -> Drawn:
        """What is known of a sweep, under way or ended."""
        address = _addresses(found, state)
        view = state.view.of(SweepPicture)
        pictured = picture(found, view.sweep_picture, chosen_axes(state, found.space), address)
        best = found.best
        return {
            self.claim: sweep_text.sweep_headline(found),
            self.plot: pictured,
            self.instead: _hint(found, state) if pictured == NONE else "",
            self.table: sweep_text.ranking(found, address),
            self.aside: sweep_text.failures(found),
            self.lines: sweep_text.config_lines(state.kernel, found, address(best)) if best else "",
        }

    def _progress(self, running: SweepRun | None, otherwise: str = "", sizes: Sizes | None = None) -> Drawn:
        """Where a sweep is, and whether it can be cancelled; `otherwise` where none is under way."""
        if running is None:
            return {self.progress: otherwise, self.cancel: gr.Button(interactive=False)}
        now = running.progress
        name = sizes.names.get(running.space.identity, "") if sizes else ""
        said = sweep_text.progress(now.phase, now.done, now.total, now.seconds, now.remaining_s, name)
        return {self.progress: said, self.cancel: gr.Button(interactive=True)}

    def _starting(self, anew: bool) -> Question:
        """The answer of a button that starts a sweep, from what is known of its space or anew."""

        def started(session: Session, state: State, page: str) -> Iterator[Drawn]:
            sizes = swept_sizes(state)
            spaces = list(sizes.spaces.values()) if sizes else [swept_space(state)]
            if sizes and not anew:  # those that are over stay as they are, unless all are
                spaces = [one for one in spaces if not self.sweeps.is_over(session.store, one, state.gpu)] or spaces
            first, *others = spaces
            self.sweeps.start(session, first, strategy(state), page, anew, others)
            drawn = self._drawn(Known(state, store=session.store, here=session.gpu))
            yield {**drawn, self.search: gr.Accordion(open=False)}

        return started

    def _cancelled(self, session: Session, state: State, page: str) -> Iterator[Drawn]:
        running = self._under_way(state)
        if running is None:
            yield self._progress(None, sweep_text.NOTHING_TO_CANCEL)
            return
        others = self.sweeps.leave(running, page)
        said = sweep_text.left(others) if others else sweep_text.CANCELLING
        yield {self.progress: said, self.cancel: gr.Button(interactive=False)}

    def _saving(self, word: str) -> Question:
        def saved(session: Session, state: State, page: str) -> Iterator[Drawn]:
            found = self.sweeps.found(session.store, swept_space(state), state.gpu)
            if found is None:
                raise ConfigError("nothing_swept", "Nothing was swept yet, so there are no rows to save. Press Sweep.")
            suffix, kind = _FILES[word]
            name = f"{found.experiment.kernel.replace('.', '_')}_{state.gpu.name}_sweep.{suffix}"
            content = {"name": name, "type": kind, "text": files.format_sweep(f".{suffix}", found)}
            yield {self.file: json.dumps({**content, "number": next(self._files)})}

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
