"""Explain what a launch's resources cost: launches that do not fit, idle SMs, bank conflicts and idle stages."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

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
from tilescope.declare.gpus import TENSOR_COLUMNS, Gpu
from tilescope.evaluate.counts import OperationCounts
from tilescope.inside.report import SharedMap
from tilescope.inside.shared import fit_kernel
from tilescope.numbers import count_noun
from tilescope.timing.changes import GRID_KIND, MAX_WARPS

# The `share` of faults, of a lack of resources, and of a small grid.
FAULT = 2.0
_LACK = 0.5
_SMALL_GRID = -1.0
# Resident warps are reported if registers, shared or tensor memory limit them to less than this share.
_LOW_OCCUPANCY = 0.25

_AXES = "first", "second"
# The part of a launch's cost that idle stages are assumed to cause.
_PART = 0.1


def examine_resources(runner: TrialRunner) -> Alternatives:
    """State that a program needs too much shared memory, or spills, or that its resources limit occupancy."""
    gpu = runner.gpu
    kernel = runner.kernel
    if gpu and kernel.shared_bytes > gpu.shared_bytes_per_program:
        lines = _find_fullest(runner.inside.shared_map or SharedMap())
        return _fail(runner, gpu, "shared_bytes", gpu.shared_bytes_per_program, lines)
    if gpu and kernel.tensor_columns > TENSOR_COLUMNS:
        columns = Counter[str]()
        for buffer in runner.inside.tensor_memory:
            columns[f"{buffer.file}:{buffer.line}"] += buffer.columns
        options = [{"num_warps": number} for number in (4, 8) if number != kernel.num_warps]
        advice = " Smaller tl.dot blocks need fewer columns."
        return _fail(runner, gpu, "tensor_columns", TENSOR_COLUMNS, columns, options, advice)
    changed = {"num_warps": 2 * kernel.num_warps, "num_stages": runner.num_stages - 1}
    trials = [
        pass_options({name: value}) for name, value in changed.items() if 1 <= value <= MAX_WARPS
    ]
    if not trials:
        return []
    if kernel.spilled_bytes:
        text = f"Each thread spills {kernel.spilled_bytes:,} bytes of registers to local memory."
        cost = itemgetter("spilled_bytes")
        return [Candidate("spills", text, None, trials, cost=cost, share=_LACK)]
    if not gpu or math.prod(runner.launch.grid) <= gpu.sms:
        return []
    each = fit_kernel(gpu, kernel)
    limiting = {"registers", "shared memory", "tensor memory"}.intersection(each.limited_by)
    limits = " and ".join(sorted(limiting))
    if not limits or each.occupancy >= _LOW_OCCUPANCY:
        return []
    programs = count_noun(each.programs_per_sm, "program")
    warps = each.programs_per_sm * kernel.num_warps
    verb = "limit" if " and " in limits or limits == "registers" else "limits"
    text = f"A program's {limits} {verb} an SM to {programs} ({warps} warps)."
    return [
        Candidate(
            "occupancy",
            text,
            trials=trials,
            cost=lambda numbers: -numbers["resident_warps"],
            share=_LACK,
        )
    ]


def _find_fullest(shared: SharedMap) -> Counter[str]:
    """Return the bytes of each line's buffers at the step at which the buffers need most."""
    fullest = Counter[str]()
    for step in range(len(shared.steps)):
        sizes = Counter[str]()
        for buffer in shared.buffers:
            if buffer.first <= step <= buffer.last:
                sizes[f"{buffer.file}:{buffer.line}"] += buffer.size_bytes
        fullest = max(fullest, sizes, key=Counter.total)
    return fullest


def _fail(
    runner: TrialRunner,
    gpu: Gpu,
    name: str,
    limit: int,
    lines: Counter[str],
    options: Sequence[Mapping[str, int]] = (),
    advice: str = "",
) -> Alternatives:
    """State that a launch fails, and the two lines that need most. Try options and fewer stages.

    Args:
        name: of the number that exceeds the limit, such as "shared_bytes".
    """
    memory, _, unit = name.partition("_")
    largest = [f"{line} needs {size:,}" for line, size in lines.most_common(2)]
    parts = f" {' and '.join(largest)} of them." if largest else ""
    text = (
        f"The launch fails on {gpu.device_name}: a program needs {getattr(runner.kernel, name):,} {unit} of {memory} "
        f"memory, and the limit is {limit:,}.{parts}{advice}"
    )
    fewer = [{"num_stages": stages} for stages in range(runner.num_stages - 1, 0, -1)]
    return [
        Candidate(
            f"{memory} memory",
            text,
            trials=[pass_options(each) for each in (*options, *fewer)],
            cost=lambda numbers: numbers[name] > limit,
            share=FAULT,
        )
    ]


def examine_grid(runner: TrialRunner) -> Alternatives:
    programs = math.prod(runner.launch.grid)
    if not runner.gpu or programs >= runner.gpu.sms:
        return []
    idle = runner.gpu.sms - programs
    text = f"{idle} of {runner.gpu.sms} SMs stay idle, because the grid size is only {programs}."
    return [Candidate(GRID_KIND, text, share=_SMALL_GRID)]


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
