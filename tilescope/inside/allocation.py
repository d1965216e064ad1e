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
from tilescope.evaluate import ttgir
from tilescope.evaluate.slices import reach
from tilescope.evaluate.ttgir import Op
from tilescope.inside.flow import pass_values
from tilescope.inside.report import MapLoop, MapStep, SharedBuffer, SharedMap, StageNeed

# The purpose of the scratch memory of each operation.
_SCRATCH = {
    "ttg.convert_layout": "layout conversion",
    "tt.reduce": "reduction",
    "tt.scan": "scan",
    "tt.gather": "gather",
    "tt.histogram": "histogram",
    "tt.atomic_rmw": "atomic",
    "tt.atomic_cas": "atomic",
    "ttng.tensormap_create": "tensor map",
    "ttg.warp_specialize": "arguments of warp groups",
}
_WARP_STATES = "states of warp groups"

# The purpose of a buffer, by a part of the name of an operation that uses it. The first match decides.
_USES = {
    "init_barrier": "barrier",
    "async_copy_global_to_local": "pipelined operand",
    "async_tma_copy_global_to_local": "descriptor copy",
    "async_tma_gather": "descriptor copy",
    "async_tma": "store through shared memory",
    "dot": "matrix operand",
    "mma": "matrix operand",
}

# Operations that write the first operand's blocks to a buffer, or the buffer to the first operand's tensor.
_TRANSFERS = ("ttg.async_copy_global_to_local", "ttg.local_store", "ttng.async_tma")

# Operations whose result has the elements of the first operand, or points to the same tensor or buffer.
_COPIES = (
    "tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.bitcast", "tt.fp_to_fp",
    "tt.load", "ttg.convert_layout", "ttg.memdesc", "ttng.reinterpret_tensor", "arith.ext", "arith.trunc",
)  # fmt: skip

# Operations that refer to a buffer, but do not access it.
_MENTIONS = ("ttg.memdesc", "ttg.local_dealloc", "ttg.warp_yield", "scf.", "cf.")


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
        body = ttgir.parse(capture.read_code(launch.kernel, "ttgir"))
    except UnsupportedOperation as error:
        return replace(unknown, why=str(error))
    if allocation.why_missing:
        return replace(unknown, why=allocation.why_missing)
    ops = list(body.walk())
    buffers = _find_buffers(ops, allocation)
    total = max((each.allocated.end_bytes for each in buffers), default=0)
    if total != shared_bytes:
        why = (
            f"The installed Triton allocates {total:,} bytes of shared memory, but the captured kernel has "
            f"{shared_bytes:,}."
        )
        return replace(unknown, why=why)
    spans = _find_loops(ops)
    for start, end in reversed(spans):
        for buffer in buffers:
            if buffer.first < start <= buffer.last <= end:
                buffer.last = end  # for the next iteration
    place = Path(kernel.file).name, kernel.line
    numbers = sorted({use for buffer in buffers for use in buffer.steps})
    arguments = zip(body.arguments, launch.arguments, strict=True)
    names = {value: argument.name for value, argument in arguments}
    loops = []
    for start, end in spans:
        first = bisect_left(numbers, start)
        last = bisect_right(numbers, end) - 1
        if first <= last and ops[start].name.startswith("scf."):
            loops.append(MapLoop(*(ops[start].source or place), first, last))
    return replace(
        unknown,
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
        users: names of these operations.
        sources: the values whose blocks it holds, and what they derive from.
    """

    allocated: AllocatedBuffer
    op: Op | None
    first: int
    last: int
    steps: list[int] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)

    @property
    def stages(self) -> int:
        """The first dimension of the buffer if operations access one slot at a time; otherwise 1."""
        match = re.search(r"memdesc<(\d+)x\d+x", self.op.type) if self.op else None
        return int(match[1]) if match and "ttg.memdesc_index" in self.users else 1

    @property
    def operation(self) -> str:
        if self.op is None:
            return _WARP_STATES
        if self.op.name == "tt.reduce" and is_in_sort(self.op.location):
            return "sort"
        if self.op.name in _SCRATCH:
            return _SCRATCH[self.op.name]
        parts = (part for part in _USES if any(part in user for user in self.users))
        operation = _USES.get(next(parts, ""), "block")
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


def _find_buffers(ops: Sequence[Op], allocation: Allocation) -> list[_Buffer]:
    """Return the buffers that operations access, with these operations."""
    numbers = defaultdict[int, list[int]](list)
    origins = defaultdict[str, list[str]](list)
    copies = defaultdict[str, list[str]](list)
    for number, op in enumerate(ops):
        numbers[op.line].append(number)
        for source, target in _flows(op):
            origins[target].append(source)
            copies[source].append(target)
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
            for name in _reach(op.results, copies):
                by_value[name].append(buffer)
        if op.name != "ttg.local_alloc" or op.operands:
            buffer.steps.append(number)
        if op.name in ("ttg.local_alloc", "ttg.convert_layout"):
            buffer.sources |= _reach([*op.operands, *op.results], origins)
    for number, op in enumerate(ops):
        for name in {*op.operands, *op.inits} & by_value.keys():
            for buffer in by_value[name]:
                buffer.first = min(buffer.first, number)
                buffer.last = max(buffer.last, number)
                buffer.users.append(f"{op.name} dot" if "ttg.dot_op" in op.text else op.name)
                if not op.name.startswith(_MENTIONS):
                    buffer.steps.append(number)
                if op.name.startswith(_TRANSFERS):
                    buffer.sources |= _reach(op.operands[:1], origins)
    return [buffer for buffer in buffers if buffer.steps or buffer.op is None]


def _reach(names: Sequence[str], edges: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the given values, and all values that the edges lead to."""
    return set(reach(names, lambda name: edges.get(name, ())))


def _flows(op: Op) -> Iterator[tuple[str, str]]:
    """Yield pairs of values. The second may be a copy of the first, or point to the same memory."""
    match op.name:
        case name if name.startswith("scf."):
            for target, source in pass_values(op):
                yield source, target
        case "ttg.warp_specialize":
            for region in op.regions:
                yield from zip(op.operands, region.arguments, strict=False)
        case "ttng.warp_group_dot_wait":
            yield from zip(op.operands, op.results, strict=True)
        case "ttng.tensormap_create":
            yield op.operands[1], op.operands[0]
        case "tt.store" | "tt.atomic_rmw":  # the block becomes one of the tensor
            yield op.operands[0], op.operands[1]
        case name if name.startswith(_COPIES):
            yield op.operands[0], op.results[0]


def _find_loops(ops: Sequence[Op]) -> list[tuple[int, int]]:
    """Return the numbers of each loop and of the last operation in it. A `warp_specialize` counts as a loop."""
    loops = []
    for number, op in enumerate(ops):
        if op.name in ("scf.for", "scf.while", "ttg.warp_specialize"):
            inner = sum(1 for region in op.regions for _ in region.walk())
            loops.append((number, number + inner))
    return loops
