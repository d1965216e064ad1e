"""The Result view: a run's card, its check, the picture of its error, its times and its roofline, and its export."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from markupsafe import Markup

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import Json, Run
from tilescope.declare.jit import HAS_TRITON
from tilescope.declare.knobs import ConfigError
from tilescope.declare.spec import Kernel, Launch
from tilescope.export import CannotBeWritten, ExportedScript, script
from tilescope.inside.report import Inside
from tilescope.measure.run import RUN
from tilescope.measure.session import Session
from tilescope.numbers import Number, count_noun, source
from tilescope.results import Failure, RunResult, records
from tilescope.results.codec import to_json
from visualize.predict.schedule import schedule
from visualize.views import prose, slots
from visualize.views.order.map_figure import MOST_CELLS
from visualize.views.panel import Action, Api, Endpoint, Panel, Reply, Slots, reply_endpoint
from visualize.views.prose import hint, lead, picture_caption, plain, tag_experiment
from visualize.views.result import figures, text
from visualize.views.result.figures import Roof
from visualize.views.slots import NONE, plot_value, save_file
from visualize.views.state import Snapshot, State, query

_PREDICTING = "Predicting the time from the compiled code…"
NO_WORK = "This kernel does no arithmetic, so it has no roofline. It can be as fast as a copy of the same bytes."
NO_ROOF = "No peak rates of this GPU are recorded for this dtype, so there is no roof to draw."

NO_PLOTS: Slots = dict.fromkeys(("diff-plot", "time-plot"), NONE)


def run_reply(outcome: RunResult, snapshot: Snapshot) -> Json:
    """Launches the kernel, checks every element against a reference, and times it against the library call.

    `check` has the verdict and the errors. `timing` and `baseline` are measured on this machine's GPU: median,
    20th and 80th percentile in ms, and TFLOP/s or GB/s. `backend` says what ran: cuda; interpreter, which
    checks on the CPU within about 20 s and gives no time; or recorded. `recorded` is an earlier run on the
    named GPU, if there is one.
    """
    kernel = snapshot.state.kernel
    launch = snapshot.launch
    working_set_bytes = kernel.family.minimal_bytes(launch.problem)
    return {
        **run_json(outcome),
        "note": plain([outcome.note, *text.remarks(outcome, kernel, launch, snapshot.failure)]),
        "working_set_bytes": working_set_bytes,
        "fits_l2": working_set_bytes <= launch.gpu.l2_bytes,
    }


def run_json(run: RunResult) -> Json:
    """Return a run as /run shows it: without the picture of its error, a library call's times beside its name."""
    fields = to_json(replace(run, diff=None, recorded=None))
    del fields["diff"]
    for baseline in filter(None, (fields["baseline"], *fields["baselines"])):
        baseline |= baseline.pop("timing")
    options = run.experiment.run
    recorded = run.recorded and run_json(run.recorded)
    return {**fields, "l2": options.l2, "distribution": options.distribution, "recorded": recorded}


def layouts(api: Api, experiment: Json) -> Reply:
    """Lists a matmul in each layout of A and B, with the latest known run of each. Launches nothing.

    `rows` has an entry for each of NN, NT, TN and TT: `experiment`, to pass to `run`, and `run`, the reply of
    an earlier run on this machine or a recorded one; null if there is none.
    """
    return api.reply_predicted(experiment, partial(layouts_reply, session=api.session))


def layouts_reply(snapshot: Snapshot, session: Session) -> Reply:
    """Return the body of /layouts: one row per layout, with the latest known run.

    Raises:
        ConfigError: if the kernel takes no layout.
    """
    experiment = snapshot.state.experiment
    layout = snapshot.state.kernel.problem_knobs().get("layout")
    if layout is None:
        message = f"kernel is {experiment.kernel}, which takes no layout; a matmul does."
        raise ConfigError("not_a_choice", message, "kernel")
    rows = []
    for name in layout.choices or ():
        variant = replace(experiment, problem=replace(experiment.problem, layout=name))
        run = session.find_value(variant, "run")
        rows.append({"layout": name, "experiment": variant.to_json(), "run": run and run_json(run)})
    return {"rows": rows}


def end_run(outcome: RunResult, snapshot: Snapshot) -> Slots:
    """Show a run that has just ended, and mark its tiles."""
    slots = draw_result(outcome, snapshot.launch, snapshot.failure)
    # A race that passes in the interpreter may have lost on the GPU.
    recorded = outcome.recorded
    marked = recorded if recorded and not recorded.check.passed else outcome
    if marks := tile_marks(marked):
        slots["card"] += str(
            Markup('<span hidden data-tiles="{}"></span>').format(json.dumps(marks))
        )
    return slots


def draw_run(snapshot: Snapshot) -> Slots:
    """Show the experiment's run, if this machine or the recordings have one."""
    if run := snapshot.result(RunResult):
        return draw_result(run, snapshot.launch, snapshot.failure)
    how = prose.render_run_hint(snapshot.here is not None, snapshot.state, snapshot.failure)
    notes: Slots = dict.fromkeys(("card", "result-tables"), prose.NOT_RUN)
    return {**notes, "roofline": "", "result": how, **NO_PLOTS, "roofline-plot": NONE}


def draw_result(result: RunResult, launch: Launch, failure: Failure | None = None) -> Slots:
    """Fill the slots of a run.

    Args:
        failure: the reason why the launch can't be compiled for its GPU, if known.
    """
    experiment = result.experiment
    check = result.check
    diff = result.diff
    kernel = discover()[experiment.kernel]

    def draw(figure: Json, run: RunResult) -> str:
        about = picture_caption(experiment, launch.gpu.name, source(run.backend))
        return plot_value(figure, revision=query(experiment.to_address()), about=about)

    plots = dict(NO_PLOTS)
    values = Markup()
    timed = text.timed_run(result)
    if timed and check.passed:
        plots["time-plot"] = draw(figures.time_figure(timed), timed)
    if diff:
        output = kernel.family.output(experiment.problem)
        plots["diff-plot"] = draw(figures.error_figure(diff, check, output), result)
        if near := diff.closeup:
            programs = _worst_programs(kernel, launch, result)
            values = text.render_values(near, check, programs, diff)
    return {
        # A string, unlike Markup, gets no pinned run's card beside it: the table of differences has its numbers.
        "card": str(
            tag_experiment(experiment, text.render_card(result, kernel, launch), "result-card")
        ),
        "result": tag_experiment(experiment, text.render_headline(result, kernel, launch, failure)),
        "result-tables": tag_experiment(
            experiment, text.render_tables(result, kernel, launch) + values, "row"
        ),
        **plots,
        **draw_roofline(result, launch),
    }


def _worst_programs(kernel: Kernel, launch: Launch, run: RunResult) -> list[int]:
    """Return the programs that compute the worst element's tile; [] without tiles, or with too many to lay out."""
    axes = kernel.output_axes(launch)
    if run.diff is None or run.diff.tile is None or axes is None:
        return []
    try:
        tiles = schedule(kernel, launch).tiles
    except ConfigError:
        return []
    places = {"m": tiles.pid_m, "n": tiles.pid_n}
    is_worst = np.logical_and(
        *(
            places[axis.index] == element // side
            for axis, element, side in zip(axes, run.check.worst_index, run.diff.tile, strict=True)
        )
    )
    return [int(program) for program in tiles.program[is_worst]]


def tile_marks(result: RunResult) -> Json | None:
    """Return which tiles of the output are wrong, for the picture of the program order; None if that is unknown.

    `wrong` has a string per row of the map's cells, "1" for a wrong one; no string if all are right. A cell has several
    tiles in a large map. A tile shares an error with its neighbours if the picture of the error is coarser than tiles.
    """
    diff = result.diff
    if result.check.passed:
        return {"wrong": [], "count": 0, "words": "✓ 0 wrong tiles"}
    if diff is None or diff.tile is None:
        return None
    is_wrong = ~(diff.cells <= (0 if diff.exact else 1))  # NaN is wrong
    for axis, (size, tile, cell) in enumerate(zip(diff.shape, diff.tile, diff.cell, strict=True)):
        # A side of a cell divides that of a tile, or is a multiple of it.
        is_wrong = np.logical_or.reduceat(is_wrong, np.arange(0, size, tile) // cell, axis)
    stride = -(-max(is_wrong.shape) // MOST_CELLS)
    for axis, count in enumerate(is_wrong.shape):
        is_wrong = np.logical_or.reduceat(is_wrong, np.arange(0, count, stride), axis)
    is_coarse = stride > 1 or any(np.greater(diff.cell, diff.tile))
    total = count_noun(is_wrong.size, "cell" if is_coarse else "tile")
    return {
        "wrong": ["".join("01"[value] for value in row) for row in is_wrong.tolist()],
        "count": int(is_wrong.sum()),
        "words": f"✗ {is_wrong.sum():,} of {total} wrong",
    }


def draw_roofline(run: RunResult, launch: Launch) -> Slots:
    """Fill the roofline's slots. Without a roof, there is no picture, and the text gives the reason."""
    experiment = run.experiment
    family = discover()[experiment.kernel].family
    gpu = launch.gpu.name
    has_work = family.work(launch.problem)
    roof = _find_roof(run, gpu)
    if not has_work or roof is None:
        reason = NO_ROOF if has_work else NO_WORK
        return {"roofline": tag_experiment(experiment, lead(reason)), "roofline-plot": NONE}
    timed = text.timed_run(run)
    timings = text.timings(timed) if timed and run.check.passed else {}
    rates = {name: timing.tflops for name, timing in timings.items() if timing.tflops}
    sources = [source(timed.backend)] if timed and rates else []
    about = picture_caption(experiment, gpu, roof.source, *sources)
    intensity = has_work / family.minimal_bytes(launch.problem)
    sentences = figures.describe_roofline(roof, intensity, rates.get(text.THIS_KERNEL))
    figure = figures.roofline_figure(roof, intensity, rates)
    return {
        "roofline": tag_experiment(experiment, lead(*sentences)),
        "roofline-plot": plot_value(figure, revision=family.id, about=about),
    }


def _find_roof(run: RunResult, gpu: str) -> Roof | None:
    """Return the peaks that a run measured on this machine's GPU, or the medians of the recorded ones."""
    if run.backend == "cuda" and run.peak and run.copy_gbps:
        return Roof(gpu, run.copy_gbps, run.peak.rate, "measured")
    rates = defaultdict[str, list[float]](list)
    for recording in records.shipped(RUN.form):
        peak = recording.measured.peak
        dtype = recording.measured.experiment.problem.dtype
        if recording.gpu == gpu and peak:
            is_alike = peak.unit == "GB/s" or dtype == run.experiment.problem.dtype
            rates[peak.unit] += [peak.rate] * is_alike
    if not (rates["GB/s"] and rates["TFLOP/s"]):
        return None
    gbps, tflops = (float(np.median(rates[unit])) for unit in ("GB/s", "TFLOP/s"))
    return Roof(gpu, gbps, tflops, "recorded")


def script_of(api: Api, experiment: Json) -> Reply:
    """Writes a script and notebook that reproduce a run: kernel, tensors, launch, check, timing against torch.

    Both import only torch, Triton and the standard library. Without a GPU, they check the kernel in Triton's
    interpreter, untimed. `filename` is a name for the script.
    """
    return api.reply_predicted(experiment, script_reply)


def _save_script(is_notebook: bool, session: Session, state: State) -> Iterator[Slots]:
    written = _write_script(state)
    if isinstance(written, Failure):
        raise ConfigError(written.kind, written.message)
    if is_notebook:
        yield save_file(f"{written.name}.ipynb", json.dumps(written.notebook(), indent=1))
    else:
        yield save_file(f"{written.name}.py", written.text)


def _write_script(state: State) -> ExportedScript | Failure:
    if not HAS_TRITON:
        return Failure(
            "worker",
            "no_triton",
            "Triton is not installed on this machine, so no script can be written.",
        )
    try:
        return script(state.experiment, state.gpu)
    except CannotBeWritten as error:
        return Failure("config", "cannot_be_written", str(error))


def script_reply(snapshot: Snapshot) -> Reply:
    """Return the body of /script: the script, the notebook as JSON, and a name for the script's file."""
    written = _write_script(snapshot.state)
    if isinstance(written, Failure):
        return written
    return {
        "script": written.text,
        "notebook": written.notebook(),
        "filename": f"{written.name}.py",
    }


class ResultPanel(Panel):
    """One run: its check, its error as a picture, its time. Its card is in the header of every view."""

    layout = """
{{ slot("result") }}{{ slot("predicted-time") }}
<div class="row picture">
{{ plot("time-plot", "Times of the last run and of the library's call", headline="none") }}
{{ plot("diff-plot", "The error of the last run, by position in the output", headline="result") }}
</div>
<div class="row">
{{ plot("predicted-plot", "The time that each resource would take alone", headline="predicted-time") }}
</div>
{% call fold("run-options-fold", "Run options") %}{{ form("run-options", "Run options") }}{% endcall %}
{% call fold("result-numbers", "All numbers of this run") %}
{{ slot("result-tables") }}{{ slot("roofline") }}
{{ plot("roofline-plot", "This launch and the library's calls below the roof") }}
{% endcall %}
"""
    uses_inspection = True
    tries_changes = True
    endpoints = (
        reply_endpoint("run", Api.reply_measured, run_reply, measurement="run"),
        Endpoint("layouts", layouts, launches=True),
    )

    def draw(self, snapshot: Snapshot) -> Slots:
        state = snapshot.state
        options = slots.form_value(slots.controls(Run), state.experiment.to_address())
        values: Slots = {"run-options": options}
        inspected = snapshot.failure or snapshot.inspected
        if inspected is None:
            return values | {"predicted-time": hint(_PREDICTING), "predicted-plot": NONE}
        if isinstance(inspected, Failure):
            inside = Inside(not_predicted=inspected.message)
            if inspected.field and not snapshot.result(RunResult):
                values["result"] = prose.render_run_hint(False, state, inspected)
        else:
            inside, _ = inspected
        about = picture_caption(state.experiment, state.gpu.name, "predicted")
        result = snapshot.result(RunResult)
        run = text.timed_run(result) if result else None
        known_ms = run.timing.median_ms if run and run.timing else None
        is_warm = state.experiment.run.l2 == "warm"
        faster = text.suggest_config(state)
        return {
            **values,
            "predicted-time": text.render_predicted(
                inside, state.link(tab="scoreboard"), known_ms, is_warm, faster
            ),
            "predicted-plot": figures.plot_predicted(inside, about),
        }

    def summary(self, snapshot: Snapshot) -> tuple[Number, ...]:
        inspected = snapshot.inspected
        if not isinstance(inspected, tuple) or inspected[0].predicted_us is None:
            return ()
        return (Number("predicted time", inspected[0].predicted_us / 1e3, "ms", "predicted"),)


class ExportPanel(Panel):
    """Buttons that save the current experiment as a script or a notebook."""

    layout = """
{% call fold("take-it", "Export") %}
<div class="row">{{ button("save-script", "Python script") }}{{ button("save-notebook", "Notebook") }}</div>
<p class="hint">Kernel, launch, check and timing in one file that needs only torch and Triton.
Buttons below each figure save it as PNG or SVG; tables are saved as CSV.</p>
{% endcall %}
"""
    uses_compiler = False
    actions: Mapping[str, Action] = {
        "save-script": partial(_save_script, False),
        "save-notebook": partial(_save_script, True),
    }
    endpoints = (Endpoint("script", script_of),)
