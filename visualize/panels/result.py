"""The Result panel and the strip of numbers: one run, its progress, its check and its time. /run."""

from __future__ import annotations

import html
import threading
from dataclasses import dataclass

import gradio as gr

from kernels import discover
from kernels.experiment import Experiment
from kernels.runner.job import Job, Progress
from kernels.runner.results import Check, Failure, RunResult, Timing
from kernels.runner.session import Session
from kernels.spec import Family
from visualize.figures.diff import diff_figure
from visualize.panels import assets, words
from visualize.panels.link import query
from visualize.panels.markup import markup
from visualize.panels.plot import drawn, plot

NOT_RUN = (
    '<p class="hint">Not run yet. Press Run (Ctrl+Enter) to launch this kernel, check it against torch{timed}.</p>'
)
_STAGES = {"cuda": ("compile", "launch", "check", "time"), "interpreter": ("launch", "check")}


@dataclass(frozen=True)
class Parts:
    report: gr.HTML
    plot: gr.HTML


def strip() -> gr.HTML:
    """The numbers that stay in view above the tabs."""
    return markup("strip", script=assets.text("result.js"))


def status() -> gr.HTML:
    """Where the run is."""
    return markup("status")


def build() -> Parts:
    return Parts(
        report=markup("result", script=assets.text("result.js")),
        plot=plot("diff-plot", "The error of the last run, by place in the output"),
    )


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

    def start(self, page: str, experiment: Experiment) -> Job:
        """Start a run for a page; the one that it still has is cancelled."""
        job = self._session.submit(experiment)
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


def finished(outcome: RunResult | Failure) -> str:
    """The status line of a run that has ended."""
    if isinstance(outcome, Failure):
        return (
            f'<p class="failure" role="alert" data-kind="{outcome.kind}"><b>{outcome.stage}</b>: '
            f"{html.escape(outcome.message)}</p>"
        )
    took = ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in outcome.stages.items() if stage != "worker")
    return f'<p class="status" role="status" data-finished="true">{html.escape(outcome.note)} {took}</p>'


def drawn_result(result: RunResult) -> tuple[str, str, str]:
    """Strip, report, and picture of the error."""
    kernel = discover()[result.experiment.kernel]
    address = html.escape(query(result.experiment.to_address()))
    picture = ""
    if result.diff is not None:
        output = kernel.family.output(result.experiment.problem)
        picture = drawn(diff_figure(result.diff, result.check, output), anew=address)
    return (
        f'<div class="figures" data-experiment="{address}">{_numbers(result)}</div>',
        f'<div data-experiment="{address}">{_report(result, kernel.family)}</div>',
        picture,
    )


def _numbers(result: RunResult) -> str:
    source = {"cuda": "measured"}.get(result.backend, result.backend)
    check = result.check
    verdict = "passed" if check.passed else f"failed: {check.mismatched:,} wrong"
    parts = [words.figure(verdict, "check", source, "Against torch, within what rounding explains")]
    parts += _timed(result, source)
    if result.backend == "interpreter" and result.recorded is None:
        parts.append(words.figure("no time", "the interpreter runs on the CPU"))
    if result.recorded is not None:
        parts += _timed(result.recorded, "recorded")
    return "".join(parts)


def _timed(result: RunResult, source: str) -> list[str]:
    timing, baseline, peak = result.timing, result.baseline, result.peak
    if timing is None:
        return []
    spread = (timing.p80_ms - timing.p20_ms) / 2 / timing.median_ms
    parts = [
        words.figure(
            f"{words.milliseconds(timing.median_ms)} ± {words.percent(spread)}",
            f"median of {timing.samples}",
            source,
            f"{result.device.name}; p20 to p80: {_spread(timing)}",
        ),
        words.figure(_rate(timing), "rate", source),
    ]
    if baseline:
        parts.append(
            words.figure(
                f"{baseline.ratio:.2f} ×", baseline.name, source, f"The speed of {baseline.name}, timed in turns"
            )
        )
    if peak:
        parts.append(
            words.figure(
                words.percent(peak.share), "of the device's best", source, f"{peak.rate:.0f} {peak.unit}: {peak.what}"
            )
        )
    return parts


def _spread(timing: Timing) -> str:
    return f"{words.milliseconds(timing.p20_ms)} – {words.milliseconds(timing.p80_ms)}"


def _rate(timing: Timing) -> str:
    if timing.tflops is not None:
        return f"{words.significant(timing.tflops)} TFLOP/s"
    return f"{words.significant(timing.gbps or 0)} GB/s"


def _report(result: RunResult, family: Family) -> str:
    check = result.check
    exact = family.reduction(result.experiment.problem) == 0
    where = f"{result.device.name}, torch {result.device.torch}, triton {result.device.triton}"
    note = family.note(result.experiment.problem)
    rows = [
        ("relative RMS error", words.significant(check.relative_rms), f"at most {words.significant(check.tolerance)}"),
        ("largest error", words.significant(check.max_abs_error), ""),
        (
            "largest error / " + ("|A|" if exact else "(|A| @ |B|)"),
            words.significant(check.max_scaled_error),
            "element by element",
        ),
        (
            "wrong elements",
            f"{check.mismatched:,} of {check.elements:,}",
            f"{check.nonfinite:,} of them never written or not finite",
        ),
        (
            "worst element",
            f"[{check.worst_index[0]}, {check.worst_index[1]}]",
            f"got {words.significant(check.worst_got, 6)}, expected {words.significant(check.worst_expected, 6)}",
        ),
    ]
    tables = [words.table(("check", "value", "allowed, or detail"), rows, f"Check, on {where}")]
    timed = result if result.timing else result.recorded
    if timed is not None and timed.timing is not None:
        tables.append(_timing_table(timed))
    settings = ", ".join(
        f"{name} {value}" for name, value in result.experiment.to_address().items() if name != "kernel"
    )
    if result.diff is None:
        note += " The picture of the error was not recorded."
    return (
        f'<p class="hint">{result.experiment.kernel}: {settings}</p><p class="claim">{_claim(check, exact)} {note}</p>'
        f'<div class="tables">{"".join(tables)}</div>'
    )


def _claim(check: Check, exact: bool) -> str:
    if check.passed:
        if exact:
            return "Every element equals the reference, bit for bit."
        return (
            f"The error, {words.significant(check.relative_rms)} of the result, is what rounding explains "
            f"(up to {words.significant(check.tolerance)} for this type and K)."
        )
    return (
        f"<b>Wrong</b>: {check.mismatched:,} of {check.elements:,} elements are further from the reference than "
        f"rounding explains, the worst at [{check.worst_index[0]}, {check.worst_index[1]}]."
    )


def _timing_table(result: RunResult) -> str:
    timings = [("this kernel", result.timing)]
    if result.baseline:
        timings.append((result.baseline.name, result.baseline.timing))
    rows = [
        (
            html.escape(name),
            words.milliseconds(timing.median_ms),
            _spread(timing),
            str(timing.samples),
            _rate(timing),
        )
        for name, timing in timings
        if timing is not None
    ]
    if peak := result.peak:
        best = html.escape(f"device's best ({peak.what})")
        rows.append((best, "", "", "", f"{words.significant(peak.rate)} {peak.unit}"))
    clock = f", SM clock {result.clock_mhz} MHz" if result.clock_mhz else ""
    run = result.experiment.run
    source = words.mark("recorded" if result.backend == "recorded" else "measured")
    caption = f"Time on {result.device.name}, L2 {run.l2}, {run.timer}, {run.distribution} inputs{clock}"
    return words.table((source, "median", "p20 – p80", "samples", "rate"), rows, caption)
