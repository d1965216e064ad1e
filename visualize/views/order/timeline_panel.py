"""A launch in true time: a Gantt chart by SM and the tiles at any moment, beside the ideal waves. /timeline."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from markupsafe import Markup

from kernels.measuring.timeline import TIMELINE
from kernels.results import Timeline, records
from kernels.results.codec import to_json
from visualize.predict.execution import Execution, ideal_clock
from visualize.predict.schedule import steps
from visualize.views import prose, slots, tables
from visualize.views.address import query
from visualize.views.endpoint import Api, Endpoint
from visualize.views.options import ScheduleView
from visualize.views.order import text as order_text
from visualize.views.order.figures import gantt_figure, moment_data, moment_figure
from visualize.views.order.player import replay
from visualize.views.plot import NONE, drawn
from visualize.views.prose import picture_caption
from visualize.views.slots import button, plot, slot
from visualize.views.snapshot import Known
from visualize.views.view import Panel, RunAction, Slots

WHAT_IS_TIMED = (
    "Each program reads the GPU's timer first, and again after all its warps have issued their last store. "
    "The launch itself, and writes still on their way to memory when a program ends, count for no program."
)


class TimelinePanel(Panel):
    """When and where each program ran, and the tiles at any moment."""

    def layout(self) -> Markup:
        measured = plot("moment-plot", "Which tiles are done, running and to come at the time that is shown")
        ideal = plot("ideal-plot", "The ideal waves, when as many tiles have been begun")
        return Markup("").join(
            [
                slots.row(button("record-timeline", "Record a timeline"), name="timeline-row"),
                slot("timeline"),
                replay(),
                slots.row(measured, ideal, classes="row plots"),
                slots.picture(plot("gantt-plot", "When and on which SM each program ran"), name="timeline-picture"),
                slot("timeline-table"),
            ]
        )

    def actions(self) -> Mapping[str, RunAction]:
        return {"record-timeline": RunAction("timeline")}

    def draw(self, known: Known) -> Slots:
        ran, state = known.result(Timeline), known.state
        if ran is None:
            plots: Slots = dict.fromkeys(("moment-plot", "ideal-plot", "gantt-plot"), NONE)
            return {"timeline": _hint(state.gpu.name), **plots, "timeline-table": ""}
        schedule = known.schedule
        execution = Execution(np.array(ran.sm), np.array(ran.start_ns), np.array(ran.end_ns), state.gpu.sms)
        begun_ns, done_ns = execution.tile_times(schedule)
        real = "True time" if schedule.turns == 1 else "True time, tiles spread evenly (assumed)"
        clock, step = ideal_clock(begun_ns, schedule.step, execution.span_ns), schedule.step
        name = steps(schedule).name
        moments = {
            real: moment_data(schedule, begun_ns, done_ns),
            f"Ideal {name}s, as many tiles begun": moment_data(schedule, clock[step], clock[step + 1], name, clock),
        }
        anew = f"{query(state.experiment.to_address())} {ran.backend} {execution.span_ns}"
        source = "recorded" if ran.backend == "recorded" else "measured"
        ran_text, ideal_text = (picture_caption(state.experiment, state.gpu.name, one) for one in (source, "predicted"))
        measured, ideal = (
            drawn(moment_figure(schedule, title), anew, moment, about=text)
            for (title, moment), text in zip(moments.items(), (ran_text, ideal_text), strict=True)
        )
        table = tables.table(order_text.timeline_rows(ran, execution, schedule), order_text.TIMELINE_CAPTION)
        gantt = gantt_figure(execution, schedule, state.view.of(ScheduleView).color, f"{len(execution.sm):,} programs")
        told = {"span_ns": execution.span_ns, "waves": schedule.waves, "slices": schedule.slices}
        first, *more = order_text.timeline_sentences(ran, execution, schedule)
        return {
            "timeline": prose.claim(first) + prose.claim(*more),
            "moment-plot": measured,
            "ideal-plot": ideal,
            "gantt-plot": drawn(gantt, anew, {"gantt": told}, about=ran_text),
            "timeline-table": table,
        }

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def timeline(experiment: dict[str, Any]) -> dict[str, Any]:
            """Tells when each program of a launch ran, and on which SM.

            `programs` has each program's SM, start and end in ns, measured on this machine's GPU by an instrumented
            build of the kernel. `instrumented_ms` beside `plain_ms` says what instrumentation costs. Without a GPU: a
            recorded timeline, or a failure.
            """
            return await api.measured(experiment, "timeline", lambda timeline, _: timeline_json(timeline))

        return (Endpoint("timeline", timeline, at_once=None, launches=True),)


def timeline_json(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as /timeline shows it: one object per program, and what follows from all of them."""
    fields = to_json(timeline)
    columns = {name: fields.pop(name) for name in ("sm", "start_ns", "end_ns")}
    return {
        **fields,
        "programs": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
        **{name: getattr(timeline, name) for name in ("span_ns", "tick_ns", "step_ns")},
        "plain_ms": timeline.plain.median_ms,
        "instrumented_ms": timeline.instrumented.median_ms,
        "note": f"{timeline.note} {WHAT_IS_TIMED}".strip(),
    }


# Slots at each move of a slider, and the same for all experiments without a timeline.
@functools.cache
def _hint(gpu: str) -> Markup:
    """That there is no timeline, and what has one on this GPU."""
    return prose.hint(order_text.timeline_hint(gpu, records.experiments(TIMELINE.form, gpu)))
