"""What if: the same launch with one fact changed, with one dimension sliding, or compiled for two GPUs.

Each asks the compiler several times, so each is an event of its own, begun by a button.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
from visualize.predict.schedule import occupancy
from visualize.predict.traffic import Operation
from visualize.views import prose, slots, status
from visualize.views.address import dated
from visualize.views.endpoint import current_client
from visualize.views.memory import tables
from visualize.views.memory.figures import cliff_figure
from visualize.views.memory.tables import DIVISOR
from visualize.views.plot import drawn
from visualize.views.prose import picture_caption
from visualize.views.slots import button, fold, plot, slot
from visualize.views.state import State
from visualize.views.view import Panel, Question, Slots, StreamAction

# How many sizes before the next multiple the cliff begins.
_BEFORE = 24


# What is said, and a picture or "".
Answer = tuple[Markup, str]


@dataclass(frozen=True)
class WhatIfView:
    """What is changed to see what it does."""

    dimension: str = knob("M", "What if", "The dimension that the shape cliff slides along.", choices=("M", "N", "K"))
    other_gpu: str = knob("A100-80GB", "What if", "The GPU that the chosen one is compared with.", choices=tuple(GPUS))


class WhatIfPanel(Panel):
    """Three questions that each take several compiles."""

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
        return {name: StreamAction(self._asked(one), ("whatif", "cliff-plot")) for name, one in questions.items()}

    def _asked(self, question: Callable[[Session, State], Iterator[Answer]]) -> Question:
        """The drawings of a question's answers, as they grow."""

        def answers(session: Session, state: State, _page: str) -> Iterator[Slots]:
            yield {"whatif": status.render_compiling(state.gpu.name), "cliff-plot": ""}
            for said, picture in question(session, state):
                yield {"whatif": dated(state.experiment, said), "cliff-plot": picture}

        return answers


@dataclass(frozen=True)
class _Variant:
    """The launch with one fact changed: an experiment, and what the compiler is told of its sizes."""

    name: str
    experiment: Experiment
    specialization: str = "launcher"


def faults(session: Session, state: State) -> Iterator[Answer]:
    """The table, row by row, of what each changed fact does to width, requests and sectors."""
    rows: list[tuple[Any, ...]] = []
    totals: dict[str, int | None] = {}
    base: tuple[Operation, ...] | None = None
    variants = _variants(state.experiment)
    for variant in variants:
        outcome = session.compile(variant.experiment, variant.specialization, client=current_client()).result()
        ops = None
        if isinstance(outcome, Compiled) and not outcome.unreadable:
            ops = _operations(variant.experiment, outcome, session)
        rows += tables.change_rows(variant.name, outcome, ops, base)
        totals[variant.name] = sum(op.launch.requests for op in ops) if ops is not None else None
        if variant is variants[0]:
            base = ops
        yield tables.changes_table(rows, state.gpu.name), ""
    yield prose.claim(tables.best_changes(totals)) + tables.changes_table(rows, state.gpu.name), ""


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
    """Requests and sectors from some sizes before the next multiple of 16 on, and the facts that change.

    Raises:
        ConfigError: where the problem has no such dimension.
    """
    name = state.view.of(WhatIfView).dimension
    knobs = state.kernel.problem_knobs()
    if name not in knobs:
        raise ConfigError("not_a_choice", f"dimension is {name}; {state.kernel.id} has M and N.", "dimension")
    last = -(-getattr(state.experiment.problem, name) // DIVISOR) * DIVISOR
    sizes = range(max(last - _BEFORE, knobs[name].low), min(last, knobs[name].high) + 1)
    yield prose.hint(f"Compiling for {len(sizes)} sizes"), ""
    seen: list[tuple[int, int, int, str]] = []
    for size in sizes:
        experiment = replace(state.experiment, problem=replace(state.experiment.problem, **{name: size}))
        outcome = session.compile(experiment, client=current_client()).result()
        if isinstance(outcome, Failure) or outcome.unreadable:
            yield status.render_alert(f"{name} = {size}:", tables.failure_reason(outcome)), ""
            return
        ops = _operations(experiment, outcome, session)
        requests, sectors = (sum(getattr(op.launch, what) for op in ops) for what in ("requests", "sectors"))
        seen.append((size, requests, sectors, tables.describe_size(size, ops, outcome)))
    rows = [one for one, before in zip(seen, [None, *seen], strict=False) if before is None or one[3] != before[3]]
    sizes_seen, requests_seen, sectors_seen, known = zip(*seen, strict=True)
    claim = prose.claim(tables.cliff_sentence(name, sizes_seen, requests_seen))
    table = tables.cliff_table(name, rows, state.gpu.name)
    figure = cliff_figure(sizes_seen, requests_seen, sectors_seen, known, name)
    about = picture_caption(state.experiment, state.gpu.name, "compiled")
    yield claim + table, drawn(figure, f"{name} {sizes}", about=about)


def across(session: Session, state: State) -> Iterator[Answer]:
    """The same launch for two GPUs, and by the compiler with which it was recorded: a difference, fact by fact."""
    other = replace(state.experiment, gpu=state.view.of(WhatIfView).other_gpu)
    try:
        if resolve_gpu(other, session.gpu) == state.gpu:
            raise ConfigError("not_a_choice", f"other_gpu is {state.gpu.name}, which is the chosen one; take another.")
    except ConfigError as error:
        raise ConfigError(error.kind, str(error), "other_gpu") from None
    columns: dict[str, dict[str, Any]] = {}
    for experiment in (state.experiment, other):
        outcome = session.compile(experiment, client=current_client()).result()
        if isinstance(outcome, Failure) or outcome.unreadable:
            name = resolve_gpu(experiment, session.gpu).name
            yield status.render_alert(f"{name}:", tables.failure_reason(outcome)), ""
            return
        columns[f"{outcome.gpu}, Triton {outcome.triton}"] = _column(experiment, outcome, session)
    if recorded := session.find_value(state.experiment, "counters"):
        name = f"{recorded.device.name}, Triton {recorded.device.triton}"
        columns.setdefault(name, _column(state.experiment, recorded.compiled, session))
    yield tables.gpus_table(columns), ""


def _column(experiment: Experiment, compiled: CompiledFacts, session: Session) -> dict[str, Any]:
    launch = _launch(experiment, session)
    held = occupancy(launch.gpu, launch.config.num_warps, compiled.registers, compiled.shared_bytes)
    return tables.gpu_column(compiled, held, _operations(experiment, compiled, session))
