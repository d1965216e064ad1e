"""Trace the instructions that an average warp of a launch executes."""

from collections.abc import Mapping, Sequence

from kernels.inside.sass import Instruction

_FEWEST_TRIPS = 1


def find_loops(instructions: Sequence[Instruction], per_warp: Sequence[float]) -> dict[int, int]:
    """Return the last instruction of each loop by its first one."""
    loops: dict[int, int] = {}
    for number, instruction in enumerate(instructions):
        target = instruction.target
        if instruction.name != "BRA" or target is None or not per_warp[number]:
            continue
        if target < number:
            loops[target] = max(loops.get(target, 0), number)
    return loops


def trace_warp(
    instructions: Sequence[Instruction],
    per_warp: Sequence[float],
    budget: float,
    copies: Mapping[int, float] | None = None,
) -> list[int]:
    """Return the numbers of the instructions that an average warp executes, in order.

    Loops that are too long for the budget end early, outer ones first. A loop with an average
    of 2.5 iterations alternates between 2 and 3; branches alternate likewise.

    Args:
        per_warp: mean executions of each instruction per warp of the launch.
        budget: approximate number of instructions to return.
        copies: executions per program of the instructions with which one warp copies a block for all. Each warp of
            the trace executes them.
    """
    copies = copies or {}
    loops = find_loops(instructions, per_warp)
    owed = [0.0] * len(instructions)
    trips_owed = dict.fromkeys(loops, 0.0)
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
                most = max(_FEWEST_TRIPS, allowed // iteration)
                if entries * iteration <= allowed:
                    most = entries
                trips_owed[number] += min(entries, most)
                trips = int(trips_owed[number] + 0.5)
                trips_owed[number] -= trips
                for _ in range(trips):
                    run(number, end, per_warp[number], number, allowed / trips)
                number = end + 1
                continue
            if number in copies:
                entries = min(in_block, copies[number]) / share
            elif not instructions[number].predicate:
                in_block = per_warp[number]
            owed[number] += min(entries, 1.0)
            if owed[number] >= 0.5:
                owed[number] -= 1
                trace.append(number)
            number += 1

    run(0, len(instructions) - 1, 1.0, -1, budget)
    return trace
