"""The Result panel and the strip of numbers: one run, its progress, and what is shown when it ends."""

from __future__ import annotations

import html
import threading
from dataclasses import dataclass

import gradio as gr
import numpy as np

from kernels import discover
from kernels.experiment import Experiment, resolved_gpu
from kernels.gpus import Gpu
from kernels.knobs import ConfigError
from kernels.results import Closeup, Counters, Diff, Failure, Measured, RunResult
from kernels.runner.job import Job, Progress
from kernels.runner.session import Session
from kernels.spec import Kernel, Launch
from visualize.figures.diff_figure import closeup_figure, diff_figure
from visualize.models.schedule import schedule
from visualize.text import run_report
from visualize.widgets import assets
from visualize.widgets.link import query
from visualize.widgets.markup import markup
from visualize.widgets.plot import drawn, plot

NOT_RUN = (
    '<p class="hint">Not run yet. Press Run (Ctrl+Enter) to launch this kernel, check it against torch{timed}.</p>'
)
_STAGES = {"cuda": ("compile", "launch", "check", "time"), "interpreter": ("launch", "check")}


@dataclass(frozen=True)
class Parts:
    claim: gr.HTML
    plot: gr.HTML
    closeup: gr.HTML
    tables: gr.HTML


def strip() -> gr.HTML:
    """The numbers that stay in view above the tabs."""
    return markup("strip", script=assets.text("result.js"))


def status() -> gr.HTML:
    """Where the run is."""
    return markup("status")


def build() -> Parts:
    text = markup("result", script=assets.text("result.js"))
    with gr.Row(elem_classes="plots"):
        whole = plot("diff-plot", "The error of the last run, by place in the output")
        closeup = plot("closeup-plot", "The error of the worst tile and its neighbours")
    return Parts(text, whole, closeup, markup("result-tables", script=assets.text("result.js")))


def before(session: Session) -> tuple[str, str]:
    """Strip and report of a page on which nothing has been run."""
    timed = (
        ", and time it beside torch" if session.gpu else "; without a GPU here, Triton's interpreter runs it, untimed"
    )
    return NOT_RUN.format(timed=timed), NOT_RUN.format(timed=timed)


class Runs:
    """The job that each open page has started last."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()

    def start(self, page: str, experiment: Experiment, what: str = "run") -> Job:
        """Start a run (or what Session.submit calls otherwise) for a page; the one that it still has is cancelled."""
        job = self._session.submit(experiment, what)
        with self._lock:
            before, self._jobs[page] = self._jobs.get(page), job
        if before:
            before.cancel()
        return job

    def is_latest(self, page: str, job: Job) -> bool:
        """Whether the page has started no other run since, and is still open."""
        return self._jobs.get(page) is job

    def cancel(self, page: str) -> None:
        if job := self._jobs.get(page):
            job.cancel()

    def forget(self, page: str) -> None:
        """The page was closed: nobody waits for its run."""
        with self._lock:
            job = self._jobs.pop(page, None)
        if job:
            job.cancel()


def progress(session: Session, job: Job) -> str:
    """The status line of a job that is under way."""
    return _status(session.backend, job.progress)


def _status(backend: str, update: Progress) -> str:
    if update.stage == "queued":
        waits = f"{update.before} before you" if update.before else "starting"
        return f'<p class="status" role="status">In the queue: {waits}. {update.seconds:.1f} s</p>'
    stages = _STAGES[backend]
    place = stages.index(update.stage) if update.stage in stages else -1
    steps = "".join(
        f'<li class="{"done" if i < place else "now" if i == place else "todo"}">{stage}</li>'
        for i, stage in enumerate(stages)
    )
    waking = "<span>starting the worker</span>" if update.stage == "worker" else ""
    return (
        f'<div class="status" role="status"><ol class="stages">{steps}</ol>{waking}'
        f"<span>{update.seconds:.1f} s</span></div>"
    )


def finished(outcome: Measured | Failure) -> str:
    """The status line of a run that has ended."""
    if isinstance(outcome, Failure):
        return (
            f'<p class="failure" role="alert" data-kind="{outcome.kind}"><b>{outcome.stage}</b>: '
            f"{html.escape(outcome.message)}</p>"
        )
    if not isinstance(outcome, RunResult):
        said = outcome.note or f"Counted by {outcome.tool}." if isinstance(outcome, Counters) else outcome.note
        return f'<p class="status" role="status" data-finished="true">{html.escape(said)}</p>'
    took = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in outcome.stages.items() if stage != "worker")
    return f'<p class="status" role="status" data-finished="true">{html.escape(outcome.note)} {took}</p>'


def drawn_result(result: RunResult, this: Gpu | None) -> tuple[str, str, str, str, str]:
    """Strip, claim, picture of the error, its worst tile, and the tables behind them.

    Args:
        this: this machine's GPU, or None.
    """
    experiment = result.experiment
    kernel = discover()[experiment.kernel]
    launch = Launch(experiment.problem, experiment.config, resolved_gpu(experiment, this))
    address = html.escape(query(experiment.to_address()))
    whole = closeup = values = ""
    if diff := result.diff:
        output = kernel.family.output(experiment.problem)
        whole = drawn(diff_figure(diff, result.check, output), anew=address)
        if near := diff.closeup:
            names = _programs(kernel, launch, diff, near)
            labels = {place: f"pid {pids[0]}" + f" +{len(pids) - 1}" * (len(pids) > 1) for place, pids in names.items()}
            closeup = drawn(closeup_figure(diff, near, result.check, output, labels), anew=address)
            values = run_report.values(near, result.check, names, diff)
    return (
        f'<div class="figures" data-experiment="{address}">{run_report.numbers(result, kernel.race(launch))}</div>',
        f'<div data-experiment="{address}">{run_report.claim(result, kernel, launch)}</div>',
        whole,
        closeup,
        f'<div class="tables" data-experiment="{address}">{run_report.tables(result, kernel)}{values}</div>',
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
