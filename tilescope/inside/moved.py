"""Correct the counts of loads and stores that the SASS executes more often or less often than the TTGIR.

ptxas moves a load behind an early return, a branch or the test of a store's mask, makes it conditional if only one side
of a selection needs it, and merges accesses in unrolled loops.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilescope.captures.listings import UnsupportedOperation, isolate
from tilescope.captures.reader import BaseCapture, CapturedLaunch
from tilescope.evaluate.captured import MOVED, UNROLLED
from tilescope.evaluate.counts import LaunchCounts, OperationCounts, Touches
from tilescope.evaluate.sectors import SECTOR_BYTES, RequestCosts
from tilescope.inside.execution import Executions, execute
from tilescope.inside.inspect import make_launch
from tilescope.sass.instructions import Instruction, parse_sass
from tilescope.ttgir.parser import Site

# The operations of one kind on a source line, and the indices of their instructions.
_Accesses = tuple[Sequence[OperationCounts], Sequence[int]]


@isolate(lambda why, *args: replace(args[2], refused=why))
def correct_counts(
    capture: BaseCapture,
    launch: CapturedLaunch,
    counts: LaunchCounts,
    executions: Executions | None,
) -> LaunchCounts:
    """Count the loads and stores of source lines again from the SASS, if it may execute them more or less often.

    If their addresses or predicates are unknown there, the counts of loads become bounds.

    Args:
        executions: of the launch; None if they are unknown. Then the counts stay the same.
    """
    if executions is None:
        return counts
    code = parse_sass(capture.read_code(launch.kernel, "sass"))
    times = executions.times
    suspects = {
        site: (ops, numbers)
        for site, (ops, numbers) in _find_accesses(code, counts).items()
        if executions.uncertain.isdisjoint(numbers) and _may_differ(ops, numbers, code, times)
    }
    if not suspects:
        return counts
    suspected = [number for _, numbers in suspects.values() for number in numbers]
    try:
        counted = execute(code, make_launch(capture, launch, counts), suspected)
    except UnsupportedOperation:
        counted = replace(executions, requests={}, refused=dict.fromkeys(suspected, ""))
    corrected = dict[int, OperationCounts]()
    for ops, numbers in suspects.values():
        is_conditional = any(code[number].predicate for number in numbers)
        requests = None if is_conditional else int(times[numbers].sum())
        known = _correct_known(ops, numbers, counted, requests)
        correct = known or _limit(ops, numbers, code, times)
        corrected |= {id(op): new for op, new in zip(ops, correct, strict=True)}
    operations = tuple(corrected.get(id(op), op) for op in counts.operations)
    return replace(counts, operations=operations)


def _find_accesses(code: Sequence[Instruction], counts: LaunchCounts) -> Mapping[Site, _Accesses]:
    """Return the loads and stores of each source line whose counts are exact, or bounds that the SASS may resolve."""
    numbers = defaultdict[Site, list[int]](list)
    for number, instruction in enumerate(code):
        if instruction.traits.gmem in ("load", "store") and instruction.location:
            numbers[instruction.traits.gmem, instruction.source].append(number)
    groups = defaultdict[Site, list[OperationCounts]](list)
    for op in counts.operations:
        groups[op.op, op.source].append(op)
    return {
        site: (ops, numbers[site])
        for site, ops in groups.items()
        if site in numbers
        and all(op.instruction and not op.instruction.swaps for op in ops)
        and all(op.tally.refused in ("", MOVED.text, UNROLLED.text) for op in ops)
    }


def _may_differ(
    ops: Sequence[OperationCounts],
    numbers: Sequence[int],
    code: Sequence[Instruction],
    times: np.ndarray,
) -> bool:
    executed = times[numbers].sum()
    requested = sum(op.requests for op in ops)
    if any(op.tally.refused for op in ops):
        return True
    if not any(code[number].predicate for number in numbers):
        return executed != requested
    if ops[0].op == "store":
        return executed < requested
    # All warps execute the first instruction once.
    is_skipped = times[numbers].min() < times[0]
    return is_skipped or not all(op.is_masked for op in ops)


def _correct_known(
    ops: Sequence[OperationCounts],
    numbers: Sequence[int],
    counted: Executions,
    requests: int | None,
) -> Sequence[OperationCounts]:
    """Return the operations of a source line with the costs of their instructions; () if those are unknown.

    Args:
        requests: that they issue; None if predicates decide.
    """
    first, *copies = ops
    assert first.instruction
    places = {(op.tensors, op.width_bytes) for op in ops}
    # ptxas assigns some instructions to a neighbouring line.
    alive = sum(int(op.tally.issued.sum()) for op in ops)
    is_whole = len(numbers) % max(1, alive) == 0 or first.tally.refused == UNROLLED.text
    if len(places) > 1 or not is_whole:
        return ()
    zero = np.zeros(len(RequestCosts._fields), np.int64)
    is_number = first.instruction.layout is None
    if counted.refused.keys().isdisjoint(numbers):
        costs = sum((counted.requests.get(number, zero) for number in numbers), zero)
        requests = int(costs[0])
    elif requests is None or not is_number:
        return ()
    if is_number:  # all lanes want the same bytes
        one = RequestCosts(1, 1, 1, 1, first.width_bytes, loaded=1)
        costs = np.array(one) * requests
    requested = sum(op.requests for op in ops), sum(op.sectors for op in ops)
    if tuple(costs[:2]) == requested:
        return [_confirm(op) for op in ops]
    return [_set_costs(first, costs), *(_set_costs(op, zero) for op in copies)]


def _limit(
    ops: Sequence[OperationCounts],
    numbers: Sequence[int],
    code: Sequence[Instruction],
    times: np.ndarray,
) -> Sequence[OperationCounts]:
    """Return the operations of a source line as bounds if the SASS executes them more or less often."""
    executed = int(times[numbers].sum())
    requested = sum(op.requests for op in ops)
    is_upper_bound = executed <= requested
    is_conditional = any(code[number].predicate for number in numbers)
    if is_conditional and not is_upper_bound:
        return ops
    text = f"The SASS executes this line {executed:,} times, {requested:,} expected."
    why = f"{text} The count is {'an upper' if is_upper_bound else 'a lower'} bound."
    if is_upper_bound and ops[0].op == "load":
        why = MOVED.text
    bounds = (replace(op.tally, refused=why, is_upper_bound=is_upper_bound) for op in ops)
    return [
        op if op.tally.refused else replace(op, tally=tally)
        for op, tally in zip(ops, bounds, strict=True)
    ]


def _confirm(op: OperationCounts) -> OperationCounts:
    return replace(op, tally=replace(op.tally, refused="", doubt="", is_upper_bound=False))


def _set_costs(op: OperationCounts, costs: np.ndarray) -> OperationCounts:
    """Set the costs of an access. The addresses of a block are no example, because not all warps load their part."""
    tally = replace(_confirm(op).tally, counts=costs, example=None)
    bytes_moved = min(tally.touches.bytes, float(RequestCosts(*costs).sectors * SECTOR_BYTES))
    touches = replace(tally.touches, bytes=bytes_moved) if bytes_moved else Touches()
    return replace(op, tally=replace(tally, touches=touches))
