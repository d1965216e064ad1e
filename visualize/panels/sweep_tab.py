"""The Sweep panel: what varies, what a sweep would take, its progress, its pictures, what to take from it. /sweep."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Generator, Iterator
from typing import Any

import gradio as gr

from kernels.knobs import ConfigError
from kernels.merged_schema import JsonSchema
from kernels.results import Sweep, SweepRow
from kernels.runner.session import Session
from kernels.sweep import rows_file
from kernels.sweep.sweeping import Sweeping
from visualize.panels import sweep_endpoint
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
from visualize.state import pin
from visualize.state.known import Known
from visualize.state.state import State, short_experiment
from visualize.text import sweep_text
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
                anew = gr.Button("Sweep anew, without the rows that are stored", size="sm", elem_id="sweep-anew")
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
        running = self.sweeps.running(space, known.state.gpu)
        found = self.sweeps.found(known.store, space, known.state.gpu)
        if found is None:
            return {**self._planned(known), **forms}
        hint = _hint(found, known.state)
        return {**self._found(found, known.state), **self._progress(running, hint), **forms}

    def fill(self, known: Known) -> Drawn:
        """The forms; how it is searched is folded away where something was found."""
        try:
            is_known = self.sweeps.knows(known.store, swept_space(known.state), known.state.gpu)
        except ConfigError:  # said beside the field, which is shown
            is_known = False
        return {**super().fill(known), self.search: gr.Accordion(open=not is_known)}

    def is_moving(self, known: Known) -> bool:
        return self.sweeps.running(swept_space(known.state), known.state.gpu) is not None

    def following(self, known: Known, page: str) -> Generator[Drawn, None, None]:
        state = known.state
        running = self.sweeps.running(swept_space(state), state.gpu)
        if running is None:
            yield self.draw(known)
            return
        rows: tuple[SweepRow, ...] = ()
        with self.sweeps.followed(page):
            while not running.has_ended:
                found = running.so_far()
                yield self._progress(running) | (self._found(found, state) if found.rows != rows else {})
                rows = found.rows
            ended = running.result()
            yield self._found(ended, state) | self._progress(None, _hint(ended, state))

    def _planned(self, known: Known) -> Drawn:
        """What is known before it starts."""
        planned = plan(swept_space(known.state), known.state.gpu, strategy(known.state).budget)
        refused = [(sweep_text.config_knobs(one, planned.space), why) for one, why in planned.refused.items()]
        has_times = known.here == known.state.gpu
        return {
            self.claim: sweep_text.plan_claim(planned.space, planned.refused, planned.seconds, has_times),
            self.plot: NONE,
            self.instead: sweep_text.planned(planned.space, refused),
            self.table: "",
            self.aside: "",
            self.lines: "",
            **self._progress(None, sweep_text.not_swept()),
        }

    def _found(self, found: Sweep, state: State) -> Drawn:
        """What is known of a sweep, under way or ended."""
        address = _addresses(found, state)
        view = state.view.of(SweepPicture)
        pictured = picture(found, view.sweep_picture, chosen_axes(state, found.space), address)
        best = found.best
        return {
            self.claim: sweep_text.claim(found),
            self.plot: pictured,
            self.instead: _hint(found, state) if pictured == NONE else "",
            self.table: sweep_text.ranking(found, address),
            self.aside: sweep_text.set_aside(sweep_text.reasons(found.rows, found.space)),
            self.lines: sweep_text.pasted(state.kernel, found, address(best)) if best else "",
        }

    def _progress(self, running: Sweeping | None, otherwise: str = "") -> Drawn:
        """Where a sweep is, and whether it can be cancelled; `otherwise` where none is under way."""
        if running is None:
            return {self.progress: otherwise, self.cancel: gr.Button(interactive=False)}
        now = running.progress
        said = sweep_text.progress(now.phase, now.done, now.total, now.seconds, now.remaining_s)
        return {self.progress: said, self.cancel: gr.Button(interactive=True)}

    def _starting(self, anew: bool) -> Question:
        """The answer of a button that starts a sweep, from what is known of its space or anew."""

        def started(session: Session, state: State, page: str) -> Iterator[Drawn]:
            running = self.sweeps.start(session, swept_space(state), strategy(state), page, anew)
            folded_away = {self.search: gr.Accordion(open=False)}
            yield {**self._found(running.so_far(), state), **self._progress(running), **folded_away}

        return started

    def _cancelled(self, session: Session, state: State, page: str) -> Iterator[Drawn]:
        running = self.sweeps.running(swept_space(state), state.gpu)
        if running is None:
            yield self._progress(None, sweep_text.nothing_to_cancel())
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
            content = {"name": name, "type": kind, "text": rows_file.text(f".{suffix}", found)}
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
            """Finds the fastest config of a kernel among all combinations of some values. Can take minutes.

            `rows` has what became of each config, the best first; without a GPU by `predicted_ms`. What can't launch is
            set aside, with its `reason`.
            """
            return await sweep_endpoint.answer(api, self.sweeps, experiment, vary, strategy, seed, budget)

        schemas: dict[str, JsonSchema] = sweep_endpoint.SCHEMAS
        return (Endpoint("sweep", sweep, at_once=1, schemas=schemas, is_flat=False),)


def _hint(found: Sweep, state: State) -> str:
    """What a click on the picture does, or why there is none."""
    view = state.view.of(SweepPicture)
    return sweep_text.of_picture(found, view.sweep_picture, view.sweep_click)


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
