"""Explain what a launch's shared memory costs: bank conflicts, conversions, and stages that hide no latency."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tilescope.advice.access_costs import Diagnosis
from tilescope.advice.experiments import Change, Choice, Hypothesis, Lab, Numbers, Trial, try_option
from tilescope.advice.ttir_edits import Module
from tilescope.evaluate.counts import OperationCounts
from tilescope.ttgir.slices import Slice

_AXES = "first", "second"
# The part of a launch's cost that conversions and idle stages are assumed to cause.
_PART = 0.1


def explain_conflicts(lab: Lab) -> Iterator[Choice]:
    """State which lines cause most bank conflicts of a launch."""
    if not lab.has_conflicts:
        return
    numbers = lab.numbers(None)
    wavefronts = numbers["shared_wavefronts"]
    conflicts = numbers["bank_conflicts"]

    def cost(changed: Numbers) -> int:
        """Return the changed wavefronts if at most 2/3 of the conflicts and at least half of the warps remain."""
        has_conflicts = 3 * changed["bank_conflicts"] > 2 * conflicts
        has_few_warps = 2 * changed.get("resident_warps", 0) < numbers.get("resident_warps", 0)
        return wavefronts if has_conflicts or has_few_warps else changed["shared_wavefronts"]

    ranked = sorted(lab.inside.shared, key=lambda access: -(access.conflicts or 0))
    for rank, access in enumerate(ranked):
        own = access.conflicts or 0
        if rank and 3 * own < conflicts:
            return
        lines = " and ".join(f"{file}:{line}" for file, line in access.user_lines)
        verb = "causes" if len(access.user_lines) == 1 else "cause"
        text = (
            f"{conflicts / wavefronts:.0%} of the launch's {wavefronts:,} shared-memory wavefronts are bank conflicts. "
            f"{lines} {verb} {own:,} of them ({access.opcode})."
        )
        trials = [
            *_transpose_operands(lab, access.user_lines),
            *([] if rank else _use_fewer_warps(lab)),
        ]
        place = access.user_lines[0]
        share = own / wavefronts
        yield [
            Hypothesis(
                "bank conflicts", None, text, trial, not rank, cost, source=place, share=share
            )
            for trial in [*trials, ()]
        ]


def _transpose_operands(lab: Lab, lines: Sequence[tuple[str, int]]) -> Iterator[Trial]:
    """Transpose the matrices that these lines load for a multiplication or, without any, all such matrices."""
    values = Slice(lab.module.body, {})
    dots = (op.operands for op in lab.module.loops if op.name.startswith("tt.dot"))
    used = values.reach(name for operands in dots for name in operands)
    loads = [
        op
        for op, *_ in lab.counts.by_line()
        if any(used & {*each.results} for each in lab.find(op))
    ]
    for op in [op for op in loads if op.source in lines] or loads:
        yield from _transpose(lab, op, "bank conflicts")


def _transpose(lab: Lab, op: OperationCounts, kind: str) -> Iterator[Trial]:
    """Transpose an operation's tensor in memory, if it is a matrix."""
    example = op.tally.example
    if not example or example.address.ndim != 2 or not op.instruction or not op.instruction.layout:
        return
    owner = Diagnosis(lab, op, op.instruction).owner
    if owner is None or min(example.address.shape) == 1:
        return
    steps = np.ptp(example.address[:2, 0]), np.ptp(example.address[0, :2])
    axis = int(steps[1] > steps[0])
    name = op.tensors[0]
    grid = lab.launch.grid
    advice = (
        f"Store {name} transposed, so that the {_AXES[axis]} axis of its block on line {op.source[1]} "
        "is contiguous."
    )
    needs = f"The result stays the same only if all users of {name} expect this order."
    edits = tuple((Module.access_transposed, each.line, owner, axis, grid) for each in lab.find(op))
    yield (Change(kind, advice, needs=needs, edits=edits, moves=True),)


def _use_fewer_warps(lab: Lab) -> Iterator[Trial]:
    warps = lab.kernel.num_warps
    while warps > 1:
        warps //= 2
        yield (try_option("bank conflicts", "num_warps", warps),)


def explain_conversions(lab: Lab) -> Iterator[Choice]:
    """State that a block passes through shared memory because a load and a store order its elements differently."""
    for conversion in lab.conversions:
        text = (
            f"The layout conversion on line {conversion.line} moves {conversion.shared_bytes:,} bytes per program "
            f"through shared memory, because {conversion.maker} and {conversion.user} order elements differently."
        )
        stores = (
            op
            for op, *_ in lab.counts.by_line()
            if op.op == "store" and conversion.user == f"the store on line {op.source[1]}"
        )
        trials = (trial for op in stores for trial in _transpose(lab, op, "conversion"))
        place = conversion.file, conversion.line
        yield [
            Hypothesis(
                "conversion", None, text, trial, False, _count_wavefronts, source=place, share=_PART
            )
            for trial in trials
        ]


def examine_stages(lab: Lab) -> Choice:
    """State that loops end before they use all stages, whose buffers limit occupancy."""
    stages = int(lab.kernel.options.get("num_stages", 1))
    steps = _count_steps(lab)
    if not lab.gpu or not 1 <= steps < stages - 1:
        return []
    resident = lab.numbers(None)["resident_programs"]
    if math.prod(lab.launch.grid) <= lab.gpu.sms * resident:
        return []
    text = (
        f"A program executes each asynchronous copy at most {steps} ×. So num_stages = {stages} hides no more latency "
        f"than num_stages = {steps + 1}, but needs more shared memory."
    )
    change = try_option("stages", "num_stages", steps + 1)
    return [Hypothesis("stages", None, text, (change,), False, _count_free_programs, share=_PART)]


def _count_steps(lab: Lab) -> int:
    """Return how often a program executes a line's asynchronous copies, at most; 0 if unknown."""
    most = 0
    for ops in lab.counts.by_line():
        if ops[0].op != "async copy":
            continue
        programs = [program for op in ops for program, _ in op.tally.starts]
        _, times = np.unique(np.concatenate([[], *programs]), return_counts=True)
        if times.sum() < sum(op.tally.executions for op in ops):
            return 0
        most = max(most, int(times.max(initial=0)))
    return most


def _count_wavefronts(numbers: Numbers) -> int:
    return numbers["shared_wavefronts"]


def _count_free_programs(numbers: Numbers) -> int:
    return -numbers["resident_programs"]
