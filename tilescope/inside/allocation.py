"""Map a program's shared memory: the offset, the live range and the purpose of each buffer."""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tilescope.captures.listings import UnsupportedOperation, is_in_sort
from tilescope.captures.reader import (
    AllocatedBuffer,
    Allocation,
    BaseCapture,
    CapturedLaunch,
)
from tilescope.captures.server import find_allocations
from tilescope.declare.gpus import gpu_or_slice, occupancy
from tilescope.inside.report import MapLoop, MapStep, SharedBuffer, SharedMap, StageNeed
from tilescope.ttgir.graph import Graph, copy
from tilescope.ttgir.operations import LOOPS, MEMORY_OPS, MENTIONS, PURPOSES
from tilescope.ttgir.parser import Op, Region, parse

_WARP_STATES = "states of warp groups"


def map_shared_memory(capture: BaseCapture, launch: CapturedLaunch) -> SharedMap:
    """Return the map of a captured launch's shared memory."""
    properties = capture.content.gpu
    capability = tuple(properties["compute_capability"])
    try:
        gpu = gpu_or_slice(properties["name"], properties["sms"], capability)
    except ValueError:  # the table lacks its compute capability
        gpu = None
    kernel = capture.content.kernels[launch.kernel]
    allocation = find_allocations(capture)[launch.kernel]
    shared_bytes = kernel.shared_bytes
    limit = gpu.shared_bytes_per_program if gpu else 0
    by_stages = []
    needs = dict(allocation.bytes_by_stages)
    if needs:
        needs[launch.config["num_stages"]] = shared_bytes
    for stages, needed in sorted(needs.items()):
        fit = None
        if gpu:
            fit = occupancy(gpu, kernel.num_warps, kernel.registers, needed).programs_per_sm
            fit = fit if needed <= limit else 0
        by_stages.append(StageNeed(stages, needed, fit))
    unknown = SharedMap(shared_bytes, limit, by_stages=tuple(by_stages))
    if not shared_bytes:
        return unknown
    try:
        body = parse(capture.read_code(launch.kernel, "ttgir"))
    except UnsupportedOperation as error:
        return replace(unknown, why=str(error))
    if allocation.why_missing:
        return replace(unknown, why=allocation.why_missing)
    ops = list(body.walk())
    buffers = _find_buffers(body, ops, allocation)
    total = max((each.allocated.end_bytes for each in buffers), default=0)
    if total != shared_bytes:
        why = (
            f"The installed Triton allocates {total:,} bytes of shared memory, but the captured kernel has "
            f"{shared_bytes:,}."
        )
        return replace(unknown, why=why)
    arguments = zip(body.arguments, launch.arguments, strict=True)
    names = {value: argument.name for value, argument in arguments}
    return _add_buffers(unknown, ops, buffers, names, (Path(kernel.file).name, kernel.line))


def _add_buffers(
    shared_map: SharedMap,
    ops: Sequence[Op],
    buffers: Sequence["_Buffer"],
    names: Mapping[str, str],
    place: tuple[str, int],
) -> SharedMap:
    """Return a map with buffers, the operations that access them, and the loops.

    Args:
        names: the arguments' names, by value.
        place: the file and line of the kernel.
    """
    spans = _find_loops(ops)
    for start, end in reversed(spans):
        for buffer in buffers:
            if buffer.first < start <= buffer.last <= end:
                buffer.last = end  # for the next iteration
    numbers = sorted({use for buffer in buffers for use in buffer.steps})
    loops = []
    for start, end in spans:
        first = bisect_left(numbers, start)
        last = bisect_right(numbers, end) - 1
        if first <= last and ops[start].name.startswith("scf."):
            loops.append(MapLoop(*(ops[start].source or place), first, last))
    return replace(
        shared_map,
        buffers=tuple(each for buffer in buffers for each in buffer.split(numbers, names, place)),
        steps=tuple(MapStep(*(ops[n].source or place), ops[n].name) for n in numbers),
        loops=tuple(loops),
    )


@dataclass
class _Buffer:
    """A buffer while its uses are collected.

    Attributes:
        op: the operation that allocates it or needs it as scratch memory; None for a buffer of the function.
        first, last: numbers of the operations between which it is live.
        steps: numbers of the operations that access it.
        users: the operations that refer to it.
        sources: the values whose blocks it holds, and what they derive from.
    """

    allocated: AllocatedBuffer
    op: Op | None
    first: int
    last: int
    steps: list[int] = field(default_factory=list)
    users: list[Op] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)

    @property
    def stages(self) -> int:
        """The first dimension of the buffer if operations access one slot at a time; otherwise 1."""
        match = re.search(r"memdesc<(\d+)x\d+x", self.op.type) if self.op else None
        has_slots = any(op.name == "ttg.memdesc_index" for op in self.users)
        return int(match[1]) if match and has_slots else 1

    @property
    def operation(self) -> str:
        if self.op is None:
            return _WARP_STATES
        if self.op.name == "tt.reduce" and is_in_sort(self.op.location):
            return "sort"
        if self.op.name == "ttg.warp_specialize":
            return "arguments of warp groups"
        if self.op.name != "ttg.local_alloc":
            return self.op.traits.kind or "block"
        purposes = {op.traits.purpose for op in self.users}
        if any("ttg.dot_op" in op.text for op in self.users):
            purposes.add("matrix operand")
        operation = next((purpose for purpose in PURPOSES if purpose in purposes), "block")
        is_copied = self.stages > 1 and operation == "descriptor copy"
        return "pipelined operand" if is_copied else operation

    def split(
        self, numbers: Sequence[int], names: Mapping[str, str], place: tuple[str, int]
    ) -> Iterator[SharedBuffer]:
        """Yield the buffer's stages.

        Args:
            numbers: the numbers of the operations that are steps.
            names: the arguments' names, by value.
            place: the file and line of the kernel.
        """
        file, line = (self.op and self.op.source) or place
        size = self.allocated.size_bytes // self.stages
        for stage in range(self.stages):
            yield SharedBuffer(
                file,
                line,
                offset_bytes=self.allocated.offset_bytes + stage * size,
                size_bytes=size,
                first=bisect_left(numbers, self.first),
                last=bisect_right(numbers, self.last) - 1,
                operation=self.operation,
                stage=stage,
                stages=self.stages,
                tensor=", ".join(name for value, name in names.items() if value in self.sources),
            )


def _find_buffers(body: Region, ops: Sequence[Op], allocation: Allocation) -> list[_Buffer]:
    """Return the buffers that operations access, with these operations."""
    graph = Graph(body, copy)
    numbers = defaultdict[int, list[int]](list)
    for number, op in enumerate(ops):
        numbers[op.line].append(number)
    buffers = []
    by_value = defaultdict[str, list[_Buffer]](list)
    for allocated in allocation.buffers:
        if not numbers[allocated.line]:
            buffers.append(_Buffer(allocated, None, 0, len(ops)))
            continue
        number = numbers[allocated.line].pop(0)  # of the copies of a called function's operation
        op = ops[number]
        buffer = _Buffer(allocated, op, number, number)
        buffers.append(buffer)
        if op.name == "ttg.local_alloc":
            for name in graph.trace_targets(op.results):
                by_value[name].append(buffer)
        if op.name != "ttg.local_alloc" or op.operands:
            buffer.steps.append(number)
        if op.name in ("ttg.local_alloc", "ttg.convert_layout"):
            buffer.sources.update(graph.trace_sources([*op.operands, *op.results]))
    for number, op in enumerate(ops):
        for name in by_value.keys() & op.uses:
            for buffer in by_value[name]:
                buffer.first = min(buffer.first, number)
                buffer.last = max(buffer.last, number)
                buffer.users.append(op)
                if not op.name.startswith(MENTIONS):
                    buffer.steps.append(number)
                if op.name in (*MEMORY_OPS, "ttg.local_store"):
                    buffer.sources.update(graph.trace_sources(op.operands[:1]))
    return [buffer for buffer in buffers if buffer.steps or buffer.op is None]


def _find_loops(ops: Sequence[Op]) -> list[tuple[int, int]]:
    """Return the numbers of each loop and of the last operation in it. A `warp_specialize` counts as a loop."""
    loops = []
    for number, op in enumerate(ops):
        if op.name in (*LOOPS, "ttg.warp_specialize"):
            loops.append((number, number + len([*op.walk()]) - 1))
    return loops
