"""Textbook, compiled and counted costs of a launch's memory operations, and their agreement.

In the textbook model, lane i of a warp accesses element i of the tile, in row-major order of the addressed tensor. It
ignores the layout and width that the compiler really chooses, and the caches behind the L1.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from tilescope.captures.layouts import textbook_layout
from tilescope.declare.knobs import ConfigError, knob, powers, read_fields
from tilescope.declare.spec import DTYPE_BYTES, AnyAccess, Kernel, Launch, ProblemFields
from tilescope.evaluate.counts import KINDS, Cost, sum_costs
from tilescope.evaluate.declared import (
    AccessPattern,
    DeclaredCounts,
    count_accesses,
    count_patterns,
    make_pattern,
)
from tilescope.evaluate.instructions import CompiledFacts, MemoryInstruction
from tilescope.results import Counters

# Nsight Compute's per-instruction sector count for this opcode is wrong, by a different number in every run. Its line
# count and the launch's hardware counter are complete.
_MISCOUNTED = "LDGSTS.E.BYPASS"


@dataclass(frozen=True)
class Textbook:
    """Warp, line and element sizes of the textbook model. A GPU has 32 lanes, 128-byte lines and 32-byte sectors."""

    warp_size: int = knob(32, "", "Lanes per warp.", choices=powers(2, 64))
    line_bytes: int = knob(128, "", "Bytes per cache line.", choices=powers(8, 512))
    element_bytes: str = knob(
        "dtype", "", "Bytes per element. dtype: as in the problem.",
        choices=("dtype", "1", "2", "4", "8", "16"),
    )  # fmt: skip
    lanes: str = knob(
        "tile", "Picture",
        "tile: lane i accesses element i of the tile. loaded: each lane stores what it loaded.",
        choices=("tile", "loaded"), label="Textbook lanes",
    )  # fmt: skip

    @property
    def sector_bytes(self) -> int:
        """Bytes of a sector: 32, as on a GPU, or the whole line if it is shorter."""
        return min(32, self.line_bytes)

    def refuse(self, problem: ProblemFields) -> None:
        """Raise ConfigError if an element of the problem does not fit in a line."""
        self.bytes_of(problem.dtype)

    def bytes_of(self, dtype: str) -> int:
        """Return the bytes of an element.

        Raises:
            ConfigError: an element does not fit in a line.
        """
        size = DTYPE_BYTES[dtype] if self.element_bytes == "dtype" else int(self.element_bytes)
        if size > self.line_bytes:
            message = f"element_bytes must be at most line_bytes, which is {self.line_bytes}"
            raise ConfigError("out_of_range", f"{message} (got {size}).", "element_bytes")
        return size

    def make_pattern(self, kernel: Kernel, launch: Launch, access: AnyAccess) -> AccessPattern:
        """Return the pattern that assigns the elements of a block or run to consecutive lanes."""
        tensor = kernel.tensors(launch)[access.tensor]
        size = self.bytes_of(tensor.dtype_in(launch.problem))
        axes = {axis.index: axis.block for axis in access.axes}
        order = [access.dims.index(index) for index in axes]
        if access.transposed and self.lanes == "loaded":
            order.reverse()
        shape = tuple(axes[index] for index in access.dims)
        layout = textbook_layout(shape, self.warp_size, order)
        instruction = MemoryInstruction(access.op, access.source, layout, size, size)
        return make_pattern(kernel, launch, access, instruction, self.sector_bytes, self.line_bytes)

    def count(self, kernel: Kernel, launch: Launch) -> tuple[DeclaredCounts, ...]:
        """Return every operation of a launch with its cost on this machine."""
        patterns = (self.make_pattern(kernel, launch, each) for each in kernel.accesses(launch))
        return count_patterns(kernel, launch, patterns, is_textbook=True)


def read_textbook(options: object) -> Textbook:
    """Read a textbook machine from JSON. Omitted fields, or None for all fields, default to a GPU's numbers."""
    if options is None:
        return Textbook()
    if not isinstance(options, Mapping):
        raise ConfigError(
            "not_an_object", f"The textbook options must be a JSON object (got {options!r})."
        )
    return read_fields(Textbook, options, "the textbook")


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
        return self.machine.count(self.kernel, self.launch)

    @cached_property
    def compiled(self) -> tuple[DeclaredCounts, ...]:
        """The operations as compiled here; () until they are known."""
        return count_accesses(self.kernel, self.launch, self.code.operations if self.code else ())

    @cached_property
    def predicted(self) -> tuple[DeclaredCounts, ...]:
        """The compiled model, applied to the code whose accesses were counted."""
        operations = self.counters.compiled.operations if self.counters else ()
        return count_accesses(self.kernel, self.launch, operations)

    def find(self, number: int, is_textbook: bool = False) -> DeclaredCounts:
        """Return an operation as compiled, if known; the loop of an atomic that became a load and a loop."""
        operations = () if is_textbook else self.compiled
        return [op for op in operations or self.textbook if op.number == number][-1]

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
