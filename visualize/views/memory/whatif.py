"""What if: the same launch with one change, at neighboring sizes, or on another GPU. Each question needs compiles."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup

from kernels import discover
from kernels.accesses import CompiledFacts
from kernels.experiment import Experiment, resolve_gpu
from kernels.gpus import GPUS
from kernels.knobs import ConfigError, knob
from kernels.matmul.problem import transpose_operand
from kernels.measuring.session import Session
from kernels.results import Failure
from kernels.spec import Launch
from visualize.predict import coalescing
from visualize.predict.agreement import sum_costs
from visualize.predict.traffic import Operation
from visualize.views import prose, slots, status, theme
from visualize.views.memory.compiler import occupancy_of
from visualize.views.memory.flow import DIVISOR
from visualize.views.memory.text import label, place
from visualize.views.numbers import join_names, percent
from visualize.views.panel import Panel, Question, Slots, StreamAction, current_client
from visualize.views.prose import Hint, Sentence, Sourced, Strong, join, picture_caption, say, tag_experiment
from visualize.views.slots import button, fold, plot, plot_value, slot
from visualize.views.state import State
from visualize.views.tables import table

# The shape cliff begins this far before the next multiple.
_BEFORE = 24

# Text, and a picture or "".
Answer = tuple[Markup, str]

# Cells of `_HEADER`.
Row = tuple[Any, ...]
_HEADER = (
    *("change", "operation", "width", "requests", "", "sectors", ""),
    *("registers", "spilled bytes", "shared bytes", "occupancy"),
)


@dataclass(frozen=True)
class WhatIfView:
    """The dimension and the GPU that the questions change."""

    dimension: str = knob(
        "M", "What if", "The dimension that varies in the shape cliff.", choices=("M", "N", "K"), label="Dimension"
    )
    other_gpu: str = knob(
        "A100-80GB", "What if", "The GPU to compare with the selected one.", choices=tuple(GPUS), label="Compare with"
    )


class WhatIfPanel(Panel):
    """Three questions, each answered by several compiles."""

    options = (WhatIfView,)

    forms = (("whatif-view", WhatIfView),)

    def layout(self) -> Markup:
        buttons = (("faults", "Whose fault?"), ("cliff", "Shape cliff"), ("across", "Compare two GPUs"))
        return fold(
            "whatif-fold",
            "What if: another size, layout, number of warps or GPU",
            slots.form("whatif-view", "What if"),
            slots.row(*(button(name, label) for name, label in buttons), name="whatif-row"),
            slot("whatif", "result"),
            plot("cliff-plot", "Requests and sectors by size"),
        )

    def actions(self) -> Mapping[str, StreamAction]:
        questions = {"faults": faults, "cliff": cliff, "across": across}
        return {name: StreamAction(_stream(question)) for name, question in questions.items()}


def _stream(question: Callable[[Session, State], Iterator[Answer]]) -> Question:
    def answers(session: Session, state: State, _page: str) -> Iterator[Slots]:
        yield {"whatif": status.render_compiling(state.gpu.name), "cliff-plot": ""}
        try:
            for text, picture in question(session, state):
                yield {"whatif": tag_experiment(state.experiment, text), "cliff-plot": picture}
        except NotCompiledError as error:
            yield {"whatif": tag_experiment(state.experiment, status.render_alert(error)), "cliff-plot": ""}

    return answers


class NotCompiledError(Exception):
    """An experiment's operations are unknown. The message says why."""


@dataclass(frozen=True)
class Build:
    """An experiment's launch and its operations as compiled by a version of Triton."""

    launch: Launch
    triton: str
    facts: CompiledFacts
    operations: tuple[Operation, ...]


def _compile(session: Session, experiment: Experiment, name: str = "", specialization: str = "launcher") -> Build:
    """Compile an experiment.

    Args:
        name: what the error begins with.
        specialization: the compiler's assumptions about the sizes.

    Raises:
        NotCompiledError: it can't be compiled, or the compiled kernel can't be read.
    """
    outcome = session.compile(experiment, specialization, client=current_client()).result()
    problem = outcome.message if isinstance(outcome, Failure) else outcome.unreadable
    if isinstance(outcome, Failure) or problem:
        raise NotCompiledError(f"{name}: {problem}" if name else problem)
    return _build(session, experiment, outcome, outcome.triton)


def _build(session: Session, experiment: Experiment, facts: CompiledFacts, triton: str) -> Build:
    launch = Launch(experiment.problem, experiment.config, resolve_gpu(experiment, session.gpu))
    operations = coalescing.operations(discover()[experiment.kernel], launch, facts.operations)
    return Build(launch, triton, facts, operations)


def faults(session: Session, state: State) -> Iterator[Answer]:
    """Compile each change, and yield the table of widths, requests and sectors so far."""
    caption = f"The whole launch, compiled for {state.gpu.name} with one change at a time"
    rows: list[Row] = []
    totals: dict[str, int | None] = {}
    base = None
    for name, experiment, specialization in _variants(state.experiment):
        try:
            build = _compile(session, experiment, specialization=specialization)
            rows += build_rows(name, build, base)
            totals[name] = sum_costs(build.operations).requests
            base = base if len(totals) > 1 else build
        except NotCompiledError as error:
            rows.append((name, str(error), *("",) * (len(_HEADER) - 2)))
            totals[name] = None
        yield table(_HEADER, rows, caption), ""
    yield prose.claim(best_changes(totals)) + table(_HEADER, rows, caption), ""


def _variants(experiment: Experiment) -> Iterator[tuple[str, Experiment, str]]:
    """Yield the launch with one change each: its name, the experiment, and the compiler's assumptions about sizes."""
    problem, config = experiment.problem, experiment.config
    yield "unchanged", experiment, "launcher"
    yield "sizes and strides as constants", experiment, "constexpr"
    sizes = {name: value for name in ("M", "N", "K") if (value := getattr(problem, name, None)) is not None}
    odd = {name: -(-value // DIVISOR) * DIVISOR for name, value in sizes.items() if value % DIVISOR}
    if odd:
        changes = ", ".join(f"{name} {sizes[name]} → {value}" for name, value in odd.items())
        padded = replace(experiment, problem=replace(problem, **odd))
        yield f"sizes padded to multiples of {DIVISOR}: {changes}", padded, "launcher"
    else:
        yield f"sizes not known to be divisible by {DIVISOR}", experiment, "none"
    if hasattr(problem, "layout"):
        for name in "AB":
            yield f"{name} transposed", replace(experiment, problem=transpose_operand(problem, name)), "launcher"
    for warps in (config.num_warps // 2, config.num_warps * 2):
        if 1 <= warps <= 16:
            changed = replace(experiment, config=replace(config, num_warps=warps))
            yield f"num_warps {config.num_warps} → {warps}", changed, "launcher"


def build_rows(name: str, build: Build, base: Build | None) -> list[Row]:
    """Return a row per operation of a build, beside the same operation of another build.

    Args:
        base: the other build, if any.
    """
    facts, resident = build.facts, occupancy_of(build.launch, build.facts)
    needs = str(facts.registers), f"{facts.spilled_bytes:,}", f"{facts.shared_bytes:,}"
    occupancy = f"{percent(resident.occupancy)}, limited by {join_names(resident.limited_by)}"
    before = {_key(op): op.launch for op in base.operations} if base else {}
    rows: list[Row] = []
    for op in build.operations:
        cells, old = [], before.get(_key(op))
        for amount in ("requests", "sectors"):
            value = getattr(op.launch, amount)
            cells += [f"{value:,}", _ratio(value, getattr(old, amount)) if old else ""]
        of_program = ("",) * 4 if rows else (*needs, occupancy)
        opcodes = ", ".join(op.compiled.opcodes) if op.compiled else ""
        operation = Hint(label(op), f"{place(op)}: {opcodes}")
        rows.append(("" if rows else name, operation, _width(op), *cells, *of_program))
    return rows


def _key(op: Operation) -> tuple[int, str, bool]:
    return op.number, op.access.tensor, op.launch.is_lower_bound


def _width(op: Operation) -> str:
    return f"{op.width_bytes} B" if op.width_bytes else "box"


def _ratio(now: int, before: int) -> Any:
    if now == before:
        return Hint("same", style="hint")
    if not now:
        return Strong("none")
    return Strong(f"{now / before:.3g} ×") if before else ""


def best_changes(totals: Mapping[str, int | None]) -> Sentence:
    """Return which changes save requests over all operations.

    Args:
        totals: the requests of each change, the unchanged launch first; None if a change could not be compiled.
    """
    (_, now), *changed = totals.items()
    if now is None:
        return say("The unchanged launch can't be compiled, so there is nothing to compare with.")
    better = []
    for name, total in changed:
        if total is not None and total < now:
            saving = f"{now / total:.3g} × fewer" if total else "none: boxes are copied"
            better.append(say("{} ({})", Strong(name), saving))
    if not better:
        return say("None of these changes saves requests: the tile and the kernel determine them.")
    return say("Fewer requests with {}.", join(better, "; "))


def cliff(session: Session, state: State) -> Iterator[Answer]:
    """Count requests and sectors at the sizes before the next multiple of 16.

    Raises:
        ConfigError: the problem has no such dimension.
    """
    name = state.view.of(WhatIfView).dimension
    knobs = state.kernel.problem_knobs()
    if name not in knobs:
        message = f"dimension must be M or N for {state.kernel.id} (got {name!r})."
        raise ConfigError("not_a_choice", message, "dimension")
    last = -(-getattr(state.experiment.problem, name) // DIVISOR) * DIVISOR
    sizes = range(max(last - _BEFORE, knobs[name].low), min(last, knobs[name].high) + 1)
    yield prose.hint(f"Compiling for {len(sizes)} sizes"), ""
    builds: dict[int, Build] = {}
    rows: list[Row] = []
    choices = [""]
    for size in sizes:
        problem = replace(state.experiment.problem, **{name: size})
        build = builds[size] = _compile(session, replace(state.experiment, problem=problem), f"{name} = {size}")
        choices.append(_describe_choices(size, build))
        if choices[-1] != choices[-2]:
            known = choices[-1].partition(":")[0]
            rows += build_rows(f"from {name} = {size:,}, {known}", build, builds[sizes[0]] if rows else None)
    figure = _cliff_figure(name, builds, choices[1:])
    about = picture_caption(state.experiment, state.gpu.name, "compiled")
    claim = prose.claim(_cliff_sentence(name, builds))
    listed = table(_HEADER, rows, f"Where the compiled kernel changes, for {state.gpu.name}")
    yield claim + listed, plot_value(figure, f"{name} {sizes}", about=about)


def _describe_choices(size: int, build: Build) -> str:
    """Return what the compiler knows of a size, and the widths and registers that follow."""
    known = f"divisible by {DIVISOR}" if size % DIVISOR == 0 else "equal to 1" if size == 1 else "nothing known"
    widths = ", ".join(f"{label(op)} {_width(op)}" for op in build.operations)
    return f"{known}: {widths}; {build.facts.registers} registers"


def _cliff_sentence(name: str, builds: Mapping[int, Build]) -> Sentence:
    """Return how far requests fall over the sizes."""
    requests = {size: sum_costs(build.operations).requests for size, build in builds.items()}
    low, high = min(requests, key=requests.__getitem__), max(requests, key=requests.__getitem__)
    ratio = "; at the sizes without requests, boxes are copied"
    if requests[low]:
        ratio = f": {requests[high] / requests[low]:.3g} ×"
    return say(
        "Between {} = {:,} and {:,} the requests go from {} (at {:,}) to {} (at {:,}){}, for sizes that differ by {}.",
        *(name, min(builds), max(builds)),
        *(Strong(f"{requests[low]:,}"), low, Strong(f"{requests[high]:,}"), high, ratio),
        Sourced(abs(high - low), "predicted"),
    )


def _cliff_figure(name: str, builds: Mapping[int, Build], choices: Sequence[str]) -> go.Figure:
    """Draw requests and sectors of the launch over the sizes of one dimension."""
    lines = [
        go.Scatter(
            x=list(builds),
            y=[getattr(sum_costs(build.operations), amount) for build in builds.values()],
            name=amount,
            mode="lines+markers",
            line={"color": color, "shape": "hvh"},
            customdata=choices,
            hovertemplate=f"{name} %{{x}}: %{{y:,}} {amount}<br>%{{customdata}}<extra></extra>",
        )
        for amount, color in zip(("requests", "sectors"), theme.CATEGORIES, strict=False)
    ]
    layout = theme.layout(
        f"Requests and sectors of the launch by {name}",
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        margin={"l": 80, "r": 10, "t": 60, "b": 48},
        xaxis={"title": {"text": name}, "tickformat": "d"},
        yaxis={"title": {"text": "over the launch"}, "rangemode": "tozero"},
    )
    return go.Figure(lines, layout)


def across(session: Session, state: State) -> Iterator[Answer]:
    """Compile the launch for two GPUs, and compare the facts, also with those of the recorded build."""
    other = replace(state.experiment, gpu=state.view.of(WhatIfView).other_gpu)
    try:
        if resolve_gpu(other, session.gpu) == state.gpu:
            raise ConfigError("not_a_choice", f"other_gpu must differ from gpu (got {state.gpu.name!r}).")
    except ConfigError as error:
        raise ConfigError(error.kind, str(error), "other_gpu") from None
    builds = [_compile(session, each, resolve_gpu(each, session.gpu).name) for each in (state.experiment, other)]
    if recorded := session.find_value(state.experiment, "counters"):
        builds.append(_build(session, state.experiment, recorded.compiled, recorded.device.triton))
    rows: dict[str, list[Row]] = {}
    for build in builds:
        name = f"{build.launch.gpu.name}, Triton {build.triton}"
        rows.setdefault(name, build_rows(name, build, builds[0] if rows else None))
    caption = "Compiled for each GPU; a third build was recorded on the device itself"
    yield table(_HEADER, [row for group in rows.values() for row in group], caption), ""
