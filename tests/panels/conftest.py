"""A page without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gradio as gr
import pytest

from kernels.runner.session import Session
from visualize.page.page import Page


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """The page on a machine without a GPU."""
    session = Session(None, tmp_path)
    with gr.Blocks() as blocks:
        built = Page(blocks, session)
    yield built
    session.close()
