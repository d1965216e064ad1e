"""The Requests panel: requests as flow from lanes to bytes, and the tables behind them."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from markupsafe import Markup

from tilescope.declare.discovery import discover
from tilescope.declare.experiment import (
    Experiment,
    Json,
    JsonSchema,
    argument_schemas,
    from_json,
    launch_of,
    resolve_gpu,
)
from tilescope.declare.knobs import ConfigError, knobs
from tilescope.declare.spec import AnyAccess, Kernel
from tilescope.evaluate.causes import ALIGNMENT
from tilescope.evaluate.counts import sum_costs
from tilescope.evaluate.declared import DeclaredCounts, count_accesses
from tilescope.measure.counters import COUNTERS
from tilescope.numbers import Number, key_numbers, significant
from tilescope.reports.launch import COST_COLUMNS
from tilescope.results import Counters, Failure, records
from tilescope.results.codec import to_json
from visualize.predict.costs import LaunchCosts, Textbook, count_of, read_textbook
from visualize.views import prose, slots
from visualize.views.memory import flow, text
from visualize.views.memory.flow import LaneView
from visualize.views.panel import (
    Action,
    Api,
    Endpoint,
    Panel,
    Reply,
    Slots,
    reply_endpoint,
    select_fields,
)
from visualize.views.prose import picture_caption
from visualize.views.slots import NONE
from visualize.views.state import Snapshot, State, query

# Fields of a Cost in the reply of /coalescing.
_AMOUNTS = (*COST_COLUMNS, "bytes_wanted")
_LAUNCH = (*_AMOUNTS, "touched_sectors", "efficiency")

# The labels of the textbook model's lane orders.
_LANES = ("lane i takes element i", "lanes store what they load")

NO_CONTRAST: Slots = {"contrast-title": "", "contrast": NONE, "contrast-launch": ""}


# From this ratio of efficiencies, another kernel's request is a contrast.
_NOTABLE_RATIO = 1.1


@dataclass(frozen=True)
class Contrast:
    """Another kernel's access of the same tensor of the same problem, as its recorded code carries it out.

    Attributes:
        experiment: the other kernel with its own default config.
        operations: its accesses of the tensor in the same direction; `operation` wastes the most sectors of them.
    """

    experiment: Experiment
    operations: tuple[DeclaredCounts, ...]

    @property
    def kernel(self) -> Kernel:
        return discover()[self.experiment.kernel]

    @property
    def operation(self) -> DeclaredCounts:
        return max(self.operations, key=lambda op: op.launch.wasted_sectors)


def find_contrast(state: State, own: DeclaredCounts) -> Contrast | None:
    """Return the kernel of the same family whose access of a tensor has the largest ratio of efficiencies to this one.

    The layouts are those of recorded code, so that no compile is needed.

    Returns:
        None if no such kernel was recorded for a problem that compiles to the same code, if all are about as efficient,
        or if an experiment is pinned.
    """
    if state.pinned:
        return None
    family = state.kernel.family
    contrasts = []
    for kernel in discover().values():
        if kernel.family.root is family.root and kernel.id != state.kernel.id:
            recorded = _recorded_launch(kernel.id, state.experiment.problem, state.gpu.name)
            operations = recorded.operations if recorded else ()
            same = tuple(op for op in operations if same_access(op.access, own.access))
            contrasts += [replace(recorded, operations=same)] if recorded and same else []

    def difference(contrast: Contrast) -> tuple[float, int, bool]:
        cost = contrast.operation.launch
        efficiencies = cost.efficiency, own.launch.efficiency
        ratio = max(efficiencies) / min(efficiencies)
        return ratio, -abs(cost.sectors - own.launch.sectors), contrast.kernel.family is family

    best = max(contrasts, key=difference, default=None)
    return best if best and difference(best)[0] >= _NOTABLE_RATIO else None


def same_access(access: AnyAccess, other: AnyAccess) -> bool:
    """Return whether two accesses read, or write, the same tensor. A descriptor's direction is that of its tensor."""
    is_box = "descriptor" in (access.op, other.op)
    return access.tensor == other.tensor and (
        is_box or (access.op == "load") == (other.op == "load")
    )


@functools.lru_cache(256)
def _recorded_launch(kernel_id: str, problem: Any, gpu: str) -> Contrast | None:
    """Return all operations of a kernel with its default config for a problem, as its recorded code carries them out.

    The result is None if no code was recorded, or code for another type or layout, or if 16 does not divide a size that
    differs: the compiler then chooses other layouts. It is also None if the kernel accesses other tensors for this
    problem: Stream-K uses its workspace only if tiles are split.
    """
    try:
        recorded = from_json({"kernel": kernel_id, "gpu": gpu})
        experiment = from_json({**recorded.to_json(), "problem": vars(problem)})
    except ConfigError:  # this machine's GPU is of another model, or the kernel refuses the problem
        return None
    counters = records.find(COUNTERS.form, recorded, gpu)
    differing = vars(experiment.problem).items() - vars(recorded.problem).items()
    if counters is None or any(
        isinstance(value, str) or value % ALIGNMENT for _, value in differing
    ):
        return None
    kernel, launch = launch_of(experiment, resolve_gpu(experiment, None))
    launches = launch, replace(launch, problem=recorded.problem)
    accesses, recorded_accesses = (
        [(a.op, a.tensor) for a in kernel.accesses(each)] for each in launches
    )
    if accesses != recorded_accesses:
        return None
    return Contrast(experiment, count_accesses(kernel, launch, counters.compiled.operations))


def _problem(snapshot: Snapshot) -> Markup:
    """Render the reason why there is no compiled kernel, or "" if there is one or it is pending."""
    if snapshot.failure:
        return prose.render_failure(snapshot.failure)
    unreadable = snapshot.compiled.unreadable if snapshot.compiled else ""
    return (
        prose.render_alert("The compiled kernel could not be read:", unreadable)
        if unreadable
        else Markup()
    )


def _direction(op: DeclaredCounts) -> tuple[str, bool]:
    """Return an operation's tensor, and whether it reads it."""
    return op.access.tensor, op.counter in ("ld", "tma_ld")


def _launches(
    snapshot: Snapshot, costs: LaunchCosts, number: int, operations: Sequence[DeclaredCounts]
) -> Slots:
    """Draw the contrast, and below both pictures the bytes of the launch, on one scale.

    Args:
        operations: this kernel's, in the model of the picture.
    """
    state = snapshot.state
    is_textbook = state.view.of(LaneView).model == "textbook"
    textbook_op = costs.textbook[number]
    own = [op for op in operations if _direction(op) == _direction(textbook_op)]
    count = "" if is_textbook else text.agreement_sentence(costs)
    title = text.flow_title("This kernel:", state.kernel, state.experiment.config, textbook_op)
    drawn = {"flow-title": title}
    judged = costs.compiled or costs.predicted or costs.textbook
    if is_textbook:
        judged = costs.textbook
    contrast = find_contrast(state, [op for op in judged if op.number == number][-1])
    if contrast is None:
        bar = text.launch_bar(own, own, count)
        return {**drawn, "flow-launch": bar, **NO_CONTRAST}
    op = contrast.operation
    address = {**contrast.experiment.short_address(), "tab": "requests", "operation": op.number}
    other = flow.make_flow(op)
    caption = picture_caption(contrast.experiment, state.gpu.name, "compiled")
    ratio = sum(map(text.used_bytes, contrast.operations)) / max(1, sum(map(text.used_bytes, own)))
    tiles = (
        ""
        if ratio == 1
        else f"With its own tile size, it uses {significant(ratio)} × as many bytes."
    )
    return drawn | {
        "flow-launch": text.launch_bar(own, contrast.operations, count),
        "contrast-title": text.flow_title(
            "Versus", contrast.kernel, contrast.experiment.config, op, query(address)
        ),
        "contrast": flow.flow_plot(other, state.view.of(LaneView).request, caption),
        "contrast-launch": text.launch_bar(contrast.operations, own, tiles),
    }


def lanes_form(snapshot: Snapshot, number: int) -> str:
    """Return the form that chooses the operation and, on the textbook machine, one of its two examples.

    Args:
        number: of the operation in the picture.
    """
    state = snapshot.state
    view = state.view.of(LaneView)
    accesses = state.kernel.accesses(state.launch)
    labels = [text.label(access) for access in accesses]
    names = [
        f"{label}, line {access.source[1]}" if labels.count(label) > 1 else label
        for label, access in zip(labels, accesses, strict=True)
    ]
    (operation,) = slots.controls(LaneView)
    operation |= {
        "choices": ["worst", *map(str, range(len(names)))],
        "labels": ["most wasteful", *names],
    }
    chosen = "worst" if view.operation == "worst" else str(number)
    fields = [operation]
    if view.model == "textbook":
        fields += [lanes | {"labels": _LANES} for lanes in slots.controls(Textbook)]
    values = {"operation": chosen, "lanes": state.view.of(Textbook).lanes}
    return slots.form_value(fields, values)


_COALESCING_OPTIONS: dict[str, JsonSchema] = {
    "model": argument_schemas(LaneView)["model"],
    "textbook": {
        "type": "object",
        "description": "The textbook model's machine. Default: a GPU's.",
        "properties": argument_schemas(Textbook),
    },
}


async def coalescing(
    api: Api, experiment: Json, model: str = "compiled", textbook: Json | None = None
) -> Reply:
    """Predicts how well each load, store and atomic coalesces, over the whole launch.

    `ops` has, per operation, its source line, bytes per lane, warp requests, 32-byte sectors, 128-byte lines,
    ideal sectors, and efficiency: ideal / sectors, 1 is best. `why` explains what is lost. `counted` is Nsight
    Compute's count of the same code, or null. Needs no GPU.
    """
    knobs(LaneView)["model"].validate("model", model)
    if model == "textbook":
        return api.reply_predicted(
            experiment, lambda snapshot: textbook_reply(snapshot, read_textbook(textbook))
        )
    return await api.reply_compiled(experiment, compiled_reply)


def counters_reply(outcome: Counters, _: Snapshot) -> Json:
    """Counts a launch's requests, sectors and DRAM bytes with Nsight Compute.

    `launch` has the totals, `ops` those of each memory operation, `shared` those of shared memory. `backend`
    says whether they were counted here (cuda) or earlier (recorded), `device` on what GPU and versions. Without
    a GPU: recorded counts, or a failure.
    """
    return to_json(outcome)


def textbook_reply(snapshot: Snapshot, machine: Textbook) -> Json:
    """Return the body of /coalescing with the textbook model."""
    costs = LaunchCosts(snapshot.state.kernel, snapshot.launch, None, None, machine)
    return {
        "model": "textbook",
        "textbook": asdict(machine),
        **_costs(costs.textbook, costs),
    }


def compiled_reply(snapshot: Snapshot) -> Reply:
    """Return the body of /coalescing with the compiled model, and with the counts of the same code."""
    compiled = snapshot.compiled
    if compiled is None or compiled.unreadable:
        why = compiled.unreadable if compiled else "it is not known"
        return Failure("compile", "unreadable", f"The compiled kernel could not be read: {why}")
    costs = LaunchCosts(snapshot.state.kernel, snapshot.launch, compiled, snapshot.result(Counters))
    return {"model": "compiled", "triton": compiled.triton, **_costs(costs.compiled, costs)}


def _costs(operations: Sequence[DeclaredCounts], costs: LaunchCosts) -> Json:
    rows = []
    for op in operations:
        file, line = op.access.source
        counted = None
        if costs.counted_is_compiled and (count := count_of(op, costs)):
            counted = select_fields(
                count, "executed", "sectors", "lines", "ideal_sectors", "opcodes", "agreement"
            )
            counted["requests"] = count.requests if count.has_requests else None
        rows.append(
            {
                **select_fields(op.access, "op", "tensor"),
                **{"file": file, "line": line, "width_bytes": op.width_bytes},
                **select_fields(op.launch, *_LAUNCH),
                "tile": select_fields(
                    op.tile, *_AMOUNTS, "extra_sectors", "repeated_sectors", "efficiency"
                ),
                "why": text.explain(op, costs),
                "at_least": op.launch.is_lower_bound,
                "compiled": op.compiled and asdict(op.compiled),
                "counted": counted,
            }
        )
    return {"ops": rows, "totals": select_fields(sum_costs(operations), *_LAUNCH)}


class RequestsPanel(Panel):
    """One request as flow from lanes to bytes, beside another kernel's, and the tables behind it."""

    layout = """
{{ slot("requests-headline") }}
<div id="memory-row" class="row">
{{ form("lanes-view", "Which operation is drawn") }}
{% call slot("scrubber", "scrubber") %}
<div class="switch" role="group" aria-label="Requests">
<button type="button" data-model="textbook" data-tip="A simplified GPU, as in lectures">Textbook</button>
<button type="button" data-model="compiled" data-tip="What the compiled kernel requests">Compiled</button></div>
<div class="player scrubber" role="group" aria-label="Requests of the program">
<button type="button" class="control back" aria-label="Previous request">←</button>
<button type="button" class="control forward" aria-label="Next request">→</button>
<input type="range" min="0" max="0" value="0" aria-label="Request"><output></output><span class="legend quiet">
<span><i style="background:var(--used)"></i>used</span>
<span><i style="background:var(--wasted)"></i>wasted</span></span></div>
{% endcall %}
</div>
<div id="memory-picture" class="row picture">
<div id="flow" class="flow">
{{ slot("flow-title") }}
{{ plot(
    "request-plot", "A request: lines from its lanes to the bytes that they access, used or wasted", "scrubber",
    headline="requests-headline"
) }}
{{ slot("flow-launch") }}
</div>
<div id="flow-contrast" class="flow">
{{ slot("contrast-title") }}
{{ plot("contrast", "A request of another kernel for the same tensor", "scrubber") }}
{{ slot("contrast-launch") }}
</div>
</div>
{% call fold("operations-fold", "Every operation of the launch: requests, sectors, lines") %}
{{ slot("requests-table") }}
{% endcall %}
<div id="count-row" class="row">{{ button("count", "Count with Nsight Compute") }}</div>
"""
    options = (LaneView, Textbook)
    actions: Mapping[str, Action] = {"count": "counters"}
    endpoints = (
        Endpoint("coalescing", coalescing, others=_COALESCING_OPTIONS),
        reply_endpoint("counters", Api.reply_measured, counters_reply, measurement="counters"),
    )

    def draw(self, snapshot: Snapshot) -> Slots:
        state = snapshot.state
        compiled = snapshot.compiled
        view = snapshot.state.view.of(LaneView)
        problem = _problem(snapshot)
        is_textbook = view.model == "textbook"
        costs, wasteful, number = flow.find_operation(snapshot)
        main = flow.make_flow(costs.textbook[number])
        other = None
        pending = (
            "The kernel could not be compiled" if problem else f"Compiling for {state.gpu.name}"
        )
        if compiled and not problem:
            pending = ""
            other = flow.make_flow(costs.find(number))
            if not is_textbook:
                main, other = other, main
        headline = (
            text.textbook_headline(costs)
            if is_textbook
            else text.memory_headline(costs, number, wasteful, state.pinned is not None)
        )
        about = picture_caption(state.experiment, state.gpu.name, main.model)
        return {
            "requests-headline": problem + headline,
            "request-plot": flow.flow_plot(main, view.request, about, other, pending),
            **_launches(
                snapshot,
                costs,
                number,
                costs.compiled if main.is_compiled else costs.textbook,
            ),
            "lanes-view": lanes_form(snapshot, number),
            "requests-table": text.declared_operations_table(costs),
        }

    def draw_pinned(self, pinned: Snapshot, snapshot: Snapshot) -> Slots:
        # The operation that `snapshot` shows, so that the pair shows accesses of one tensor.
        costs, _, number = flow.find_operation(snapshot)
        own = costs.textbook[number].access
        accesses = pinned.state.kernel.accesses(pinned.state.launch)
        alike = [other for other, access in enumerate(accesses) if same_access(access, own)]
        if alike:
            shown = str(number if number in alike else alike[0])
            pinned = replace(pinned, state=pinned.state.with_options(LaneView, operation=shown))
        return self.draw(pinned)

    def summary(self, snapshot: Snapshot) -> tuple[Number, ...]:
        compiled = snapshot.compiled
        numbers = []
        if compiled is not None and not compiled.unreadable:
            cost = sum_costs(
                count_accesses(snapshot.state.kernel, snapshot.launch, compiled.operations)
            )
            numbers = [
                Number(name, getattr(cost, name), "", "compiled")
                for name in ("requests", "sectors")
            ]
            numbers.append(
                Number("bytes used per byte fetched", cost.efficiency, "share", "compiled")
            )
        counted = key_numbers(snapshot.result(Counters))
        return *numbers, *(replace(number, name=f"{number.name}, counted") for number in counted)
