"""Save a script, a notebook, or a timeline as a Chrome trace: a process per SM, a track per slot.

Perfetto and chrome://tracing open such traces. Source of the format: Google's "Trace Event Format", complete events
("X") and metadata events ("M").
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from markupsafe import Markup

from tilescope.declare.experiment import Json, launch_of
from tilescope.declare.gpus import Gpu
from tilescope.declare.jit import HAS_TRITON
from tilescope.declare.knobs import ConfigError
from tilescope.export.script import ExportedScript, script
from tilescope.export.sources import CannotBeWritten
from tilescope.measure.session import Session
from tilescope.results import Failure, Timeline
from tilescope.results.counters import assign_slots
from visualize.views.panel import Action, Api, Endpoint, Panel, Reply, Slots, reply_endpoint
from visualize.views.prose import hint
from visualize.views.slots import DISABLED, ENABLED, button, fold, row
from visualize.views.state import Snapshot, State


class ExportPanel(Panel):
    """Buttons that save the current experiment as a script or a notebook."""

    uses_compiler = False

    def layout(self) -> Markup:
        about = hint(
            "Kernel, launch, check and timing in one file that needs only torch and Triton.",
            "Buttons below each figure save it as PNG or SVG; tables are saved as CSV.",
        )
        buttons = button("save-script", "Python script") + button("save-notebook", "Notebook")
        return fold("take-it", "Export", row(buttons), about)

    def actions(self) -> Mapping[str, Action]:
        return {
            "save-script": partial(_save_script, False),
            "save-notebook": partial(_save_script, True),
        }

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (Endpoint("script", script_of),)


class TracePanel(Panel):
    """A button that saves the timeline as a Chrome trace, if there is one."""

    uses_compiler = False
    is_compared = False

    def layout(self) -> Markup:
        return row(button("save-trace", "Save for Perfetto", is_enabled=False))

    def actions(self) -> Mapping[str, Action]:
        return {"save-trace": _save_trace}

    def draw(self, snapshot: Snapshot) -> Slots:
        return {"save-trace": ENABLED if snapshot.result(Timeline) else DISABLED}

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (reply_endpoint("trace", Api.reply_measured, trace_reply, measurement="timeline"),)


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
        yield _save_file(f"{written.name}.ipynb", json.dumps(written.notebook(), indent=1))
    else:
        yield _save_file(f"{written.name}.py", written.text)


def _save_trace(session: Session, state: State) -> Iterator[Slots]:
    if timeline := session.find_value(state.experiment, "timeline"):
        reply = trace_reply(timeline, Snapshot(state))
        yield _save_file(reply["filename"], json.dumps(reply["trace"]))


def _save_file(name: str, text: str) -> Slots:
    """Make the browser save a file."""
    return {"saved-file": json.dumps({"name": name, "text": text}, ensure_ascii=False)}


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


def trace_reply(outcome: Timeline, snapshot: Snapshot) -> Json:
    """Measures when each program of a launch ran and on which SM, as a Chrome trace, which Perfetto opens.

    Needs a GPU; without one, a recorded timeline is returned, if there is one. A process of the trace is an
    SM; times are in µs. `filename` is a name for it.
    """
    name = f"{outcome.experiment.kernel.replace('.', '_')}_{snapshot.state.gpu.name}_timeline.json"
    return {"trace": chrome_trace(outcome, snapshot.state.gpu), "filename": name}


def chrome_trace(timeline: Timeline, gpu: Gpu) -> Json:
    """Return a trace with one event per program: its SM and slot, start and duration in µs, and tiles.

    The GPU reports only the SM, so slots are assigned: each program takes the lowest free slot when it starts. Programs
    on the same track therefore never overlap.

    Args:
        gpu: the GPU that ran the launch. A persistent kernel's tiles depend on it.
    """
    kernel, launch = launch_of(timeline.experiment, gpu)
    assigned = kernel.tiles(np.arange(len(timeline.sm)), launch)
    tiles: list[list[dict[str, int]]] = [[] for _ in timeline.sm]
    for tile in pd.DataFrame(vars(assigned)).to_dict("records"):
        tiles[tile.pop("program")].append(tile)
    slots = assign_slots(timeline.sm, timeline.start_ns, timeline.end_ns)
    events = list(_name_tracks(timeline.sm, slots))
    programs = zip(timeline.sm, slots, timeline.start_ns, timeline.end_ns, tiles, strict=True)
    for pid, (sm, slot, start, end, computed) in enumerate(programs):
        first = computed[0]
        more = f" +{len(computed) - 1}" if len(computed) > 1 else ""
        name = f"pid {pid} ({first['pid_m']}, {first['pid_n']}){more}"
        where = {"name": name, "cat": "program", "ph": "X", "pid": sm, "tid": slot}
        when = {"ts": start / 1000, "dur": (end - start) / 1000}
        events.append({**where, **when, "args": {"program": pid, "tiles": computed}})
    source = "recorded" if timeline.backend == "recorded" else "measured"
    about = {
        "experiment": timeline.experiment.to_json(),
        "kernel": kernel.title,
        "gpu": gpu.name,
        "source": source,
        "slots": "counted",
    }
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}


def _name_tracks(sms: Sequence[int], slots: Sequence[int]) -> Iterator[Json]:
    """Yield the names and the order of SMs, and the names of their slots."""

    def describe(kind: str, sm: int, slot: int, **value: object) -> Json:
        return {"name": kind, "ph": "M", "pid": sm, "tid": slot, "args": value}

    for sm in sorted(set(sms)):
        yield describe("process_name", sm, 0, name=f"SM {sm}")
        yield describe("process_sort_index", sm, 0, sort_index=sm)
    for sm, slot in sorted(set(zip(sms, slots, strict=True))):
        yield describe("thread_name", sm, slot, name=f"slot {slot}")
