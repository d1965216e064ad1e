"""Compare the SASS with the instructions that were counted, because ptxas merges, drops, copies and moves accesses."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tilescope.captures.listings import locate_lines
from tilescope.evaluate.counts import Tally
from tilescope.evaluate.instructions import MemoryInstruction
from tilescope.evaluate.matching import find_instructions, find_opcodes
from tilescope.sass.listing import Instruction, parse
from tilescope.ttgir.operations import MEMORY_OPS
from tilescope.ttgir.parser import Op, Region, Site, Source, memory_ops

# Number of programs at a time whose addresses are compared with one another.
_FIRST_PROGRAMS = 8
_ADDITIONS = ("arith.addf", "arith.subf", "math.fma")
_ADDITION = re.compile(r"\b(add|sub|fma)(\.rn)?(\.ftz)?\.f32\b")


class Mismatch(NamedTuple):
    """A line whose compiled instructions differ from the counted ones.

    Attributes:
        text: why its count is a bound; "" if the compiled code has no instruction for the line.
        is_upper_bound: whether it is an upper bound, not a lower one.
    """

    text: str
    is_upper_bound: bool


@dataclass
class _SiteCounts:
    """The instructions of one kind on one source line.

    Attributes:
        expected: the instructions that were counted.
        alive: those of them that some lane of the launch executes.
        unit: divides the instructions of each operation.
        present: the instructions in the SASS.
    """

    kind: str
    expected: int = 0
    alive: int = 0
    unit: int = 0
    present: int = 0

    @property
    def extra(self) -> int:
        return self.present - self.expected

    @property
    def fits(self) -> bool:
        """Whether the counts are right.

        The number of loads may be a multiple, as in an unrolled loop. Further instructions of other kinds are
        harmless, and those that no lane executes may be missing.
        """
        if self.extra > 0:
            return self.kind != "load" or bool(self.unit and self.extra % self.unit == 0)
        return not self.extra or self.alive <= self.present


def find_mismatches(
    body: Region,
    instructions_of: Mapping[Op, MemoryInstruction | str],
    tallies: Mapping[Op, Tally],
    ptx: str,
    sass: str,
) -> dict[Site, Mismatch]:
    """Find the source lines whose PTX or SASS has other instructions than those that were counted."""
    known = {(op.traits.kind, op.location) for op in memory_ops(body)}
    text = "Inline assembly or a mathematical function accesses memory here, which is not counted."
    mismatches: dict[Site, Mismatch] = {
        (kind, location[0][:2] if location else ()): Mismatch(text, False)
        for kind, location in find_instructions(ptx).keys() - known
    }
    sites = _count_sites(body, instructions_of, tallies, sass)
    for kind in {kind for kind, _ in sites} if find_opcodes(sass) else ():
        own = {site: counts for site, counts in sites.items() if site[0] == kind}
        unlike = {site: counts for site, counts in own.items() if not counts.fits}
        # ptxas assigns some instructions to a neighbouring line.
        total = sum(counts.extra for counts in unlike.values())
        is_absent = not any(counts.present for counts in unlike.values())
        if is_absent and all(counts.extra <= 0 for counts in own.values()):
            mismatches |= dict.fromkeys(unlike, Mismatch("", True))
        elif total:
            bound = "a lower bound" if total > 0 else "an upper bound"
            for site, counts in unlike.items():
                text = f"This line's {kind} instructions: {counts.present} in the SASS, {counts.expected} expected."
                mismatches.setdefault(site, Mismatch(f"{text} The count is {bound}.", total < 0))
    text = "The compiler unrolled this loop and may merge accesses across iterations. The count is an upper bound."
    for site in _merged_in_unrolled_loops(body, tallies, sites, ptx, sass):
        mismatches.setdefault(site, Mismatch(text, True))
    return mismatches


def _count_sites(
    body: Region,
    instructions_of: Mapping[Op, MemoryInstruction | str],
    tallies: Mapping[Op, Tally],
    sass: str,
) -> dict[Site, _SiteCounts]:
    sites: dict[Site, _SiteCounts] = {}
    for op in memory_ops(body):
        instruction = instructions_of[op]
        if not isinstance(instruction, str):
            counts = sites.setdefault(op.site, _SiteCounts(op.site[0]))
            counts.expected += instruction.kept
            counts.unit = math.gcd(counts.unit, instruction.kept)
            counts.alive += int(tallies[op].issued.sum())
            if instruction.swaps:  # the lane swaps one word at a time
                loads = sites.setdefault(("load", op.source), _SiteCounts("load"))
                loads.expected += instruction.count
    for site, opcodes in find_opcodes(sass).items():
        sites.setdefault(site, _SiteCounts(site[0])).present = len(opcodes)
    return sites


def _merged_in_unrolled_loops(
    body: Region,
    tallies: Mapping[Op, Tally],
    sites: Mapping[Site, _SiteCounts],
    ptx: str,
    sass: str,
) -> set[Site]:
    """Return accesses that ptxas merged: in an unrolled loop, they appear less often than its other instructions.

    Additions show how many copies of a body there are. Without them, accesses that repeat an address may be merged.
    """
    ops = list(body.walk_loops())
    accesses = [(op.site, loop) for op, loop in ops if op.name in MEMORY_OPS]
    additions = [(op.source, loop) for op, loop in ops if op.name in _ADDITIONS]
    merged = set[Site]()
    for loop in {loop for _, loop in accesses if loop}:
        counted = ((site, sites[site]) for site in _only_in(loop, accesses) if site in sites)
        ratios = {site: own.present / own.expected for site, own in counted if own.expected}
        most = max(ratios.values(), default=0)
        if most <= 1:
            continue
        lines = _only_in(loop, additions)
        in_ptx = sum(
            bool(_ADDITION.search(line))
            for line, at in locate_lines(ptx, "ptx")
            if at and at[0][:2] in lines
        )
        in_sass = sum(
            each.traits.semantics == "float addition" and each.source in lines
            for each in parse(sass)
        )
        most = max(most, round(in_sass / in_ptx) if in_ptx else 0)
        for kind in ("load", "store"):
            starts = [
                start
                for op, parent in ops
                if parent is loop and op.traits.kind == kind
                for part in tallies[op].starts
                for start in zip(
                    *(column[:_FIRST_PROGRAMS].tolist() for column in part), strict=True
                )
            ]
            is_unclear = not in_ptx and len(set(starts)) < len(starts)
            merged |= {
                site
                for site, ratio in ratios.items()
                if site[0] == kind and (ratio < most or is_unclear)
            }
    return merged


def _only_in(loop: Op, places: Sequence[tuple[Any, Op | None]]) -> set[Any]:
    """Return the places of which all operations are directly in a loop."""
    inside = {place for place, parent in places if parent is loop}
    return inside - {place for place, parent in places if parent is not loop}


def load_depths(sass: str) -> dict[Source, int]:
    """Return, for each source line with accesses, the smallest number of branches that skip one of them."""
    code = parse(sass)
    depths = dict[Source, int]()
    for instruction, depth in zip(code, _skip_depths(code), strict=True):
        if instruction.traits.gmem in ("load", "store") and instruction.location:
            source = instruction.source
            depths[source] = min(depth, depths.get(source, depth))
    return depths


def _skip_depths(code: Sequence[Instruction]) -> list[int]:
    """Return for every instruction how many branches may skip it."""
    branches = list[tuple[int, int]]()
    exits = []
    for number, instruction in enumerate(code, 1):
        if instruction.traits.jump == "branch" and instruction.target is not None:
            branches.append((number, instruction.target))
        if instruction.traits.jump == "exit" and instruction.predicate:
            exits.append(number)
    # The code after a conditional exit is skipped, up to code that another branch reaches.
    branches += [
        (start, min((end for at, end in branches if at < start < end), default=len(code)))
        for start in exits
    ]
    depths = [0] * len(code)
    for start, end in branches:
        for skipped in range(start, end):
            depths[skipped] += 1
    return depths
