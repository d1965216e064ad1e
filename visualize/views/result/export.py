"""Save the current experiment as a script or a notebook."""

import json
from collections.abc import Iterator, Mapping
from functools import partial

from tilescope.declare.experiment import Json
from tilescope.declare.jit import HAS_TRITON
from tilescope.declare.knobs import ConfigError
from tilescope.export.script import ExportedScript, script
from tilescope.export.sources import CannotBeWritten
from tilescope.measure.session import Session
from tilescope.results import Failure
from visualize.views.panel import Action, Api, Endpoint, Panel, Reply, Slots
from visualize.views.slots import save_file
from visualize.views.state import Snapshot, State


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

    def actions(self) -> Mapping[str, Action]:
        return {
            "save-script": partial(_save_script, False),
            "save-notebook": partial(_save_script, True),
        }

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (Endpoint("script", script_of),)


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
