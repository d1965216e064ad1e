"""The page's scripts, which are ES modules, and its styles, each beside its view or in `assets`."""

from pathlib import Path

from visualize.views.theme import variables

VISUALIZE = Path(__file__).parents[1]


def _find(suffix: str) -> list[Path]:
    """Return the page's own files, then those of each view."""
    return [
        path
        for folder in ("web/assets", "views/*")
        for path in sorted(VISUALIZE.glob(f"{folder}/*{suffix}"))
    ]


PLOTLY_JS = VISUALIZE / "web" / "plotly_js" / "plotly.min.js"

# Content of the scripts, by path.
SCRIPTS = {path.relative_to(VISUALIZE).as_posix(): path.read_text("utf-8") for path in _find(".js")}
_OUTSIDE, _INSIDE = (
    "".join(
        path.read_text("utf-8") for path in _find(".css") if (path.stem == "outside") == is_outside
    )
    for is_outside in (True, False)
)
# Inside Gradio's container, as specific as Gradio's own rules.
STYLES = f"{variables()}{_OUTSIDE}.gradio-container {{\n{_INSIDE}}}\n"
