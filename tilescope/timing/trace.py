"""Trace the instructions that an average warp of a launch executes."""

from collections import Counter
from collections.abc import Mapping, Sequence

from tilescope.sass.listing import Instruction

# Loops with less than this part of a launch's instructions may be missing in a trace.
_NEGLIGIBLE = 1e-3


def find_loops(instructions: Sequence[Instruction], per_warp: Sequence[float]) -> dict[int, int]:
    """Return the last instruction of each loop by its first one."""
    loops: dict[int, int] = {}
    for number, instruction in enumerate(instructions):
        target = instruction.target
        if instruction.traits.jump != "branch" or target is None or target >= number:
            continue
        if per_warp[number] and per_warp[target]:
            loops[target] = max(loops.get(target, 0), number)
    return loops


def trace_warp(
    instructions: Sequence[Instruction],
    per_warp: Sequence[float],
    budget: float,
    copies: Mapping[int, float] | None = None,
) -> tuple[list[int], list[float]]:
    """Return the numbers of the instructions that an average warp executes, in order, and a weight for each.

    Loops that are too long for the budget end early, outer ones first. A loop with an average
    of 2.5 iterations alternates between 2 and 3; branches alternate likewise. The first half of an instruction's
    executions in the trace have weight 1. The second half represent all remaining executions of the launch.

    Args:
        per_warp: mean executions of each instruction per warp of the launch.
        budget: approximate number of instructions to return.
        copies: executions per program of the instructions with which one warp copies a block for all. Each warp of
            the trace executes them.
    """
    copies = copies or {}
    loops = find_loops(instructions, per_warp)
    whole = sum(per_warp)
    executed = list(per_warp)
    owed = [0.0] * len(instructions)
    trips_owed = dict.fromkeys(loops, 0.0)
    missing = set(loops)
    trace: list[int] = []
    in_block = 0.0  # executions of the unpredicated instructions around a copy

    def run(first: int, last: int, share: float, loop: int, budget: float) -> None:
        nonlocal in_block
        work = sum(per_warp[first : last + 1]) / share
        number = first
        while number <= last:
            end = loops.get(number, -1)
            entries = per_warp[number] / share
            if number != loop and 0 <= end <= last:
                in_loop = sum(per_warp[number : end + 1])
                allowed = budget * in_loop / share / work if work else 0.0
                iteration = in_loop / per_warp[number] if per_warp[number] else 1.0
                most = max(1, allowed // iteration)
                if entries * iteration <= allowed:
                    most = entries
                trips_owed[number] += min(entries, most)
                trips = int(trips_owed[number] + 0.5)
                if number in missing and in_loop > _NEGLIGIBLE * whole:
                    trips = max(1, trips)
                trips_owed[number] -= trips
                missing.discard(number)
                for _ in range(trips):
                    run(number, end, per_warp[number], number, allowed / trips)
                number = end + 1
                continue
            if number in copies:
                executed[number] = min(in_block, copies[number])
                entries = executed[number] / share
            elif not instructions[number].predicate:
                in_block = per_warp[number]
            owed[number] += min(entries, 1.0)
            if owed[number] >= 0.5:
                owed[number] -= 1
                trace.append(number)
            number += 1

    run(0, len(instructions) - 1, 1.0, -1, budget)
    return trace, _weigh(trace, executed)


def _weigh(trace: Sequence[int], executed: Sequence[float]) -> list[float]:
    in_trace = Counter(trace)
    seen: Counter[int] = Counter()
    weights = []
    for number in trace:
        first = in_trace[number] // 2
        seen[number] += 1
        if seen[number] <= first:
            weights.append(1.0)
        else:
            weights.append(max(0.0, executed[number] - first) / (in_trace[number] - first))
    return weights
