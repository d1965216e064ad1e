"""The Reuse panel: DRAM reads by GROUP_SIZE, traffic from lanes to DRAM, and time by resource. /reuse."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from kernels.knobs import knob
from kernels.results import GroupSizeStudy
from kernels.results.codec import to_json
from visualize.predict.reuse import DramTraffic, fewest_bytes, recommended, reuse_seconds
from visualize.predict.schedule import programs_per_sm
from visualize.views import prose, slots, status
from visualize.views.endpoint import Api, Endpoint, Reply
from visualize.views.numbers import Number
from visualize.views.order.figures import bounds_figure, bytes_figure, times_figure
from visualize.views.order.reuse_text import model_notes, reuse_funnel, reuse_headline, reuse_sentences, study_table
from visualize.views.order.view import larger_preset
from visualize.views.plot import NONE, plot_value
from visualize.views.prose import picture_caption
from visualize.views.slots import button, fold, plot, slot
from visualize.views.state import Snapshot
from visualize.views.summaries import reuse_numbers
from visualize.views.view import Panel, RunAction, Slots


@dataclass(frozen=True)
class ReuseView:
    """The picture beside the DRAM reads. Links set it, so it has no control."""

    reuse_picture: str = knob(
        "times", "", "Beside the reads: times, where measured, or bounds, each resource's own time.",
        choices=("times", "bounds"),
    )  # fmt: skip


class ReusePanel(Panel):
    """DRAM traffic, and the effect of GROUP_SIZE on it."""

    options = (ReuseView,)

    def layout(self) -> Markup:
        resources = "Time each resource would take alone, and the measured time"
        return Markup("").join(
            [
                slot("reuse-claim"),
                slots.picture(
                    plot("reuse-plot", "Bytes read from DRAM by GROUP_SIZE, predicted and counted"),
                    plot("times-plot", "Time by GROUP_SIZE"),
                    plot("bounds-plot", resources),
                ),
                fold(
                    "compare-fold",
                    "Every GROUP_SIZE, counted and timed on this GPU",
                    slots.row(button("compare-sizes", "Count and time every GROUP_SIZE"), name="compare-row"),
                ),
                fold(
                    "reuse-behind",
                    "From lanes to DRAM, and the time of each resource",
                    slot("reuse-way"),
                    slots.row(plot("resources-plot", resources), classes="row plots"),
                ),
                fold("reuse-numbers", "Predicted and counted in numbers, and what is assumed", slot("reuse-tables")),
            ]
        )

    def actions(self) -> Mapping[str, RunAction]:
        return {"compare-sizes": RunAction("reuse")}

    def seconds(self, known: Snapshot) -> float:
        return seconds(known)

    def predicting(self, known: Snapshot) -> Slots:
        return {"reuse-claim": status.render_predicting(seconds(known))}

    def draw(self, known: Snapshot) -> Slots:
        here = traffic(known)
        revision = f"{known.state.kernel.id} {here.schedule.extents}"
        reads = times = NONE

        def about(*sources: str) -> str:
            return picture_caption(known.state.experiment, known.state.gpu.name, *sources)

        timed = here.source("measured")
        if here.sizes and here.group_size:
            own = min(here.group_size, here.schedule.extents[0])
            measured = [row for row in here.study.rows if row.group_size] if here.study else []
            counted = here.source("counted")
            from_where = about("predicted", counted) if measured else about("predicted")
            reads = plot_value(bytes_figure(here.sizes, measured, own, counted), revision, about=from_where)
            if measured and known.state.view.of(ReuseView).reuse_picture == "times":
                times = plot_value(times_figure(measured, own, timed), revision, about=about(timed))
        sources = ("predicted", timed) if here.measured_ms else ("predicted",)
        resources = plot_value(bounds_figure(here.bounds, here.measured_ms, timed), revision, about=about(*sources))
        why = known.failure.message if known.failure else ""
        larger = larger_preset(known.state.kernel, "reuse", "Open a size at which GROUP_SIZE matters.")
        return {
            "reuse-claim": reuse_headline(here, why, larger),
            "reuse-plot": reads,
            "times-plot": times,
            # The picture shows at most two plots; the third one stands below.
            "bounds-plot": resources if times == NONE else NONE,
            "resources-plot": NONE if times == NONE else resources,
            "reuse-way": reuse_funnel(here),
            "reuse-tables": Markup('<div class="tables">{}{}</div>').format(study_table(here), model_notes(here)),
        }

    def summary(self, known: Snapshot) -> tuple[Number, ...]:
        return reuse_numbers(traffic(known))

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def reuse_of(experiment: dict[str, Any]) -> Reply:
            """Predicts the bytes a launch reads from DRAM, in its own order and for every GROUP_SIZE.

            Finds a better GROUP_SIZE without a GPU. `dram_read_bytes` is this launch's, between `low_bytes` and
            `high_bytes`; `compulsory_bytes` is the least possible. `by_group_size` has the bytes for each GROUP_SIZE,
            `recommended_group_size` the one to take. `bounds` has the ms that DRAM, L2, load and store units and
            arithmetic each need, so whether fewer bytes buy time. `measured` is a recorded comparison, or null.
            """
            return await api.reply_compiled(experiment, reply, or_not=True, seconds=seconds)

        return (Endpoint("reuse", reuse_of, max_concurrency=None),)


def traffic(known: Snapshot) -> DramTraffic:
    """Return the launch's DRAM traffic."""
    return DramTraffic(known.state.kernel, known.launch, known.compiled, known.result(GroupSizeStudy))


def seconds(known: Snapshot) -> float:
    """Estimate the seconds of a core that `traffic` takes."""
    return reuse_seconds(known.state.kernel, known.launch, programs_per_sm(known.launch, known.compiled))


def reply(known: Snapshot) -> dict[str, Any]:
    """Return the body of /reuse. If the kernel can't be compiled, one program per SM is assumed; `note` says why."""
    here, launch = traffic(known), known.launch
    why = f" {known.failure.message}" if known.failure else ""
    return {
        "dram_read_bytes": round(here.own.read_bytes),
        "low_bytes": round(here.own.low_bytes),
        "high_bytes": round(here.own.high_bytes),
        "dram_write_bytes": here.own.write_bytes,
        "compulsory_bytes": here.own.compulsory_bytes,
        "asked_bytes": here.own.asked_bytes,
        "by_group_size": {str(size): round(one.read_bytes) for size, one in here.sizes.items()},
        "fewest_bytes_group_size": fewest_bytes(here.sizes) if here.sizes else None,
        "recommended_group_size": recommended(here.kernel, launch, here.sizes) if here.sizes else None,
        "ahead": here.own.ahead,
        "flags": [name for name, is_so in (("drift", here.own.is_drift), ("edge", here.own.is_edge)) if is_so],
        "resident_programs": here.schedule.resident_programs,
        "resident_source": here.schedule.resident_source,
        "bounds": [{"name": one.name, "ms": one.ms, "why": one.why} for one in here.bounds],
        "measured": here.study and to_json(here.study),
        "note": prose.plain(reuse_sentences(here)) + why,
    }
