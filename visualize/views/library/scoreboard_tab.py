"""The Scoreboard panel: every recorded count beside its prediction, each point a link to its launch. /scoreboard."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from kernels import discover
from kernels.experiment import JsonSchema, argument_schemas
from kernels.gpus import GPUS
from kernels.knobs import knob
from visualize.predict.scores import COUNTS, DRAM, EXACT_COUNTS, Score, Scoreboard
from visualize.views import form, slots
from visualize.views.address import query
from visualize.views.endpoint import Api, Endpoint, answered, view_of
from visualize.views.library import text
from visualize.views.library.figures import scoreboard_figure
from visualize.views.library.recorded_tab import ALL, SHOWN_ON, payload
from visualize.views.library.scoreboard import scoreboard
from visualize.views.plot import NONE, drawn
from visualize.views.slots import plot, slot
from visualize.views.snapshot import Known
from visualize.views.state import short_experiment
from visualize.views.view import Panel, Slots

_PREFIX = "score_"


@dataclass(frozen=True)
class ScoreboardView:
    """Which counts are shown."""

    score_count: str = knob("sectors", "Show", "What is compared.", choices=COUNTS)
    score_gpu: str = knob(ALL, "Show", "The GPU that it was counted on.", choices=(ALL, *GPUS))
    score_kernel: str = knob(ALL, "Show", "The kernel that was launched.", choices=(ALL, *discover()))

    @property
    def gpu(self) -> str:
        """The GPU's name; "" for all."""
        return "" if self.score_gpu == ALL else self.score_gpu

    @property
    def kernel(self) -> str:
        """The kernel's id; "" for all."""
        return "" if self.score_kernel == ALL else self.score_kernel

    @property
    def kind(self) -> str:
        """The kind of recording that holds such a count."""
        return "reuse" if self.score_count == DRAM else "counters"


# What /scoreboard takes. On the page one kind of count is shown, and here all unless one is named.
_COUNT: JsonSchema = {"type": "string", "enum": list(COUNTS), "description": "What is compared. Default: all."}
SCHEMAS = {**argument_schemas(ScoreboardView, _PREFIX), "count": _COUNT}


class ScoreboardPanel(Panel):
    """Every recorded count beside its prediction."""

    options = (ScoreboardView,)
    uses_compiler = False
    is_compared = False

    forms = (("scoreboard-view", ScoreboardView),)

    def layout(self) -> Markup:
        label = "Each recorded count: predicted across, counted upwards"
        return Markup("").join(
            [
                slot("scoreboard-claim"),
                slots.form("scoreboard-view", "Which counts are shown"),
                slots.picture(plot("scoreboard-plot", label)),
                slot("scoreboard-below"),
            ]
        )

    def draw(self, known: Known) -> Slots:
        view = known.state.view.of(ScoreboardView)
        shown = scoreboard().part((view.score_count,), view.gpu, view.kernel)
        both = scoreboard().part(EXACT_COUNTS, view.gpu, view.kernel)
        listed = {"kind": view.kind, "gpu": view.score_gpu, "kernel": view.score_kernel, "page": 1}
        to_list = known.state.moved_to(tab="recorded", **{f"recorded_{name}": value for name, value in listed.items()})
        links = {one: query(address(one)) for one in shown.misses}
        return {
            "scoreboard-claim": text.scoreboard_headline(shown, view.score_count, both),
            "scoreboard-plot": picture(view),
            "scoreboard-below": text.scoreboard_notes(shown, view.score_count, query(to_list), links),
            "scoreboard-view": _form(view),
        }

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        def scoreboard_of(kernel: str = "", gpu: str = "", count: str = "") -> dict[str, Any]:
            """Compares what was predicted of every recorded launch with what was counted on a GPU.

            `totals` has, per count (sectors, requests, dram_bytes), how many were compared, how many are equal, and the
            median error. `points` are all of them, each with the number of its launch in `launches`; `misses` those
            that differ (of DRAM's bytes: by more than 20 %). `left_out` has what is not compared: lower bounds, as
            loops of atomics retry, and launches that no prediction is shipped for.
            """
            return answered(lambda: reply(kernel, gpu, count))

        return (Endpoint("scoreboard", scoreboard_of, schemas=SCHEMAS),)


def _form(view: ScoreboardView) -> str:
    """The form, with the GPUs that there are counts of, and the one that is set."""
    counted = list(dict.fromkeys((ALL, *scoreboard().gpus, view.score_gpu)))
    more = {"score_count": {}, "score_gpu": {"choices": counted}, "score_kernel": {}}
    labels = ("count", "GPUs", "kernels")
    fields = [
        {**one, **more[one["name"]], "label": label} for one, label in zip(form.fields(type(view)), labels, strict=True)
    ]
    return form.filled(fields, dataclasses.asdict(view))


def address(one: Score) -> dict[str, Any]:
    """The state of the page that shows the launch of a score."""
    tab = SHOWN_ON["reuse" if one.count == DRAM else "counters"]
    return {**short_experiment(one.experiment), "tab": tab}


@functools.lru_cache(maxsize=64)
def picture(view: ScoreboardView) -> str:
    """The value of the plot: the same for every Experiment, so it is made once."""
    shown = scoreboard().part((view.score_count,), view.gpu, view.kernel)
    if not shown.scores:
        return NONE
    meta = {
        "words": np.array([text.point_text(one) for one in shown.scores]),
        "addresses": np.array([query(address(one)) for one in shown.scores]),
    }
    figure = scoreboard_figure(shown.scores, view.score_count)
    return drawn(figure, f"{view}", meta, about=text.scoreboard_caption(shown, view.score_count))


def reply(kernel: object, gpu: object, count: object) -> dict[str, Any]:
    """The body of /scoreboard.

    Raises:
        ConfigError: where there is no such kernel, GPU or count.
    """
    view = view_of(ScoreboardView, _PREFIX, {"kernel": kernel, "gpu": gpu, "count": count}, "/scoreboard")
    board = scoreboard().part((view.score_count,) if count else COUNTS, view.gpu, view.kernel)
    launches = list(dict.fromkeys(one.experiment for one in (*board.scores, *board.lower_bounds)))
    numbers = {experiment: number for number, experiment in enumerate(launches)}

    def points(several: Sequence[Score]) -> list[dict[str, Any]]:
        return [_point(one, numbers[one.experiment]) for one in several]

    return {
        "totals": {name: _totals(board.part((name,))) for name in dict.fromkeys(one.count for one in board.scores)},
        "launches": [{"experiment": payload(one), "gpu": one.gpu} for one in launches],
        "points": points(board.scores),
        "misses": points(board.misses),
        "left_out": {
            "lower_bounds": points(board.lower_bounds),
            "not_predicted": [payload(one) for one in board.unpredicted],
        },
    }


def _totals(board: Scoreboard) -> dict[str, Any]:
    return {
        "compared": len(board.scores),
        "exact": board.exact,
        "misses": len(board.misses),
        "launches": board.launches,
        "gpus": board.gpus,
        "median_error": board.median_error,
    }


def _point(one: Score, launch: int) -> dict[str, Any]:
    return {
        "launch": launch,
        "operation": one.operation,
        "count": one.count,
        "predicted": one.predicted,
        "counted": one.counted,
        "error": one.error,
        "flagged": one.is_flagged,
        "address": query(address(one)),
    }
