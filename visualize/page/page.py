"""The page: its panels laid out, and their events joined to handlers.

One way for everything: the settings (or the address) → State → Known → what the open tab's panels draw. Predictions are
redrawn at once; what needs a worker waits for a button.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
from gradio.blocks import Block

from kernels.measuring.session import MEASUREMENTS, Session
from visualize.page import header_text
from visualize.page.api import endpoints
from visualize.page.drawing import Components, Drawing
from visualize.page.guide import Guide
from visualize.page.handlers import Handlers
from visualize.page.lean_blocks import LeanBlocks
from visualize.page.look import TITLE
from visualize.panels.panel import Ask, Measure, Panel
from visualize.panels.prediction_process import PredictionProcess
from visualize.panels.result_tab import ResultPanel
from visualize.panels.tabs import SETTINGS, TABS, WAYS
from visualize.widgets import assets, form, link
from visualize.widgets import settings as page_settings
from visualize.widgets.markup import markup


def page(session: Session, with_tools: bool = False) -> gr.Blocks:
    """The whole page and its API, for the workers of `session`; with tools, for an MCP server too."""
    with LeanBlocks(title=TITLE, fill_width=True, analytics_enabled=False) as blocks:
        built = Page(blocks, session)
        endpoints(
            session, built.predictions, [panel for panels in built.panels.values() for panel in panels], with_tools
        )
    return blocks


class Page:
    """The components of one page, and its handlers.

    Attributes:
        panels: by the name of their tab.
        predictions: processes for predictions that take long.
    """

    def __init__(self, blocks: gr.Blocks, session: Session) -> None:
        self.session = session
        self.blocks = blocks
        self.panels: dict[str, list[Panel]] = {tab.name: [panel() for panel in tab.panels] for tab in TABS}
        (self._result,) = (one for panels in self.panels.values() for one in panels if isinstance(one, ResultPanel))
        self._guide = Guide(session)
        self._lay_out()
        self.predictions = PredictionProcess(session)
        drawing = Drawing(session, self.predictions, self.components, self.panels, self._result)
        self.handlers = Handlers(drawing, self.components)
        self._join()

    def _lay_out(self) -> None:
        markup("awaited", header_text.AWAITED, assets.text("awaited.js"))
        with gr.Row(elem_id="header"):
            settings = page_settings.settings()
            markup("title", header_text.title(self.session.gpu))
            markup("ways", header_text.ways(WAYS))
            address = link.link()
            self._guide.lay_out_head()
        with gr.Row(elem_id="body"):
            with gr.Column(scale=1, min_width=260, elem_id="controls"):
                with gr.Row(elem_id="run-row"):
                    self._run = gr.Button("Run", variant="primary", elem_id="run", size="sm")
                    cancel = gr.Button("Cancel", elem_id="cancel", interactive=False, size="sm")
                    markup("drawer", header_text.DRAWER, assets.text("drawer.js"))
                experiment = form.form("experiment", "Kernel, problem and config")
            with gr.Column(scale=4, min_width=320, elem_id="results"):
                with gr.Row(elem_id="outcome"):
                    self._result.build_strip()
                    status = markup("status")
                    compared = markup("compare")
                    markup("elsewhere", '<p class="problem" role="alert"></p>')
                self._buttons: dict[str, gr.Tab] = {}
                with gr.Tabs(elem_id="tabs", selected=SETTINGS.opened) as tabs:
                    for tab in TABS:
                        with gr.Tab(tab.title, id=tab.name, elem_id=f"{tab.name}-tab") as self._buttons[tab.name]:
                            for panel in self.panels[tab.name]:
                                panel.build()
        self._guide.lay_out_foot()
        self.components = Components(
            settings=settings,
            experiment=experiment,
            link=address,
            problems=form.problems(),
            wanted=markup("compile-wanted", visible="hidden"),
            moving=markup("moving", visible="hidden"),
            status=status,
            cancel=cancel,
            compare=compared,
            tabs=tabs,
            tab=page_settings.open_tab(SETTINGS.opened),
        )

    def _join(self) -> None:
        on, at = self.handlers, self.components
        panels = [panel for several in self.panels.values() for panel in several]
        forms = [at.experiment, *(one for panel in panels for one in panel.forms.values())]
        said: list[Block] = [at.settings]
        drawn = [component for panel in panels for component in panel.outputs]
        redrawn = _each([at.problems, at.link, at.compare, *drawn, at.wanted, at.moving])
        everything = _each([at.settings, at.tab, at.tabs, *forms, *redrawn])

        # Gradio tells outputs of an event's progress even where none is shown, and each takes a browser milliseconds.
        quiet: dict[str, Any] = {
            "show_progress": "hidden",
            "show_progress_on": at.problems,
            "api_visibility": "private",
        }
        # Pure predictions: not queued, and of the many positions of a moving slider the last one counts.
        instant: dict[str, Any] = {"queue": False, **quiet}
        last: dict[str, Any] = {"trigger_mode": "always_last", **instant}
        # What takes a while: the session has a queue of its own.
        lasting: dict[str, Any] = {"concurrency_limit": None, **quiet}

        opened = _each([*everything, *self._result.results])
        self.blocks.load(on.on_load, [self._result.kept], opened, **instant)
        self.blocks.unload(on.on_unload)
        at.settings.input(on.on_change, said, redrawn, **last)
        at.settings.select(on.on_select, said, opened, **last)
        at.link.select(on.on_follow, [at.link], opened, **last)
        for name, button in self._buttons.items():
            button.select(on.opening(name), said, _each([at.tab, *redrawn]), **last)
        at.wanted.change(
            on.on_compile,
            [at.wanted],
            _each([at.problems, at.compare, *drawn]),
            trigger_mode="multiple",
            **lasting,
        )
        following = [component for panel in panels if panel.moves for component in panel.outputs]
        at.moving.change(
            on.on_moving, [at.moving, *said], _each([at.problems, *following]), trigger_mode="multiple", **lasting
        )

        def measure(action: Measure, events: Sequence[Callable[..., Any]], opens: str = "") -> None:
            if self.session.gpu is None and not MEASUREMENTS[action.measurement].is_interpreted:
                # It could only fail here; what was recorded is drawn without being asked for.
                action.button.value, action.button.interactive = f"{action.button.value} (needs a GPU)", False
            answered = [
                at.problems,
                at.status,
                at.cancel,
                at.compare,
                *([at.tab, at.tabs] if opens else []),
                *action.outputs,
            ]
            ended = gr.on(list(events), on.measuring(action, opens), said, answered, trigger_mode="multiple", **lasting)
            ended.then(on.on_ended, said, following, **instant)

        following = _each([at.problems, *(one for panel in panels if panel.follows_runs for one in panel.outputs)])
        measure(self._result.run(self._run), [self._run.click, at.settings.submit])
        for action in (action for panel in panels for action in panel.actions):
            if isinstance(action, Ask):
                answered = [at.problems, at.moving, *action.outputs]
                action.button.click(on.asking(action), said, answered, trigger_mode="once", **lasting)
            else:
                measure(action, [action.button.click])
        at.cancel.click(on.on_cancel, None, None, **instant)
        self._guide.join(instant, lasting)


def _each(components: Sequence[Block]) -> list[Block]:
    """Each once."""
    return list(dict.fromkeys(components))
