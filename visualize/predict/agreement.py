"""Textbook, compiled and counted costs of a launch's memory operations, and whether predictions and counts agree."""

from dataclasses import dataclass, replace
from functools import cached_property

from tilescope.declare.spec import Kernel, Launch
from tilescope.evaluate.counts import KINDS, NO_COST, Cost, sum_costs
from tilescope.evaluate.declared import DeclaredCounts, count_accesses
from tilescope.evaluate.instructions import CompiledFacts
from tilescope.results import Counters
from visualize.predict import textbook
from visualize.predict.textbook import Textbook

# Nsight Compute's per-instruction sector count for this opcode is wrong, by a different number in every run. Its line
# count and the launch's hardware counter are complete.
_MISCOUNTED = "LDGSTS.E.BYPASS"


@dataclass(frozen=True)
class LaunchCosts:
    """Everything known about the cost of a launch's memory operations.

    Attributes:
        code: the compiled kernel; None until it is known.
        counters: hardware counts; None if nothing was counted.
        machine: warp, line and element sizes of the textbook model; a GPU's by default.
    """

    kernel: Kernel
    launch: Launch
    code: CompiledFacts | None
    counters: Counters | None
    machine: Textbook = Textbook()

    @cached_property
    def textbook(self) -> tuple[DeclaredCounts, ...]:
        """The textbook model with the chosen warp and line sizes."""
        return textbook.count_accesses(self.kernel, self.launch, self.machine)

    @cached_property
    def compiled(self) -> tuple[DeclaredCounts, ...]:
        """The operations as compiled here; () until they are known."""
        return count_accesses(self.kernel, self.launch, self.code.operations if self.code else ())

    @cached_property
    def predicted(self) -> tuple[DeclaredCounts, ...]:
        """The compiled model, applied to the code whose accesses were counted."""
        operations = self.counters.compiled.operations if self.counters else ()
        return count_accesses(self.kernel, self.launch, operations)

    @property
    def counted_is_compiled(self) -> bool:
        """Whether the counted code has the same layouts and widths as the code compiled here."""
        if not self.counters or not self.code:
            return False
        counted, compiled = (
            [(made.op, made.layout, made.width_bytes) for made in code.operations]
            for code in (self.counters.compiled, self.code)
        )
        return counted == compiled


def count_of(op: DeclaredCounts, costs: LaunchCosts) -> Cost | None:
    """Return Nsight Compute's count of one operation; None if there is none, as for a descriptor copy."""
    counters = costs.counters
    predicted = op.launch
    kind = op.access.op
    if counters is None or op.is_box:
        return None
    own = [row for row in counters.ops if row.operation == op.number]
    rows = [row for row in own if (".CAS" in row.opcode) == predicted.is_lower_bound]
    alone = sum(each.access.op == kind for each in costs.predicted if not each.is_box) == 1
    amounts = ("executed", "sectors", "lines", "ideal_sectors")
    sums = {name: sum(getattr(row, name) for row in rows) for name in amounts}
    requests = counted_total(kind, "requests", counters) if alone else 0
    counted = Cost(requests, **sums, has_requests=alone, opcodes=tuple(row.opcode for row in rows))
    # Nsight Compute counts touched sectors per instruction. For a copy that bypasses L1, it counts each pair of lanes.
    by_instruction = replace(
        predicted, sectors=predicted.touched_sectors + predicted.repeated_sectors
    )
    return replace(counted, agreement=agreement(by_instruction, counted))


def agreement(predicted: Cost, counted: Cost) -> str:
    """Return "equal", "at least" (a loop that retries), "different", or "undercounted" or "overcounted" by ncu."""
    names = ["sectors", "lines"] + ["requests"] * counted.has_requests
    more = {
        name: difference
        for name in names
        if (difference := getattr(counted, name) - getattr(predicted, name))
    }
    if not more:
        return "equal"
    if predicted.is_lower_bound and min(more.values()) > 0:
        return "at least"
    is_miscounted = counted.opcodes and all(
        opcode.startswith(_MISCOUNTED) for opcode in counted.opcodes
    )
    if is_miscounted and list(more) == ["sectors"]:
        return "undercounted" if more["sectors"] < 0 else "overcounted"
    return "different"


def counted_total(kind: str, what: str, counters: Counters) -> int:
    """Return the launch's hardware count for one kind of operation.

    Args:
        kind: a key of KINDS.
        what: "sectors", or "requests" for operations that lanes issue.
    """
    return int(sum(counters.launch[f"{name}_{what}"] for name in KINDS[kind]))


def launch_totals(costs: LaunchCosts) -> dict[str, tuple[Cost, Cost]]:
    """Return the launch's predicted and counted cost per kind of operation; {} if nothing was counted.

    Atomics of a kernel with flags are omitted: it polls flags with exchanges, so their number varies.
    """
    if costs.counters is None:
        return {}
    totals = {}
    has_flags = any(spec.starts_zeroed for spec in costs.kernel.workspaces(costs.launch).values())
    for kind, names in KINDS.items():
        if kind == "atomic" and has_flags:
            continue
        is_box = kind.startswith("TMA")
        predicted = sum_costs(op for op in costs.predicted if op.counter in names)
        requests = 0 if is_box else counted_total(kind, "requests", costs.counters)
        sectors = counted_total(kind, "sectors", costs.counters)
        # No launch-wide counter covers lines or TMA requests.
        counted = replace(
            predicted,
            requests=requests,
            sectors=sectors,
            has_requests=not is_box,
            is_lower_bound=False,
        )
        if any((predicted.requests, predicted.sectors, requests, sectors)):
            totals[kind] = predicted, replace(counted, agreement=agreement(predicted, counted))
    return totals


def count_together(costs: LaunchCosts, number: int) -> tuple[tuple[str, ...], Cost | None]:
    """Return the tensors and the counted cost of all operations that share an operation's counter.

    All boxes that the TMA reads (or writes) share one counter. Otherwise, all loads (or stores) of a tensor are added
    up, because an output written in halves has two stores. The cost is None if nothing was counted.
    """
    own = costs.textbook[number]
    alike = {op.number for op in costs.textbook if (op.op, op.tensors) == (own.op, own.tensors)}
    operations = [op for op in costs.predicted if op.number in alike]
    if not operations:
        return own.tensors, None
    if operations[0].is_box:
        counter = operations[0].counter
        kind = next(kind for kind, names in KINDS.items() if counter in names)
        boxes = (op.access.tensor for op in costs.predicted if op.counter == counter)
        return tuple(dict.fromkeys(boxes)), launch_totals(costs)[kind][1]
    counts = [count for op in operations if (count := count_of(op, costs))]
    different = (count.agreement for count in counts if count.agreement != "equal")
    return own.tensors, replace(sum(counts, NO_COST), agreement=next(different, "equal"))


def worst(costs: LaunchCosts, is_textbook: bool = False) -> int:
    """Return the number of the operation that wastes the most sectors.

    Ties are broken by wasted textbook sectors, then in favour of transposed operations, then by size.

    Args:
        is_textbook: use the textbook model instead of the compiled kernel.
    """

    def key(operation: DeclaredCounts) -> tuple[int, int, bool, int]:
        judged = costs.textbook if is_textbook else costs.compiled or costs.textbook
        cost = sum_costs(op for op in judged if op.number == operation.number)
        return (
            cost.wasted_sectors,
            operation.launch.wasted_sectors,
            operation.access.transposed,
            cost.sectors,
        )

    return max(costs.textbook, key=key).number
