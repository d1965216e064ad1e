"""Registers that are live along the SASS, and the instructions that spill them, by source line."""

import re
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

from tilescope.evaluate.sectors import LANES
from tilescope.inside.report import HeldRegisters, LineRegisters, LineSpills
from tilescope.sass.listing import Instruction, parse
from tilescope.sass.operands import find_accesses, list_registers

# The GPU reserves two registers of each thread, and a thread has at least 16.
_RESERVED = 2
_FEWEST = 16

_ALL = (1 << 256) - 1
_STACK_POINTER = 1 << 1
_SLOT = re.compile(r"\[R1(?:\+(0x[0-9a-f]+))?\]")
_JUMPS = frozenset(("BRA", "BRX", "CALL", "EXIT", "RET"))

# For each instruction, the registers that it reads and those that it writes, as sets of bits.
_Accesses = Sequence[tuple[int, int]]


@lru_cache(maxsize=8)
def measure_registers(
    sass: str,
) -> tuple[tuple[LineRegisters, ...], tuple[HeldRegisters, ...]]:
    """Return the registers of each source line, and those that are live at the instruction with the most.

    Both are sorted by the number of live registers, most first.
    """
    instructions = parse(sass)
    if not instructions:
        return (), ()
    accesses, following, live = _analyze(sass)
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
    return tuple(each.bit_count() for each in _analyze(sass)[2])


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
        stores = [number for number in numbers if instructions[number].name == "STL"]
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
    slots = dict[int, frozenset[int]]()
    for number, instruction in enumerate(instructions):
        if instruction.name in ("STL", "LDL"):
            slot = _SLOT.search(", ".join(instruction.operands))
            if slot:
                start = int(slot[1] or "0", 16)
                slots[number] = frozenset(range(start, start + instruction.lane_bytes))
    matching = {
        name: set[int]().union(*(slots[each] for each in slots if instructions[each].name == other))
        for name, other in (("STL", "LDL"), ("LDL", "STL"))
    }
    return [each for each in slots if slots[each] & matching[instructions[each].name]]


@lru_cache(maxsize=8)
def _analyze(sass: str) -> tuple[_Accesses, list[list[int]], list[int]]:
    """Return accesses, the instructions that may follow each, and the registers that are live at each.

    Live registers are those that an instruction reads or writes, or that later instructions read.
    A call reads and writes what its function reads and writes.
    """
    instructions = parse(sass)
    accesses = [find_accesses(each) for each in instructions]
    following = _find_following(instructions)
    calls = defaultdict[int, list[int]](list)
    for number, instruction in enumerate(instructions):
        if _is_call(instruction) and instruction.target is not None:
            calls[instruction.target].append(number)
    starts = sorted(calls)
    returns = [number for number, each in enumerate(instructions) if each.name == "RET"]
    for start in starts:
        reads = _find_read_later(instructions, accesses, following, {})[start]
        kept = _find_read_later(instructions, accesses, following, dict.fromkeys(returns, _ALL))[
            start
        ]
        for call in calls[start]:
            accesses[call] = (reads, _ALL & ~kept)
    before = _find_read_later(instructions, accesses, following, {})
    if starts:
        # The registers that are live after each function's call, at the call where the most are.
        after = [
            max((before[call + 1] for call in calls[each]), key=int.bit_count) for each in starts
        ]
        at_return = {number: after[bisect(starts, number) - 1] for number in returns}
        before = _find_read_later(instructions, accesses, following, at_return)
    live = [
        read_later | writes | _STACK_POINTER
        for read_later, (_, writes) in zip(before, accesses, strict=True)
    ]
    return accesses, following, live


def _find_read_later(
    instructions: Sequence[Instruction],
    accesses: _Accesses,
    following: Sequence[Sequence[int]],
    at_return: Mapping[int, int],
) -> list[int]:
    """Return for each instruction the registers that it or later ones read before they are written.

    Args:
        at_return: registers that are read after the return of a function.
    """
    before = [0] * len(instructions)
    changed = True
    while changed:
        changed = False
        for number in range(len(instructions) - 1, -1, -1):
            reads, writes = accesses[number]
            read_later = at_return.get(number, 0)
            for each in following[number]:
                read_later |= before[each]
            if not instructions[number].predicate:
                read_later &= ~writes
            read_later |= reads
            if read_later != before[number]:
                before[number] = read_later
                changed = True
    return before


def _find_following(instructions: Sequence[Instruction]) -> list[list[int]]:
    """Return the instructions that may follow each. After a call, execution continues."""
    following = list[list[int]]()
    for number, instruction in enumerate(instructions):
        is_jump = instruction.name in _JUMPS and not _is_call(instruction)
        is_conditional = bool(instruction.predicate) or len(instruction.operands) > 1
        following.append([instruction.target] if is_jump and instruction.target is not None else [])
        if not is_jump or is_conditional:
            following[-1].append(number + 1)
    following[-1] = [number for number in following[-1] if number < len(instructions)]
    jumps = [number for number, each in enumerate(instructions) if each.name == "BRX"]
    for number in jumps:
        following[number] += _find_unreached(instructions, following)
    return following


def _find_unreached(
    instructions: Sequence[Instruction], following: Sequence[Sequence[int]]
) -> list[int]:
    """Return where code begins that only indirect branches reach. The listing does not name their targets."""
    entries = [0, *(each.target for each in instructions if _is_call(each) and each.target)]
    reached = set[int]()
    starts = []
    for start in (*entries, *range(len(instructions))):
        if start not in reached:
            starts.append(start)
        waiting = [start]
        while waiting:
            number = waiting.pop()
            if number not in reached:
                reached.add(number)
                waiting += following[number]
    return [start for start in starts if start not in entries]


def _is_call(instruction: Instruction) -> bool:
    """Return whether an instruction calls a function. A call of a label in the kernel is a jump."""
    return instruction.name == "CALL" and ".L_" not in instruction.operands[-1]


def _find_writers(
    start: int,
    registers: int,
    instructions: Sequence[Instruction],
    accesses: _Accesses,
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
        if _is_call(instructions[number]) and target is not None:
            preceding[target].append(number)
    _, writes = accesses[start]
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
            _, writes = accesses[each]
            for register in list_registers(wanted & writes):
                writers[register] = max(each, writers.get(register, 0))
            is_conditional = bool(instructions[each].predicate)
            waiting.append((each, wanted if is_conditional else wanted & ~writes))
    return writers
