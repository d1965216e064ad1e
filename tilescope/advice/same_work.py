"""Compare the work of launches, and of a launch with that of a changed kernel."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from tilescope.captures.content import Content
from tilescope.evaluate.counts import LaunchCounts, OperationCounts

# Tensors that are equal up to this alignment cost the same.
_ALIGNMENT_BYTES = 512

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


def find_equal_launches(content: Content) -> list[int]:
    """Return for each launch the number of the first that does the same, with the same results and counters.

    Their tensors may differ, but not in shape, alignment, storage size or values that addresses depend on.
    """
    first = dict[tuple[Any, ...], int]()
    numbers = []
    for number, launch in enumerate(content.launches):
        storages = dict[int, int]()
        parts = list[Any]()
        for argument in launch.arguments:
            parts += [argument.name, argument.value]
            if tensor := argument.own_tensor:
                order = storages.setdefault(tensor.storage, len(storages))
                storage = content.storages[tensor.storage]
                # Without an array, no values are needed, or they are unknown in all of the kernel's launches
                own = replace(tensor, storage=order, is_known=True)
                parts += [own, storage.bytes, storage.address_bytes % _ALIGNMENT_BYTES]
            if view := argument.descriptor:
                parts += [view.shape, view.strides, view.block_shape]
        results = repr((launch.settings, launch.results, launch.counters))
        key = launch.kernel, launch.grid, launch.tuned, results, tuple(parts)
        numbers.append(first.setdefault(key, number))
    return numbers
