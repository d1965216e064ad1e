"""Compare the work of a launch and of the same launch with a changed kernel."""

from collections import Counter

import numpy as np

from tilescope.evaluate.counts import LaunchCounts, OperationCounts

# A kind of operation, and its file and line.
Place = tuple[str, tuple[str, int]]


def place_of(op: OperationCounts) -> Place:
    return "load" if op.counter == "ld" else op.op, op.source


def count_elements(counts: LaunchCounts) -> Counter[Place]:
    """Return how many elements the operations of each kind on each line access."""
    elements = Counter[Place]()
    for op in counts.operations:
        elements[place_of(op)] += op.tally.elements
    return elements


def find_races(counts: LaunchCounts) -> dict[Place, tuple[int, int]]:
    """Return the lines with stores by which two programs write to one address, and the programs."""
    parts: dict[Place, list[tuple[np.ndarray, ...]]] = {}
    for op in counts.operations:
        if op.op == "store" and op.instruction:
            size = op.instruction.element_bytes
            for (program, low), (length, elements) in zip(
                op.tally.starts, op.tally.spans, strict=True
            ):
                # If a block has gaps, only its first address is compared.
                is_whole = length == (elements - 1) * size
                part = program, low, np.where(is_whole, length, 0), is_whole
                parts.setdefault(place_of(op), []).append(part)
    races = {}
    for place, own in parts.items():
        program, low, length, is_whole = map(np.concatenate, zip(*own, strict=True))
        order = np.lexsort((program, low))
        program = program[order]
        low = low[order]
        is_whole = is_whole[order]
        end = low + length[order]
        meets = (low[1:] == low[:-1]) | (is_whole[1:] & (low[1:] <= end[:-1]))
        pairs = np.flatnonzero(meets & (program[1:] != program[:-1]))
        if pairs.size:
            races[place] = int(program[pairs[0]]), int(program[pairs[0] + 1])
    return races


def find_refusals(counts: LaunchCounts) -> set[Place | None]:
    """Return the operations whose counts are incomplete or bounds; None is the launch."""
    refused = {place_of(op) for op in counts.operations if op.tally.refused}
    return refused | {None} if counts.refused else {*refused}


def find_same(op: OperationCounts, counts: LaunchCounts) -> list[OperationCounts]:
    """Return the operations of a changed launch that correspond to one of the launch."""
    candidates = (each for each in counts.operations if place_of(each) == place_of(op))
    return [each for each in candidates if op.tensors in ((), each.tensors)]


def total(counts: LaunchCounts) -> np.ndarray:
    """Return the requests and sectors of all operations."""
    return sum((np.array([op.requests, op.sectors]) for op in counts.operations), np.zeros(2, int))
