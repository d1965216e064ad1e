"""The page: panels laid out, and what happens when something on it changes.

One way for everything: the forms (or the address) → State → what the open tab draws. Predictions are redrawn at once;
what needs a worker waits for Run.
"""

from __future__ import annotations

import functools
from typing import Any

import gradio as gr

from kernels import discover
from kernels.knobs import ConfigError
from kernels.runner.session import Session
from visualize.page.api import endpoints
from visualize.page.jobs import Jobs
from visualize.panels import (
    coalescing_tab,
    compiler_tab,
    layouts_panel,
    result_tab,
    reuse_tab,
    schedule_tab,
    timeline_panel,
)
from visualize.panels.controls import experiment_form, view_form
from visualize.state.state import State, forgiving_state, state, with_kernel, with_preset
from visualize.widgets import form, link
from visualize.widgets.markup import markup


def page(session: Session) -> gr.Blocks:
    """The whole page and its API, for the workers of `session`."""
    with gr.Blocks(title="Tilescope", fill_width=True, analytics_enabled=False) as blocks:
        Page(blocks, session)
        endpoints(session)
    return blocks


class Page:
    """Components, and the handlers that join them."""

    def __init__(self, blocks: gr.Blocks, session: Session) -> None:
        self.session = session
        self.jobs = Jobs(session, self._state, self._placed)
        # How often each open page has had its forms replaced: an answer to what was set before comes too late.
        self._replaced: dict[str, int] = {}
        self._lay_out()
        self._join(blocks)

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
                self.strip = result_tab.strip()
                self.status = result_tab.status()
                markup("elsewhere", '<p class="problem" role="alert"></p>')
                with gr.Tabs(elem_id="tabs") as self.tabs:
                    with gr.Tab("Result", id="result") as result_button:
                        self.result = result_tab.build()
                        self.layouts = layouts_panel.build()
                    with gr.Tab("Schedule", id="schedule") as schedule_button:
                        self.schedule = schedule_tab.build()
                        self.timeline = timeline_panel.build()
                    with gr.Tab("Reuse", id="reuse") as reuse_button:
                        self.reuse = reuse_tab.build()
                    with gr.Tab("Coalescing", id="coalescing") as coalescing_button:
                        self.coalescing = coalescing_tab.build()
                    with gr.Tab("Compiler", id="compiler") as compiler_button:
                        self.compiler = compiler_tab.build()
        self.tab_buttons = {
            "result": result_button,
            "schedule": schedule_button,
            "reuse": reuse_button,
            "coalescing": coalescing_button,
            "compiler": compiler_button,
        }
        self.problems = form.problems()
        self.tab = gr.State("schedule")

    def _join(self, blocks: gr.Blocks) -> None:
        forms = [
            self.experiment,
            self.schedule.options,
            self.coalescing.board,
            self.coalescing.lanes,
            self.coalescing.whatif.options,
        ]
        self.inputs = [self.tab, *forms]
        scheduled, requests = self.schedule, self.coalescing
        # What each tab draws of its own accord.
        self.drawn = {
            "schedule": [*scheduled.drawn, *self.timeline.drawn],
            "reuse": self.reuse.drawn,
            "coalescing": [requests.claim, requests.table, requests.tile, requests.request],
            "compiler": [self.compiler.claim, self.compiler.listing],
        }
        drawn = [component for components in self.drawn.values() for component in components]
        self.pictures = [self.problems, self.link, *drawn, self.compiler.wanted]
        self.compiled = [*drawn, self.coalescing.lanes]
        self.compared = [self.problems, self.status, self.cancel, self.layouts.table]
        self.sized = [self.problems, self.status, self.cancel, *self.drawn["reuse"]]
        self.counted = [self.problems, self.status, self.cancel, *self.drawn["coalescing"]]
        self.recorded = [self.problems, self.status, self.cancel, *self.timeline.drawn]
        self.everything = [self.tab, self.tabs, *forms, *self.pictures]

        # Gradio tells outputs of an event's progress even where none is shown, and each takes a browser milliseconds.
        quiet: dict[str, Any] = {
            "show_progress": "hidden",
            "show_progress_on": self.problems,
            "api_visibility": "private",
        }
        # Pure predictions: not queued, and of the many positions of a moving slider the last one counts.
        instant: dict[str, Any] = {"queue": False, **quiet}
        blocks.load(self.on_load, None, [*self.everything, self.strip, self.result.claim], **instant)
        blocks.unload(self.on_unload)
        changed = [*self.pictures, self.coalescing.lanes]
        for controls in forms:
            controls.input(self.on_change, self.inputs, changed, trigger_mode="always_last", **instant)
        self.experiment.select(self.on_select, self.inputs, self.everything, trigger_mode="always_last", **instant)
        for name, tab in self.tab_buttons.items():
            tab.select(
                functools.partial(self.on_tab, name),
                self.inputs,
                [self.tab, *self.pictures[1:]],
                trigger_mode="always_last",
                **instant,
            )
        self.compiler.wanted.change(
            self.jobs.on_compile,
            [self.compiler.wanted, *self.inputs],
            self.compiled,
            trigger_mode="multiple",
            concurrency_limit=None,
            **quiet,
        )
        run = self.result
        shown = [run.claim, run.plot, run.closeup, run.tables]
        self.results = [self.problems, self.status, self.cancel, self.tab, self.tabs, self.strip, *shown]
        asked = self.coalescing.whatif
        for button, handler in ((asked.faults, "faults"), (asked.cliff, "cliff"), (asked.across, "across")):
            button.click(
                getattr(self.jobs, f"on_{handler}"),
                self.inputs,
                [self.problems, asked.table, asked.plot],
                trigger_mode="once",
                concurrency_limit=None,
                **quiet,
            )
        self.jobs.outputs = {
            "on_compile": len(self.compiled),
            "on_run": len(self.results),
            "on_compare": len(self.compared),
            "on_count": len(self.counted),
            "on_compare_sizes": len(self.sized),
            "on_timeline": len(self.recorded),
        }
        gr.on(
            [self.run.click, self.experiment.submit],
            self.jobs.on_run,
            self.inputs,
            self.results,
            trigger_mode="multiple",
            concurrency_limit=None,
            **quiet,
        )
        for measure, handler_of, answered in (
            (self.layouts.button, self.jobs.on_compare, self.compared),
            (self.coalescing.count, self.jobs.on_count, self.counted),
            (self.reuse.compare, self.jobs.on_compare_sizes, self.sized),
            (self.timeline.button, self.jobs.on_timeline, self.recorded),
        ):
            measure.click(
                handler_of,
                self.inputs,
                answered,
                trigger_mode="multiple",
                concurrency_limit=None,
                **quiet,
            )
        self.cancel.click(self.jobs.on_cancel, None, None, **instant)

    def _state(self, tab: str, *forms: str) -> State:
        """What the forms say together.

        Where another kernel or a preset was just chosen, the forms still hold the old one's fields: then it is what the
        choice says that counts.

        Raises:
            ConfigError: for the first value that is not allowed.
        """
        flat: dict[str, Any] = {"tab": tab}
        for value in reversed(forms):
            flat |= form.settings(value)
        kernel = str(flat["kernel"])
        if "preset" in flat:
            flat = {"tab": tab, **with_preset(flat, discover()[kernel], int(flat["preset"]))}
        elif kernel != flat["form_of"]:
            flat = {"tab": tab, **with_kernel(flat, kernel)}
        return state(flat, self.session.gpu)

    def _pictures(self, state: State, sentences: dict[str, str] | None = None) -> tuple[Any, ...]:
        """Values of `self.pictures`: the open tab is drawn, the others wait until they are opened."""
        wanted = self.jobs.wanted(state)
        try:
            drawn = self.jobs.draw(state)
        except ConfigError as error:
            drawn, sentences = None, {**(sentences or {}), error.field: str(error)}
        return (
            form.placed(sentences or {}),
            link.query(state.to_address()),
            *self._placed(state.view.tab, drawn),
            wanted or gr.skip(),
        )

    def _placed(self, tab: str, drawn: tuple[str, ...] | None) -> tuple[Any, ...]:
        """What a tab draws, in its place among what all tabs draw; None where it stays as it is."""
        return tuple(
            value
            for name, components in self.drawn.items()
            for value in (drawn if drawn and name == tab else [gr.skip()] * len(components))
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
            self.jobs.lanes_form(state),
            view_form(state.view.whatif),
            *self._pictures(state, sentences),
        )

    def on_load(self, request: gr.Request) -> tuple[Any, ...]:
        """Open the page that the address describes."""
        opened, sentences = forgiving_state(dict(request.query_params), self.session.gpu)
        return (*self._everything(opened, sentences), *result_tab.before(self.session))

    def on_change(self, request: gr.Request, *values: str) -> tuple[Any, ...]:
        """A value changed: redraw, and bound the choice of what is drawn by what there is now."""
        page = str(request.session_hash)
        before = self._replaced.get(page)
        try:
            current = self._state(*values)
            answer = (*self._pictures(current), self.jobs.lanes_form(current))
        except ConfigError as error:
            answer = self._refused(error, len(self.pictures))
        if self._replaced.get(page) != before:
            return tuple(gr.skip() for _ in answer)
        return answer

    def on_tab(self, name: str, _: str, *forms: str) -> tuple[Any, ...]:
        """Another tab was opened: draw it. What was wrong with a value stays said."""
        if "kernel" not in form.settings(forms[0]):
            # Gradio opens the first tab by itself, before the address has filled the forms.
            return tuple(gr.skip() for _ in self.pictures)
        try:
            return (name, *self._pictures(self._state(name, *forms))[1:])
        except ConfigError:
            return (name, *(gr.skip() for _ in self.pictures[1:]))

    def on_select(self, request: gr.Request, *values: str) -> tuple[Any, ...]:
        """Another kernel, or a preset: the forms themselves change."""
        page = str(request.session_hash)
        self._replaced[page] = self._replaced.get(page, 0) + 1
        try:
            return self._everything(self._state(*values))
        except ConfigError as error:
            refused = [gr.skip()] * len(self.everything)
            refused[self.everything.index(self.problems)] = form.placed({error.field: str(error)})
            return tuple(refused)

    def on_unload(self, request: gr.Request) -> None:
        page = str(request.session_hash)
        self.jobs.forget(page)
        self._replaced.pop(page, None)
