"""Predict the bytes that a launch moves between the SMs, the L2 and DRAM from the addresses of its accesses.

An access hits in the L2 if the bytes touched since its block's last use fit in the L2. Programs
run in waves; within a wave, all programs progress alike. The operations of a loop alternate.
Omitted: programs that drift apart, and blocks of different shapes that overlap.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from tilescope.evaluate.counts import OperationCounts
from tilescope.evaluate.global_memory import storage_number
from tilescope.evaluate.sectors import SECTOR_BYTES
from tilescope.evaluate.touches import Touches
from tilescope.timing.l1 import find_hits
from tilescope.timing.model import LOADS, Request, Traffic
from tilescope.ttgir.parser import Source


@dataclass(frozen=True)
class _Accesses:
    """Executions of accesses, (executions,) each. `time` is in waves of programs.

    Attributes:
        op: number of the operation.
        scale: see `Touches`.
    """

    op: np.ndarray
    program: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bytes: np.ndarray
    time: np.ndarray
    scale: int

    def select(self, where: np.ndarray) -> "_Accesses":
        arrays: dict[str, Any] = {name: getattr(self, name)[where] for name in _ARRAYS}
        return replace(self, **arrays)


_ARRAYS = ("op", "program", "low", "high", "bytes", "time")


def find_kind(op: OperationCounts) -> str:
    """Return the name that `timing.steps` gives to the kind of an operation."""
    if op.op == "descriptor":
        return "descriptor load" if op.counter == "tma_ld" else "descriptor store"
    return op.op


def predict_traffic(
    operations: Sequence[OperationCounts],
    programs: int,
    sms: int,
    resident: int,
    l1_bytes: float,
    l2_bytes: float,
    kept_bytes: float,
    held_bytes: float,
) -> Traffic:
    """Predict the traffic of a launch.

    Args:
        sms: number of SMs.
        resident: programs that run on an SM at a time.
        l1_bytes: size of an SM's L1.
        l2_bytes: maximum bytes touched between two uses of a block that stays in the L2.
        kept_bytes: written bytes that remain in the L2 when the launch ends.
        held_bytes: the L2 still holds all data of a launch that touched at most these bytes.
    """
    at_once = sms * resident
    hits = find_hits(operations, resident, math.ceil(programs / sms), l1_bytes)
    by_kind: dict[str, list[_Accesses]] = {}
    lines: dict[str, float] = {}
    moved: dict[str, float] = {}
    sizes = np.zeros(len(operations))
    placed = _place(operations, at_once)
    for number, (op, accesses) in enumerate(zip(operations, placed, strict=True)):
        if not op.tally.touches.bytes:
            continue
        kind = find_kind(op)
        is_merged = kind in ("async copy", "descriptor load", "descriptor store")
        requested = op.tally.touches.bytes
        if not is_merged:
            requested = max(requested, op.sectors * SECTOR_BYTES)
        sizes[number] = requested * (1 - hits[number])
        lines[kind] = lines.get(kind, 0.0) + op.launch.lines
        moved[kind] = moved.get(kind, 0.0) + float(sizes[number])
        if accesses is not None:
            by_kind.setdefault(kind, []).append(accesses)
    # The L2 reads what atomics update.
    loads = [part for kind in (*LOADS, "atomic") for part in by_kind.get(kind, ())]
    stores = [part for kind, parts in by_kind.items() if kind not in LOADS for part in parts]
    spans = _measure_storages(operations)
    written = 0.0
    if stores:
        written = sum(_count_distinct(*each) for each in _split(_join(stores), spans))
    waves = math.ceil(programs / at_once)
    distinct = 0.0
    reads = np.zeros(len(operations))
    if loads:
        parts = _split(_join(loads), spans)
        distinct, reads = _count_reads(parts, len(operations), written, waves, l2_bytes)
    read = float(reads.sum())
    traffic = Traffic(
        lines,
        moved,
        read,
        max(0.0, written - kept_bytes),
        # This launch evicts the data that the previous one wrote.
        read,
        written,
        _describe_requests(operations, hits, sizes, reads),
    )
    if distinct + written <= held_bytes:
        return replace(traffic, warm_read_bytes=read - distinct, warm_written_bytes=0.0)
    return traffic


def _describe_requests(
    operations: Sequence[OperationCounts], hits: np.ndarray, sizes: np.ndarray, reads: np.ndarray
) -> dict[tuple[str, Source], Request]:
    """Return the mean request of the operations of each kind and source line.

    Args:
        hits, sizes, reads: the part of each operation that the L1 holds, and its bytes from the L2 and from DRAM;
            (operations,).
    """
    sums: dict[tuple[str, Source], np.ndarray] = {}
    for op, hit, size, read in zip(operations, hits, sizes, reads, strict=True):
        key = (find_kind(op), op.source)
        amounts = np.array([op.requests, op.launch.lines, op.requests * hit, size, read])
        sums[key] = sums.get(key, 0.0) + amounts
    return {
        key: Request(
            lines / requests,
            size / requests,
            hit / requests,
            # `read` may exceed `size`: it treats overlapping blocks of different shapes as distinct.
            min(1.0, read / max(size, 1.0)),
        )
        for key, amounts in sums.items()
        for requests, lines, hit, size, read in (amounts.tolist(),)
        if requests
    }


def _place(operations: Sequence[OperationCounts], at_once: int) -> list[_Accesses | None]:
    """Return the sampled accesses of each operation.

    Loops, and operations outside loops, share a program's time in proportion to their bytes.
    """
    whole = sum(op.tally.touches.bytes for op in operations) or 1.0
    begin = 0.0
    placed: list[_Accesses | None] = []
    groups = groupby(enumerate(operations), key=lambda each: each[1].loop or -each[0])
    for _, group in groups:
        tallies = [op.tally.touches for _, op in group]
        share = sum(touches.bytes for touches in tallies) / whole
        placed += [
            _place_one(number, touches, at_once, begin, share)
            for number, touches in enumerate(tallies, len(placed))
        ]
        begin += share
    return placed


def _place_one(
    op: int, touches: Touches, at_once: int, begin: float, share: float
) -> _Accesses | None:
    if not any(len(part[0]) for part in touches.parts):
        return None
    program, low, high, size, number = map(np.concatenate, zip(*touches.parts, strict=True))
    progress = np.full(1, 0.5)
    if len(touches.executed):
        progress = (number + 0.5) / touches.executed[program]
    time = program // at_once + begin + share * progress
    size = size * (touches.bytes / float(size.sum()))
    return _Accesses(np.full(len(program), op), program, low, high, size, time, touches.scale)


def _join(parts: Sequence[_Accesses]) -> _Accesses:
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in _ARRAYS
    }
    return replace(parts[0], **arrays)


def _count_distinct(accesses: _Accesses, span: float = math.inf) -> float:
    """Return the bytes of the distinct sectors that accesses touch.

    Args:
        span: from the first to the last byte of all accesses to their storage. A sample of overlapping blocks with many
            rows covers more than its share of the bytes.
    """
    order = np.argsort(accesses.low, kind="stable")
    low = accesses.low[order] // SECTOR_BYTES
    high = np.maximum.accumulate(accesses.high[order] // SECTOR_BYTES + 1)
    is_new = np.append(True, low[1:] > high[:-1])
    ends = high[np.append(np.flatnonzero(is_new)[1:] - 1, len(high) - 1)]
    covered = int((ends - low[is_new]).sum()) * SECTOR_BYTES * accesses.scale
    return float(min(covered, accesses.bytes.sum(), span))


def _measure_storages(operations: Sequence[OperationCounts]) -> dict[int, float]:
    """Return the bytes from the first to the last byte of the accesses to each storage, by its number.

    If an operation accesses several storages, none is measured.
    """
    ends: dict[int, list[int]] = {}
    for op in operations:
        touches = op.tally.touches
        if touches.bytes:
            first, last = map(storage_number, (touches.low, touches.high))
            if first != last:
                return {}
            ends.setdefault(first, []).extend((touches.low, touches.high))
    return {number: max(each) - min(each) + SECTOR_BYTES for number, each in ends.items()}


def _split(accesses: _Accesses, spans: Mapping[int, float]) -> Iterator[tuple[_Accesses, float]]:
    """Yield the accesses to each storage, and their span."""
    storage = storage_number(accesses.low)
    for number in np.unique(storage).tolist():
        yield accesses.select(storage == number), spans.get(number, math.inf)


def _count_reads(
    loads: Iterable[tuple[_Accesses, float]],
    operations: int,
    written: float,
    waves: int,
    l2_bytes: float,
) -> tuple[float, np.ndarray]:
    """Return the distinct bytes that loads need, and those that each operation reads from DRAM, (operations,).

    Args:
        loads: those from each storage, and their span.
    """
    distinct = 0.0
    read = np.zeros(operations)
    ops = []
    gaps = []
    sizes = []
    for part, span in loads:
        part = part.select(np.lexsort((part.time, part.high, part.low)))
        is_new = np.append(
            True, (part.low[1:] != part.low[:-1]) | (part.high[1:] != part.high[:-1])
        )
        first_bytes = float(part.bytes[is_new].sum())
        covered = min(_count_distinct(part, span), first_bytes)
        distinct += covered
        size = part.bytes * (covered / max(first_bytes, 1.0))
        read += np.bincount(part.op[is_new], size[is_new], operations)
        ops.append(part.op[~is_new])
        gaps.append(np.diff(part.time)[~is_new[1:]])
        sizes.append(size[~is_new])
    gap = np.concatenate(gaps)
    order = np.argsort(gap)
    gap = gap[order]
    size = np.concatenate(sizes)[order]
    # The mean number of distinct bytes touched in a time is the integral of the rate of accesses to bytes not yet
    # touched in it.
    longer = size.sum() - np.cumsum(size)
    touched = (np.cumsum(size * gap) + (longer + distinct + written) * gap) / waves
    evicted = touched > l2_bytes
    op = np.concatenate(ops)[order]
    return distinct, read + np.bincount(op[evicted], size[evicted], operations)
