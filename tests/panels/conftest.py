"""A page without a browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from gradio.routes import App

from kernels.experiment import Experiment
from kernels.gpus import Gpu
from kernels.measuring.fair_queue import INTERNAL, Client
from kernels.measuring.session import Session
from tests.panels.sweeps_made_up import Started
from visualize.page.page import Page
from visualize.panels.sweep_tab import SweepPanel


@pytest.fixture(autouse=True)
def unserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is made for a page that nobody opens: Gradio makes two, and takes most of the page's time for them."""
    monkeypatch.setattr(App, "create_app", lambda *_, **__: None)


class ScriptedSession(Session):
    """A session in which a test may replace the compiler, and what is already compiled.

    Attributes:
        compiler: makes the future of each compile.
        finder: experiment → what is known to be compiled.
    """

    compiler: Callable[[], Future[Any]] | None = None
    finder: Callable[[Experiment], Any] | None = None

    def compile(
        self, experiment: Experiment, specialization: str = "launcher", client: Client = INTERNAL
    ) -> Future[Any]:
        return self.compiler() if self.compiler else super().compile(experiment, specialization, client)

    def find_compiled(self, experiment: Experiment, specialization: str = "launcher") -> Any:
        return self.finder(experiment) if self.finder else super().find_compiled(experiment, specialization)


@pytest.fixture
def make_page(compiled_before: Path) -> Iterator[Callable[..., Page]]:
    """A function that makes the page of a machine with this GPU."""
    with ExitStack() as closing:

        def make(gpu: Gpu | None = None) -> Page:
            session = ScriptedSession(gpu, compiled_before)
            closing.callback(session.close)
            with gr.Blocks() as blocks:
                return Page(blocks, session)

        yield make


@pytest.fixture
def page(make_page: Callable[..., Page]) -> Page:
    """The page on a machine without a GPU."""
    return make_page()


@pytest.fixture(scope="module")
def shared_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One page for all tests of a file, with nothing compiled."""
    session = Session(None, tmp_path_factory.mktemp("cache"))
    with gr.Blocks() as blocks:
        built = Page(blocks, session)
    yield built
    session.close()


@pytest.fixture
def started() -> Iterator[Started]:
    """Sweeps on made-up devices."""
    made = Started()
    yield made
    made.go.set()


@pytest.fixture
def panel(started: Started) -> SweepPanel:
    """The Sweep panel, whose sweeps run on made-up devices."""
    made = SweepPanel()
    made.sweeps = started.sweeps()
    with gr.Blocks():
        made.build()
    return made
