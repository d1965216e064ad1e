"""What if: the same launch with one fact changed, with one dimension sliding, or compiled for two GPUs.

Each asks the compiler several times, so each is an event of its own, begun by a button.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, replace

import gradio as gr

from kernels import discover
from kernels.experiment import Experiment, resolved_gpu
from kernels.knobs import ConfigError
from kernels.lanes import CompiledFacts
from kernels.matmul.transposed_operands import with_transposed
from kernels.results import Compiled, Failure
from kernels.runner.session import Session
from kernels.spec import Launch
from visualize.figures.cliff_figure import cliff_figure
from visualize.models import coalescing
from visualize.models.occupancy import occupancy
from visualize.models.traffic import Operation
from visualize.state.state import State
from visualize.text import words
from visualize.widgets import assets, form
from visualize.widgets.markup import markup
from visualize.widgets.plot import drawn, plot

# What the launcher records of a number: whether this divides it.
_DIVISOR = 16
# How many sizes before the next multiple the cliff begins.
_BEFORE = 24


@dataclass(frozen=True)
class Parts:
    options: gr.HTML
    faults: gr.Button
    cliff: gr.Button
    across: gr.Button
    table: gr.HTML
    plot: gr.HTML


def build() -> Parts:
    options = form.form("whatif-view", "What if")
    with gr.Row(elem_id="whatif-row"):
        faults = gr.Button("Whose fault?", size="sm", elem_id="faults")
        cliff = gr.Button("Shape cliff", size="sm", elem_id="cliff")
        across = gr.Button("Compare two GPUs", size="sm", elem_id="across")
    return Parts(
        options,
        faults,
        cliff,
        across,
        markup("whatif", script=assets.text("result.js")),
        plot("cliff-plot", "Requests and sectors by size"),
    )


@dataclass(frozen=True)
class _Variant:
    """The launch with one fact changed: an experiment, and what the compiler is told of its sizes."""

    name: str
    experiment: Experiment
    specialization: str = "launcher"


def faults(session: Session, state: State) -> Iterator[tuple[str, str]]:
    """The table, row by row, of what each changed fact does to width, requests and sectors."""
    rows: list[tuple[str, ...]] = []
    totals: dict[str, int | None] = {}
    base: tuple[Operation, ...] | None = None
    variants = _variants(state.experiment)
    header = ("one fact changed", "operation", "width", "requests", "", "sectors", "", "registers")
    for variant in variants:
        outcome = session.compiled(variant.experiment, variant.specialization)
        ops = None
        if isinstance(outcome, Compiled) and not outcome.unreadable:
            ops = _operations(variant.experiment, outcome, session)
        rows += _rows(variant, outcome, ops, base)
        totals[variant.name] = sum(op.launch.requests for op in ops) if ops is not None else None
        if variant is variants[0]:
            base = ops
        yield words.table(header, rows, _caption(state)), ""
    yield f'<p class="claim">{_verdict(totals)}</p>' + words.table(header, rows, _caption(state)), ""


def _caption(state: State) -> str:
    return f"The whole launch, compiled for {state.gpu.name} with one fact changed at a time"


def _variants(experiment: Experiment) -> list[_Variant]:
    problem, config = experiment.problem, experiment.config
    sizes = {name: value for name in ("M", "N", "K") if (value := getattr(problem, name, None)) is not None}
    found = [_Variant("as it is", experiment), _Variant("sizes and strides as constants", experiment, "constexpr")]
    odd = {name: -(-value // _DIVISOR) * _DIVISOR for name, value in sizes.items() if value % _DIVISOR}
    if odd:
        padded = ", ".join(f"{name} {sizes[name]} → {value}" for name, value in odd.items())
        name = f"sizes padded to multiples of {_DIVISOR}: {padded}"
        found.append(_Variant(name, replace(experiment, problem=replace(problem, **odd))))
    else:
        found.append(_Variant(f"the fact that {_DIVISOR} divides the sizes forgotten", experiment, "none"))
    if hasattr(problem, "layout"):
        found += [_Variant(f"{name} stored the other way", with_transposed(experiment, name)) for name in "AB"]
    for warps in (config.num_warps // 2, config.num_warps * 2):
        if 1 <= warps <= 16:
            changed = replace(experiment, config=replace(config, num_warps=warps))
            found.append(_Variant(f"num_warps {config.num_warps} → {warps}", changed))
    return found


def _launch(experiment: Experiment, session: Session) -> Launch:
    return Launch(experiment.problem, experiment.config, resolved_gpu(experiment, session.gpu))


def _operations(experiment: Experiment, made: CompiledFacts, session: Session) -> tuple[Operation, ...]:
    return coalescing.operations(discover()[experiment.kernel], _launch(experiment, session), made.operations)


def _rows(
    variant: _Variant,
    outcome: Compiled | Failure,
    ops: tuple[Operation, ...] | None,
    base: tuple[Operation, ...] | None,
) -> list[tuple[str, ...]]:
    """A row for each operation of a variant, beside the same operation of the base; or the reason for none."""
    name = html.escape(variant.name)
    if ops is None or isinstance(outcome, Failure):
        reason = outcome.message if isinstance(outcome, Failure) else outcome.unreadable
        return [(name, html.escape(reason), *("",) * 6)]
    found = []
    for place, op in enumerate(ops):
        same = [
            o
            for o in base or ()
            if (o.number, o.access.tensor, o.is_lower_bound) == (op.number, op.access.tensor, op.is_lower_bound)
        ]
        cells = []
        for what in ("requests", "sectors"):
            value = getattr(op.launch, what)
            cells += [f"{value:,}", _change(value, getattr(same[0].launch, what)) if same else ""]
        width = f"{op.width_bytes} B" if op.width_bytes else "box"
        label = f"{op.access.op} {op.access.tensor}"
        found.append((name if place == 0 else "", label, width, *cells, str(outcome.registers) if place == 0 else ""))
    return found


def _change(now: int, before: int) -> str:
    """How much more or less, where it is not the same."""
    if now == before:
        return '<span class="hint">same</span>'
    if not now or not before:
        return "<b>none</b>" if not now else ""
    times = now / before
    return f"<b>{times:.3g} ×</b>" if times > 1 else f"<b>1 / {1 / times:.3g}</b>"


def _verdict(totals: dict[str, int | None]) -> str:
    """Which changes save requests, over all operations.

    Args:
        totals: the requests of each variant, the first as it is; None of what could not be compiled.
    """
    (_, now), *others = totals.items()
    if now is None:
        return "As it is, this can't be compiled, so there is nothing to compare with."
    better = []
    for name, total in others:
        if total is not None and total < now:
            how = f"{now / total:.3g} × fewer" if total else "none at all: boxes are copied"
            better.append(f"<b>{html.escape(name)}</b> ({how})")
    if not better:
        return "None of these facts costs requests: what is issued follows from the tile and the kernel."
    return f"Fewer requests with {'; '.join(better)}."


def cliff(session: Session, state: State) -> Iterator[tuple[str, str]]:
    """Requests and sectors from some sizes before the next multiple of 16 on, and the facts that change.

    Raises:
        ConfigError: where the problem has no such dimension.
    """
    name = state.view.whatif.dimension
    knobs = state.kernel.problem_knobs()
    if name not in knobs:
        raise ConfigError("not_a_choice", f"dimension is {name}; {state.kernel.id} has M and N.", "dimension")
    last = -(-getattr(state.experiment.problem, name) // _DIVISOR) * _DIVISOR
    sizes = range(max(last - _BEFORE, knobs[name].low), min(last, knobs[name].high) + 1)
    seen: list[tuple[int, int, int, str]] = []
    rows: list[tuple[str, ...]] = []
    for size in sizes:
        experiment = replace(state.experiment, problem=replace(state.experiment.problem, **{name: size}))
        outcome = session.compiled(experiment)
        if isinstance(outcome, Failure) or outcome.unreadable:
            reason = outcome.message if isinstance(outcome, Failure) else outcome.unreadable
            yield f'<p class="failure" role="alert">{name} = {size}: {html.escape(reason)}</p>', ""
            return
        ops = _operations(experiment, outcome, session)
        requests, sectors = (sum(getattr(op.launch, what) for op in ops) for what in ("requests", "sectors"))
        told = _told(size, ops, outcome)
        if not seen or seen[-1][3] != told:
            rows.append((f"{size:,}", f"{requests:,}", f"{sectors:,}", told))
        if not seen:
            yield f'<p class="hint" role="status">Compiling for {len(sizes)} sizes</p>', ""
        seen.append((size, requests, sectors, told))
    columns = list(zip(*seen, strict=True))
    figure = cliff_figure(columns[0], columns[1], columns[2], columns[3], name)
    fewest, most = min(seen, key=lambda s: s[1]), max(seen, key=lambda s: s[1])
    more = f": {most[1] / fewest[1]:.3g} ×" if fewest[1] else "; where there are none, boxes are copied"
    claim = (
        f"Between {name} = {sizes[0]:,} and {sizes[-1]:,} the requests go from <b>{fewest[1]:,}</b> (at {fewest[0]:,}) "
        f"to <b>{most[1]:,}</b> (at {most[0]:,}){more}, for a size that differs by "
        f"{abs(most[0] - fewest[0])} {words.mark('predicted')}."
    )
    header = (f"from {name} =", "requests", "sectors", "what the compiler is told, and makes of it")
    caption = f"Where the compiled kernel changes, for {state.gpu.name}"
    yield f'<p class="claim">{claim}</p>{words.table(header, rows, caption)}', drawn(figure, f"{name} {sizes}")


def _told(size: int, ops: tuple[Operation, ...], made: Compiled) -> str:
    """The facts of one size in words."""
    divisible = "divisible by 16" if size % _DIVISOR == 0 else "equal to 1" if size == 1 else "no fact"
    widths = ", ".join(
        f"{op.access.op} {op.access.tensor} {f'{op.width_bytes} B' if op.width_bytes else 'box'}" for op in ops
    )
    return f"{divisible}: {widths}; {made.registers} registers"


def across(session: Session, state: State) -> Iterator[tuple[str, str]]:
    """The same launch for two GPUs, and by the compiler with which it was recorded: a difference, fact by fact."""
    other = replace(state.experiment, gpu=state.view.whatif.other_gpu)
    try:
        if resolved_gpu(other, session.gpu) == state.gpu:
            raise ConfigError("not_a_choice", f"other_gpu is {state.gpu.name}, which is the chosen one; take another.")
    except ConfigError as error:
        raise ConfigError(error.kind, str(error), "other_gpu") from None
    columns: dict[str, dict[str, str]] = {}
    for experiment in (state.experiment, other):
        outcome = session.compiled(experiment)
        if isinstance(outcome, Failure) or outcome.unreadable:
            reason = outcome.message if isinstance(outcome, Failure) else outcome.unreadable
            name = resolved_gpu(experiment, session.gpu).name
            yield f'<p class="failure" role="alert">{name}: {html.escape(reason)}</p>', ""
            return
        columns[f"{outcome.gpu}, Triton {outcome.triton}"] = _column(experiment, outcome, session)
    if recorded := session.known(state.experiment, "counters"):
        name = f"{recorded.device.name}, Triton {recorded.device.triton}"
        columns.setdefault(name, _column(state.experiment, recorded.compiled, session))
    rows = []
    for name in dict.fromkeys(name for column in columns.values() for name in column):
        cells = [column.get(name, "") for column in columns.values()]
        rows.append((name, *cells, "" if len(set(cells)) == 1 else '<span class="unsure">differs</span>'))
    yield (
        words.table(("", *columns, ""), rows, "Compiled for each; where a third was recorded, on the device itself"),
        "",
    )


def _column(experiment: Experiment, made: CompiledFacts, session: Session) -> dict[str, str]:
    launch = _launch(experiment, session)
    held = occupancy(launch.gpu, launch.config.num_warps, made.registers, made.shared_bytes)
    column = {
        "registers a thread": str(made.registers),
        "spilled bytes a thread": f"{made.spilled_bytes:,}",
        "shared bytes a program": f"{made.shared_bytes:,}",
        "occupancy": f"{words.percent(held.occupancy)}, limited by {' and '.join(held.limited_by)}",
    }
    for op in _operations(experiment, made, session):
        name = f"{op.access.op} {op.access.tensor}, {op.access.source[0].rsplit('/', 1)[-1]}:{op.access.source[1]}"
        how = f"{op.width_bytes} B a lane" if op.width_bytes else "whole boxes"
        opcodes = html.escape(", ".join(op.made.opcodes) if op.made else "")
        column[name] = (
            f'<span title="{opcodes}">{how}, {op.launch.requests:,} requests, {op.launch.sectors:,} sectors</span>'
        )
    return column
