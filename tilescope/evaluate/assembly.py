"""Compare the SASS with the instructions that were counted, because ptxas merges, drops, copies and moves accesses."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tilescope.captures.listings import locate_lines
from tilescope.evaluate.counts import Tally
from tilescope.evaluate.instructions import Instruction
from tilescope.evaluate.matching import find_instructions, find_opcodes
from tilescope.sass.listing import Instruction as SassInstruction
from tilescope.sass.listing import parse
from tilescope.ttgir.operations import MEMORY_OPS
from tilescope.ttgir.parser import Op, Region, Site, Source, memory_ops

# Number of programs at a time whose addresses are compared with one another.
_FIRST_PROGRAMS = 8
_ADDITION = re.compile(r"\b(add|sub|fma)(\.rn)?(\.ftz)?\.f32\b")


class Mismatch(NamedTuple):
    """A line whose compiled instructions differ from the counted ones.

    Attributes:
        text: why its count is a bound; "" if the compiled code has no instruction for the line.
        is_upper_bound: whether it is an upper bound, not a lower one.
    """

    text: str
    is_upper_bound: bool


def find_mismatches(
    body: Region,
    instructions_of: Mapping[Op, Instruction | str],
    tallies: Mapping[Op, Tally],
    ptx: str,
    sass: str,
) -> dict[Site, Mismatch]:
    """Find the source lines whose PTX or SASS has other instructions than those that were counted.

    The number of a line's loads may be the counted number or a multiple of it, as in an unrolled loop. For other
    instructions, extra ones are harmless, and those that no lane of the launch executes may be missing.
    """
    expected = Counter[Site]()
    alive = Counter[Site]()
    present = Counter({site: len(opcodes) for site, opcodes in find_opcodes(sass).items()})
    units = defaultdict[Site, int](int)
    mismatches = {}
    for op in memory_ops(body):
        instruction = instructions_of[op]
        if not isinstance(instruction, str):
            expected[op.site] += instruction.kept
            units[op.site] = math.gcd(units[op.site], instruction.kept)
            # The lane swaps one word at a time
            expected["load", op.source] += instruction.swaps * instruction.count
            alive[op.site] += int(tallies[op].issued.sum())
    known = {(op.traits.kind, op.location) for op in memory_ops(body)}
    for kind, location in find_instructions(ptx).keys() - known:
        text = (
            "Inline assembly or a mathematical function accesses memory here, which is not counted."
        )
        mismatches[kind, location[0][:2] if location else ()] = Mismatch(text, False)
    for kind in {kind for kind, _ in (*expected, *present)} if present else ():
        sites = {site for site in (*expected, *present) if site[0] == kind}
        extra = {site: present[site] - expected[site] for site in sites}
        unlike = {site for site in sites if extra[site] and (extra[site] < 0 or kind == "load")}
        unlike -= {site for site in unlike if alive[site] <= present[site] < expected[site]}
        unlike -= {
            site
            for site in unlike
            if extra[site] > 0 and units[site] and extra[site] % units[site] == 0
        }
        absent = {site for site in unlike if not present[site]}
        # ptxas assigns some instructions to a neighbouring line.
        total = sum(extra[site] for site in unlike)
        if absent == unlike and max(extra.values()) <= 0:
            mismatches |= dict.fromkeys(absent, Mismatch("", True))
        elif total:
            bound = "a lower bound" if total > 0 else "an upper bound"
            for site in unlike:
                text = f"This line's {kind} instructions: {present[site]} in the SASS, {expected[site]} expected."
                mismatches.setdefault(site, Mismatch(f"{text} The count is {bound}.", total < 0))
    text = "The compiler unrolled this loop and may merge accesses across iterations. The count is an upper bound."
    for site in _merged_in_unrolled_loops(body, tallies, expected, present, ptx, sass):
        mismatches.setdefault(site, Mismatch(text, True))
    return mismatches


def _merged_in_unrolled_loops(
    body: Region,
    tallies: Mapping[Op, Tally],
    expected: Counter[Site],
    present: Counter[Site],
    ptx: str,
    sass: str,
) -> set[Site]:
    """Return the accesses in unrolled loops of which the SASS has fewer copies than of the loop's other instructions.

    ptxas merges accesses of different iterations. Additions show how many copies of a body there are. Without them,
    accesses that repeat an address may be merged.
    """
    loops_of = defaultdict[Source, set[Op | None]](set)
    loops_at = defaultdict[Site, set[Op | None]](set)
    starts = defaultdict[tuple[Op | None, str], list[tuple[int, int]]](list)
    for op, loop in body.walk_loops():
        if op.name in ("arith.addf", "arith.subf", "math.fma"):
            loops_of[op.source].add(loop)
        if op.name in MEMORY_OPS:
            loops_at[op.site].add(loop)
        if op.name in ("tt.load", "tt.store"):
            for programs, addresses in tallies[op].starts:
                early = slice(_FIRST_PROGRAMS)
                starts[loop, op.name] += zip(
                    programs[early].tolist(), addresses[early].tolist(), strict=True
                )
    copies: dict[Op, list[tuple[float, Site]]] = defaultdict(list)
    for site in expected:
        (loop, *others) = loops_at[site] or {None}
        if loop and not others and expected[site]:
            copies[loop].append((present[site] / expected[site], site))
    merged = set()
    for loop, ratios in copies.items():
        if max(ratios)[0] > 1:
            lines = {source for source, loops in loops_of.items() if loops == {loop}}
            in_ptx = sum(
                bool(_ADDITION.search(line))
                for line, at in locate_lines(ptx, "ptx")
                if at and at[0][:2] in lines
            )
            in_sass = sum(
                each.traits.semantics == "float addition" and each.source in lines
                for each in parse(sass)
            )
            most = max(max(ratios)[0], round(in_sass / in_ptx) if in_ptx else 0)
            for kind in ("load", "store"):
                pairs = starts[loop, f"tt.{kind}"]
                is_unclear = not in_ptx and len(set(pairs)) < len(pairs)
                merged |= {
                    site
                    for ratio, site in ratios
                    if site[0] == kind and (ratio < most or is_unclear)
                }
    return merged


def load_depths(sass: str) -> dict[Source, int]:
    """Return, for each source line with accesses, the smallest number of branches that skip one of them."""
    code = parse(sass)
    depths = dict[Source, int]()
    for instruction, depth in zip(code, _skip_depths(code), strict=True):
        if instruction.traits.gmem in ("load", "store") and instruction.location:
            source = instruction.source
            depths[source] = min(depth, depths.get(source, depth))
    return depths


def _skip_depths(code: Sequence[SassInstruction]) -> list[int]:
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
