"""Update README's scoreboard: `python -m scripts.draw_scoreboard`. CHROMIUM names the browser.

Draws docs/scoreboard.png from the page's figure, on white, and updates the number in the sentence below it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.browser import chromium
from visualize.views.library import (
    MODELS,
    agreement,
    compared_scores,
    count_launches,
    list_gpus,
    scoreboard_figure,
)
from visualize.views.prose import count_noun, join_names
from visualize.views.theme import THEMES
from visualize.web.assets import PLOTLY_JS

ROOT = Path(__file__).resolve().parents[1]
PICTURE, README = ROOT / "docs" / "scoreboard.png", ROOT / "README.md"
WIDTH, HEIGHT, SCALE, COLORS = 960, 560, 2, 64

# The text of `summary`, in bold.
SENTENCE = re.compile(r"\*\*[\d,]+ of [\d,]+ counts agree exactly[^*]*\*\*")


def figure() -> str:
    """Return the figure of all sector counts as JSON with plain lists."""
    drawn = scoreboard_figure(compared_scores("sectors"), MODELS["sectors"])
    size = {"width": WIDTH, "height": HEIGHT}
    page = {"template": THEMES["light"], "paper_bgcolor": "#fff", **size}
    content = {"data": drawn["data"], "layout": drawn["layout"] | page}
    return json.dumps(content, default=lambda array: np.asarray(array).tolist())


def draw(file: Path) -> None:
    """Draw the figure in a browser, and write it with few colours."""
    with chromium() as browser:
        page = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=SCALE
        )
        page.set_content("<body style='margin: 0'><div id='plot'></div>")
        page.add_script_tag(path=PLOTLY_JS)
        page.evaluate(
            "({ data, layout }) => Plotly.newPlot('plot', data, layout, { staticPlot: true })",
            json.loads(figure()),
        )
        page.screenshot(path=file)
    with Image.open(file) as image:
        image.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(file, optimize=True)


def summary() -> str:
    """Return how many sector and request counts agree."""
    scores = compared_scores("sectors") + compared_scores("requests")
    launches = f"{count_noun(count_launches(scores), 'launch')}, {join_names(list_gpus(scores))}"
    return f"{agreement(scores)} counts agree exactly ({launches})"


def main() -> None:
    draw(PICTURE)
    text = README.read_text(encoding="utf-8")
    sentence = summary()
    README.write_text(SENTENCE.sub(f"**{sentence}**", text), encoding="utf-8")
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes; README: {sentence}")


if __name__ == "__main__":
    main()
