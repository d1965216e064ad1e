"""What can be exported: a script, a notebook, and a timeline as a Chrome trace."""

import json

from markupsafe import Markup

from tilescope.declare.experiment import Json
from tilescope.declare.jit import HAS_TRITON
from tilescope.export.chrome_trace import chrome_trace
from tilescope.export.script import script
from tilescope.export.sources import CannotBeWritten
from tilescope.results import Failure, Timeline
from visualize.views.panel import Api, Endpoint, Panel, Reply, Slots, reply_endpoint
from visualize.views.slots import fold, slot
from visualize.views.state import Snapshot


def _save_button(endpoint: str, part: str, suffix: str, label: str, hint: str) -> Markup:
    """Return a button that saves a part of an endpoint's reply as a file."""
    return Markup(
        '<p><button type="button" class="control" data-endpoint="{}" data-part="{}" data-suffix="{}">{}</button> '
        '<span class="hint">{}</span></p>'
    ).format(endpoint, part, suffix, label, hint)


_STATUS = Markup('<p class="save-status" role="status"></p>')


class ExportPanel(Panel):
    """Buttons that save the current experiment as a script or a notebook."""

    uses_compiler = False

    def layout(self) -> Markup:
        about = "Kernel, launch, check and timing in one file that needs only torch and Triton."
        content = (
            _save_button("script", "script", ".py", "Python script", about)
            + _save_button("script", "notebook", ".ipynb", "Notebook", "The same as Jupyter cells.")
            + Markup('<p class="hint">Figures: PNG and SVG at their lower right. Tables: CSV.</p>')
            + _STATUS
        )
        return fold("take-it", "Export", slot("take", "take", content))

    def draw(self, snapshot: Snapshot) -> Slots:
        return {"take": json.dumps(snapshot.state.experiment.to_json())}

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (Endpoint("script", script_of),)


class TracePanel(Panel):
    """A button that saves the timeline as a Chrome trace. There is none without a timeline."""

    uses_compiler = False
    is_compared = False

    def layout(self) -> Markup:
        about = "Where and when each program ran, as a Chrome trace."
        button = _save_button("trace", "trace", ".json", "Save for Perfetto", about)
        return slot("trace", "take", button + _STATUS)

    def draw(self, snapshot: Snapshot) -> Slots:
        has_timeline = snapshot.result(Timeline) is not None
        return {"trace": json.dumps(snapshot.state.experiment.to_json()) if has_timeline else ""}

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (reply_endpoint("trace", Api.reply_measured, trace_reply, measurement="timeline"),)


def script_of(api: Api, experiment: Json) -> Reply:
    """Writes a script and notebook that reproduce a run: kernel, tensors, launch, check, timing against torch.

    Both import only torch, Triton and the standard library. Without a GPU, they check the kernel in Triton's
    interpreter, untimed. `filename` is a name for the script.
    """
    return api.reply_predicted(experiment, script_reply)


def script_reply(snapshot: Snapshot) -> Reply:
    """Return the body of /script: the script, the notebook as JSON, and a name for the script's file."""
    if not HAS_TRITON:
        return Failure(
            "worker",
            "no_triton",
            "Triton is not installed on this machine, so no script can be written.",
        )
    try:
        written = script(snapshot.state.experiment, snapshot.state.gpu)
    except CannotBeWritten as error:
        return Failure("config", "cannot_be_written", str(error))
    return {
        "script": written.text,
        "notebook": written.notebook(),
        "filename": f"{written.name}.py",
    }


def trace_reply(outcome: Timeline, snapshot: Snapshot) -> Json:
    """Measures when each program of a launch ran and on which SM, as a Chrome trace, which Perfetto opens.

    Needs a GPU; without one, a recorded timeline is returned, if there is one. A process of the trace is an
    SM; times are in µs. `filename` is a name for it.
    """
    name = f"{outcome.experiment.kernel.replace('.', '_')}_{snapshot.state.gpu.name}_timeline.json"
    return {"trace": chrome_trace(outcome, snapshot.state.gpu), "filename": name}
