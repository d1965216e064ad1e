"""How many tiles a launch has: a panel with an option and an endpoint, which test_additions.py adds to a copy."""

from dataclasses import dataclass

from kernels.knobs import knob
from visualize.views import slots
from visualize.views.panel import Endpoint, Panel
from visualize.views.prose import lead, say


@dataclass(frozen=True)
class TilesView:
    at_least: int = knob(1, "Tiles", "Show the number from this many tiles.", low=1, high=64)


class TilesPanel(Panel):
    options = (TilesView,)
    forms = (("tiles-view", TilesView),)
    uses_compiler = False

    def layout(self):
        return slots.form("tiles-view", "Tiles") + slots.slot("tiles-headline")

    def draw(self, snapshot):
        tiles = len(snapshot.schedule.tiles.program)
        is_enough = tiles >= snapshot.state.view.of(TilesView).at_least
        return {"tiles-headline": lead(say("{} tiles.", tiles) if is_enough else "Few tiles.")}

    def endpoints(self, api):
        async def tiles(experiment: dict) -> dict:
            """Return how many tiles a launch has."""
            return api.reply_predicted(
                experiment, lambda snapshot: {"tiles": len(snapshot.schedule.tiles.program)}
            )

        return (Endpoint("tiles", tiles),)
