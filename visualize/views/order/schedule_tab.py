"""The Schedule panel: which program computes which tile, in this order and in row-major order. /schedule."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from markupsafe import Markup

from kernels import discover
from kernels.results import GroupSizeStudy
from kernels.spec import Kernel
from visualize.predict.reuse import DramTraffic
from visualize.predict.schedule import FirstLoads, first_loads, first_programs, loads, panels, row_major, steps
from visualize.views import form, slots
from visualize.views.address import query
from visualize.views.endpoint import Api, Endpoint, Plain
from visualize.views.numbers import Number
from visualize.views.options import PlayerView, ScheduleView
from visualize.views.order import text
from visualize.views.order.figures import loads_figure
from visualize.views.order.map_figure import Order, map_figure, player_data
from visualize.views.order.player import player
from visualize.views.plot import drawn
from visualize.views.prose import Link, Sentence, picture_caption
from visualize.views.slots import fold, plot, slot
from visualize.views.snapshot import Known
from visualize.views.summaries import schedule_numbers
from visualize.views.view import Panel, Slots

MOST_LISTED_PROGRAMS = 8192
MOST_LISTED_TILES = 1 << 18
COMPARED_PROGRAMS = 1024

# Seconds that /schedule waits for the compiler: all but the occupancy is known without it.
COMPILED_WITHIN_S = 0.15

# Points of the curve of loads at most: as many as a screen tells apart.
CURVE_POINTS = 400


class SchedulePanel(Panel):
    """This order and row-major order, step by step, and what the first programs load in each."""

    options = (ScheduleView, PlayerView)

    forms = (("schedule-view", ScheduleView),)

    def layout(self) -> Markup:
        picture = plot("schedule-plot", "Which program computes which tile, and which blocks it loads")
        loads = plot("loads-plot", "Distinct blocks that the first n programs load, in both orders")
        return Markup("").join(
            [
                slot("schedule-claim"),
                player(),
                slots.picture(picture, name="schedule-picture"),
                fold(
                    "schedule-options",
                    "Colours, steps and what is compared",
                    slots.form("schedule-view", "Options of the schedule"),
                ),
                fold("loads", "What the first programs load: the whole curve", loads),
                fold("waves", "Waves and occupancy", slot("schedule-occupancy")),
            ]
        )

    def draw(self, known: Known) -> Slots:
        state, view, ours = known.state, known.state.view.of(ScheduleView), known.schedule
        orders = orders_of(known)
        first = first_programs(ours, orders[0].steps, view.first)
        read = panels(ours)
        told = player_data(
            orders, read, view.color, state.view.of(PlayerView).step, *_marked(orders[0], view.first, first)
        )
        about = picture_caption(state.experiment, state.gpu.name, "predicted")
        anew = f"{ours.extents} {state.kernel.id}"
        picture = drawn(map_figure(orders, view.color), anew, told, about=about)
        waves = steps(ours) if orders[0].steps.is_single else orders[0].steps
        more = (
            text.split_k_sentence(ours),
            text.waves_sentence(ours, waves),
            state.kernel.note(state.launch),
            known.failure.message if known.failure else "",
        )
        what = "program" if ours.turns == 1 else "tile"
        found = first_loads(orders[0].steps, orders[1].steps, first) if len(orders) > 1 else None
        return {
            "schedule-claim": _claim(known, found, what, more),
            "schedule-plot": picture,
            "loads-plot": _curve(orders, first, f"{what}s", about) if found else "",
            "schedule-occupancy": text.occupancy_table(ours, state.launch, known.compiled),
        }

    def fill(self, known: Known) -> Slots:
        compares = known.state.kernel.family.panels is not None
        view = form.of(known.state.view.of(ScheduleView), hidden=() if compares else ("first",))
        return {**super().fill(known), "schedule-view": view}

    def summary(self, known: Known) -> tuple[Number, ...]:
        return schedule_numbers(known)

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def schedule_of(experiment: dict[str, Any]) -> dict[str, Any]:
            """Predicts which program computes which tile, and in which wave.

            Returns the programs of the launch, how many are resident at once on all SMs, waves (rounded up), and the
            programs of the last, partial wave. `tiles` lists, per pid in order, the [pid_m, pid_n, pid_k] it computes;
            8,192 programs at most. `loads` counts the distinct blocks of A and B that the first n programs load;
            null without a reduction. Needs no GPU. `resident_source` is "assumed" where the compiler needs longer than
            a moment: ask again for what it says.
            """
            return await api.compiled(experiment, reply, or_not=True, within_s=COMPILED_WITHIN_S)

        return (Endpoint("schedule", schedule_of, at_once=None),)


def orders_of(known: Known) -> list[Order]:
    """This kernel's order, and the row-major one where they load different blocks."""
    state, ours = known.state, known.schedule
    name = state.kernel.title
    if hasattr(state.experiment.config, "GROUP_SIZE"):
        name += f", GROUP_SIZE {state.experiment.config.GROUP_SIZE}"
    named = {name: ours} if ours.panels is None else {name: ours, "row-major order": row_major(ours)}
    by = state.view.of(ScheduleView).by
    return [Order(name, order, steps(order, by)) for name, order in named.items()]


def _marked(order: Order, wanted: int, first: int) -> tuple[int, int]:
    """The programs that are marked in the picture, and the step of the last one; 0 where none were asked for."""
    count = len(order.steps.timed.place)
    if first == count:
        return 0, 0
    ends = np.cumsum(order.steps.tiles)
    return first, int(np.searchsorted(ends, first)) + 1 if wanted else 0


def _claim(known: Known, found: FirstLoads | None, what: str, more: tuple[Sentence | str, ...]) -> Markup:
    if found is None:
        return text.read_once_headline(known.schedule, more)
    where = () if found.blocks < found.row_major_blocks else _where_it_matters(known.state.kernel)
    inputs = known.schedule.panels or ("", "")
    traffic = DramTraffic(known.state.kernel, known.launch, known.compiled, known.result(GroupSizeStudy))
    link = Link("All sizes: the Reuse tab.", query({**known.state.to_address(), "tab": "reuse"}))
    return text.loads_headline(found, what, inputs, traffic, link, (*where, *more))


def _where_it_matters(kernel: Kernel) -> tuple[Link, ...]:
    """A link to the largest preset of the family that compares orders."""
    family = [one for one in discover().values() if one.family.root is kernel.family.root]
    comparing = [(one, preset) for one in family for preset in one.presets if "first" in preset.view]
    if not comparing:
        return ()
    one, preset = comparing[-1]
    fields = {"kernel": one.id, **preset.problem, **preset.config, **preset.view}
    return (Link(f"{preset.title}.", query(fields)),)


def _curve(orders: list[Order], first: int, what: str, about: str) -> str:
    """What the first n programs of each order load, for each n."""
    # All tiles of a program that loops say nothing of what is loaded when.
    named = {order.name: order.steps.timed for order in orders}
    programs = min(order.programs for order in named.values())
    counts = np.arange(1, programs + 1)
    if programs > CURVE_POINTS:
        counts = np.unique(np.append(np.geomspace(1, programs, CURVE_POINTS).round().astype(np.int64), first))
    curves = {name: loads(order, counts) for name, order in named.items()}
    inputs = orders[0].schedule.panels or ("", "")
    return drawn(loads_figure(counts, curves, first, what, inputs), f"{programs}", about=about)


def reply(known: Known) -> dict[str, Any]:
    """The body of /schedule. Where nothing can be compiled, one program per SM is assumed, and the note says why."""
    kernel, launch, predicted = known.state.kernel, known.launch, known.schedule
    tiles = predicted.tiles
    # Whole programs only: those whose last tile still fits.
    ends = np.searchsorted(tiles.program, np.arange(min(predicted.programs, MOST_LISTED_PROGRAMS)), side="right")
    ends = ends[ends <= MOST_LISTED_TILES]
    shown = slice(int(ends[-1]) if len(ends) else 0)
    listed = np.stack([tiles.pid_m[shown], tiles.pid_n[shown], tiles.pid_k[shown]], axis=1).tolist()
    first, note = np.arange(1, min(predicted.programs, COMPARED_PROGRAMS) + 1), kernel.note(launch)
    return {
        "programs": predicted.programs,
        "grid": list(kernel.grid(launch)),
        "tile_grid": list(predicted.extents),
        "resident_programs": predicted.resident_programs,
        "resident_source": predicted.resident_source,
        "waves": predicted.waves,
        "tail_programs": predicted.tail_programs,
        "tiles": Plain([listed[first:last] for first, last in itertools.pairwise([0, *ends.tolist()])]),
        "loads": None if predicted.panels is None else loads(predicted, first).tolist(),
        "note": known.failure.message if known.failure else " ".join(filter(None, (_not_yet(known), note))),
    }


def _not_yet(known: Known) -> str:
    """That the compiler has not said yet how many programs an SM holds; "" where it has."""
    return "" if known.compiled else text.NOT_COMPILED_YET
