"""Adding a tab is adding one file and a line in a list: options, address, drawing and endpoint come along."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.xdist_group("grown")

FILE = '''"""How many tiles a launch has, some of them at once. /tiles."""

from dataclasses import dataclass

from kernels.knobs import knob
from visualize.views.panel import Endpoint
from visualize.views.panel import Panel
from visualize.views.prose import Strong, claim, say
from visualize.views import slots


@dataclass(frozen=True)
class TilesView:
    at_least: int = knob(1, "Tiles", "Say so only from so many tiles on.", low=1, high=64)


class TilesPanel(Panel):
    options = (TilesView,)
    forms = (("tiles-view", TilesView),)
    uses_compiler = False

    def layout(self):
        return slots.form("tiles-view", "Tiles") + slots.slot("tiles-claim")

    def draw(self, snapshot):
        tiles = len(snapshot.schedule.tiles.program)
        enough = tiles >= snapshot.state.view.of(TilesView).at_least
        return {"tiles-claim": claim(say("{} tiles.", Strong(tiles)) if enough else "Few tiles.")}

    def endpoints(self, api):
        async def tiles(experiment: dict) -> dict:
            """How many tiles."""
            return api.reply_predicted(experiment, lambda snapshot: {"tiles": len(snapshot.schedule.tiles.program)})

        return (Endpoint("tiles", tiles),)
'''

PAGE = """
from types import SimpleNamespace
from kernels.measuring.session import Session
import json
from visualize.web.page import page
from visualize.web.redraw import Redraw
from visualize.views.prediction_process import PredictionProcess
from visualize.views.tabs import SETTINGS

session = Session(None)
built = Redraw(session, PredictionProcess(session))
flat = {"kernel": "matmul.grouped", "tab": "tiles", "at_least": 9, "M": 256, "N": 256}
opened = SETTINGS.state(flat, None)
update = built.on_message(SimpleNamespace(session_hash="page"), json.dumps({"settings": opened.to_settings()}))
served = page(session)
said = {
    "tabs": SETTINGS.tabs,
    "address": opened.to_address(),
    "drawn": json.loads(update)["slots"],
    "endpoints": [fn.api_name for fn in served.fns.values() if fn.api_visibility == "public"],
    "refused": SETTINGS.state_or_defaults({**flat, "at_least": 65}, None)[1],
}
session.close()
"""


def add(tree):
    """One file more, and a line in the list of tabs."""
    (tree / "visualize" / "views" / "order" / "tiles_tab.py").write_text(FILE, encoding="utf-8")
    listed = tree / "visualize" / "views" / "tabs.py"
    text = listed.read_text(encoding="utf-8")
    last = '    Tab("compiler", "Compiler", (CompilerPanel,)),\n'
    assert text.count(last) == 1
    text = text.replace(last, last + '    Tab("tiles", "Tiles", (TilesPanel,)),\n')
    text = text.replace(
        "from visualize.views.order.view import",
        "from visualize.views.order.tiles_tab import TilesPanel\nfrom visualize.views.order.view import",
    )
    listed.write_text(text, encoding="utf-8")


def test_the_page_draws_it_and_the_api_answers_for_it(grown_page):
    assert "tiles" in grown_page["tabs"]
    assert grown_page["address"]["at_least"] == 9
    assert grown_page["drawn"]["tiles-claim"] == '<p class="claim">Few tiles.</p>'
    assert "tab=tiles" in grown_page["drawn"]["link"]
    assert "at_least=9" in grown_page["drawn"]["link"]
    assert {"tiles", "kernels", "schedule", "run", "timeline"} <= set(grown_page["endpoints"])
    assert grown_page["refused"] == {"at_least": "at_least must be a whole number from 1 to 64 (got 65)."}
