"""What can be taken from the page: a script, a notebook, a trace, the API's replies. /script and /trace."""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup

from kernels.export.chrome_trace import chrome_trace
from kernels.export.inline import CannotBeWritten
from kernels.export.script import script
from kernels.jit import HAS_TRITON
from kernels.results import Failure, Timeline
from visualize.views.endpoint import Api, Endpoint, Reply
from visualize.views.result.take import take
from visualize.views.slots import fold
from visualize.views.snapshot import Known
from visualize.views.view import Panel, Slots


class ExportPanel(Panel):
    """Buttons that save the Experiment that is set as a script, a notebook, a trace, or JSON."""

    uses_compiler = False

    def layout(self) -> Markup:
        return fold("take-it", "Take it with you", take())

    def draw(self, known: Known) -> Slots:
        return {"take": json.dumps(known.state.experiment.to_json())}

    def endpoints(self, api: Api) -> tuple[Endpoint, ...]:
        async def script_of(experiment: dict[str, Any]) -> dict[str, Any]:
            """Writes a script and a notebook that reproduce a run: kernel, tensors, launch, check, timing beside torch.

            Both import torch, Triton and the standard library alone. Without a GPU, they check the kernel in Triton's
            interpreter, untimed. `filename` is a name for the script.
            """
            return api.predicted(experiment, script_reply)

        async def trace_of(experiment: dict[str, Any]) -> dict[str, Any]:
            """Measures when each program of a launch ran and on which SM, as a Chrome trace, which Perfetto opens.

            Takes a GPU; without one, the recorded timeline is returned where there is one. A process of the trace is an
            SM; times are in µs. `filename` is a name for it.
            """
            return await api.measured(experiment, "timeline", trace_reply)

        return Endpoint("script", script_of), Endpoint("trace", trace_of, at_once=None, launches=True)


def script_reply(known: Known) -> Reply:
    """The body of /script: the script, the notebook as JSON, and a name for the script's file."""
    if not HAS_TRITON:
        return Failure("worker", "no_triton", "Triton is not installed on this machine, so no script can be written.")
    try:
        written = script(known.state.experiment, known.state.gpu)
    except CannotBeWritten as error:
        return Failure("config", "cannot_be_written", str(error))
    return {"script": written.text, "notebook": written.notebook(), "filename": f"{written.name}.py"}


def trace_reply(outcome: Timeline, known: Known) -> dict[str, Any]:
    """The body of /trace: the trace, and a name for its file."""
    name = f"{outcome.experiment.kernel.replace('.', '_')}_{known.state.gpu.name}_timeline.json"
    return {"trace": chrome_trace(outcome, known.state.gpu), "filename": name}
