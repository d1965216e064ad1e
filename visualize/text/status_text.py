"""The status line: where a run or a compile is, and how it ended."""

from __future__ import annotations

import datetime

from markupsafe import Markup

from kernels.results import Counters, Failure, Measured, RunResult
from visualize.views.numbers import figure
from visualize.views.prose import Link, html, say

_STAGES = {"cuda": ("compile", "launch", "check", "time"), "interpreter": ("launch", "check")}


def not_run() -> Markup:
    """What stands in short where nothing has been run."""
    return Markup('<p class="hint">Not run yet.</p>')


def how_to_run(has_gpu: bool, recorded: str) -> Markup:
    """What can be done where nothing has been run.

    Args:
        recorded: the address of the list of recordings.
    """
    timed = "launch the kernel, check it against torch and time both."
    checked = "have Triton's interpreter run the kernel and check it against torch, untimed."
    said = say(
        "No result for this config. Press Run (Ctrl+Enter) to {} {} lists runs on real GPUs, one click each.",
        timed if has_gpu else checked,
        Link("Recorded", recorded),
    )
    return Markup('<p class="hint">{}</p>').format(said)


def waiting(gpu: str, seconds: float | None = None) -> Markup:
    """What stands there while the compiler works."""
    took = "" if seconds is None else f": {seconds:.1f} s"
    return Markup('<p class="hint" role="status">Compiling for {}{}</p>').format(gpu, took)


def predicting(seconds: float) -> Markup:
    """What stands there while a prediction is made that takes so long."""
    return Markup('<p class="hint" role="status">Predicting, which takes about {:.0f} s</p>').format(max(1.0, seconds))


def status(backend: str, stage: str, before: int, seconds: float) -> Markup:
    """Where a run is.

    Args:
        backend: "cuda" or "interpreter".
        stage: one of the backend's, "worker", or "queued" with so many `before` it.
    """
    if stage == "queued":
        waits = f"{before} before you" if before else "starting"
        return Markup('<p class="status" role="status">In the queue: {}. {:.1f} s</p>').format(waits, seconds)
    stages = _STAGES[backend]
    place = stages.index(stage) if stage in stages else -1
    steps = Markup("").join(
        Markup('<li class="{}">{}</li>').format("done" if i < place else "now" if i == place else "todo", name)
        for i, name in enumerate(stages)
    )
    waking = Markup("<span>starting the worker</span>") if stage == "worker" else ""
    return Markup('<div class="status" role="status"><ol class="stages">{}</ol>{}<span>{:.1f} s</span></div>').format(
        steps, waking, seconds
    )


def kept(ended: datetime.datetime) -> Markup:
    """When a run ended that the browser has kept: in UTC, which the page turns into the reader's own time."""
    return figure(_time(ended), "run ended, kept by this browser")


def stored(ended: datetime.datetime) -> Markup:
    """When a run ended that this machine's store has kept; as `kept`."""
    return figure(_time(ended), "run ended, stored on this machine")


def _time(ended: datetime.datetime) -> Markup:
    utc = ended.astimezone(datetime.UTC)
    return Markup('<time datetime="{}">{:%Y-%m-%d %H:%M} UTC</time>').format(utc.isoformat(), utc)


def failed(failure: Failure) -> Markup:
    """Why there is no result."""
    return Markup('<p class="failure" role="alert" data-kind="{}"><b>{}</b>: {}</p>').format(
        failure.kind, failure.stage, failure.message
    )


def alert(*sentences: object) -> Markup:
    """What went wrong, where no stage is to be named."""
    return Markup('<p class="failure" role="alert">{}</p>').format(html(sentences))


def finished(outcome: Measured | Failure) -> Markup:
    """The status line of a job that has ended."""
    if isinstance(outcome, Failure):
        return failed(outcome)
    said = [outcome.note]
    if isinstance(outcome, RunResult):
        said.append(", ".join(f"{name} {took:.2f} s" for name, took in outcome.stages.items() if name != "worker"))
    if isinstance(outcome, Counters) and not outcome.note:
        said = [f"Counted by {outcome.tool}."]
    return Markup('<p class="status" role="status" data-finished="true">{}</p>').format(html(said))
