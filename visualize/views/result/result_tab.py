"""The Result panel and the strip of numbers: one run, its progress, and what is shown when it ends."""

from __future__ import annotations

import dataclasses
import datetime
from dataclasses import replace
from typing import Any

import numpy as np
from markupsafe import Markup

from kernels import discover
from kernels.knobs import ConfigError
from kernels.measuring.session import Session
from kernels.results.codec import to_json
from kernels.results.run import Closeup, Diff, RunResult
from kernels.spec import Kernel, Launch
from visualize.predict.schedule import schedule
from visualize.views import slots, status
from visualize.views.address import dated, query
from visualize.views.endpoint import Api, Endpoint, Reply
from visualize.views.plot import NONE, drawn
from visualize.views.prose import picture_caption
from visualize.views.result import kept_run
from visualize.views.result import text as result_text
from visualize.views.result.figures import closeup_figure, error_figure, time_figure
from visualize.views.result.roofline_picture import drawn_roofline
from visualize.views.slots import fold, plot, slot
from visualize.views.snapshot import Known
from visualize.views.view import Panel, Slots

# The mark of a result, by the backend that it is from.
_SOURCES = {"cuda": "measured", "interpreter": "interpreter", "recorded": "recorded"}


# Slots of a run, in the order of `drawn_result` and `drawn_roofline`.
_RESULTS = (
    *("strip", "result", "diff-plot", "closeup-plot", "time-plot", "result-tables"),
    *("roofline", "roofline-plot"),
)


class ResultPanel(Panel):
    """One run: its check, its error as a picture, its time."""

    uses_compiler = False

    def layout(self) -> Markup:
        roofline = "This launch, the library's calls and recorded launches below the roofs"
        return Markup("").join(
            [
                slot("result", "result"),
                slots.picture(
                    plot("diff-plot", "The error of the last run, by place in the output"),
                    plot("closeup-plot", "The error of the worst tile and its neighbours"),
                    plot("time-plot", "The time of the last run, beside the library's and a call's"),
                ),
                fold("result-numbers", "The check and the times in numbers", slot("result-tables", "result")),
                fold("roofline-fold", "Roofline", slot("roofline"), plot("roofline-plot", roofline)),
            ]
        )

    def strip(self) -> Markup:
        """Return the numbers that stay in view above the tabs."""
        return slot("strip", "result")

    def ended(self, outcome: RunResult, known: Known) -> Slots:
        """Show a run that has just ended, and give it to the browser to keep."""
        now = datetime.datetime.now(datetime.UTC)
        return {**self._show(outcome, known), "kept": kept_run.written(outcome, known.state.gpu.name, now)}

    def _show(self, outcome: RunResult, known: Known, when: Markup | str = "") -> Slots:
        roofline = drawn_roofline(outcome, known.state.gpu)
        return dict(zip(_RESULTS, (*drawn_result(outcome, known.launch, when), *roofline), strict=True))

    def known_run(self, known: Known, text: object = "") -> Slots:
        """The run of what is set, where it is known: run here before, recorded, or kept by the browser.

        Args:
            text: what the browser has kept; of that run, the strip says when it ended.
        """
        kept, outcome = kept_run.read(text, known.state), known.result(RunResult)
        if kept and (outcome is None or kept.is_of(outcome)):
            return self._show(outcome or kept.run, known, status.render_end_time(kept.ended, "kept by this browser"))
        if outcome is None:
            return {}
        ended = next((known.ended.get(name) for name, one in known.measured.items() if one is outcome), None)
        return self._show(outcome, known, status.render_end_time(ended, "stored on this machine") if ended else "")

    def before(self, known: Known) -> Slots:
        """What a page says on which nothing has been run."""
        hint = status.NOT_RUN
        how = status.render_run_hint(known.here is not None, query(known.state.moved_to(tab="recorded")))
        nothing: Slots = dict.fromkeys(("diff-plot", "closeup-plot", "time-plot", "roofline-plot"), NONE)
        return {"strip": hint, "result": how, "result-tables": "", "roofline": hint, **nothing}

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def run(experiment: dict[str, Any]) -> dict[str, Any]:
            """Launches the kernel, checks every element against a reference, and times it beside the library's call.

            `check` has the verdict and the errors. `timing` and `baseline` are measured on this machine's GPU: median,
            20th and 80th percentile in ms, and TFLOP/s or GB/s. `backend` says what ran: cuda; interpreter, which
            checks on the CPU within about 20 s and gives no time; or recorded. `recorded` is an earlier run on the GPU
            that is named, where there is one.
            """
            return await api.measured(experiment, "run", reply)

        async def layouts(experiment: dict[str, Any]) -> dict[str, Any]:
            """Lists a matmul in each layout of A and B, with the latest known run of each. Launches nothing.

            `rows` has an entry for each of NN, NT, TN and TT: `experiment`, to pass to `run`, and `run`, the reply of
            an earlier run on this machine or a recorded one; null if there is none.
            """
            return api.predicted(experiment, lambda known: layouts_reply(known, api.session))

        return Endpoint("run", run, at_once=None, launches=True), Endpoint("layouts", layouts, launches=True)


def reply(outcome: RunResult, known: Known) -> dict[str, Any]:
    """The body of /run."""
    kernel, launch = known.state.kernel, known.launch
    note = " ".join([outcome.note, *result_text.remarks(outcome, kernel, launch, known.failure)])
    working_set_bytes = kernel.family.minimal_bytes(launch.problem)
    fits_l2 = working_set_bytes <= launch.gpu.l2_bytes
    return {**run_json(outcome), "note": note, "working_set_bytes": working_set_bytes, "fits_l2": fits_l2}


def run_json(run: RunResult) -> dict[str, Any]:
    """Return a run as /run shows it: without the picture of its error, a library call's times beside its name."""
    fields = to_json(dataclasses.replace(run, diff=None, recorded=None))
    del fields["diff"]
    for baseline in filter(None, (fields["baseline"], *fields["baselines"])):
        baseline |= baseline.pop("timing")
    options = run.experiment.run
    recorded = run.recorded and run_json(run.recorded)
    return {**fields, "l2": options.l2, "distribution": options.distribution, "recorded": recorded}


def layouts_reply(known: Known, session: Session) -> Reply:
    """Build the body of /layouts: one row per layout, with the latest known run.

    Raises:
        ConfigError: if the kernel takes no layout.
    """
    experiment, layout = known.state.experiment, known.state.kernel.problem_knobs().get("layout")
    if layout is None:
        message = f"kernel is {experiment.kernel}, which takes no layout; a matmul does."
        raise ConfigError("not_a_choice", message, "kernel")
    rows = []
    for name in layout.choices or ():
        variant = replace(experiment, problem=replace(experiment.problem, layout=name))
        run = session.find_value(variant, "run")
        rows.append({"layout": name, "experiment": variant.to_json(), "run": run and run_json(run)})
    return {"rows": rows}


def drawn_result(result: RunResult, launch: Launch, when: Markup | str = "") -> tuple[str, str, str, str, str, str]:
    """Strip, claim, picture of the error, its worst tile, the times, and the tables behind them.

    Args:
        when: what the strip says of the time at which it ran; "" for nothing.
    """
    experiment, kernel = result.experiment, discover()[result.experiment.kernel]
    address = query(experiment.to_address())
    whole = closeup = times = NONE
    about = picture_caption(experiment, launch.gpu.name, _SOURCES[result.backend])
    timed = result if result.timing else result.recorded
    if timed and timed.timing and result.check.passed:
        measured = picture_caption(experiment, launch.gpu.name, _SOURCES[timed.backend])
        times = drawn(time_figure(timed), anew=address, about=measured)
    values = Markup()
    if diff := result.diff:
        output = kernel.family.output(experiment.problem)
        whole = drawn(error_figure(diff, result.check, output), anew=address, about=about)
        if near := diff.closeup:
            names = _programs(kernel, launch, diff, near)
            labels = {place: f"pid {pids[0]}" + f" +{len(pids) - 1}" * (len(pids) > 1) for place, pids in names.items()}
            # Of a result that passed, the room beside the map is for the times.
            if times == NONE:
                closeup = drawn(closeup_figure(diff, near, result.check, output, labels), anew=address, about=about)
            values = result_text.render_values(near, result.check, names, diff)
    return (
        dated(experiment, result_text.render_strip(result, kernel, launch) + when, "figures"),
        dated(experiment, result_text.render_headline(result, kernel, launch)),
        whole,
        closeup,
        times,
        dated(experiment, result_text.render_tables(result, kernel, launch) + values, "tables"),
    )


def _programs(kernel: Kernel, launch: Launch, diff: Diff, near: Closeup) -> dict[tuple[int, int], list[int]]:
    """The programs that compute each tile of the closeup; empty without tiles, or with too many to look through."""
    axes = kernel.output_axes(launch)
    if diff.tile is None or axes is None:
        return {}
    try:
        tiles = schedule(kernel, launch).tiles
    except ConfigError:
        return {}
    of = {"m": tiles.pid_m, "n": tiles.pid_n}
    first, last = (
        [place // side for place, side in zip(corner, diff.tile, strict=True)]
        for corner in (near.first, [start + length - 1 for start, length in zip(near.first, near.shape, strict=True)])
    )
    places = [of[axis.index] for axis in axes]
    inside = np.logical_and.reduce(
        [(start <= place) & (place <= end) for place, start, end in zip(places, first, last, strict=True)]
    )
    found: dict[tuple[int, int], list[int]] = {}
    for row, column, program in zip(places[0][inside], places[1][inside], tiles.program[inside], strict=True):
        found.setdefault((int(row), int(column)), []).append(int(program))
    return found
