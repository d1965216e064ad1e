"""Explain what a launch's shared memory costs: bank conflicts, and stages that hide no latency."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tilescope.advice.experiments import (
    Alternatives,
    Candidate,
    Change,
    Numbers,
    Trial,
    TrialRunner,
    pass_options,
)
from tilescope.advice.ttir_edits import Module
from tilescope.evaluate.counts import OperationCounts

_AXES = "first", "second"
# The part of a launch's cost that idle stages are assumed to cause.
_PART = 0.1


def explain_conflicts(runner: TrialRunner) -> Iterator[Alternatives]:
    """State which lines cause most bank conflicts of a launch."""
    if not runner.has_conflicts:
        return
    numbers = runner.numbers(None)
    wavefronts = numbers["shared_wavefronts"]
    conflicts = numbers["bank_conflicts"]

    def cost(changed: Numbers) -> int:
        """Return the changed wavefronts if at most 2/3 of the conflicts and at least half of the warps remain.

        The conflicts of a changed kernel that can't be executed are unknown.
        """
        has_conflicts = 3 * changed.get("bank_conflicts", math.inf) > 2 * conflicts
        has_few_warps = 2 * changed.get("resident_warps", 0) < numbers.get("resident_warps", 0)
        return wavefronts if has_conflicts or has_few_warps else changed["shared_wavefronts"]

    ranked = sorted(runner.inside.shared, key=lambda access: -(access.conflicts or 0))
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
        trials = [*_transpose_operands(runner, access.user_lines)]
        if not rank:
            fewer = range(runner.kernel.num_warps.bit_length() - 2, -1, -1)
            trials += (pass_options({"num_warps": 1 << bits}) for bits in fewer)
        place = access.user_lines[0]
        share = own / wavefronts
        yield [Candidate("bank conflicts", text, None, trials, not rank, cost, place, share)]


def _transpose_operands(runner: TrialRunner, lines: Sequence[tuple[str, int]]) -> Iterator[Trial]:
    """Transpose the matrices that these lines load for a multiplication or, without any, all such matrices."""
    used = runner.module.multiplied
    loads = [
        op
        for op, *_ in runner.counts.by_line()
        if any(used & {*each.results} for each in runner.find(op))
    ]
    for op in [op for op in loads if op.source in lines] or loads:
        yield from _transpose(runner, op)


def _transpose(runner: TrialRunner, op: OperationCounts) -> Iterator[Trial]:
    """Transpose an operation's tensor in memory, if it is a matrix."""
    example = op.tally.example
    if not example or example.address.ndim != 2 or not op.instruction or not op.instruction.layout:
        return
    owner = runner.find_owner(op)
    if owner is None or min(example.address.shape) == 1:
        return
    steps = np.ptp(example.address[:2, 0]), np.ptp(example.address[0, :2])
    axis = int(steps[1] > steps[0])
    name = op.tensors[0]
    grid = runner.launch.grid
    advice = (
        f"Store {name} transposed, so that the {_AXES[axis]} axis of its block on line {op.source[1]} "
        "is contiguous."
    )
    needs = f"The result stays the same only if all users of {name} expect this order."
    edits = tuple(
        (Module.access_transposed, each.line, owner, axis, grid) for each in runner.find(op)
    )
    yield Trial([Change(advice, needs=needs, edits=edits, moves=True)])


def examine_stages(runner: TrialRunner) -> Alternatives:
    """State that loops end before they use all stages, whose buffers limit occupancy."""
    stages = runner.num_stages
    steps = _count_steps(runner)
    if not runner.gpu or not 1 <= steps < stages - 1:
        return []
    resident = runner.numbers(None)["resident_programs"]
    if math.prod(runner.launch.grid) <= runner.gpu.sms * resident:
        return []
    text = (
        f"A program executes each asynchronous copy at most {steps} ×. So num_stages = {stages} hides no more latency "
        f"than num_stages = {steps + 1}, but needs more shared memory."
    )
    return [
        Candidate(
            "stages",
            text,
            trials=[pass_options({"num_stages": steps + 1})],
            is_fact=False,
            cost=lambda numbers: -numbers["resident_programs"],
            share=_PART,
        )
    ]


def _count_steps(runner: TrialRunner) -> int:
    """Return how often a program executes a line's asynchronous copies, at most; 0 if unknown."""
    most = 0
    for ops in runner.counts.by_line():
        if ops[0].op == "async copy":
            programs = [program for op in ops for program, _ in op.tally.starts]
            times = np.bincount(np.concatenate([np.zeros(0, int), *programs]))
            if times.sum() < sum(op.tally.executions for op in ops):
                return 0
            most = max(most, int(times.max(initial=0)))
    return most
