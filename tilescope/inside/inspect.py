"""Prepare a captured launch for execution, and inspect its programs, with their registers and spills by source line."""

import functools
import re
import struct
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from tilescope.captures.listings import UnsupportedOperation, isolate
from tilescope.captures.reader import BaseCapture, Build, CapturedLaunch
from tilescope.evaluate.captured import read_argument, read_storages
from tilescope.evaluate.counts import LaunchCounts
from tilescope.evaluate.global_memory import Descriptor, Storage, storage_number
from tilescope.evaluate.sectors import LANES
from tilescope.inside.execution import Executions, LaunchInputs, execute
from tilescope.inside.layouts import Encodings, read_conversions, read_layouts
from tilescope.inside.pipeline import read_pipelines
from tilescope.inside.report import HeldRegisters, Inside, LineRegisters, LineSpills
from tilescope.inside.shared import (
    Callers,
    find_callers,
    map_shared_memory,
    sum_matrix_wavefronts,
    sum_shared,
)
from tilescope.sass.instructions import Instruction, parse_sass, read_table
from tilescope.sass.registers import Accesses, analyze, is_call, list_registers
from tilescope.ttgir.parser import parse_ttgir

# The inspection of a launch's programs, and its executions if they are known.
Inspection = tuple[Inside, Executions | None]

# Offsets in the constant bank, from a compute capability on: the numbers of threads and of programs along x, y and z,
# the size of local memory, and the arguments.
_LAUNCH_AT = (
    (100, 0x360, 0x370, 0x37C, 0x380),
    (90, 0, 12, 0x28, 0x210),
    (70, 0, 12, 0x28, 0x160),
)
# The GPU reserves two registers of each thread, and a thread has at least 16.
_RESERVED = 2
_FEWEST = 16

_TARGET = re.compile(r"^\.target sm_(\d+)", re.MULTILINE)
_PARAMETER = re.compile(r"^\s*\.param\s+(?:\.align (\d+) )?\.(\w)(\d+).*?(?:\[(\d+)\])?,?$")


@isolate(lambda why, *_: (Inside(unread=why, not_executed=why), None))
def inspect(capture: BaseCapture, launch: CapturedLaunch, counts: LaunchCounts) -> Inspection:
    """Inspect a launch's programs. Return the result, and the launch's executions if they are known.

    Args:
        counts: the launch's requests to global memory.
    """
    kernel, codes = capture.build(launch.kernel)
    is_gluon = "gluon.jit" in kernel.source
    num_stages = None if is_gluon else launch.config["num_stages"]
    inside = inspect_code(codes["ttgir"], codes["ptx"], codes["sass"], num_stages)
    inside = replace(inside, shared_map=map_shared_memory(capture, launch))
    return _execute(capture, launch, counts, inside)


@isolate(lambda why, *args: (replace(args[-1], not_executed=why), None))
def _execute(
    capture: BaseCapture, launch: CapturedLaunch, counts: LaunchCounts, inside: Inside
) -> Inspection:
    _, codes = capture.build(launch.kernel)
    executions = execute(parse_sass(codes["sass"]), make_launch(capture, launch, counts))
    # Since compute capability 9.0, the first KiB of a program's shared memory is reserved for the system.
    start_bytes = 1024 if capture.content.capability >= 90 else 0
    inside = add_executions(inside, codes["sass"], executions, counts, start_bytes, codes["ttgir"])
    return inside, executions


def join_launches(first: Inspection, last: Inspection) -> Inspection:
    """Merge the inspections of two launches. The memory map and the executions are those of the last one."""
    before, after = first[0], last[0]
    executed = before.instructions_executed, after.instructions_executed
    lists = {
        name: value + getattr(after, name)
        for name, value in vars(before).items()
        if isinstance(value, tuple) and name not in ("range_us", "changes")
    }
    joined = replace(
        after,
        **lists,
        instructions_executed=None if None in executed else sum(filter(None, executed)),
        not_executed=after.not_executed or before.not_executed,
        unread=after.unread or before.unread,
    )
    return _add_times(before, joined), last[1]


def _add_times(before: Inside, after: Inside) -> Inside:
    if not before.range_us or not after.range_us:
        why = before.not_predicted or after.not_predicted
        return replace(
            after,
            predicted_us=None,
            predicted_warm_us=None,
            range_us=None,
            not_predicted=why,
        )
    shortest, longest = sorted((before, after), key=lambda inside: inside.predicted_us or 0.0)
    rest_us = shortest.predicted_us or 0.0
    resources = {
        name: time_us + before.by_resource_us[name]
        for name, time_us in after.by_resource_us.items()
    }
    low, high = map(sum, zip(before.range_us, after.range_us, strict=True))
    return replace(
        after,
        predicted_us=sum(filter(None, (before.predicted_us, after.predicted_us))),
        predicted_warm_us=sum(filter(None, (before.predicted_warm_us, after.predicted_warm_us))),
        range_us=(low, high),
        bound_by=longest.bound_by,
        changes=tuple(
            replace(each, predicted_us=each.predicted_us + rest_us) for each in longest.changes
        ),
        by_resource_us=resources,
    )


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
    callers: Callers = {}
    with suppress(UnsupportedOperation):
        callers = find_callers(parse_ttgir(ttgir).walk())
    return replace(
        inside,
        shared=sum_shared(code, executions, counts, buffers, start_bytes, callers),
        instructions_executed=None if executions.uncertain else int(executions.times.sum()),
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
        registers_by_line=by_line,
        registers_at_peak=at_peak,
        spills_by_line=count_spills(parse_sass(sass)),
    )
    try:
        body = parse_ttgir(ttgir)
        encodings = Encodings(ttgir)
        return replace(
            inside,
            layouts=read_layouts(body, encodings),
            conversions=read_conversions(body, encodings),
            pipelines=read_pipelines(body, ttgir, ptx, num_stages),
        )
    except UnsupportedOperation as error:
        return replace(inside, unread=str(error))


def make_launch(
    capture: BaseCapture,
    launch: CapturedLaunch,
    counts: LaunchCounts,
    build: Build | None = None,
) -> LaunchInputs:
    """Return a launch for `execute`.

    Args:
        counts: the launch's requests to global memory.
        build: the compiled kernel, if it is not the captured one.
    """
    kernel, codes = build or capture.build(launch.kernel)
    (target,) = _TARGET.findall(codes["ptx"])
    threads_at, programs_at, local_at, start = next(
        places for capability, *places in _LAUNCH_AT if int(target) >= capability
    )
    arguments = [read_argument(capture, argument) for argument in launch.arguments]
    words = _place_arguments(codes["ptx"], start, arguments)
    threads = LANES * kernel.num_warps
    for at, numbers in ((threads_at, (threads, 1, 1)), (programs_at, launch.grid)):
        words |= {at + 4 * axis: number for axis, number in enumerate(numbers)}
    words[local_at] = 0
    memory = _Memory(read_storages(capture, launch), counts)
    return LaunchInputs(
        launch.grid,
        threads,
        words.get,
        memory.load,
        read_table(codes["sass"]),
        memory.find_stored,
    )


class _Memory:
    """The known values in global memory."""

    def __init__(self, storages: Sequence[Storage], counts: LaunchCounts) -> None:
        self._storages = storages
        self._read = functools.cache(self._read_bytes)
        self._stored = defaultdict[tuple[str, int], set[int]](set)
        all_storages = {*range(len(storages))}
        for op in counts.operations:
            if op.counter not in ("ld", "tma_ld"):
                is_unknown = op.tally.refused and not op.tally.storages
                self._stored[op.source] |= all_storages if is_unknown else op.tally.storages

    def find_stored(self, source: tuple[str, int]) -> set[int]:
        """Return the storages to which a source line stores; those of all lines if it is unknown."""
        if source in self._stored:
            return self._stored[source]
        return set[int]().union(*self._stored.values())

    def load(
        self, address: np.ndarray, width: int, stored: Collection[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the elements of `width` bytes at addresses, and where they are known.

        Args:
            stored: the storages whose values have changed.
        """
        values = np.zeros(address.shape, np.int64)
        known = np.zeros(address.shape, bool)
        numbers = storage_number(address)
        for number in np.unique(numbers).tolist():
            if not 0 <= number < len(self._storages) or number in stored:
                continue
            contents = self._read(number)
            place = address - self._storages[number].start
            inside = (numbers == number) & (place >= 0) & (place + width <= len(contents))
            for byte in range(width):
                values[inside] |= contents[place[inside] + byte].astype(np.int64) << 8 * byte
            known |= inside
        return values, known

    def _read_bytes(self, number: int) -> np.ndarray:
        for element_bytes, read in self._storages[number].contents.items():
            with suppress(UnsupportedOperation):  # there is no copy of the values
                contents = read()
                if contents.itemsize == element_bytes:  # a copy of bfloat16 is wider
                    return contents.view(np.uint8)
        return np.zeros(0, np.uint8)


def _place_arguments(
    ptx: str, start: int, values: Sequence[int | float | bool | Descriptor]
) -> dict[int, int]:
    """Return the words of the arguments by their offset in the constant bank."""
    declaration = ptx.split(".entry", 1)[1].split("{", 1)[0]
    parameters = filter(None, map(_PARAMETER.match, declaration.splitlines()))
    words = {}
    at = start
    for match, value in zip(parameters, values, strict=False):  # Triton adds scratch memory
        align, kind, bits, count = match.groups()
        size = int(bits) // 8 * int(count or 1)
        step = int(align) if align else size
        at = -(-at // step) * step
        if not isinstance(value, Descriptor):
            if kind == "f":
                data = struct.pack("<d" if size == 8 else "<f", value)
            else:
                data = (int(value) & (1 << 8 * size) - 1).to_bytes(size, "little")
            for place in range(0, size, 4):
                words[at + place] = int.from_bytes(data[place : place + 4], "little")
        at += size
    return words


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
