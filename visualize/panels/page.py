"""The page: panels laid out, and what happens when something on it changes.

One way for everything: the forms (or the address) → State → what the open tab draws. Predictions are redrawn at once;
what needs a worker waits for Run.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import gradio as gr

from kernels import discover
from kernels.runner.session import Session
from kernels.spec import ConfigError
from visualize.panels import coalescing, form, link, result, schedule
from visualize.panels.endpoints import endpoints
from visualize.panels.markup import markup
from visualize.panels.state import State, experiment_form, forgiving_state, state, view_form, with_kernel, with_preset

# Pure predictions: not queued, and of the many positions of a moving slider the last one counts.
_INSTANT: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


def page(session: Session) -> gr.Blocks:
    """The whole page and its API, for the workers of `session`."""
    with gr.Blocks(title="Tilescope", fill_width=True, analytics_enabled=False) as blocks:
        Page(session)
        endpoints(session)
    return blocks


class Page:
    """Components, and the handlers that join them."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.runs = result.Runs(session)
        self._lay_out()
        self._join()

    def _lay_out(self) -> None:
        gpu = self.session.gpu
        where = f"{gpu.name}, live" if gpu else "no GPU here: Triton's interpreter checks, the models predict"
        with gr.Row(elem_id="header"):
            markup("title", f'<h1>Tilescope</h1><p class="where">{where}</p>')
            self.link = link.link()
        with gr.Row(elem_id="body"):
            with gr.Column(scale=1, min_width=300, elem_id="controls"):
                with gr.Row(elem_id="run-row"):
                    self.run = gr.Button("Run  (Ctrl+Enter)", variant="primary", elem_id="run", size="sm")
                    self.cancel = gr.Button("Cancel", elem_id="cancel", interactive=False, size="sm")
                self.experiment = form.form("experiment", "Kernel, problem and config")
            with gr.Column(scale=4, min_width=320, elem_id="results"):
                self.strip = result.strip()
                self.status = result.status()
                markup("elsewhere", '<p class="problem" role="alert"></p>')
                with gr.Tabs(elem_id="tabs") as self.tabs:
                    with gr.Tab("Result", id="result") as result_tab:
                        self.result = result.build()
                    with gr.Tab("Schedule", id="schedule") as schedule_tab:
                        self.schedule = schedule.build()
                    with gr.Tab("Coalescing", id="coalescing") as coalescing_tab:
                        self.coalescing = coalescing.build()
        self.tab_buttons = {"result": result_tab, "schedule": schedule_tab, "coalescing": coalescing_tab}
        self.problems = form.problems()
        self.tab = gr.State("schedule")

    def _join(self) -> None:
        forms = [self.experiment, self.schedule.options, self.coalescing.board, self.coalescing.lanes]
        self.inputs = [self.tab, *forms]
        self.pictures = [
            self.problems,
            self.link,
            self.schedule.claim,
            self.schedule.ours,
            self.schedule.row_major,
            self.coalescing.claim,
            self.coalescing.table,
            self.coalescing.tile,
            self.coalescing.request,
        ]
        everything = [self.tab, self.tabs, *forms, *self.pictures]
        blocks = gr.context.Context.root_block
        assert blocks is not None

        blocks.load(self.on_load, None, [*everything, self.strip, self.result.report], **_INSTANT)
        blocks.unload(self.on_unload)
        self.experiment.input(
            self.on_experiment,
            self.inputs,
            [self.coalescing.lanes, *self.pictures],
            trigger_mode="always_last",
            **_INSTANT,
        )
        for options in forms[1:]:
            options.input(self.on_view, self.inputs, self.pictures, trigger_mode="always_last", **_INSTANT)
        self.experiment.select(self.on_select, self.inputs, everything, trigger_mode="always_last", **_INSTANT)
        for name, tab in self.tab_buttons.items():
            tab.select(
                functools.partial(self.on_tab, name),
                self.inputs,
                [self.tab, *self.pictures[1:]],
                trigger_mode="always_last",
                **_INSTANT,
            )
        results = [
            self.problems,
            self.status,
            self.strip,
            self.result.report,
            self.result.plot,
            self.run,
            self.cancel,
            self.tab,
            self.tabs,
        ]
        gr.on(
            [self.run.click, self.experiment.submit],
            self.on_run,
            self.inputs,
            results,
            trigger_mode="multiple",
            show_progress="hidden",
            concurrency_limit=None,
            api_visibility="private",
        )
        self.cancel.click(self.on_cancel, None, None, **_INSTANT)

    def _read(self, tab: str, *forms: str) -> dict[str, Any]:
        """All forms' settings together, flat."""
        flat: dict[str, Any] = {"tab": tab}
        for value in reversed(forms):
            flat |= form.settings(value)
        return flat

    def _pictures(self, state: State, sentences: dict[str, str] | None = None) -> tuple[Any, ...]:
        """Values of `self.pictures`: the open tab is drawn, the others wait until they are opened."""
        schedule_drawn = coalescing_drawn = None
        try:
            if state.view.tab == "schedule":
                schedule_drawn = schedule.draw(state)
            elif state.view.tab == "coalescing":
                coalescing_drawn = coalescing.draw(state)
        except ConfigError as error:
            sentences = {**(sentences or {}), error.field: str(error)}
        return (
            form.placed(sentences or {}),
            link.query(state.to_address()),
            *(schedule_drawn or [gr.skip()] * 3),
            *(coalescing_drawn or [gr.skip()] * 4),
        )

    def _refused(self, error: ConfigError, skipped: int) -> tuple[Any, ...]:
        """A sentence next to its cause; everything else stays as it was."""
        return (form.placed({error.field: str(error)}), *(gr.skip() for _ in range(skipped)))

    def _everything(self, state: State, sentences: dict[str, str] | None = None) -> tuple[Any, ...]:
        return (
            state.view.tab,
            gr.Tabs(selected=state.view.tab),
            experiment_form(state, self.session.gpu),
            view_form(state.view.schedule),
            view_form(state.view.board),
            coalescing.lanes_form(state),
            *self._pictures(state, sentences),
        )

    def on_load(self, request: gr.Request) -> tuple[Any, ...]:
        """Open the page that the address describes."""
        opened, sentences = forgiving_state(dict(request.query_params), self.session.gpu)
        return (*self._everything(opened, sentences), *result.before(self.session))

    def on_experiment(self, *values: str) -> tuple[Any, ...]:
        try:
            current = state(self._read(*values), self.session.gpu)
            return (coalescing.lanes_form(current), *self._pictures(current))
        except ConfigError as error:
            return (gr.skip(), *self._refused(error, len(self.pictures) - 1))

    def on_view(self, *values: str) -> tuple[Any, ...]:
        try:
            return self._pictures(state(self._read(*values), self.session.gpu))
        except ConfigError as error:
            return self._refused(error, len(self.pictures) - 1)

    def on_tab(self, name: str, _: str, *forms: str) -> tuple[Any, ...]:
        """Another tab was opened: draw it. What was wrong with a value stays said."""
        if "kernel" not in form.settings(forms[0]):
            # Gradio opens the first tab by itself, before the address has filled the forms.
            return tuple(gr.skip() for _ in self.pictures)
        return (name, *self.on_view(name, *forms)[1:])

    def on_select(self, *values: str) -> tuple[Any, ...]:
        """Another kernel, or a preset: the forms themselves change."""
        flat = self._read(*values)
        if "preset" in flat:
            chosen = with_preset(flat, discover()[str(flat["kernel"])], int(flat["preset"]))
        else:
            chosen = with_kernel(flat, str(flat["kernel"]))
        opened, sentences = forgiving_state({"tab": flat["tab"], **chosen}, self.session.gpu)
        return self._everything(opened, sentences)

    def on_run(self, request: gr.Request, *values: str) -> Iterator[tuple[Any, ...]]:
        """Run, and show where it is until it has ended. The last good result stays when this one fails."""
        skip = gr.skip()
        try:
            current = state(self._read(*values), self.session.gpu)
        except ConfigError as error:
            yield (*self._refused(error, 1), skip, skip, skip, skip, skip, skip, skip)
            return
        job = self.runs.start(str(request.session_hash), current.experiment)
        for line in result.progress(self.session, job):
            yield (form.placed({}), line, skip, skip, skip, skip, gr.Button(interactive=True), skip, skip)
        outcome = job.result()
        ended = result.finished(outcome)
        idle = gr.Button(interactive=False)
        if isinstance(outcome, result.Failure):
            sentences = {outcome.field: outcome.message} if outcome.field else {}
            yield (form.placed(sentences), ended, skip, skip, skip, skip, idle, skip, skip)
        else:
            yield (
                form.placed({}),
                ended,
                *result.drawn_result(outcome),
                skip,
                idle,
                "result",
                gr.Tabs(selected="result"),
            )

    def on_cancel(self, request: gr.Request) -> None:
        self.runs.cancel(str(request.session_hash))

    def on_unload(self, request: gr.Request) -> None:
        """The page was closed: nobody waits for its run."""
        self.runs.cancel(str(request.session_hash))
