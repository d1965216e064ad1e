"""Inspect the programs of a captured launch, with their registers and spills by source line, and correct its counts."""

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from tilescope.captures.content import CapturedLaunch
from tilescope.captures.listings import UnsupportedOperation, find_user_place, isolate
from tilescope.captures.reader import BaseCapture
from tilescope.declare.gpus import TENSOR_COLUMNS
from tilescope.evaluate.captured import MOVED, NO_CODE, UNROLLED
from tilescope.evaluate.counts import LaunchCounts, OperationCounts, Touches
from tilescope.evaluate.sectors import LANES, SECTOR_BYTES, RequestCosts
from tilescope.inside.amd import inspect_assembly
from tilescope.inside.banks import SYSTEM_BYTES
from tilescope.inside.execution import Executions, execute
from tilescope.inside.layouts import Encodings, read_conversions, read_layouts
from tilescope.inside.pipeline import read_pipelines
from tilescope.inside.report import (
    HeldRegisters,
    Inside,
    LineInstructions,
    LineRegisters,
    LineSpills,
    TensorBuffer,
)
from tilescope.inside.shared import (
    Callers,
    find_callers,
    map_memory,
    sum_matrix_wavefronts,
    sum_shared,
)
from tilescope.inside.threads import make_launch
from tilescope.sass.instructions import Instruction, parse_sass
from tilescope.sass.registers import Accesses, analyze, is_call, list_registers
from tilescope.ttgir.parser import Region, Site, parse_ttgir

# The inspection of a launch's programs, and its executions if they are known.
Inspection = tuple[Inside, Executions | None]

# The GPU reserves two registers of each thread, and a thread has at least 16.
_RESERVED = 2
_FEWEST = 16
# The lanes of tensor memory, and a buffer: memdesc<128x256xf32, #tmem, #ttng.tensor_memory, mutable>
_TENSOR_LANES = 128
_TENSOR_BUFFER = re.compile(r"memdesc<([\dx]+)x[a-z]+(\d+)")


@isolate(lambda why, *_: (Inside(unread=why, not_executed=why), None))
def inspect(capture: BaseCapture, launch: CapturedLaunch, counts: LaunchCounts) -> Inspection:
    """Inspect a launch's programs. Return the result, and the launch's executions if they are known.

    Args:
        counts: the launch's requests to global memory.
    """
    kernel, codes = capture.build(launch.kernel)
    if why := capture.content.not_modelled:
        inside = inspect_assembly(codes["amdgcn"])
        shared_map, _ = map_memory(capture, launch)
        return replace(inside, shared_map=shared_map, not_executed=why, unread=why), None
    is_gluon = "gluon.jit" in kernel.source
    num_stages = None if is_gluon else launch.config["num_stages"]
    inside = inspect_code(codes["ttgir"], codes["ptx"], codes["sass"], num_stages)
    shared_map, tensor_memory = map_memory(capture, launch)
    tensor_memory = tensor_memory or inside.tensor_memory
    inside = replace(inside, shared_map=shared_map, tensor_memory=tensor_memory)
    return _execute(capture, launch, counts, inside)


@isolate(lambda why, *args: (replace(args[-1], not_executed=why), None))
def _execute(
    capture: BaseCapture, launch: CapturedLaunch, counts: LaunchCounts, inside: Inside
) -> Inspection:
    kernel, codes = capture.build(launch.kernel)
    if kernel.tensor_columns > TENSOR_COLUMNS:
        raise UnsupportedOperation(NO_CODE)
    executions = execute(parse_sass(codes["sass"]), make_launch(capture, launch, counts))
    start_bytes = SYSTEM_BYTES if capture.content.capability >= 90 else 0
    inside = add_executions(inside, codes["sass"], executions, counts, start_bytes, codes["ttgir"])
    return inside, executions


def add_executions(
    inside: Inside,
    sass: str,
    executions: Executions,
    counts: LaunchCounts,
    start_bytes: int = 0,
    ttgir: str = "",
) -> Inside:
    """Add the numbers that depend on how often each instruction is executed."""
    code = parse_sass(sass)
    buffers = inside.shared_map.buffers if inside.shared_map else ()
    callers = _read_callers(ttgir)
    uncertain = executions.uncertain
    return replace(
        inside,
        instructions_by_line=sum_instructions(code, callers, executions.times, uncertain),
        shared=sum_shared(code, executions, counts, buffers, start_bytes, callers),
        instructions_executed=None if uncertain else int(executions.times.sum()),
        gmma_wavefronts=sum_matrix_wavefronts(code, executions),
        not_executed=executions.why_uncertain,
        spills_by_line=count_spills(code, executions.times.tolist()),
    )


def inspect_code(ttgir: str, ptx: str, sass: str, num_stages: int | None) -> Inside:
    """Inspect the compiled code of a kernel, without its executions.

    Args:
        num_stages: the compiler's option; None if Triton's pipeliner did not compile the kernel, as for Gluon.
    """
    by_line, at_peak = measure_registers(sass)
    inside = Inside(
        instructions_by_line=sum_instructions(parse_sass(sass), _read_callers(ttgir)),
        registers_by_line=by_line,
        registers_at_peak=at_peak,
        spills_by_line=count_spills(parse_sass(sass)),
    )
    try:
        body = parse_ttgir(ttgir)
        encodings = Encodings(ttgir)
        return replace(
            inside,
            tensor_memory=_read_tensor_memory(body),
            layouts=read_layouts(body, encodings),
            conversions=read_conversions(body, encodings),
            pipelines=read_pipelines(body, ttgir, ptx, num_stages),
        )
    except UnsupportedOperation as error:
        return replace(inside, unread=str(error))


def _read_tensor_memory(body: Region) -> tuple[TensorBuffer, ...]:
    buffers = []
    for op in body.walk():
        match = _TENSOR_BUFFER.search(op.text) if op.name == "ttng.tmem_alloc" else None
        if match:
            elements = math.prod(int(extent) for extent in match[1].split("x"))
            place = find_user_place(op.location) or ("", 0)
            columns = elements * int(match[2]) // (32 * _TENSOR_LANES)
            buffers.append(TensorBuffer(*place, columns))
    return tuple(buffers)


def _read_callers(ttgir: str) -> Callers:
    try:
        return find_callers(parse_ttgir(ttgir).walk())
    except UnsupportedOperation:
        return {}


@functools.lru_cache(maxsize=8)
def measure_registers(
    sass: str,
) -> tuple[tuple[LineRegisters, ...], tuple[HeldRegisters, ...]]:
    """Return the registers of each source line, and those that are live at the instruction with the most.

    Both are sorted by the number of live registers, most first.
    """
    instructions = parse_sass(sass)
    if not instructions:
        return (), ()
    accesses, following, live = analyze(sass)
    counts = count_live(sass)
    most = dict[tuple[str, int], int]()
    needed = Counter[tuple[str, int]]()
    for number in sorted(range(len(live)), key=counts.__getitem__, reverse=True):
        place = instructions[number].source
        most.setdefault(place, counts[number])
        needed[place] = max(needed[place], _FEWEST, live[number].bit_length() + _RESERVED)
    by_line = tuple(LineRegisters(*place, needed[place], count) for place, count in most.items())
    peak = counts.index(max(counts))
    writers = _find_writers(peak, live[peak], instructions, accesses, following)
    held = Counter(instructions[number].source for number in writers.values())
    return by_line, tuple(HeldRegisters(*place, count) for place, count in held.most_common())


def count_live(sass: str) -> tuple[int, ...]:
    """Return the number of registers that are live at each instruction."""
    return tuple(each.bit_count() for each in analyze(sass)[2])


def sum_instructions(
    code: Sequence[Instruction],
    callers: Callers,
    executed: np.ndarray | None = None,
    uncertain: Set[int] = frozenset(),
) -> tuple[LineInstructions, ...]:
    """Add up the instructions of each source line by kind.

    Args:
        callers: see `find_callers`.
        executed: number of times that warps execute each instruction in the launch; None if unknown.
        uncertain: indices of the instructions whose number of executions is unknown.
    """
    groups = defaultdict[tuple[tuple[str, int], str], list[int]](list)
    for number, instruction in enumerate(code):
        groups[instruction.source, instruction.kind].append(number)
    rows = []
    for (place, kind), numbers in sorted(groups.items()):
        times = None
        if executed is not None and uncertain.isdisjoint(numbers):
            times = int(executed[numbers].sum())
        rows.append(LineInstructions(*place, kind, len(numbers), times, callers.get(place, ())))
    return tuple(rows)


def count_spills(
    instructions: Sequence[Instruction], executed: Sequence[int] | None = None
) -> tuple[LineSpills, ...]:
    """Return the spills of each source line, in the order of the SASS.

    Args:
        executed: number of times that warps execute each instruction in the launch; None if unknown.
    """
    groups = defaultdict[tuple[str, int], list[int]](list)
    for number in _find_spills(instructions):
        groups[instructions[number].source].append(number)
    spills = []
    for place, numbers in groups.items():
        widths = {number: instructions[number].lane_bytes for number in numbers}
        stores = [number for number in numbers if instructions[number].traits.lmem == "store"]
        times = None
        moved = None
        if executed is not None:
            times = sum(executed[number] for number in numbers)
            moved = sum(LANES * widths[number] * executed[number] for number in numbers)
        stored = sum(widths[number] for number in stores)
        spills.append(
            LineSpills(*place, len(stores), len(numbers) - len(stores), stored, times, moved)
        )
    return tuple(spills)


def _find_spills(instructions: Sequence[Instruction]) -> list[int]:
    """Return the stores to the stack that are reloaded, and their reloads.

    The stack also holds arrays, which registers other than the stack pointer index.
    """
    slots = dict[int, set[int]]()
    used = defaultdict[str, set[int]](set)
    for number, instruction in enumerate(instructions):
        start = instruction.stack_offset
        if start is not None:
            slots[number] = set(range(start, start + instruction.lane_bytes))
            used[instruction.traits.lmem] |= slots[number]
    reloaded = used["store"] & used["load"]
    return [number for number, slot in slots.items() if slot & reloaded]


def _find_writers(
    start: int,
    registers: int,
    instructions: Sequence[Instruction],
    accesses: Sequence[Accesses],
    following: Sequence[Sequence[int]],
) -> dict[int, int]:
    """Return the instruction that wrote each register that is live at an instruction.

    If there are several, as for a sum that is initialized before a loop, it is the last in the listing.
    """
    preceding = defaultdict[int, list[int]](list)
    for number, numbers in enumerate(following):
        for each in numbers:
            preceding[each].append(number)
        target = instructions[number].target
        if is_call(instructions[number]) and target is not None:
            preceding[target].append(number)
    writes = accesses[start].writes
    writers = dict.fromkeys(list_registers(writes), start)
    sought = defaultdict[int, int](int)
    waiting = [(start, registers & ~writes)]
    while waiting:
        number, wanted = waiting.pop()
        wanted &= ~sought[number]
        sought[number] |= wanted
        if not wanted:
            continue
        for each in preceding[number]:
            writes = accesses[each].writes
            for register in list_registers(wanted & writes):
                writers[register] = max(each, writers.get(register, 0))
            waiting.append((each, wanted if accesses[each].is_conditional else wanted & ~writes))
    return writers


@dataclass(frozen=True)
class _LineAccesses:
    """The loads or the stores of a source line, and their instructions.

    Attributes:
        numbers: indices of the instructions.
        times: number of times that warps execute each of them.
        is_conditional: whether some have a predicate.
    """

    ops: Sequence[OperationCounts]
    numbers: Sequence[int]
    times: np.ndarray
    is_conditional: bool

    @property
    def executed(self) -> int:
        return int(self.times.sum())

    @property
    def requested(self) -> int:
        return sum(op.requests for op in self.ops)


@isolate(lambda why, *args: replace(args[2], refused=why))
def correct_counts(
    capture: BaseCapture,
    launch: CapturedLaunch,
    counts: LaunchCounts,
    executions: Executions | None,
) -> LaunchCounts:
    """Count the loads and stores of source lines again from the SASS, if it may execute them more or less often.

    ptxas moves a load behind an early return, a branch or the test of a store's mask, makes it conditional if only one
    side of a selection needs it, and merges accesses in unrolled loops. If addresses or predicates are unknown in the
    SASS, the counts of loads become bounds.

    Args:
        executions: of the launch; None if they are unknown. Then the counts stay the same.
    """
    if executions is None:
        return counts
    code = parse_sass(capture.read_code(launch.kernel, "sass"))
    lines = [
        line
        for line in _find_accesses(code, counts, executions.times)
        if executions.uncertain.isdisjoint(line.numbers) and _may_differ(line, executions.times[0])
    ]
    if not lines:
        return counts
    suspected = [number for line in lines for number in line.numbers]
    try:
        counted = execute(code, make_launch(capture, launch, counts), suspected)
    except UnsupportedOperation:
        counted = replace(executions, requests={}, refused=dict.fromkeys(suspected, ""))
    corrected = dict[int, OperationCounts]()
    for line in lines:
        correct = _correct_known(line, counted) or _limit(line)
        corrected |= {id(op): new for op, new in zip(line.ops, correct, strict=True)}
    operations = tuple(corrected.get(id(op), op) for op in counts.operations)
    return replace(counts, operations=operations)


def _find_accesses(
    code: Sequence[Instruction], counts: LaunchCounts, times: np.ndarray
) -> Iterator[_LineAccesses]:
    """Yield the loads or stores of each line whose counts are exact, or bounds that the SASS may resolve."""
    numbers = defaultdict[Site, list[int]](list)
    for number, instruction in enumerate(code):
        if instruction.traits.gmem in ("load", "store") and instruction.location:
            numbers[instruction.traits.gmem, instruction.source].append(number)
    groups = defaultdict[Site, list[OperationCounts]](list)
    for op in counts.operations:
        groups[op.op, op.source].append(op)
    for site, ops in groups.items():
        if (
            site in numbers
            and all(op.instruction and not op.instruction.swaps for op in ops)
            and all(op.tally.refused in ("", MOVED.text, UNROLLED.text) for op in ops)
        ):
            own = numbers[site]
            is_conditional = any(code[number].predicate for number in own)
            yield _LineAccesses(ops, own, times[own], is_conditional)


def _may_differ(line: _LineAccesses, warps: int) -> bool:
    """Return whether the SASS may execute accesses more or less often.

    Args:
        warps: of the launch. All of them execute the first instruction once.
    """
    if any(op.tally.refused for op in line.ops):
        return True
    if not line.is_conditional:
        return line.executed != line.requested
    if line.ops[0].op == "store":
        return line.executed < line.requested
    return line.times.min() < warps or not all(op.is_masked for op in line.ops)


def _correct_known(line: _LineAccesses, counted: Executions) -> Sequence[OperationCounts]:
    """Return the operations of a source line with the costs of their instructions; () if those are unknown."""
    first, *copies = line.ops
    assert first.instruction
    places = {(op.tensors, op.width_bytes) for op in line.ops}
    # ptxas assigns some instructions to a neighbouring line.
    alive = sum(int(op.tally.issued.sum()) for op in line.ops)
    is_whole = len(line.numbers) % max(1, alive) == 0 or first.tally.refused == UNROLLED.text
    if len(places) > 1 or not is_whole:
        return ()
    zero = np.zeros(len(RequestCosts._fields), np.int64)
    is_number = first.instruction.layout is None
    if counted.refused.keys().isdisjoint(line.numbers):
        costs = sum((counted.requests.get(number, zero) for number in line.numbers), zero)
        requests = int(costs[0])
    elif line.is_conditional or not is_number:
        return ()
    else:
        requests = line.executed
    if is_number:  # all lanes want the same bytes
        one = RequestCosts(1, 1, 1, 1, first.width_bytes, loaded=1)
        costs = np.array(one) * requests
    if tuple(costs[:2]) == (line.requested, sum(op.sectors for op in line.ops)):
        return [_confirm(op) for op in line.ops]
    return [_set_costs(first, costs), *(_set_costs(op, zero) for op in copies)]


def _limit(line: _LineAccesses) -> Sequence[OperationCounts]:
    """Return the operations of a source line as bounds if the SASS executes them more or less often."""
    ops = line.ops
    is_upper_bound = line.executed <= line.requested
    if line.is_conditional and not is_upper_bound:
        return ops
    text = f"The SASS executes this line {line.executed:,} times, {line.requested:,} expected."
    why = f"{text} The count is {'an upper' if is_upper_bound else 'a lower'} bound."
    if is_upper_bound and ops[0].op == "load":
        why = MOVED.text
    bounds = (replace(op.tally, refused=why, is_upper_bound=is_upper_bound) for op in ops)
    return [
        op if op.tally.refused else replace(op, tally=tally)
        for op, tally in zip(ops, bounds, strict=True)
    ]


def _confirm(op: OperationCounts) -> OperationCounts:
    return replace(op, tally=replace(op.tally, refused="", doubt="", is_upper_bound=False))


def _set_costs(op: OperationCounts, costs: np.ndarray) -> OperationCounts:
    """Set the costs of an access. The addresses of a block are no example, because not all warps load their part."""
    tally = replace(_confirm(op).tally, counts=costs, example=None)
    bytes_moved = min(tally.touches.bytes, float(RequestCosts(*costs).sectors * SECTOR_BYTES))
    touches = replace(tally.touches, bytes=bytes_moved) if bytes_moved else Touches()
    return replace(op, tally=replace(tally, touches=touches))
