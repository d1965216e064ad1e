"""What stands behind a picture: folded until somebody asks for it."""

from __future__ import annotations

import gradio as gr


def folded(title: str, name: str) -> gr.Accordion:
    """A closed fold with the DOM id `name`; what is laid out in it reaches the browser when it is opened."""
    return gr.Accordion(title, open=False, elem_id=name, elem_classes="folded")
