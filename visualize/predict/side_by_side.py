"""One operation of a launch by three sources: textbook, compiled and counted; and the operation worth looking at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernels.spec import Access, FlatAccess
from visualize.predict.agreement import Verdicts, agreement, count_of, launch_totals
from visualize.predict.traffic import SECTOR_BYTES, Operation


@dataclass(frozen=True)
class Cost:
    """What an operation costs over the launch, and who says so.

    Attributes:
        source: "textbook", "compiled" or "counted".
        mark: where the numbers are from.
        requests: None where no counter tells them for this operation alone.
        ideal_sectors: the sectors that the wanted bytes would fill.
        agreement: of counted numbers with what is predicted for the counted code; "" of others.
        note: what else belongs to it.
        sector_bytes: of the machine that it is counted on.
    """

    source: str
    mark: str
    requests: int | None
    sectors: int
    ideal_sectors: int
    agreement: str = ""
    note: str = ""
    sector_bytes: int = SECTOR_BYTES

    @property
    def wanted_bytes(self) -> int:
        """Bytes of the sectors that would do."""
        return self.sector_bytes * min(self.ideal_sectors, self.sectors)

    @property
    def wasted_bytes(self) -> int:
        """Bytes of the other sectors."""
        return self.sector_bytes * self.sectors - self.wanted_bytes

    @property
    def efficiency(self) -> float:
        """ideal / sectors, 0 to 1."""
        return min(1.0, self.ideal_sectors / self.sectors) if self.sectors else 1.0


@dataclass(frozen=True)
class SideBySide:
    """An operation's costs, as many of the three as are known.

    Attributes:
        tensors: what they are of. Two boxes that are read share one counter, so their costs are told together.
    """

    tensors: tuple[str, ...]
    costs: tuple[Cost, ...]

    def of(self, source: str) -> Cost | None:
        return next((cost for cost in self.costs if cost.source == source), None)


def side_by_side(found: Verdicts, number: int, board_sector_bytes: int = SECTOR_BYTES) -> SideBySide:
    """The costs of one operation of a launch, with others of its kind on the same tensor.

    Args:
        board_sector_bytes: of the blackboard's machine.
    """
    numbers = _together(found, number)
    board = _cost("textbook", "textbook", _operations(found.board, numbers))
    costs = [replace(board, sector_bytes=board_sector_bytes)]
    if compiled := _operations(found.compiled, numbers):
        costs.append(_cost("compiled", "predicted", compiled))
    if counted := _counted(found, numbers):
        costs.append(counted)
    tensors = dict.fromkeys(op.access.tensor for op in found.board if op.number in numbers)
    return SideBySide(tuple(tensors), tuple(costs))


def worst(found: Verdicts, on_the_board: bool = False) -> int:
    """The number of the operation that wastes most sectors.

    Where none wastes any: the one that the blackboard says would waste most, else a transposed one, else the one that
    moves most.

    Args:
        on_the_board: whether the blackboard's machine is asked, not the compiled kernel.
    """

    def wasted(op: Operation) -> int:
        return op.launch.sectors - op.launch.ideal_sectors

    def key(board: Operation) -> tuple[int, int, bool, int]:
        asked = None if on_the_board else found.compiled
        mine = [board] if asked is None else _operations(asked, [board.number])
        most = sum(op.launch.sectors for op in mine)
        return sum(map(wasted, mine)), wasted(board), board.access.transposed, most

    return max(found.board, key=key).number


def _operations(operations: Sequence[Operation] | None, numbers: Sequence[int]) -> list[Operation]:
    """The operations that some accesses became: an atomic may have become two."""
    return [op for op in operations or () if op.number in numbers]


def _together(found: Verdicts, number: int) -> tuple[int, ...]:
    """The operations that stand in the same counter, all boxes that are read, or written; else those of one tensor.

    An output that is written in halves has two stores.
    """
    (mine,) = (op.access for op in found.board if op.number == number)
    boxes = {op.number for op in found.predicted if op.is_box and _reads(found, op.access) == _reads(found, mine)}
    if number in boxes:
        return tuple(sorted(boxes))
    return tuple(op.number for op in found.board if (op.access.op, op.access.tensor) == (mine.op, mine.tensor))


def _reads(found: Verdicts, access: Access | FlatAccess) -> bool:
    return found.kernel.family.tensors(found.launch.problem)[access.tensor].is_input


def _cost(source: str, mark: str, operations: Sequence[Operation]) -> Cost:
    requests, sectors, ideal = (
        sum(getattr(op.launch, what) for op in operations) for what in ("requests", "sectors", "ideal_sectors")
    )
    return Cost(source, mark, requests, sectors, ideal)


def _counted(found: Verdicts, numbers: Sequence[int]) -> Cost | None:
    counters = found.counters
    if counters is None:
        return None
    mark = "recorded" if counters.backend == "recorded" else "counted"
    note = counters.device.name
    if found.compiled is not None and not found.counted_is_compiled:
        note += f", as Triton {counters.device.triton} compiled it"
    mine = _operations(found.predicted, numbers)
    counts = [(op, count) for op in mine if (count := count_of(op, found))]
    if not counts:
        reads = _reads(found, mine[0].access)
        (total,) = (row for row in launch_totals(found) if row.kind == ("TMA load" if reads else "TMA store"))
        # The accelerator counts no ideal sectors: they are those of the boxes.
        ideal = sum(op.launch.ideal_sectors for op in mine)
        return Cost("counted", mark, 0, total.sectors[1], ideal, total.agreement, note)
    kinds = [agreement(op, count) for op, count in counts]
    requests = [count.requests for _, count in counts]
    return Cost(
        source="counted",
        mark=mark,
        requests=None if None in requests else sum(value for value in requests if value is not None),
        sectors=sum(count.sectors for _, count in counts),
        ideal_sectors=sum(count.ideal_sectors for _, count in counts),
        agreement=next((kind for kind in kinds if kind != "equal"), "equal"),
        note=note,
    )
