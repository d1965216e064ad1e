"""What if: the same launch with one change, at neighboring sizes, or on another GPU. Each question needs compiles."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from kernels import discover
from kernels.accesses import CompiledFacts
from kernels.experiment import Experiment, resolve_gpu
from kernels.gpus import GPUS
from kernels.knobs import ConfigError, knob
from kernels.matmul.problem import transpose_operand
from kernels.measuring.session import Session
from kernels.results import Compiled, Failure
from kernels.spec import Launch
from visualize.predict import coalescing
from visualize.predict.schedule import Occupancy, occupancy
from visualize.predict.traffic import Operation
from visualize.views import prose, slots, status
from visualize.views.address import tag_experiment
from visualize.views.endpoint import current_client
from visualize.views.memory.figures import cliff_figure
from visualize.views.memory.text import place
from visualize.views.numbers import join_names, percent
from visualize.views.plot import plot_value
from visualize.views.prose import Hint, Listed, Sentence, Sourced, Strong, picture_caption, say
from visualize.views.slots import button, fold, plot, slot
from visualize.views.state import State
from visualize.views.tables import table
from visualize.views.view import Panel, Question, Slots, StreamAction

# Triton's launcher records of each integer argument whether this divides it.
DIVISOR = 16
# The shape cliff begins this far before the next multiple.
_BEFORE = 24

# Text, and a picture or "".
Answer = tuple[Markup, str]


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
        clears, questions = ("whatif", "cliff-plot"), {"faults": faults, "cliff": cliff, "across": across}
        return {name: StreamAction(self._stream(question), clears) for name, question in questions.items()}

    def _stream(self, question: Callable[[Session, State], Iterator[Answer]]) -> Question:
        def answers(session: Session, state: State, _page: str) -> Iterator[Slots]:
            yield {"whatif": status.render_compiling(state.gpu.name), "cliff-plot": ""}
            for text, picture in question(session, state):
                yield {"whatif": tag_experiment(state.experiment, text), "cliff-plot": picture}

        return answers


@dataclass(frozen=True)
class _Variant:
    """The launch with one change: an experiment, and the compiler's assumptions about its sizes."""

    name: str
    experiment: Experiment
    specialization: str = "launcher"


def faults(session: Session, state: State) -> Iterator[Answer]:
    """Compile each change, and yield the table of widths, requests and sectors so far."""
    rows: list[tuple[Any, ...]] = []
    totals: dict[str, int | None] = {}
    base: tuple[Operation, ...] | None = None
    variants = _variants(state.experiment)
    for variant in variants:
        outcome = session.compile(variant.experiment, variant.specialization, client=current_client()).result()
        ops = None
        if isinstance(outcome, Compiled) and not outcome.unreadable:
            ops = _operations(variant.experiment, outcome, session)
        rows += change_rows(variant.name, outcome, ops, base)
        totals[variant.name] = sum(op.launch.requests for op in ops) if ops is not None else None
        if variant is variants[0]:
            base = ops
        yield changes_table(rows, state.gpu.name), ""
    yield prose.claim(best_changes(totals)) + changes_table(rows, state.gpu.name), ""


def _variants(experiment: Experiment) -> list[_Variant]:
    problem, config = experiment.problem, experiment.config
    sizes = {name: value for name in ("M", "N", "K") if (value := getattr(problem, name, None)) is not None}
    found = [
        _Variant("unchanged", experiment),
        _Variant("sizes and strides as constants", experiment, "constexpr"),
    ]
    odd = {name: -(-value // DIVISOR) * DIVISOR for name, value in sizes.items() if value % DIVISOR}
    if odd:
        changes = ", ".join(f"{name} {sizes[name]} → {value}" for name, value in odd.items())
        name = f"sizes padded to multiples of {DIVISOR}: {changes}"
        found.append(_Variant(name, replace(experiment, problem=replace(problem, **odd))))
    else:
        found.append(_Variant(f"sizes not known to be divisible by {DIVISOR}", experiment, "none"))
    if hasattr(problem, "layout"):
        layouts = {name: replace(experiment, problem=transpose_operand(problem, name)) for name in "AB"}
        found += [_Variant(f"{name} transposed", variant) for name, variant in layouts.items()]
    for warps in (config.num_warps // 2, config.num_warps * 2):
        if 1 <= warps <= 16:
            changed = replace(experiment, config=replace(config, num_warps=warps))
            found.append(_Variant(f"num_warps {config.num_warps} → {warps}", changed))
    return found


def _launch(experiment: Experiment, session: Session) -> Launch:
    return Launch(experiment.problem, experiment.config, resolve_gpu(experiment, session.gpu))


def _operations(experiment: Experiment, compiled: CompiledFacts, session: Session) -> tuple[Operation, ...]:
    return coalescing.operations(discover()[experiment.kernel], _launch(experiment, session), compiled.operations)


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
    seen: list[tuple[int, int, int, str]] = []
    for size in sizes:
        experiment = replace(state.experiment, problem=replace(state.experiment.problem, **{name: size}))
        outcome = session.compile(experiment, client=current_client()).result()
        if isinstance(outcome, Failure) or outcome.unreadable:
            yield status.render_alert(f"{name} = {size}:", failure_reason(outcome)), ""
            return
        ops = _operations(experiment, outcome, session)
        requests, sectors = (sum(getattr(op.launch, what) for op in ops) for what in ("requests", "sectors"))
        seen.append((size, requests, sectors, describe_size(size, ops, outcome)))
    rows = [row for row, before in zip(seen, [None, *seen], strict=False) if before is None or row[3] != before[3]]
    sizes_seen, requests_seen, sectors_seen, known = zip(*seen, strict=True)
    claim = prose.claim(cliff_sentence(name, sizes_seen, requests_seen))
    figure = cliff_figure(sizes_seen, requests_seen, sectors_seen, known, name)
    about = picture_caption(state.experiment, state.gpu.name, "compiled")
    yield claim + cliff_table(name, rows, state.gpu.name), plot_value(figure, f"{name} {sizes}", about=about)


def across(session: Session, state: State) -> Iterator[Answer]:
    """Compile the launch for two GPUs, and compare the facts, also with those of the recorded build."""
    other = replace(state.experiment, gpu=state.view.of(WhatIfView).other_gpu)
    try:
        if resolve_gpu(other, session.gpu) == state.gpu:
            raise ConfigError("not_a_choice", f"other_gpu must differ from gpu (got {state.gpu.name!r}).")
    except ConfigError as error:
        raise ConfigError(error.kind, str(error), "other_gpu") from None
    columns: dict[str, dict[str, Any]] = {}
    for experiment in (state.experiment, other):
        outcome = session.compile(experiment, client=current_client()).result()
        if isinstance(outcome, Failure) or outcome.unreadable:
            name = resolve_gpu(experiment, session.gpu).name
            yield status.render_alert(f"{name}:", failure_reason(outcome)), ""
            return
        columns[f"{outcome.gpu}, Triton {outcome.triton}"] = _column(experiment, outcome, session)
    if recorded := session.find_value(state.experiment, "counters"):
        name = f"{recorded.device.name}, Triton {recorded.device.triton}"
        columns.setdefault(name, _column(state.experiment, recorded.compiled, session))
    yield gpus_table(columns), ""


def _column(experiment: Experiment, compiled: CompiledFacts, session: Session) -> dict[str, Any]:
    launch = _launch(experiment, session)
    allowed = occupancy(launch.gpu, launch.config.num_warps, compiled.registers, compiled.shared_bytes)
    return gpu_column(compiled, allowed, _operations(experiment, compiled, session))


def change_rows(
    name: str,
    outcome: Compiled | Failure,
    operations: Sequence[Operation] | None,
    base: Sequence[Operation] | None,
) -> list[tuple[Any, ...]]:
    """Return one what-if change's rows: each operation beside the base's, or the reason why there are none.

    Args:
        operations, base: None if they could not be compiled or read.
    """
    if operations is None or isinstance(outcome, Failure):
        return [(name, failure_reason(outcome), *("",) * 6)]
    before = {(op.number, op.access.tensor, op.launch.is_lower_bound): op.launch for op in base or ()}
    rows = []
    for index, op in enumerate(operations):
        old, cells = before.get((op.number, op.access.tensor, op.launch.is_lower_bound)), []
        for amount in ("requests", "sectors"):
            value = getattr(op.launch, amount)
            cells += [f"{value:,}", _change(value, getattr(old, amount)) if old else ""]
        first, registers = ("", "") if index else (name, str(outcome.registers))
        rows.append((first, f"{op.access.op} {op.access.tensor}", _width(op), *cells, registers))
    return rows


def failure_reason(outcome: Compiled | Failure) -> str:
    """Return why an experiment's operations are unknown."""
    return outcome.message if isinstance(outcome, Failure) else outcome.unreadable


def _width(op: Operation) -> str:
    return f"{op.width_bytes} B" if op.width_bytes else "box"


def _change(now: int, before: int) -> Any:
    if now == before:
        return Hint("same", style="hint")
    if not now or not before:
        return Strong("none") if not now else ""
    factor = now / before
    return Strong(f"{factor:.3g} ×" if factor > 1 else f"1 / {1 / factor:.3g}")


def changes_table(rows: Sequence[tuple[Any, ...]], gpu: str) -> Markup:
    """Render the `change_rows` of all changes."""
    header = ("change", "operation", "width", "requests", "", "sectors", "", "registers")
    return table(header, rows, f"The whole launch, compiled for {gpu} with one change at a time")


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
    return say("Fewer requests with {}.", Listed(tuple(better), "; "))


def cliff_sentence(name: str, sizes: Sequence[int], requests: Sequence[int]) -> Sentence:
    """Return how far requests fall while one dimension slides over `sizes`."""
    (fewest, at_fewest), (most, at_most) = (
        pick(zip(requests, sizes, strict=True), key=lambda pair: pair[0]) for pick in (min, max)
    )
    ratio = f": {most / fewest:.3g} ×" if fewest else "; at the sizes without requests, boxes are copied"
    return say(
        "Between {} = {:,} and {:,} the requests go from {} (at {:,}) to {} (at {:,}){}, for sizes that differ by {}.",
        *(name, sizes[0], sizes[-1], Strong(f"{fewest:,}"), at_fewest, Strong(f"{most:,}"), at_most, ratio),
        Sourced(abs(at_most - at_fewest), "predicted"),
    )


def cliff_table(name: str, rows: Iterable[tuple[int, int, int, str]], gpu: str) -> Markup:
    """Render the sizes where the compiled kernel changes: size, requests, sectors, and `describe_size`."""
    header = (f"from {name} =", "requests", "sectors", "what the compiler knows, and what it compiles")
    cells = [(f"{size:,}", f"{requests:,}", f"{sectors:,}", known) for size, requests, sectors, known in rows]
    return table(header, cells, f"Where the compiled kernel changes, for {gpu}")


def describe_size(size: int, operations: Sequence[Operation], compiled: CompiledFacts) -> str:
    """Return what the compiler knows of a size, and the widths and registers that follow."""
    known = f"divisible by {DIVISOR}" if size % DIVISOR == 0 else "equal to 1" if size == 1 else "nothing known"
    widths = ", ".join(f"{op.access.op} {op.access.tensor} {_width(op)}" for op in operations)
    return f"{known}: {widths}; {compiled.registers} registers"


def gpu_column(compiled: CompiledFacts, occupancy: Occupancy, operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the facts of a launch compiled for one GPU, by row name."""
    facts: dict[str, Any] = {
        "registers per thread": str(compiled.registers),
        "spilled bytes per thread": f"{compiled.spilled_bytes:,}",
        "shared bytes per program": f"{compiled.shared_bytes:,}",
        "occupancy": f"{percent(occupancy.occupancy)}, limited by {join_names(occupancy.limited_by)}",
    }
    for op in operations:
        unit = f"{op.width_bytes} B per lane" if op.width_bytes else "whole boxes"
        cost = f"{unit}, {op.launch.requests:,} requests, {op.launch.sectors:,} sectors"
        opcodes = ", ".join(op.compiled.opcodes) if op.compiled else ""
        facts[f"{op.access.op} {op.access.tensor}, {place(op)}"] = Hint(cost, opcodes)
    return facts


def gpus_table(columns: Mapping[str, Mapping[str, Any]]) -> Markup:
    """Render the `gpu_column` of each GPU side by side, and mark the rows that differ."""
    rows = []
    for name in dict.fromkeys(name for facts in columns.values() for name in facts):
        cells = [facts.get(name, "") for facts in columns.values()]
        rows.append((name, *cells, "" if len(set(cells)) == 1 else Hint("differs", style="unsure")))
    caption = "Compiled for each GPU; a third column is the build that was recorded on the device itself"
    return table(("", *columns, ""), rows, caption)
