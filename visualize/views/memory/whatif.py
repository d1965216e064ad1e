"""Questions that need several compiles: the same launch with one change, at neighboring sizes, or on another GPU."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup

from kernels.capture.reader import describe_effect
from kernels.evaluate.counts import Cost, sum_costs
from kernels.evaluate.declared import DeclaredCounts, count_accesses
from kernels.experiment import Experiment, launch_of, resolve_gpu
from kernels.gpus import GPUS
from kernels.instructions import CompiledFacts
from kernels.knobs import ConfigError, knob
from kernels.matmul.problem import transpose_operand
from kernels.measuring.session import Session
from kernels.results import Failure
from kernels.spec import Launch
from visualize.numbers import join_names, percent
from visualize.predict.schedule import occupancy_of
from visualize.reports.launch import MAIN_AMOUNTS
from visualize.views import prose, slots, status, theme
from visualize.views.memory.flow import DIVISOR
from visualize.views.panel import Panel, Slots, StreamAction, current_client
from visualize.views.prose import (
    Hint,
    Sentence,
    Sourced,
    Strong,
    join,
    picture_caption,
    say,
    tag_experiment,
)
from visualize.views.slots import button, fold, plot, plot_value, slot
from visualize.views.state import State
from visualize.views.tables import table

# The shape cliff begins this far before the next multiple.
_BEFORE = 24

# Text, and a picture or "".
Answer = tuple[Markup, str]
Question = Callable[[Session, State], Iterator[Answer]]

_HEADER = (
    "change",
    "bytes per lane",
    "requests",
    "",
    "sectors",
    "",
    "registers",
    "spilled bytes",
    "shared bytes",
    "occupancy",
)


@dataclass(frozen=True)
class WhatIfView:
    """The dimension and the GPU that the questions change."""

    dimension: str = knob(
        "M",
        "What if",
        "The dimension that varies in the shape cliff.",
        choices=("M", "N", "K"),
        label="Dimension",
    )
    other_gpu: str = knob(
        "A100-80GB",
        "What if",
        "The GPU to compare with the selected one.",
        choices=tuple(GPUS),
        label="Compare with",
    )


class WhatIfPanel(Panel):
    """Three questions, each answered by several compiles."""

    options = (WhatIfView,)

    forms = (("whatif-view", WhatIfView),)

    def layout(self) -> Markup:
        labels = {"faults": "Whose fault?", "cliff": "Shape cliff", "across": "Compare two GPUs"}
        buttons = slots.row(
            *(button(name, label) for name, label in labels.items()), name="whatif-row"
        )
        answer = slot("whatif", "result"), plot("cliff-plot", "Requests and sectors by size")
        title = "What if: a different size, layout, number of warps or GPU"
        return fold("whatif-fold", title, slots.form("whatif-view", "What if"), buttons, *answer)

    def actions(self) -> Mapping[str, StreamAction]:
        questions = {"faults": faults, "cliff": cliff, "across": across}
        return {
            name: StreamAction(partial(_answer, question)) for name, question in questions.items()
        }


def _answer(question: Question, session: Session, state: State, _page: str) -> Iterator[Slots]:
    yield {"whatif": status.render_compiling(state.gpu.name), "cliff-plot": ""}
    try:
        for text, picture in question(session, state):
            yield {"whatif": tag_experiment(state.experiment, text), "cliff-plot": picture}
    except NotCompiledError as error:
        yield {
            "whatif": tag_experiment(state.experiment, status.render_alert(error)),
            "cliff-plot": "",
        }


class NotCompiledError(Exception):
    """An experiment's operations are unknown. The message says why."""


@dataclass(frozen=True)
class Build:
    """An experiment's launch and its operations as compiled by a version of Triton."""

    launch: Launch
    triton: str
    facts: CompiledFacts
    operations: tuple[DeclaredCounts, ...]


def _compile(
    session: Session, experiment: Experiment, name: str = "", specialization: str = "launcher"
) -> Build:
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
    kernel, launch = launch_of(experiment, resolve_gpu(experiment, session.gpu))
    return Build(launch, triton, facts, count_accesses(kernel, launch, facts.operations))


def faults(session: Session, state: State) -> Iterator[Answer]:
    """Compile each change, and yield the table of widths, requests and sectors so far."""
    caption = f"The whole launch, compiled for {state.gpu.name} with one change at a time"
    builds: dict[str, Build | str] = {}
    for name, experiment, specialization in _variants(state.experiment):
        try:
            builds[name] = _compile(session, experiment, specialization=specialization)
        except NotCompiledError as error:
            builds[name] = str(error)
        yield builds_table(builds, caption), ""
    costs = {
        name: sum_costs(build.operations)
        for name, build in builds.items()
        if isinstance(build, Build)
    }
    yield prose.lead(best_changes(costs)) + builds_table(builds, caption), ""


def _variants(experiment: Experiment) -> Iterator[tuple[str, Experiment, str]]:
    """Yield the launch with one change each: its name, the experiment, and the compiler's assumptions about sizes."""
    problem = experiment.problem
    config = experiment.config
    yield "unchanged", experiment, "launcher"
    yield "Declare sizes and strides as tl.constexpr", experiment, "constexpr"
    sizes = {
        name: value
        for name in ("M", "N", "K")
        if (value := getattr(problem, name, None)) is not None
    }
    odd = {name: -(-value // DIVISOR) * DIVISOR for name, value in sizes.items() if value % DIVISOR}
    if odd:
        changes = ", ".join(f"{name} = {value}" for name, value in odd.items())
        padded = replace(experiment, problem=replace(problem, **odd))
        yield f"Pad the tensors, and pass {changes}", padded, "launcher"
    else:
        yield f"sizes not known to be divisible by {DIVISOR}", experiment, "none"
    if hasattr(problem, "layout"):
        for name in "AB":
            yield (
                f"Transpose {name}",
                replace(experiment, problem=transpose_operand(problem, name)),
                "launcher",
            )
    for warps in (config.num_warps // 2, config.num_warps * 2):
        if 1 <= warps <= 16:
            changed = replace(experiment, config=replace(config, num_warps=warps))
            yield f"Pass num_warps = {warps}", changed, "launcher"


def builds_table(builds: Mapping[str, Build | str], caption: str) -> Markup:
    """Render each build's widths, and its totals beside those of the first build.

    Args:
        builds: by the name of the change; a string says why it could not be compiled.
    """
    first, *_ = builds.values()
    before = None if isinstance(first, str) else sum_costs(first.operations)
    rows: list[tuple[Any, ...]] = []
    for name, build in builds.items():
        if isinstance(build, str):
            rows.append((name, build))
            continue
        facts = build.facts
        resident = occupancy_of(build.launch.gpu, build.launch.config.num_warps, facts)
        total = sum_costs(build.operations)
        row = [name, _widths(build)]
        for unit in MAIN_AMOUNTS:
            count = getattr(total, unit)
            is_compared = before and build is not first
            row += [f"{count:,}", _ratio(count, getattr(before, unit)) if is_compared else ""]
        row += [str(facts.registers), f"{facts.spilled_bytes:,}", f"{facts.shared_bytes:,}"]
        row.append(f"{percent(resident.occupancy)}, limited by {join_names(resident.limited_by)}")
        rows.append(tuple(row))
    return table(_HEADER, rows, caption)


def _widths(build: Build) -> str:
    """Return how many bytes each operation moves per lane."""
    widths = (f"{op.width_bytes} B" if op.width_bytes else "box" for op in build.operations)
    pairs = zip(build.operations, widths, strict=True)
    return ", ".join(f"{op.name} {width}" for op, width in pairs)


def _ratio(now: int, before: int) -> Any:
    if now == before:
        return Hint("same", style="hint")
    if not now:
        return Strong("none")
    return Strong(f"{now / before:.3g} ×") if before else ""


def best_changes(costs: Mapping[str, Cost]) -> Sentence:
    """Return the changes that save requests over all operations and add no sectors.

    Args:
        costs: of each change that could be compiled, and of the launch "unchanged".
    """
    numbers = {
        name: {"requests": cost.requests, "sectors": cost.sectors} for name, cost in costs.items()
    }
    now = numbers.get("unchanged")
    if now is None:
        return say("The unchanged launch can't be compiled, so there is nothing to compare with.")
    better = [
        say("{}. Tried: this changes {}.", Strong(name), describe_effect(now, new))
        for name, new in numbers.items()
        if new["requests"] < now["requests"] and new["sectors"] <= now["sectors"]
    ]
    if not better:
        return say("None of these changes saves requests. They depend on the tile and the kernel.")
    return join(better, " ")


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
    costs = {}
    changes = {}
    choices: list[str] = []
    for size in sizes:
        problem = replace(state.experiment.problem, **{name: size})
        build = _compile(session, replace(state.experiment, problem=problem), f"{name} = {size}")
        choice = _describe_choices(size, build)
        costs[size] = sum_costs(build.operations)
        if choice not in choices[-1:]:
            changes[f"from {name} = {size:,}, {choice.partition(':')[0]}"] = build
        choices.append(choice)
    about = picture_caption(state.experiment, state.gpu.name, "compiled")
    listed = builds_table(changes, f"Where the compiled kernel changes, for {state.gpu.name}")
    picture = plot_value(_cliff_figure(name, costs, choices), f"{name} {sizes}", about=about)
    yield prose.lead(_cliff_sentence(name, costs)) + listed, picture


def _describe_choices(size: int, build: Build) -> str:
    """Return what the compiler knows of a size, and the widths and registers that follow."""
    known = (
        f"divisible by {DIVISOR}"
        if size % DIVISOR == 0
        else "equal to 1"
        if size == 1
        else "nothing known"
    )
    return f"{known}: {_widths(build)}; {build.facts.registers} registers"


def _cliff_sentence(name: str, costs: Mapping[int, Cost]) -> Sentence:
    """Return how far requests fall over the sizes."""
    requests = {size: cost.requests for size, cost in costs.items()}
    low, high = min(requests, key=requests.__getitem__), max(requests, key=requests.__getitem__)
    few = requests[low]
    many = requests[high]
    ratio = f": {many / few:.3g} ×" if few else "; at the sizes without requests, boxes are copied"
    sizes = f"Between {name} = {min(costs):,} and {max(costs):,}"
    difference = Sourced(abs(high - low), "predicted")
    sentence = (
        "{} the requests go from {} (at {:,}) to {} (at {:,}){}, for sizes that differ by {}."
    )
    return say(
        sentence, sizes, Strong(f"{few:,}"), low, Strong(f"{many:,}"), high, ratio, difference
    )


def _cliff_figure(name: str, costs: Mapping[int, Cost], choices: Sequence[str]) -> go.Figure:
    """Draw requests and sectors of the launch over the sizes of one dimension."""
    layout = theme.layout(
        f"Requests and sectors of the launch by {name}",
        showlegend=True,
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        margin={"l": 80, "r": 10, "t": 60, "b": 48},
        xaxis={"title": {"text": name}, "tickformat": "d"},
        yaxis={"title": {"text": "over the launch"}, "rangemode": "tozero"},
    )
    figure = go.Figure(layout=layout)
    for amount, color in (("requests", theme.CATEGORIES[0]), ("sectors", theme.CATEGORIES[1])):
        figure.add_scatter(
            x=list(costs),
            y=[getattr(cost, amount) for cost in costs.values()],
            name=amount,
            mode="lines+markers",
            line={"color": color, "shape": "hvh"},
            customdata=choices,
            hovertemplate=f"{name} %{{x}}: %{{y:,}} {amount}<br>%{{customdata}}<extra></extra>",
        )
    return figure


def across(session: Session, state: State) -> Iterator[Answer]:
    """Compile the launch for two GPUs, and compare the facts, also with those of the recorded build."""
    other = replace(state.experiment, gpu=state.view.of(WhatIfView).other_gpu)
    try:
        if resolve_gpu(other, session.gpu) == state.gpu:
            raise ConfigError(
                "not_a_choice", f"other_gpu must differ from gpu (got {state.gpu.name!r})."
            )
    except ConfigError as error:
        raise ConfigError(error.kind, str(error), "other_gpu") from None
    builds = [
        _compile(session, each, resolve_gpu(each, session.gpu).name)
        for each in (state.experiment, other)
    ]
    if recorded := session.find_value(state.experiment, "counters"):
        builds.append(_build(session, state.experiment, recorded.compiled, recorded.device.triton))
    named = {f"{build.launch.gpu.name}, Triton {build.triton}": build for build in builds}
    yield (
        builds_table(
            named, "Compiled for each GPU; a third build was recorded on the device itself"
        ),
        "",
    )
