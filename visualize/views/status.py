"""The status line, which follows a run or a compile to its end, and the paragraphs for a pending or failed result."""

from typing import Any

from markupsafe import Markup

from tilescope.declare.spec import explain_slow_launch, shape_text
from tilescope.measure.run import RUN
from tilescope.results import Counters, Failure, Measured, records
from visualize.views.prose import Link, Sentence, config_text, dtype_text, hint, html, say
from visualize.views.slots import template
from visualize.views.state import State, query

NOT_RUN = hint("No run of this config yet.")

_WAITING = Markup('<p class="hint" role="status">{}</p>')

_PROGRESS = template(
    """
<div class="status" role="status"><ol class="stages">
{% for stage in stages %}
<li class="{{ "done" if loop.index0 < current else "now" if loop.index0 == current else "todo" }}">{{ stage }}</li>
{% endfor %}
</ol><span>{{ note }}</span><span>{{ "%.1f"|format(seconds) }} s</span></div>
"""
)

_STAGES = {"cuda": ("compile", "launch", "check", "time"), "interpreter": ("launch", "check")}


def render_run_hint(has_gpu: bool, state: State, failure: Failure | None) -> Markup:
    """Render what Run does, for an experiment without a result, or why it would do nothing.

    Args:
        failure: of the compiler.
    """
    nearest = link_nearest(RUN.form, state, "result")
    if failure and failure.field:
        return hint(f"No result: this config cannot launch on {state.gpu.name}.", nearest)
    effect = "launch the kernel, check it against torch and time both."
    if not has_gpu:
        if slow := explain_slow_launch(state.kernel, state.launch):
            return hint("No result for this config.", slow, nearest)
        effect = "check the kernel against torch under Triton's interpreter, without timing."
    return hint(f"No result for this config. Press Run (Ctrl+Enter) to {effect}", nearest)


def link_nearest(form: records.RecordForm[Any], state: State, tab: str) -> Sentence | str:
    """Link to the most similar recording on the state's GPU; "" if the kernel has none there."""
    nearest = records.nearest(form, state.experiment, state.gpu.name)
    if nearest is None:
        return ""
    name = f"{shape_text(nearest.problem)} {dtype_text(nearest.problem)}, {config_text(nearest.config)}"
    link = Link(name, query({**nearest.to_address(), "gpu": state.gpu.name, "tab": tab}))
    return say("The most similar recording on {}: {}.", state.gpu.name, link)


def render_compiling(gpu: str, seconds: float | None = None) -> Markup:
    elapsed = "" if seconds is None else f": {seconds:.1f} s"
    return _WAITING.format(f"Compiling for {gpu}{elapsed}")


def render_predicting(seconds: float) -> Markup:
    return _WAITING.format(f"Predicting (about {max(1.0, seconds):.0f} s)")


def render_progress(backend: str, stage: str, before: int, seconds: float) -> Markup:
    """Render the progress of a run.

    Args:
        backend: "cuda" or "interpreter".
        stage: one of the backend's stages, "worker", or "queued".
        before: number of jobs in the queue before this one.
        seconds: since the request.
    """
    stages = _STAGES[backend]
    current = stages.index(stage) if stage in stages else -1
    notes = {
        "worker": "starting the worker",
        "queued": f"in the queue, {before} ahead of you" if before else "starting",
    }
    return _PROGRESS(stages=stages, current=current, note=notes.get(stage, ""), seconds=seconds)


def render_failure(failure: Failure) -> Markup:
    """Render a failure after the stage that it occurred in, except a bad argument, whose sentence needs no stage."""
    stage = Markup("") if failure.stage == "config" else Markup("<b>{}</b>: ").format(failure.stage)
    paragraph = Markup('<p class="failure" role="alert" data-kind="{}">{}{}</p>')
    return paragraph.format(failure.kind, stage, failure.message)


def render_alert(*sentences: object) -> Markup:
    """Render an error without naming a stage."""
    return Markup('<p class="failure" role="alert">{}</p>').format(html(sentences))


def render_end(outcome: Measured | Failure) -> Markup:
    """Render the status line of a job that has ended."""
    if isinstance(outcome, Failure):
        return render_failure(outcome)
    sentence = (
        f"Counted by {outcome.tool}."
        if isinstance(outcome, Counters) and not outcome.note
        else outcome.note
    )
    return Markup('<p class="status" role="status" data-finished="true">{}</p>').format(sentence)
