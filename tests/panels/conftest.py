"""A page without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gradio as gr
import pytest
from gradio.routes import App

from kernels.measuring.session import Session
from tests.panels.sweeps_made_up import Started
from visualize.page.page import Page
from visualize.panels import running_sweeps


@pytest.fixture(autouse=True)
def unserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is made for a page that nobody opens: Gradio makes two, and takes most of the page's time for them."""
    monkeypatch.setattr(App, "create_app", lambda *_, **__: None)


@pytest.fixture
def page(compiled_before: Path) -> Iterator[Page]:
    """The page on a machine without a GPU."""
    session = Session(None, compiled_before)
    with gr.Blocks() as blocks:
        built = Page(blocks, session)
    yield built
    session.close()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    """Sweeps of the page run on made-up devices."""
    made = Started()
    monkeypatch.setattr(running_sweeps, "sweep_here", made.sweep_here)
    yield made
    made.go.set()
