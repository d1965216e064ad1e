"""Counts of a memory operation and of a whole launch, and samples of their executions.

A `Sampler` keeps executions on the same bytes; a `Probe` keeps executions of programs on the same SM.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy import ndarray

from tilescope.evaluate.instructions import MemoryInstruction
from tilescope.evaluate.sectors import SECTOR_BYTES, RequestCosts

# Kinds of operations, and Nsight Compute's names of the instructions that it counts for each.
KINDS = {
    "load": ("ld",),
    "store": ("st",),
    "atomic": ("red", "atom"),
    "TMA load": ("tma_ld",),
    "TMA store": ("tma_st",),
}
# The counters of a launch. None counts the requests of boxes, which no lane issues.
COUNTER_NAMES = tuple(
    f"{name}_{unit}"
    for names in KINDS.values()
    for name in names
    for unit in ("requests", "sectors")
    if (unit == "sectors" or not name.startswith("tma"))
)

# Why the count of a compare-and-swap loop is a lower bound.
RETRIES = (
    "The GPU lacks this atomic, so lanes use a compare-and-swap loop. "
    "It retries after a conflict, but only the first iteration is counted."
)

# Maximum number of executions of a launch that are kept.
_MAX_EXECUTIONS = 1 << 18
# Memory is kept or dropped in pieces of this many bytes.
_PIECE_BYTES = 1 << 11
# Multiples of 2 ** 64 / the golden ratio are spread evenly, whatever the stride between blocks.
_MULTIPLIER = np.int64(0x9E3779B97F4A7C15 - (1 << 64))
# In launches with more programs, the executions of a program have no order.
_MAX_ORDERED_PROGRAMS = 1 << 22
# Maximum number of programs, and of their sectors, that a `Probe` records.
MAX_PROBED_PROGRAMS = 8
_MOST_SECTORS = 1 << 19

# A program, the time of an execution, and the sectors of its requests, (sectors,).
Loads = tuple[int, int, ndarray]


@dataclass(frozen=True)
class Cost:
    """Cost of a memory operation over one execution or the whole launch, predicted or counted.

    Attributes:
        requests: warp-wide instructions with at least one active lane; 0 for descriptor (TMA) copies.
        sectors: as the launch's hardware counter counts them.
        lines: 128-byte lines per request, summed; for descriptor copies, lines per box row.
        ideal_sectors: each request's distinct bytes / sector size, rounded up, summed.
        bytes_wanted: bytes of all active lanes, duplicates included.
        extra_sectors: sectors counted beyond those that requests touch. A descriptor load also counts sectors past the
            tensor's edge. For a copy that bypasses L1, see `sectors.count_requests`; the number may be negative.
        repeated_sectors: sectors that Nsight Compute counts repeatedly for one instruction: for a copy that bypasses
            L1, sectors that several pairs of lanes touch.
        executed: counted warp instructions, including those without an active lane; 0 if predicted.
        has_requests: false if the request counter also includes other operations; `requests` is then 0.
        is_lower_bound: whether the launch may cost more, such as the retries of a compare-and-swap loop.
        is_upper_bound: whether it may cost less.
        opcodes: counted SASS opcodes; empty if predicted.
        agreement: how a counted cost agrees with the prediction for the counted code; "" if predicted.
    """

    requests: int
    sectors: int
    lines: int
    ideal_sectors: int
    bytes_wanted: int = 0
    extra_sectors: int = 0
    repeated_sectors: int = 0
    executed: int = 0
    sector_bytes: int = SECTOR_BYTES
    has_requests: bool = True
    is_lower_bound: bool = False
    is_upper_bound: bool = False
    opcodes: tuple[str, ...] = ()
    agreement: str = ""

    @property
    def touched_sectors(self) -> int:
        """The number of distinct sectors of each request or box row, summed."""
        return self.sectors - self.extra_sectors

    @property
    def wasted_sectors(self) -> int:
        return self.sectors - self.ideal_sectors

    @property
    def efficiency(self) -> float:
        """ideal_sectors / sectors, 0 to 1."""
        return self.ideal_sectors / self.sectors if self.sectors else 1.0

    def __add__(self, other: Cost) -> Cost:
        return replace(
            self,
            **{name: getattr(self, name) + getattr(other, name) for name in _SUMMED},
            sector_bytes=other.sector_bytes,
            has_requests=self.has_requests and other.has_requests,
            is_lower_bound=self.is_lower_bound or other.is_lower_bound,
            is_upper_bound=self.is_upper_bound or other.is_upper_bound,
        )


# The fields that a sum adds up.
_SUMMED = (
    "requests", "sectors", "lines", "ideal_sectors", "bytes_wanted", "extra_sectors", "repeated_sectors", "executed",
    "opcodes",
)  # fmt: skip
NO_COST = Cost(0, 0, 0, 0)


@dataclass
class Touches:
    """A sample of the executions of an operation.

    Attributes:
        executed: (programs,) int32, number of all executions of each program; (0,) in a very large launch.
        bytes: that all executions move.
        low, high: the first and the last byte of all executions.
        scale: one in `scale` pieces of memory is sampled.
        parts: (program, first byte, last byte, bytes moved, number of earlier executions by the program) of the
            sampled executions, (executions,) each.
    """

    executed: ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    bytes: float = 0.0
    low: int = 1 << 62
    high: int = 0
    scale: int = 1
    parts: list[tuple[ndarray, ...]] = field(default_factory=list)


@dataclass(frozen=True)
class Example:
    """An execution of an operation by one program: each element's first byte, and whether its mask is true."""

    program: int
    address: ndarray
    active: ndarray

    def lanes(self, instruction: MemoryInstruction) -> tuple[ndarray, ndarray]:
        """Return the first byte of each lane of an instruction's requests, and whether it is active."""
        place, is_owner = instruction.lanes()
        return self.address[tuple(place)], self.active[tuple(place)] & is_owner


@dataclass
class Tally:
    """The counts of one operation, while it is being evaluated.

    Attributes:
        executions: number of executions with an active program, over all programs.
        counts: (fields,) int64: the sums of `RequestCosts`.
        elements: active elements, summed over all executions.
        storages: the storages that it addresses.
        example: an early execution: of those with the most requests in the first batch, the one with the most sectors.
        starts: (program, address of its block's lowest byte) of the first executions, (executions,) each.
        spans: for each of these, the bytes from its lowest to its highest element, and the number of active elements.
        touches: a sample of its executions.
        loads: the recorded loads of some programs of an SM; see `Probe`.
        outside: an execution with an element outside its storage, and the element's index in the block.
        unplaced: why some of its executions, whose addresses are unknown, are missing in `touches`; "" if none are.
        missing: the program of each copied box that lies outside its tensor.
        refused: why the counts are incomplete or a bound; "" if they are exact.
        doubt: why some of the counted executions or sectors may be missing on the GPU; "" if none may.
        is_upper_bound: whether the counts are an upper bound, not a lower one.
        issued: for each instruction of a warp, whether any lane executed it.
        copies: for each set of classes of a copy to shared memory, its lanes' addresses and which of them read, each
            (classes, requests, lanes), and how often each class occurs.
    """

    executions: int = 0
    counts: ndarray = field(default_factory=lambda: np.zeros(len(RequestCosts._fields), np.int64))
    elements: int = 0
    storages: set[int] = field(default_factory=set)
    example: Example | None = None
    starts: list[tuple[ndarray, ndarray]] = field(default_factory=list)
    spans: list[tuple[ndarray, ndarray]] = field(default_factory=list)
    touches: Touches = field(default_factory=Touches)
    loads: list[Loads] = field(default_factory=list)
    outside: tuple[Example, tuple[int, ...]] | None = None
    unplaced: str = ""
    missing: list[int] = field(default_factory=list)
    refused: str = ""
    doubt: str = ""
    is_upper_bound: bool = False
    issued: ndarray = field(default_factory=lambda: np.zeros(1, bool))
    copies: dict[Any, tuple[ndarray, ndarray, ndarray]] = field(default_factory=dict)


@dataclass(frozen=True)
class OperationCounts:
    """A memory operation of a launch, and its counts.

    Attributes:
        op: "load", "async copy", "store", "atomic" or "descriptor".
        counter: "ld", "st", "red", "atom", "tma_ld" or "tma_st".
        source: (file without its folders, line) of the operation.
        tensors: names of the arguments that it addresses.
        instruction: how it was compiled; None for a descriptor or if that is unknown.
        tally: for a captured launch, the results of the evaluation.
        addressed_by, masked_by: names of the arguments that its addresses and its mask depend on, other than through a
            quotient.
        index_line: the source line of a load that its addresses depend on; 0 without one.
        loop: identifies the outermost loop around it; 0 outside loops.
        is_masked: whether it has a mask.
    """

    op: str
    counter: str
    source: tuple[str, int]
    tensors: tuple[str, ...]
    instruction: MemoryInstruction | None
    tally: Tally
    addressed_by: frozenset[str] = frozenset()
    masked_by: frozenset[str] = frozenset()
    index_line: int = 0
    loop: int = 0
    is_masked: bool = False
    sector_bytes: int = SECTOR_BYTES

    @property
    def name(self) -> str:
        return f"{self.op} {', '.join(self.tensors)}"

    @property
    def is_box(self) -> bool:
        """Whether the tensor memory accelerator (TMA) copies its block, so that no lane issues a request."""
        return self.counter.startswith("tma") and not self.width_bytes

    @cached_property
    def launch(self) -> Cost:
        """The cost of the whole launch."""
        return replace(
            Cost(*self.tally.counts[:-2].tolist()),
            sector_bytes=self.sector_bytes,
            is_lower_bound=bool(self.tally.refused) and not self.tally.is_upper_bound,
            is_upper_bound=self.tally.is_upper_bound,
        )

    @property
    def requests(self) -> int:
        return self.launch.requests

    @property
    def sectors(self) -> int:
        return self.launch.sectors

    @property
    def wavefronts(self) -> int:
        """Passes of its requests through the banks of the L1."""
        return RequestCosts(*self.tally.counts.tolist()).wavefronts

    @property
    def width_bytes(self) -> int:
        return self.instruction.width_bytes if self.instruction else 0


@dataclass(frozen=True)
class Overflow:
    """An integer operation whose results overflow their type.

    Attributes:
        source: its file and line.
        line: its line in the TTGIR.
        program: the first program in which a result does not fit.
        value: the first mathematical result there that does not fit.
        smallest: of all mathematical results that do not fit, the one closest to 0.
        programs: number of programs in which a result does not fit.
        bits: the width of their type.
    """

    source: tuple[str, int]
    line: int
    program: int
    value: int
    smallest: int
    programs: int
    bits: int


@dataclass(frozen=True)
class LaunchCounts:
    """Counts of a launch.

    Attributes:
        work: of the evaluation; a unit takes about 20 µs.
        overflows: operations on integers whose results do not fit.
    """

    operations: tuple[OperationCounts, ...]
    refused: str = ""
    work: int = 0
    overflows: tuple[Overflow, ...] = ()

    def by_line(self) -> list[list[OperationCounts]]:
        """Group the copies of an operation that pipelining or unrolling created."""
        groups: dict[tuple[Any, ...], list[OperationCounts]] = {}
        for op in self.operations:
            # An operation may never be executed, such as a pipelined copy in a loop with one iteration.
            if op.tally.executions or op.tally.refused:
                groups.setdefault((op.source, op.op, op.tensors, op.width_bytes), []).append(op)
        return sorted(groups.values(), key=lambda group: group[0].source)

    def totals(self) -> dict[str, int | None]:
        """Return the launch-wide counters; None where the count of an operation is incomplete or a bound."""
        return {
            name: None if self._is_incomplete(name) else self.lower_bound(name)
            for name in COUNTER_NAMES
        }

    def lower_bound(self, name: str) -> int:
        kind, _, unit = name.rpartition("_")
        own = (op for op in self.operations if op.counter == kind and not op.tally.is_upper_bound)
        return int(getattr(sum_costs(own), unit))

    def _is_incomplete(self, name: str) -> bool:
        kind = name.rpartition("_")[0]
        # How an atomic is counted depends on its instruction.
        kinds = ("red", "atom") if kind in ("red", "atom") else (kind,)
        return bool(self.refused) or any(
            op.tally.refused
            for op in self.operations
            if op.counter == kind
            or (op.counter in kinds and (not op.instruction or op.instruction.swaps))
        )


def sum_costs(operations: Iterable[OperationCounts]) -> Cost:
    """Add up the costs of operations over the launch."""
    return sum((op.launch for op in operations), NO_COST)


class Sampler:
    """Samples the executions of all operations of a launch.

    Args:
        programs: of the launch.
    """

    def __init__(self, programs: int) -> None:
        self._programs = programs if programs <= _MAX_ORDERED_PROGRAMS else 0
        self._scale = 1
        self._kept = 0
        self._touches: list[Touches] = []

    def add(
        self,
        touches: Touches,
        program: ndarray,
        low: ndarray,
        high: ndarray,
        size: ndarray,
    ) -> None:
        """Add executions of an operation.

        Args:
            touches: of the operation.
            program: (executions,) their programs. Those of a program are adjacent, and in order.
            low, high: (executions,) the first and the last byte of each.
            size: (executions,) the bytes moved.
        """
        if not touches.parts:
            touches.executed = np.zeros(self._programs, np.int32)
            touches.scale = self._scale
            self._touches.append(touches)
        touches.low = min(touches.low, int(low.min()))
        touches.high = max(touches.high, int(high.max()))
        touches.bytes += float(size.sum())
        number = self._count(touches, program)
        part = _thin((program, low, high, size, number), self._scale)
        touches.parts.append(part)
        self._kept += len(part[0])
        while self._kept > _MAX_EXECUTIONS:
            self._scale *= 2
            for each in self._touches:
                each.scale = self._scale
                each.parts = [_thin(part, self._scale) for part in each.parts]
            self._kept = sum(len(part[0]) for each in self._touches for part in each.parts)

    def _count(self, touches: Touches, program: ndarray) -> ndarray:
        """Count executions, and return how many earlier ones each program has."""
        if not self._programs:
            return np.zeros(len(program), np.int32)
        executed = touches.executed
        number = executed[program]
        is_same = program[1:] == program[:-1]
        if not is_same.any():
            executed[program] += 1
            return number
        first = np.flatnonzero(np.append(True, ~is_same))
        times = np.diff(first, append=len(program))
        executed[program[first]] += times.astype(np.int32)
        return number + np.arange(len(program)) - np.repeat(first, times)


def _thin(part: tuple[ndarray, ...], scale: int) -> tuple[ndarray, ...]:
    """Keep the executions on one in `scale` pieces of memory: see `Touches.parts`. `scale` is a power of two."""
    if scale == 1:
        return part
    # The product's highest bits are 0 for one in `scale` pieces.
    hashes = (part[1] // _PIECE_BYTES * _MULTIPLIER).view(np.uint64)
    is_kept = hashes >> 65 - scale.bit_length() == 0
    return tuple(each[is_kept] for each in part)


class Probe:
    """Records the loads of a few programs that run on the same SM.

    Args:
        programs: number of programs in the launch.
        sms: number of SMs of the GPU.
    """

    def __init__(self, programs: int, sms: int) -> None:
        self.programs = np.arange(min(programs, sms) // 2, programs, sms)[:MAX_PROBED_PROGRAMS]
        self._time = 0
        self._sectors = 0

    def find_members(self, programs: ndarray, running: ndarray) -> ndarray:
        """Return the indices of recorded programs among `running`, which are indices of `programs`, both ascending."""
        if self._sectors > _MOST_SECTORS:
            return running[:0]
        place = np.searchsorted(programs[running], self.programs)
        place = place[place < len(running)]
        members = running[place]
        return members[np.isin(programs[members], self.programs)]

    def record(self, loads: list[Loads], programs: ndarray, address: ndarray, on: ndarray) -> None:
        """Add an execution of an operation by some programs to its `loads`.

        Args:
            programs: (programs,) their numbers.
            address, on: the lanes' addresses, and which are active; (programs, requests, lanes).
        """
        self._time += 1
        sectors = np.sort(np.where(on, address // SECTOR_BYTES, -1), axis=2)
        is_new = sectors >= 0
        is_new[..., 1:] &= sectors[..., 1:] != sectors[..., :-1]
        for program, touched, each in zip(programs.tolist(), sectors, is_new, strict=True):
            loads.append((program, self._time, touched[each]))
        self._sectors += int(np.count_nonzero(is_new))
