"""A piece of HTML on the page, with the page's own style instead of Gradio's prose."""

from __future__ import annotations

from typing import Literal

import gradio as gr


def markup(name: str, value: str = "", script: str | None = None, visible: bool | Literal["hidden"] = True) -> gr.HTML:
    """HTML with the DOM id `name`; `script` runs when it is first shown."""
    return gr.HTML(value, elem_id=name, js_on_load=script, apply_default_css=False, visible=visible)
