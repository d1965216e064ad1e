"""The page's head, and Gradio's theme for it: one typeface with full weights, one accent."""

import gradio as gr
from gradio.themes.utils.fonts import LocalFont

from visualize.web import assets

# Gradio ships both typefaces whole in these two weights only; with 600 declared it serves a file of a few letters.
_WEIGHTS = (400, 700)

# Title and description for browsers and link previews.
TITLE = "Tilescope: see what a Triton kernel really does"
DESCRIPTION = (
    "Pick a Triton kernel, set its tiles, and see which blocks it loads, which bytes each warp fetches, and what "
    "reaches DRAM: predicted, beside what the hardware counted."
)
_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Crect width='16' height='16' rx='3' fill='%233b4fd1'/%3E"
    "%3Cpath d='M3 3h4v4H3zM9 9h4v4H9z' fill='%23fff'/%3E"
    "%3Cpath d='M9 3h4v4H9zM3 9h4v4H3z' fill='%23f5a300'/%3E%3C/svg%3E"
)
HEAD = (
    f'<link rel="icon" href="{_ICON}"><meta property="og:title" content="{TITLE}">'
    f'<meta property="og:description" content="{DESCRIPTION}"><meta name="description" content="{DESCRIPTION}">'
    f"<style>{assets.text('web/assets/head/narrow.css')}</style>"
)


def theme() -> gr.themes.Base:
    """Return the theme. The style sheets beside the views have the rest."""
    accent = gr.themes.Color(
        name="accent",
        c50="#eef1ff", c100="#dfe4ff", c200="#c4ccff", c300="#a1acfb", c400="#8493f5", c500="#5b6ce6",
        c600="#3b4fd1", c700="#3040aa", c800="#293785", c900="#22306b", c950="#161e44",
    )  # fmt: skip
    return gr.themes.Default(
        primary_hue=accent,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_sm,
        font=[LocalFont("IBM Plex Sans", weights=_WEIGHTS), "system-ui", "sans-serif"],
        font_mono=[LocalFont("IBM Plex Mono", weights=_WEIGHTS), "ui-monospace", "monospace"],
    ).set(
        # Default is white on the 500 of a hue: too little contrast for text.
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_600",
        button_primary_background_fill_hover_dark="*primary_500",
        color_accent="*primary_600",
    )
