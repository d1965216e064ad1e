"""Registers that are live along the SASS. After the call of a function, execution continues."""

from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from tilescope.sass.listing import Instruction, parse
from tilescope.sass.operands import find_accesses

_ALL = (1 << 256) - 1
_STACK_POINTER = 1 << 1


class Accesses(NamedTuple):
    """The registers of an instruction, as sets of bits.

    Attributes:
        reads: those that it reads in any case.
        sources: those that it reads if one of its results is live.
        is_conditional: whether a predicate may keep it from writing.
    """

    reads: int
    writes: int
    is_conditional: bool
    sources: int = 0


def find_live(
    accesses: Sequence[Accesses],
    following: Sequence[Sequence[int]],
    at_return: Mapping[int, int] = MappingProxyType({}),
) -> list[int]:
    """Return the registers that are live before each instruction: that it or later ones read before they are written.

    Args:
        following: the instructions that may follow each.
        at_return: registers that are read after the return of a function.
    """
    before = [0] * len(accesses)
    changed = True
    while changed:
        changed = False
        for number in range(len(accesses) - 1, -1, -1):
            reads, writes, is_conditional, sources = accesses[number]
            live = at_return.get(number, 0)
            for each in following[number]:
                live |= before[each]
            if live & writes:
                live = (live if is_conditional else live & ~writes) | sources
            live |= reads
            if live != before[number]:
                before[number] = live
                changed = True
    return before


def reach(start: int, follow: Callable[[int], list[int]], reached: set[int]) -> set[int]:
    """Add the start and all that it leads to, except through nodes that are already reached."""
    waiting = [start]
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += follow(node)
    return reached


@lru_cache(maxsize=8)
def analyze(sass: str) -> tuple[Sequence[Accesses], list[list[int]], list[int]]:
    """Return accesses, the instructions that may follow each, and the registers that are live at each.

    Live registers are those that an instruction reads or writes, or that later instructions read.
    A call reads and writes what its function reads and writes.
    """
    instructions = parse(sass)
    accesses = [Accesses(*find_accesses(each), bool(each.predicate)) for each in instructions]
    following = _find_following(instructions)
    calls = defaultdict[int, list[int]](list)
    for number, instruction in enumerate(instructions):
        if is_call(instruction) and instruction.target is not None:
            calls[instruction.target].append(number)
    starts = sorted(calls)
    returns = [number for number, each in enumerate(instructions) if each.traits.jump == "return"]
    for start in starts:
        reads = find_live(accesses, following)[start]
        kept = find_live(accesses, following, dict.fromkeys(returns, _ALL))[start]
        for call in calls[start]:
            accesses[call] = accesses[call]._replace(reads=reads, writes=_ALL & ~kept)
    before = find_live(accesses, following)
    if starts:
        # The registers that are live after each function's call, at the call where the most are.
        after = [
            max((before[call + 1] for call in calls[each]), key=int.bit_count) for each in starts
        ]
        at_return = {number: after[bisect(starts, number) - 1] for number in returns}
        before = find_live(accesses, following, at_return)
    live = [
        live | access.writes | _STACK_POINTER for live, access in zip(before, accesses, strict=True)
    ]
    return accesses, following, live


def _find_following(instructions: Sequence[Instruction]) -> list[list[int]]:
    """Return the instructions that may follow each. After a call, execution continues."""
    following = list[list[int]]()
    for number, instruction in enumerate(instructions):
        is_jump = instruction.traits.jump and not is_call(instruction)
        is_conditional = bool(instruction.predicate) or len(instruction.operands) > 1
        following.append([instruction.target] if is_jump and instruction.target is not None else [])
        if not is_jump or is_conditional:
            following[-1].append(number + 1)
    following[-1] = [number for number in following[-1] if number < len(instructions)]
    jumps = [number for number, each in enumerate(instructions) if each.traits.jump == "indexed"]
    for number in jumps:
        following[number] += _find_unreached(instructions, following)
    return following


def _find_unreached(
    instructions: Sequence[Instruction], following: Sequence[list[int]]
) -> list[int]:
    """Return where code begins that only indirect branches reach. The listing does not name their targets."""
    entries = [0, *(each.target for each in instructions if is_call(each) and each.target)]
    reached = set[int]()
    starts = []
    for start in (*entries, *range(len(instructions))):
        if start not in reached:
            starts.append(start)
            reach(start, following.__getitem__, reached)
    return [start for start in starts if start not in entries]


def is_call(instruction: Instruction) -> bool:
    """Return whether an instruction calls a function. A call of a label in the kernel is a jump."""
    return instruction.traits.jump == "call" and ".L_" not in instruction.operands[-1]
