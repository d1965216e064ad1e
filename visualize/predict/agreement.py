"""Textbook, compiled and counted side by side: what is known of a launch's memory operations, and how it agrees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernels.results import Compiled, Counters
from kernels.spec import Kernel, Launch
from visualize.predict import coalescing, textbook
from visualize.predict.traffic import Operation

# Which of the hardware's counters an operation counts for.
COUNTERS = {"load": ("ld",), "store": ("st",), "atomic": ("red", "atom")}

# The tensor memory accelerator has counters of its own: of the sectors of boxes.
BOX_COUNTERS = {"TMA load": ("tma_ld",), "TMA store": ("tma_st",)}

# ncu's count of one instruction's sectors misses some of these, another number in every run; its lines, and the
# launch's own counter, do not.
_UNDERCOUNTED = "LDGSTS.E.BYPASS"


@dataclass(frozen=True)
class Count:
    """What was counted of one operation. `requests` is None where the counter holds others', too."""

    executed: int
    requests: int | None
    sectors: int
    lines: int
    ideal_sectors: int
    opcodes: tuple[str, ...]


@dataclass(frozen=True)
class Verdicts:
    """All that is known of a launch's memory operations.

    Attributes:
        board: with textbook lanes.
        gpu_board: the same with a GPU's 32 lanes and lines of 128 bytes.
        code: the compiled kernel; None while it is not known.
        compiled: the operations as compiled here; None while that is not known.
        counters: what was counted; None where nothing was.
        predicted: the model on what was compiled for the counted launch.
    """

    kernel: Kernel
    launch: Launch
    board: tuple[Operation, ...]
    gpu_board: tuple[Operation, ...]
    code: Compiled | None
    compiled: tuple[Operation, ...] | None
    counters: Counters | None
    predicted: tuple[Operation, ...]

    @property
    def counted_is_compiled(self) -> bool:
        """Whether what was counted has the layouts and widths of what was compiled here."""
        if self.counters is None or self.code is None:
            return False
        counted, compiled = (
            [(one.op, one.layout, one.width_bytes) for one in code.operations]
            for code in (self.counters.compiled, self.code)
        )
        return counted == compiled


def verdicts(
    kernel: Kernel, launch: Launch, board: textbook.Textbook, code: Compiled | None, counters: Counters | None
) -> Verdicts:
    """Ask all models."""
    gpu = textbook.Textbook()
    drawn = textbook.operations(kernel, launch, board)
    readable = code is not None and not code.unreadable
    return Verdicts(
        kernel=kernel,
        launch=launch,
        board=drawn,
        gpu_board=drawn if board == gpu else textbook.operations(kernel, launch, gpu),
        code=code,
        compiled=coalescing.operations(kernel, launch, code.operations) if code and readable else None,
        counters=counters,
        predicted=coalescing.operations(kernel, launch, counters.compiled.operations) if counters else (),
    )


def count_of(op: Operation, found: Verdicts) -> Count | None:
    """What was counted of an operation; None where nothing was, as of a tensor descriptor's."""
    counters = found.counters
    if counters is None or not op.has_lanes:
        return None
    rows = [row for row in counters.ops if row.operation == op.number and (".CAS" in row.opcode) == op.is_lower_bound]
    kind = COUNTERS[op.access.op]
    alone = sum(COUNTERS[one.access.op] == kind for one in found.predicted if one.has_lanes) == 1
    return Count(
        executed=sum(row.executed for row in rows),
        requests=int(sum(counters.launch[f"{name}_requests"] for name in kind)) if alone else None,
        sectors=sum(row.sectors for row in rows),
        lines=sum(row.lines for row in rows),
        ideal_sectors=sum(row.ideal_sectors for row in rows),
        opcodes=tuple(row.opcode for row in rows),
    )


def agreement(op: Operation, count: Count) -> str:
    """How the two agree: "equal", "at least" (of a loop that repeats), "undercounted" (by ncu) or "different".

    ncu's count of an instruction is of the sectors that it touches; of a copy that bypasses L1, of those of each pair
    of lanes.
    """
    touched = op.launch.touched_sectors + op.launch.repeated_sectors
    same_lines = op.launch.lines == count.lines and count.requests in (None, op.launch.requests)
    if same_lines and touched == count.sectors:
        return "equal"
    no_fewer = count.lines >= op.launch.lines and (count.requests or op.launch.requests) >= op.launch.requests
    if op.is_lower_bound and no_fewer and count.sectors >= touched:
        return "at least"
    if same_lines and count.sectors < touched and all(o.startswith(_UNDERCOUNTED) for o in count.opcodes):
        return "undercounted"
    return "different"


@dataclass(frozen=True)
class LaunchTotals:
    """What is predicted for some of the launch's own counters, and what they hold.

    Attributes:
        kind: "load", "store" or "atomic"; "TMA load" or "TMA store" of tensor descriptors.
        requests, sectors: predicted and counted. The accelerator counts no requests: None.
        agreement: as of `agreement`.
    """

    kind: str
    requests: tuple[int, int | None]
    sectors: tuple[int, int]
    agreement: str
    is_lower_bound: bool = False


def counted_total(kind: str, what: str, counters: Counters) -> int:
    """What the hardware's counters of the whole launch hold of one kind of operation.

    Args:
        kind: as of `LaunchTotals`.
        what: "sectors", or of operations that lanes issue "requests".
    """
    names = (COUNTERS | BOX_COUNTERS)[kind]
    return int(sum(counters.launch[f"{name}_{what}"] for name in names))


def launch_totals(found: Verdicts) -> tuple[LaunchTotals, ...]:
    """The hardware's counters of the whole launch beside what is predicted for them; () where nothing was counted."""
    if found.counters is None:
        return ()
    return (*_of_lanes(found, found.counters), *_of_boxes(found, found.counters))


def _of_lanes(found: Verdicts, counters: Counters) -> list[LaunchTotals]:
    rows = []
    for kind in COUNTERS:
        mine = [op for op in found.predicted if op.access.op == kind and op.has_lanes]
        requests, sectors = (
            (sum(getattr(op.launch, what) for op in mine), counted_total(kind, what, counters))
            for what in ("requests", "sectors")
        )
        if not mine and not requests[1] and not sectors[1]:
            continue
        is_lower_bound = any(op.is_lower_bound for op in mine)
        pairs = (requests, sectors)
        no_fewer = is_lower_bound and all(predicted <= counted for predicted, counted in pairs)
        is_equal = all(predicted == counted for predicted, counted in pairs)
        sign = "equal" if is_equal else "at least" if no_fewer else "different"
        rows.append(LaunchTotals(kind, requests, sectors, sign, is_lower_bound))
    return rows


def _of_boxes(found: Verdicts, counters: Counters) -> list[LaunchTotals]:
    """The sectors of descriptors' boxes."""
    tensors = found.kernel.family.tensors(found.launch.problem)
    rows = []
    for kind, reads in zip(BOX_COUNTERS, (True, False), strict=True):
        mine = [op for op in found.predicted if op.is_box and tensors[op.access.tensor].is_input == reads]
        predicted, counted = sum(op.launch.sectors for op in mine), counted_total(kind, "sectors", counters)
        if predicted or counted:
            sign = "equal" if predicted == counted else "different"
            rows.append(LaunchTotals(kind, (0, None), (predicted, counted), sign))
    return rows


def to_json(op: Operation, reason: str, count: Count | None) -> dict[str, Any]:
    """One operation in a reply of /coalescing.

    Args:
        reason: why it costs what it costs.
    """
    return {
        "op": op.access.op,
        "tensor": op.access.tensor,
        "file": op.access.source[0],
        "line": op.access.source[1],
        "width_bytes": op.width_bytes,
        **costs([op]),
        "tile": {**vars(op.tile), "efficiency": op.tile.efficiency},
        "why": reason,
        "at_least": op.is_lower_bound,
        "compiled": op.compiled and op.compiled.to_json(),
        "counted": count and {**vars(count), "agreement": agreement(op, count)},
    }


def costs(operations: Sequence[Operation]) -> dict[str, float]:
    """The costs of some operations together."""
    names = ("requests", "sectors", "lines", "ideal_sectors", "bytes_wanted", "touched_sectors")
    sums: dict[str, float] = {name: sum(getattr(op.launch, name) for op in operations) for name in names}
    return {**sums, "efficiency": sums["ideal_sectors"] / sums["sectors"] if sums["sectors"] else 1.0}
