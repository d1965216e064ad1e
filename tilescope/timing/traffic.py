"""Predict which loads hit in the L1, and the bytes that a launch moves between the SMs, the L2 and DRAM.

`l2.py` says which accesses hit in the L2. All programs progress alike, and the operations of a loop alternate. A sector
stays in the L1 until the bytes fetched after it exceed the L1's size.
Omitted: blocks of different shapes that overlap.
"""

import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from tilescope.evaluate.counts import MAX_PROBED_PROGRAMS, OperationCounts, Touches
from tilescope.evaluate.global_memory import storage_number
from tilescope.evaluate.sectors import LANES, SECTOR_BYTES
from tilescope.sass.instructions import Instruction
from tilescope.timing.l2 import (
    ExpectedTimeline,
    Uses,
    expected_timeline,
    find_ticks,
    missed_shares,
    sides,
    writes_in_parts,
)
from tilescope.timing.model import (
    COPIES,
    LOADS,
    MERGED_BYTES,
    SLICE_BYTES,
    STORED_BYTES,
    Request,
    Traffic,
)
from tilescope.ttgir.parser import Source


@dataclass(frozen=True)
class _Accesses:
    """Executions of accesses, (executions,) each.

    Attributes:
        op: number of the operation.
        progress: of the program, from 0 to 1.
        scale: see `Touches`.
    """

    op: np.ndarray
    program: np.ndarray
    low: np.ndarray
    high: np.ndarray
    bytes: np.ndarray
    progress: np.ndarray
    scale: int

    def select(self, where: np.ndarray) -> "_Accesses":
        arrays: dict[str, Any] = {name: getattr(self, name)[where] for name in _ARRAYS}
        return replace(self, **arrays)


_ARRAYS = ("op", "program", "low", "high", "bytes", "progress")


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
    pressure: float = 0.0,
    is_staggered: bool = False,
) -> Traffic:
    """Predict the traffic of a launch.

    Args:
        sms: number of SMs.
        resident: programs that run on an SM at a time.
        l1_bytes: size of an SM's L1.
        l2_bytes: size of the L2.
        kept_bytes: written bytes that remain in the L2 when the launch ends.
        held_bytes: the L2 still holds all data of a launch that touched at most these bytes.
        pressure, is_staggered: see `l2.expected_timeline`.
    """
    hits, waits = find_hits(operations, resident, math.ceil(programs / sms), l1_bytes)
    wavefronts: dict[str, float] = {}
    moved: dict[str, float] = {}
    sizes = np.zeros(len(operations))
    loads = []
    stores = []
    for number, (op, accesses) in enumerate(zip(operations, _place(operations), strict=True)):
        if not op.tally.touches.bytes:
            continue
        kind = find_kind(op)
        sizes[number] = _count_requested(op, kind) * (1 - hits[number])
        wavefronts[kind] = wavefronts.get(kind, 0.0) + op.wavefronts
        moved[kind] = moved.get(kind, 0.0) + float(sizes[number])
        if accesses is None:
            continue
        # The L2 reads what atomics update, and what a store of partial sectors leaves.
        if kind in LOADS or kind == "atomic" or writes_in_parts(op):
            loads.append(accesses)
        if kind not in LOADS:
            stores.append(accesses)
    spans = _measure_storages(operations)
    written = 0.0
    if stores:
        written = sum(_count_distinct(*each) for each in _split(_join(stores), spans))
    schedule = programs, sms, resident, pressure, is_staggered
    distinct, reads, late = _predict_reads(
        loads, spans, schedule, written, l2_bytes, len(operations)
    )
    read = float(reads.sum())
    traffic = Traffic(
        wavefronts,
        moved,
        read,
        max(0.0, written - kept_bytes),
        # This launch evicts the data that the previous one wrote.
        read,
        written,
        _describe_requests(operations, hits, waits, sizes, reads, late),
    )
    if distinct + written <= held_bytes:
        return replace(traffic, warm_read_bytes=read - distinct, warm_written_bytes=0.0)
    return traffic


def add_spills(
    traffic: Traffic,
    instructions: Sequence[Instruction],
    times: Sequence[int],
    kinds: Mapping[str, str],
    dram_share: float,
) -> Traffic:
    """Add the traffic of spills that reaches the L2, and the share of it that reaches DRAM.

    Args:
        kinds: `Opcode.lmem` of the accesses that reach the L2 → their name in `Traffic.l2_bytes`.
    """
    moved = dict.fromkeys(kinds, 0.0)
    for instruction, executed in zip(instructions, times, strict=True):
        if instruction.traits.lmem in kinds:
            moved[instruction.traits.lmem] += executed * instruction.lane_bytes * LANES
    read = moved.get("load", 0.0) * dram_share
    written = moved.get("store", 0.0) * dram_share
    return replace(
        traffic,
        l2_bytes={**traffic.l2_bytes, **{kinds[kind]: size for kind, size in moved.items()}},
        read_bytes=traffic.read_bytes + read,
        written_bytes=traffic.written_bytes + written,
        warm_read_bytes=traffic.warm_read_bytes + read,
        warm_written_bytes=traffic.warm_written_bytes + written,
    )


def _count_requested(op: OperationCounts, kind: str) -> float:
    """Return the bytes that an operation requests. Copies that bypass the L1 merge requests for one sector."""
    requested = op.tally.touches.bytes
    if kind in COPIES:
        return requested
    return max(requested, op.sectors * SECTOR_BYTES)


def _describe_requests(
    operations: Sequence[OperationCounts],
    hits: np.ndarray,
    waits: np.ndarray,
    sizes: np.ndarray,
    reads: np.ndarray,
    late: np.ndarray,
) -> dict[tuple[str, Source], Request]:
    """Return the mean request of the operations of each kind and source line.

    Args:
        hits, waits: see `find_hits`.
        sizes: the bytes of each operation from the L2, (operations,).
        reads, late: see `_predict_reads`.
    """
    sums: dict[tuple[str, Source], np.ndarray] = {}
    for op, hit, wait, size, *from_dram in zip(
        operations, hits, waits, sizes, reads, late, strict=True
    ):
        key = (find_kind(op), op.source)
        served = _serve(op, size, hit)
        amounts = np.array(
            [op.requests, op.wavefronts, op.requests * wait, size, served, *from_dram]
        )
        sums[key] = sums.get(key, 0.0) + amounts
    return {
        key: Request(
            wavefronts / requests,
            size / requests,
            wait / requests,
            # `read` may exceed `size`: it treats overlapping blocks of different shapes as distinct.
            min(1.0, read / max(size, 1.0)),
            min(1.0, awaited / max(size, 1.0)),
            served / max(size, 1.0),
        )
        for key, amounts in sums.items()
        for requests, wavefronts, wait, size, served, read, awaited in (amounts.tolist(),)
        if requests
    }


def _serve(op: OperationCounts, size: float, hit: float) -> float:
    """Return the bytes that slices of the L2 could move while they serve an operation's requests.

    Args:
        size: bytes that it moves between the SMs and the L2.
        hit: the fraction that hits in the L1.
    """
    if op.op == "descriptor":
        return size
    if op.op == "store":
        whole = max(0.0, 2 * op.launch.efficiency - 1)
        sector_bytes = STORED_BYTES * whole + MERGED_BYTES * (1 - whole)
        return (size / SECTOR_BYTES + op.launch.lines) * sector_bytes
    return max(size, op.launch.lines * (1 - hit) * SLICE_BYTES)


def _place(operations: Sequence[OperationCounts]) -> list[_Accesses | None]:
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
            _place_one(number, touches, begin, share)
            for number, touches in enumerate(tallies, len(placed))
        ]
        begin += share
    return placed


def _place_one(op: int, touches: Touches, begin: float, share: float) -> _Accesses | None:
    if not any(len(part[0]) for part in touches.parts):
        return None
    program, low, high, size, number = map(np.concatenate, zip(*touches.parts, strict=True))
    progress = np.full(1, 0.5)
    if len(touches.executed):
        progress = (number + 0.5) / touches.executed[program]
    progress = np.broadcast_to(begin + share * progress, program.shape)
    size = size * (touches.bytes / float(size.sum()))
    return _Accesses(np.full(len(program), op), program, low, high, size, progress, touches.scale)


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


def _predict_reads(
    loads: Sequence[_Accesses],
    spans: Mapping[int, float],
    schedule: tuple[int, int, int, float, bool],
    written: float,
    l2_bytes: float,
    operations: int,
) -> tuple[float, np.ndarray, np.ndarray]:
    """Return the distinct bytes that loads need, those that each operation reads from DRAM, and those it waits for.

    The latter are (operations,). Programs that use a block at the same time all wait until one of them has read it.

    Args:
        spans: see `_measure_storages`.
        schedule: further arguments of `expected_timeline`.
        written: bytes that the launch writes.
    """
    if not loads:
        return 0.0, np.zeros(operations), np.zeros(operations)
    accesses = _join(loads)
    timeline = expected_timeline(accesses.program, *schedule)
    uses, distinct = _find_uses(accesses, spans, timeline)
    end = float((timeline.start + timeline.duration).max())
    (missed,) = missed_shares(uses, end, written, [l2_bytes])
    ticks = find_ticks(uses.time, end)
    _, at_once = np.unique(uses.block * (ticks.max() + 1) + ticks, return_inverse=True)
    late = np.zeros(at_once.max() + 1)
    np.maximum.at(late, at_once, missed)
    return (
        distinct,
        np.bincount(accesses.op, missed * uses.size, operations),
        np.bincount(accesses.op, late[at_once] * uses.size, operations),
    )


def _find_uses(
    loads: _Accesses, spans: Mapping[int, float], timeline: ExpectedTimeline
) -> tuple[Uses, float]:
    """Return the uses of blocks by loads, and the distinct bytes that these need.

    Args:
        spans: see `_measure_storages`.
        timeline: of the loads' programs.
    """
    time = timeline.start + timeline.duration * loads.progress
    side = sides(int(timeline.sm.max()) + 1)[timeline.sm]
    block = np.empty(len(time), np.int64)
    size = loads.bytes.copy()
    distinct = 0.0
    blocks = 0
    storage = storage_number(loads.low)
    for number in np.unique(storage).tolist():
        (where,) = np.nonzero(storage == number)
        first, last = loads.low[where] // SECTOR_BYTES, loads.high[where] // SECTOR_BYTES
        order = np.lexsort((last, first))
        where = where[order]
        part = loads.select(where)
        is_new = np.append(True, (np.diff(first[order]) != 0) | (np.diff(last[order]) != 0))
        first_bytes = float(part.bytes[is_new].sum())
        covered = min(_count_distinct(part, spans.get(number, math.inf)), first_bytes)
        distinct += covered
        size[where] *= covered / max(first_bytes, 1.0)
        block[where] = blocks - 1 + np.cumsum(is_new)
        blocks += int(is_new.sum())
    return Uses(block, time, side, size), distinct


class _Load(NamedTuple):
    """A recorded execution of a load.

    Attributes:
        group: number of the programs that run on the SM at the same time.
        time: number of the program's loads so far.
        operation: number of the operation.
        sectors: that its lanes request.
    """

    group: int
    time: int
    program: int
    operation: int
    sectors: np.ndarray


def find_hits(
    operations: Sequence[OperationCounts], resident: int, per_sm: int, l1_bytes: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the fraction of each operation's sectors that hit in the L1, and of those for which it waits.

    Both are (operations,), and 0 and 1 if it loads nothing. A load waits for a sector that another load has fetched in
    the same iteration of its loop: it is still under way.

    Args:
        resident: programs that run on an SM at a time.
        per_sm: programs that an SM runs in all.
        l1_bytes: size of an SM's L1.
    """
    is_sample = per_sm > MAX_PROBED_PROGRAMS
    at_once = min(resident, MAX_PROBED_PROGRAMS // 2 if is_sample else per_sm)
    loads = _order_loads(operations, at_once)
    longest = 2 * max((load.time for load in loads), default=0)
    # If an SM runs more programs than were recorded, the first ones only fill the L1.
    first_group = int(is_sample and any(load.group for load in loads))
    fits = l1_bytes * at_once / min(resident, per_sm) / SECTOR_BYTES
    sectors = [np.zeros(0, np.int64), *(load.sectors for load in loads)]
    _, index = np.unique(np.concatenate(sectors), return_inverse=True)
    used = np.full(index.max(initial=0) + 1, -np.inf)
    arrives = used.copy()
    in_loop = Counter(op.loop for op in operations if op.tally.loads)
    totals = np.zeros((len(operations), 4))
    fetched = 0
    begin = 0
    for load in loads:
        touched = np.unique(index[begin : begin + len(load.sectors)])
        begin += len(load.sectors)
        now = load.group * longest + load.time
        is_missed = fetched - used[touched] >= fits
        misses = int(np.count_nonzero(is_missed))
        fetched += misses
        used[touched] = fetched
        arrives[touched[is_missed]] = now + in_loop[operations[load.operation].loop]
        if load.group >= first_group:
            waits = np.count_nonzero(arrives[touched] > now)
            totals[load.operation] += len(load.sectors), misses, len(touched), waits
    requested, missed, distinct, awaited = totals.T
    hits = np.where(requested > 0, 1 - missed / np.maximum(requested, 1), 0.0)
    return hits, np.where(requested > 0, awaited / np.maximum(distinct, 1), 1.0)


def _order_loads(operations: Sequence[OperationCounts], at_once: int) -> list[_Load]:
    """Return the recorded loads in the order in which an SM executes them. Its programs alternate."""
    recorded = [
        (time, program, number, sectors)
        for number, op in enumerate(operations)
        for program, time, sectors in op.tally.loads
    ]
    recorded.sort(key=operator.itemgetter(0, 1))
    programs = sorted({program for _, program, *_ in recorded})
    group = {program: place // at_once for place, program in enumerate(programs)}
    executed = Counter[int]()
    loads = []
    for _, program, number, sectors in recorded:
        executed[program] += 1
        loads.append(_Load(group[program], executed[program], program, number, sectors))
    return sorted(loads, key=operator.itemgetter(0, 1, 2))
