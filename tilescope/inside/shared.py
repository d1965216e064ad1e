"""A program's shared and tensor memory: buffers with their live ranges, and accesses of shared memory by line."""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tilescope.captures.content import AllocatedBuffer, Allocation, CapturedKernel, CapturedLaunch
from tilescope.captures.listings import UnsupportedOperation, find_user_place, is_in_sort
from tilescope.captures.reader import BaseCapture
from tilescope.captures.server import find_allocations
from tilescope.declare.gpus import Gpu, Occupancy, captured_gpu, occupancy
from tilescope.evaluate.counts import LaunchCounts, OperationCounts
from tilescope.evaluate.sectors import LANES
from tilescope.inside.banks import BankAccess, Wavefronts, count_copy_wavefronts, count_wavefronts
from tilescope.inside.execution import Executions
from tilescope.inside.report import (
    MapLoop,
    MapStep,
    SharedAccess,
    SharedBuffer,
    SharedMap,
    StageNeed,
    TensorBuffer,
)
from tilescope.sass.instructions import Instruction
from tilescope.sass.registers import count_group_rows
from tilescope.ttgir.graph import Graph, copy
from tilescope.ttgir.parser import LOOPS, MEMORY_OPS, MENTIONS, PURPOSES, Op, Region, parse_ttgir

# Operations that allocate buffers, and bytes of a column of tensor memory: 128 lanes of 4 bytes.
_TENSOR_ALLOCATION = "ttng.tmem_alloc"
_ALLOCATIONS = ("ttg.local_alloc", _TENSOR_ALLOCATION)
_COLUMN_BYTES = 512

_WARP_STATES = "states of warp groups"

# The user's files and lines that call a line of Triton's library.
Callers = Mapping[tuple[str, int], tuple[tuple[str, int], ...]]
_UNMATCHED = "The LDGSTS instructions could not be matched with the copies of the source line."
# In the one launch of this kind that was counted, Nsight Compute reports 4.7 wavefronts instead of one per execution.
_GUARDED = "Predicate P0 disables some lanes of these LDGSTS instructions. How Nsight Compute counts them is unknown."


def fit_kernel(gpu: Gpu, kernel: CapturedKernel) -> Occupancy:
    """Predict the occupancy of a captured kernel."""
    needs = kernel.registers, kernel.shared_bytes, kernel.tensor_columns
    return occupancy(gpu, kernel.num_warps, *needs)


def map_memory(
    capture: BaseCapture, launch: CapturedLaunch
) -> tuple[SharedMap, tuple[TensorBuffer, ...]]:
    """Return the map of a captured launch's shared memory, and the buffers in tensor memory."""
    gpu = captured_gpu(capture.content.gpu)
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
            fit = fit_kernel(gpu, replace(kernel, shared_bytes=needed)).programs_per_sm
            fit = fit if needed <= limit else 0
        by_stages.append(StageNeed(stages, needed, fit))
    unknown = SharedMap(shared_bytes, limit, by_stages=tuple(by_stages))
    if not shared_bytes:
        return unknown, ()
    try:
        body = parse_ttgir(capture.read_code(launch.kernel, "ttgir"))
    except UnsupportedOperation as error:
        return replace(unknown, why=str(error)), ()
    if allocation.why_missing:
        return replace(unknown, why=allocation.why_missing), ()
    ops = list(body.walk())
    buffers = _find_buffers(body, ops, allocation)
    allocated = (each.allocated for each in buffers if not each.is_tensor)
    total = max((each.offset_bytes + each.size_bytes for each in allocated), default=0)
    if total != shared_bytes:
        why = (
            f"The installed Triton allocates {total:,} bytes of shared memory, but the captured kernel has "
            f"{shared_bytes:,}."
        )
        return replace(unknown, why=why), ()
    arguments = zip(body.arguments, launch.arguments, strict=True)
    names = {value: argument.name for value, argument in arguments}
    return _add_buffers(unknown, ops, buffers, names, (Path(kernel.file).name, kernel.line))


def _add_buffers(
    shared_map: SharedMap,
    ops: Sequence[Op],
    buffers: Sequence["_Buffer"],
    names: Mapping[str, str],
    place: tuple[str, int],
) -> tuple[SharedMap, tuple[TensorBuffer, ...]]:
    """Return a map with buffers, and those in tensor memory, the operations that access them, and the loops.

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
    tensor = list[TensorBuffer]()
    shared = list[SharedBuffer]()
    for buffer in buffers:
        steps = bisect_left(numbers, buffer.first), bisect_right(numbers, buffer.last) - 1
        if buffer.op and buffer.is_tensor:
            file, line = find_user_place(buffer.op.location) or place
            columns = buffer.allocated.size_bytes // _COLUMN_BYTES
            first_column = buffer.allocated.offset_bytes // _COLUMN_BYTES
            tensor.append(TensorBuffer(file, line, columns, first_column, *steps))
        else:
            shared += buffer.split(steps, names, place)
    shared_map = replace(
        shared_map,
        buffers=tuple(shared),
        steps=tuple(MapStep(*(ops[n].source or place), ops[n].name) for n in numbers),
        loops=tuple(loops),
    )
    return shared_map, tuple(tensor)


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
    def is_tensor(self) -> bool:
        """Whether it is in tensor memory."""
        return self.op is not None and self.op.name == _TENSOR_ALLOCATION

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
        self, steps: tuple[int, int], names: Mapping[str, str], place: tuple[str, int]
    ) -> Iterator[SharedBuffer]:
        """Yield the buffer's stages.

        Args:
            steps: the numbers of the first and the last step in which it is live.
            names: the arguments' names, by value.
            place: the file and line of the kernel.
        """
        file, line = (self.op and self.op.source) or place
        size = self.allocated.size_bytes // self.stages
        for stage in range(self.stages):
            yield SharedBuffer(
                file,
                line,
                self.allocated.offset_bytes + stage * size,
                size,
                *steps,
                self.operation,
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
        if op.name in _ALLOCATIONS:
            for name in graph.trace_targets(op.results):
                by_value[name].append(buffer)
        if op.name not in _ALLOCATIONS or op.operands:
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


def sum_shared(
    code: Sequence[Instruction],
    executions: Executions,
    counts: LaunchCounts,
    buffers: Sequence[SharedBuffer],
    start_bytes: int,
    callers: Callers,
) -> tuple[SharedAccess, ...]:
    """Return the accesses of each line and opcode, in the order of the SASS.

    Args:
        buffers: the buffers of the memory map, which give the purpose of an access.
        start_bytes: address of the map's first byte.
        callers: see `find_callers`.
    """
    places = defaultdict[tuple[str, int, str], list[int]](list)
    for index, instruction in enumerate(code):
        if instruction.traits.smem:
            places[*instruction.source, instruction.name].append(index)
    rows = []
    for (file, line, opcode), indices in places.items():
        why = next((executions.refused[i] for i in indices if i in executions.refused), "")
        executed = int(executions.times[indices].sum())
        if not executed and not why:
            continue
        counted = [executions.wavefronts.get(i, Wavefronts(0, 0)) for i in indices]
        of_banks = Wavefronts(*map(sum, zip(*counted, strict=True)))
        total: Wavefronts | None = of_banks
        if opcode == "LDGSTS" and not why:
            ops = [
                op
                for op in counts.operations
                if op.op == "async copy" and op.source == (file, line)
            ]
            total = _sum_copies(code, indices, executions, ops)
            if any(_is_guarded(code[index], executions.accesses.get(index)) for index in indices):
                why = _GUARDED
            elif total is None:
                why = next(filter(None, (op.tally.refused for op in ops)), _UNMATCHED)
        actual, ideal = (None, None) if why or total is None else total
        reading = total.conflicts - of_banks.conflicts if total and not why else 0
        accesses = [executions.accesses.get(index) for index in indices]
        operation = _name_operation(accesses, (file, line), buffers, start_bytes)
        names = callers.get((file, line), ())
        place = file, line, opcode
        rows.append(SharedAccess(*place, executed, actual, ideal, operation, why, names, reading))
    return tuple(rows)


def find_callers(ops: Iterable[Op]) -> Callers:
    """Return the user's lines that call each line of Triton's library. The SASS does not name them."""
    callers: dict[tuple[str, int], tuple[tuple[str, int], ...]] = {}
    for op in ops:
        place = find_user_place(op.location)
        if place and op.source and place != op.source:
            lines = callers.get(op.source, ())
            callers[op.source] = tuple(dict.fromkeys((*lines, place)))
    return callers


def sum_matrix_wavefronts(code: Sequence[Instruction], executions: Executions) -> int | None:
    """Return the wavefronts of operands that matrix instructions read from shared memory; None if they are unknown.

    Four warps share an instruction, whose operands have 32 bytes per row. A wavefront moves 128 bytes.
    """
    total = 0
    for index, instruction in enumerate(code):
        if instruction.traits.widths == "group product":
            if index in executions.uncertain:
                return None
            total += int(executions.times[index]) * -(-count_group_rows(instruction) // 16)
    return total


def _name_operation(
    accesses: Sequence[BankAccess | None],
    source: tuple[str, int],
    buffers: Sequence[SharedBuffer],
    start_bytes: int,
) -> str:
    """Return the purpose of the buffers that a line accesses; "" if it is unknown."""
    own = [each for each in buffers if (each.file, each.line) == source]
    names = set[str]()
    for access in filter(None, accesses):
        byte = int(access.address[access.active].min()) - start_bytes
        names |= {
            each.operation
            for each in own or buffers
            if each.offset_bytes <= byte < each.offset_bytes + each.size_bytes
        }
    # Buffers of other lines may hold the same bytes at other times.
    return ", ".join(sorted(names)) if own or len(names) == 1 else ""


def _sum_copies(
    code: Sequence[Instruction],
    indices: Sequence[int],
    executions: Executions,
    ops: Sequence[OperationCounts],
) -> Wavefronts | None:
    """Return the wavefronts of a line's copies; None if they are unknown.

    The copies of the operations are in the order of the SASS, because each block of code has its own operation.
    """
    pairs = [(op, k) for op in ops for k in range(op.instruction.count if op.instruction else 0)]
    share = len(indices) // max(1, len(pairs))
    if (
        len(indices) != share * len(pairs)
        or (share > 1 and len(ops) > 1)
        or any(op.tally.refused for op in ops)
    ):
        return None
    total = np.zeros(2, np.int64)
    for index, (op, request) in zip(indices, pairs * share, strict=True):
        if (access := executions.accesses.get(index)) is None:
            continue
        # In a warp-specialized kernel, only the warps of one partition execute the copy.
        own = executions.by_warp[:, index] > 0
        access = BankAccess(access.opcode, access.address[:, own], access.active[:, own])
        ideal = share * executions.wavefronts[index].ideal
        wavefronts = _count_copy(code[index], access, op, request, ideal)
        if wavefronts is None:
            return None
        total += wavefronts // share
    return Wavefronts(*total.tolist())


def _is_guarded(instruction: Instruction, access: BankAccess | None) -> bool:
    """Return whether predicate P0 disables LDGSTS.BYPASS in some lanes."""
    by_p0 = ".BYPASS" in instruction.opcode and "P0" in instruction.predicate
    return by_p0 and access is not None and not access.active.all()


def _count_copy(
    instruction: Instruction, access: BankAccess, op: OperationCounts, request: int, ideal: int
) -> np.ndarray | None:
    """Return the wavefronts of all executions of LDGSTS, (2,) int64; None if they are unknown.

    Args:
        access: an execution.
        op, request: the operation that it implements, and the request of a warp.
        ideal: the wavefronts of all executions without bank conflicts.
    """
    predicate = instruction.operands[2] if len(instruction.operands) > 2 else ""
    # Nsight Compute treats the predicate P0 of LDGSTS.BYPASS as false, and !P0 as true.
    is_taken = predicate in ("P0", "!P0") and ".BYPASS" in instruction.opcode
    once = count_wavefronts(access)
    times = ideal // once.ideal
    reading = 0
    wavefronts = np.zeros(2, np.int64)
    for source, is_read, numbers in op.tally.copies.values():
        reading += int(numbers.sum())
        for address, reads, number in zip(source, is_read, numbers.tolist(), strict=True):
            shape = access.active.shape[1], -1, LANES
            address = address.reshape(shape)[:, request]
            reads = reads.reshape(shape)[:, request]
            if is_taken:
                reads = np.full_like(reads, predicate == "!P0")
            each = count_copy_wavefronts(address, reads, access)
            wavefronts += number * np.array(each)
    if reading > times:
        return None
    # The other executions write only zeros.
    is_true = is_taken and predicate == "!P0" and reading
    rest = wavefronts // reading if is_true else np.array(once)
    return wavefronts + (times - reading) * rest
