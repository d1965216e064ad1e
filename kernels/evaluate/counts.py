"""Count the requests of every launch in a capture."""

import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from kernels.capture.reader import (
    Argument,
    Build,
    Capture,
    CapturedLaunch,
    UnreadableCapture,
)
from kernels.evaluate import ttgir
from kernels.evaluate.assembly import Doubt, find_doubts, load_depths
from kernels.evaluate.evaluator import Evaluator, Overflow
from kernels.evaluate.listings import UnsupportedOperation
from kernels.evaluate.memory import STORAGE_STEP, Descriptor, Memory, Storage, Tally
from kernels.evaluate.requests import Instruction, read_instructions, textbook
from kernels.sectors import REQUESTS, SECTORS

LOG = logging.getLogger("tilescope.captures")

COUNTERS = (
    *(f"{kind}_{unit}" for kind in ("ld", "st", "red", "atom") for unit in ("requests", "sectors")),
    "tma_ld_sectors", "tma_st_sectors",
)  # fmt: skip

_NOT_RUN = "Accesses depend on values from an earlier launch, which did not run. Use --values to interpret it first."
_RETRIES = (
    "The GPU lacks this atomic: lanes use a compare-and-swap loop, which retries after a conflict."
)


@dataclass(frozen=True)
class OperationCounts:
    """Counts of one memory operation of a launch.

    Attributes:
        op: "load", "async copy", "store", "atomic" or "descriptor".
        counter: "ld", "st", "red", "atom", "tma_ld" or "tma_st".
        source: (file without its folders, line) of the operation.
        tensors: names of the arguments that it addresses.
        instruction: how it was compiled; None for a descriptor or if that is unknown.
        addressed_by, masked_by: names of the arguments that its addresses and its mask depend on, other than through a
            quotient.
        index_line: the source line of a load that its addresses depend on; 0 without one.
    """

    op: str
    counter: str
    source: tuple[str, int]
    tensors: tuple[str, ...]
    instruction: Instruction | None
    tally: Tally
    addressed_by: frozenset[str] = frozenset()
    masked_by: frozenset[str] = frozenset()
    index_line: int = 0

    @property
    def is_lower_bound(self) -> bool:
        """Whether the launch may execute it more often than counted."""
        return bool(self.tally.refused) and not self.tally.is_upper_bound

    @property
    def requests(self) -> int:
        return int(self.tally.counts[REQUESTS])

    @property
    def sectors(self) -> int:
        return int(self.tally.counts[SECTORS])

    @property
    def width_bytes(self) -> int:
        return self.instruction.width_bytes if self.instruction else 0


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
            name: None if self._is_incomplete(name) else self.lower_bound(name) for name in COUNTERS
        }

    def lower_bound(self, name: str) -> int:
        kind, _, unit = name.rpartition("_")
        return sum(
            getattr(op, unit)
            for op in self.operations
            if op.counter == kind and not op.tally.is_upper_bound
        )

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


def count_launch(
    capture: Capture,
    launch: CapturedLaunch,
    programs: np.ndarray | None = None,
    is_textbook: bool = False,
    build: Build | None = None,
) -> LaunchCounts:
    """Count a launch's requests.

    Args:
        programs: count only these programs.
        is_textbook: count as on the blackboard: lane i takes element i of the block, row by row.
        build: how the kernel is compiled; None for the captured code.

    Raises:
        UnreadableCapture: the launch's compiled code is damaged.
    """
    try:
        return _evaluate(capture, launch, programs, is_textbook, build)
    except UnsupportedOperation as error:
        return LaunchCounts((), str(error))
    except UnreadableCapture:
        raise
    except Exception:  # a capture file may hold arbitrary text as compiled code
        LOG.warning("A launch could not be evaluated.", exc_info=True)
        why = "The compiled code is damaged, or has an unknown form. On a GPU, --count counts the launch."
        return LaunchCounts((), why)


def _evaluate(
    capture: Capture,
    launch: CapturedLaunch,
    programs: np.ndarray | None,
    is_textbook: bool,
    build: Build | None,
) -> LaunchCounts:
    kernel, codes = build or capture.build(launch.kernel)
    if kernel.num_ctas > 1:
        raise UnsupportedOperation(
            "Launches with num_ctas > 1 are not evaluated. On a GPU, --count counts them."
        )
    body = ttgir.parse(codes["ttgir"])
    if len(launch.arguments) != len(body.arguments):
        raise UnsupportedOperation("The launch's arguments do not match the compiled function's.")
    layouts = capture.layouts(kernel)
    instructions = read_instructions(body, layouts, codes["ptx"], codes["sass"], kernel.num_warps)
    if is_textbook:
        instructions = {
            op: i if isinstance(i, str) else textbook(i) for op, i in instructions.items()
        }
    arguments = [_value(capture, argument) for argument in launch.arguments]
    memory = Memory(body, _storages(capture, launch), instructions)
    evaluator = Evaluator(
        body, arguments, launch.grid, memory, programs, load_depths(codes["sass"])
    )
    evaluator.run()
    doubts = (
        {}
        if is_textbook
        else find_doubts(body, instructions, memory.tallies, codes["ptx"], codes["sass"])
    )
    owners = [
        (tensor.storage, argument.name)
        for argument in launch.arguments
        if (tensor := argument.own_tensor)
    ]
    owners.sort(key=lambda owner: owner[0])
    loads = {name: op.location for op in body.walk() if op.name == "tt.load" for name in op.results}
    given = [
        (argument.name, name)
        for argument, name in zip(launch.arguments, body.arguments, strict=True)
    ]
    operations = []
    for op in ttgir.memory_ops(body):
        tally = memory.tallies[op]
        instruction = instructions[op]
        access = ttgir.MEMORY_OPS[op.name]
        has_lanes = access.kind not in ("descriptor", "tensor map")
        made = instruction if isinstance(instruction, Instruction) and has_lanes else None
        pointer, mask = (
            evaluator.slice.reach(names, through_quotients=False)
            for names in (op.operands[:1], filter(None, [op.mask]))
        )
        indices = (
            location[0][1] for name, location in loads.items() if location and name in pointer
        )
        counts = OperationCounts(
            op=access.kind,
            counter=made.counter if made else access.counter,
            source=op.source or (kernel.file, kernel.line),
            tensors=tuple(name for storage, name in owners if storage in tally.storages),
            instruction=made,
            tally=tally,
            addressed_by=frozenset(argument for argument, name in given if name in pointer),
            masked_by=frozenset(argument for argument, name in given if name in mask),
            index_line=next(indices, 0),
        )
        if evaluator.slice.sunk.get(op, op) is None:
            text = "The compiler moved this load behind a branch. The count is an upper bound."
            doubts.setdefault(op.site, Doubt(text, True))
        if doubt := doubts.get(op.site):
            tally.is_upper_bound = doubt.is_upper_bound and not tally.refused
            tally.refused = tally.refused or doubt.text
            if not doubt.text:  # the compiler found that nothing needs it
                tally.counts[:] = 0
        if made and made.swaps:
            loaded = tally.counts.copy()
            loaded[SECTORS] = tally.loaded_sectors
            operations.append(
                replace(counts, op="load", counter="ld", tally=replace(tally, counts=loaded))
            )
            tally.refused = tally.refused or _RETRIES
        operations.append(counts)
    for kind, source in doubts.keys() - {op.site for op in ttgir.memory_ops(body)}:
        tally = Tally(refused=doubts[kind, source].text)
        counter = next(
            access.counter for access in ttgir.MEMORY_OPS.values() if access.kind == kind
        )
        place = source or (kernel.file, kernel.line)
        operations.append(OperationCounts(kind, counter, place, (), None, tally))
    return LaunchCounts(
        tuple(operations),
        work=memory.work,
        overflows=tuple(evaluator.overflows.values()),
    )


def _storages(capture: Capture, launch: CapturedLaunch) -> list[Storage]:
    storages = [
        Storage(storage.bytes, storage.address_bytes) for storage in capture.content.storages
    ]
    for tensor in filter(None, (argument.own_tensor for argument in launch.arguments)):
        if not tensor.is_known:
            storages[tensor.storage] = replace(storages[tensor.storage], why_unknown=_NOT_RUN)
        elif tensor.array is not None:
            storages[tensor.storage].contents[tensor.element_bytes] = partial(
                _read_array, capture, tensor.array
            )
    return storages


def _read_array(capture: Capture, number: int) -> np.ndarray:
    try:
        return capture.read_array(number)
    except UnreadableCapture as error:
        raise UnsupportedOperation(str(error)) from error


def _value(capture: Capture, argument: Argument) -> int | float | bool | Descriptor:
    if (tensor := argument.own_tensor) is None:
        return argument.number
    start = capture.content.storages[tensor.storage].address_bytes + tensor.offset_bytes
    address = (tensor.storage + 1) * STORAGE_STEP + start
    if (made := argument.descriptor) is None:
        return address
    return Descriptor(tensor.element_bytes, np.array([[address, *made.shape, *made.strides]]))
