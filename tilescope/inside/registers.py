"""Registers that are live along the SASS, and the instructions that spill them, by source line."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import lru_cache

from tilescope.evaluate.sectors import LANES
from tilescope.inside.report import HeldRegisters, LineRegisters, LineSpills
from tilescope.sass.instructions import Instruction, parse_sass
from tilescope.sass.registers import Accesses, analyze, is_call, list_registers

# The GPU reserves two registers of each thread, and a thread has at least 16.
_RESERVED = 2
_FEWEST = 16


@lru_cache(maxsize=8)
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
