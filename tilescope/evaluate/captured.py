"""Count the operations of captured launches.

ptxas merges, drops, copies and moves accesses. The counts of lines whose SASS differs from the counted instructions are
therefore bounds.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tilescope.captures.content import Argument, CapturedLaunch, Tensor
from tilescope.captures.listings import UnsupportedOperation, isolate, locate_lines
from tilescope.captures.reader import BaseCapture, Build, UnreadableCapture
from tilescope.declare.gpus import TENSOR_COLUMNS
from tilescope.evaluate.counts import RETRIES, LaunchCounts, OperationCounts, Tally, Touches
from tilescope.evaluate.evaluator import Evaluator
from tilescope.evaluate.global_memory import STORAGE_STEP, Descriptor, GlobalMemory, Storage
from tilescope.evaluate.instructions import MemoryInstruction
from tilescope.evaluate.matching import (
    Instructions,
    counter_of,
    find_instructions,
    find_opcodes,
    read_instructions,
)
from tilescope.evaluate.sectors import RequestCosts
from tilescope.sass.instructions import Instruction, parse_sass
from tilescope.ttgir.parser import (
    LOOPS,
    MEMORY_OPS,
    POINTER_OPS,
    Op,
    Region,
    Site,
    Source,
    memory_ops,
    parse_ttgir,
)

# Maximum number of programs of a launch.
_MOST_PROGRAMS = 1 << 26
# The programs that a GPU allows along each axis (CUDA C++ Programming Guide 13.0, "Compute Capabilities").
_MOST_ALONG = ((1 << 31) - 1, 65_535, 65_535)
# Number of programs at a time whose addresses are compared with one another.
_FIRST_PROGRAMS = 8
_ADDITIONS = ("arith.addf", "arith.subf", "math.fma")
_ADDITION = re.compile(r"\b(add|sub|fma)(\.rn)?(\.ftz)?\.f32\b")

_NOT_RUN = "Accesses depend on values from an earlier launch, which did not run. Use --values to interpret it first."


class Mismatch(NamedTuple):
    """A line whose compiled instructions differ from the counted ones.

    Attributes:
        text: why its count is a bound; "" if the compiled code has no instruction for the line.
        is_upper_bound: whether it is an upper bound, not a lower one.
    """

    text: str
    is_upper_bound: bool


MOVED = Mismatch("The compiler moved this load behind a branch. The count is an upper bound.", True)
UNROLLED = Mismatch(
    "The compiler unrolled this loop and may merge accesses across iterations. The count is an upper bound.",
    True,
)

NO_CODE = "The compiler emits no code for a launch that needs too much tensor memory."


@isolate(lambda why, *_: LaunchCounts((), why))
def count_launch(
    capture: BaseCapture,
    launch: CapturedLaunch,
    is_textbook: bool = False,
    build: Build | None = None,
) -> LaunchCounts:
    """Count a launch's requests.

    Args:
        is_textbook: count as in the textbook: lane i takes element i of the block, row by row.
        build: how the kernel is compiled; None for the captured code.
    """
    if why := capture.content.not_modelled:
        return LaunchCounts((), why)
    build = build or capture.build(launch.kernel)
    kernel, codes = build
    if kernel.tensor_columns > TENSOR_COLUMNS:
        return LaunchCounts((), refused=NO_CODE)
    instructions, evaluator = make_evaluator(capture, launch, build, is_textbook)
    evaluator.run()
    body = evaluator.body
    memory = evaluator.memory
    for op, instruction in instructions.items():
        tally = memory.tallies[op]
        if instruction is not memory.instructions[op] and tally.executions:
            tally.refused = tally.refused or str(instruction)
            tally.doubt = tally.refused
    mismatches = {} if is_textbook else _find_mismatches(instructions, evaluator, codes)
    place = kernel.file, kernel.line
    operations = []
    for op in memory_ops(body):
        # The SASS may test the thread, too, before it loads a number.
        if op in evaluator.slice.sunk and (evaluator.slice.sunk[op] is None or not op.shape):
            mismatches.setdefault(op.site, MOVED)
        tally = memory.tallies[op]
        _apply(mismatches.get(op.site), tally)
        counts = _describe(op, instructions[op], launch, evaluator, place)
        if counts.instruction and counts.instruction.swaps:
            costs = RequestCosts(*tally.counts)
            load = replace(tally, counts=np.array(costs._replace(sectors=costs.loaded)))
            operations.append(replace(counts, op="load", counter="ld", tally=load))
            tally.refused = tally.refused or RETRIES
        operations.append(counts)
    for kind, source in mismatches.keys() - {op.site for op in memory_ops(body)}:
        tally = Tally(refused=mismatches[kind, source].text)
        counter = next(access.counter for access in MEMORY_OPS.values() if access.kind == kind)
        operations.append(OperationCounts(kind, counter, source or place, (), None, tally))
    return LaunchCounts(
        tuple(operations),
        work=memory.work,
        overflows=tuple(evaluator.overflows.by_line.values()),
    )


def make_evaluator(
    capture: BaseCapture,
    launch: CapturedLaunch,
    build: Build,
    is_textbook: bool = False,
) -> tuple[Instructions, Evaluator]:
    """Prepare the evaluation of a launch. Of stores that the compiler merged, only the traffic is counted.

    Returns:
        The instruction of each operation, or why it is unknown, and the evaluator.
    """
    kernel, codes = build
    if kernel.num_ctas > 1:
        raise UnsupportedOperation(
            "Launches with num_ctas > 1 are not evaluated. On a GPU, --count counts them."
        )
    _check_grid(launch.grid)
    body = parse_ttgir(codes["ttgir"])
    if len(launch.arguments) != len(body.arguments):
        raise UnsupportedOperation("The launch's arguments do not match the compiled function's.")
    if not all(layout.fits for layout in kernel.layouts if layout):
        raise UnreadableCapture(f"A layout of {kernel.name} is damaged.")
    instructions = read_instructions(body, kernel.layouts, codes["ptx"], codes["sass"])
    if is_textbook:
        instructions = {
            op: i if isinstance(i, str) else i.textbook for op, i in instructions.items()
        }
    merged = _find_merged_stores(instructions)
    memory = GlobalMemory(
        body,
        read_storages(capture, launch),
        {**instructions, **merged},
        kernel.num_warps,
        math.prod(launch.grid),
        capture.content.gpu["sms"],
    )
    arguments = [read_argument(capture, argument) for argument in launch.arguments]
    return instructions, Evaluator(body, arguments, launch.grid, memory, load_depths(codes["sass"]))


def _check_grid(grid: Sequence[int]) -> None:
    count = math.prod(grid)
    if count > _MOST_PROGRAMS:
        raise UnsupportedOperation(
            f"The launch has {count:,} programs; at most {_MOST_PROGRAMS:,} are evaluated. Use larger blocks."
        )
    for axis, size, most in zip("xyz", grid, _MOST_ALONG, strict=True):
        if size > most:
            raise UnsupportedOperation(
                f"The grid has {size:,} programs along {axis}; a GPU allows {most:,}. Use another axis."
            )


def _apply(mismatch: Mismatch | None, tally: Tally) -> None:
    """Turn the counts into bounds if the compiled code differs, or may differ, from what was counted."""
    if mismatch and mismatch.is_upper_bound:
        tally.doubt = tally.doubt or mismatch.text
    elif mismatch:
        tally.refused = tally.refused or mismatch.text
    if mismatch and not mismatch.text:  # the compiler found that nothing needs it
        tally.counts[:] = 0
        tally.elements = 0
        tally.touches = Touches()
        tally.is_upper_bound = True
    if tally.doubt and tally.refused:  # the counts bound nothing
        tally.counts[:] = 0
    elif tally.doubt:
        tally.refused = tally.doubt
        tally.is_upper_bound = True


def _describe(
    op: Op,
    instruction: MemoryInstruction | str,
    launch: CapturedLaunch,
    evaluator: Evaluator,
    place: tuple[str, int],
) -> OperationCounts:
    """Return an evaluated operation, with the arguments and the loads that it depends on.

    Args:
        place: the kernel's file and line, for operations without their own.
    """
    body = evaluator.body
    tally = evaluator.memory.tallies[op]
    has_lanes = op.name in POINTER_OPS
    compiled = instruction if isinstance(instruction, MemoryInstruction) and has_lanes else None
    owners = [
        (tensor.storage, argument.name)
        for argument in launch.arguments
        if (tensor := argument.own_tensor) and tensor.storage in tally.storages
    ]
    pointer, mask = (
        evaluator.slice.reach(roots, without=evaluator.slice.quotients)
        for roots in (op.operands[:1], filter(None, [op.mask]))
    )
    arguments = list(zip(body.arguments, launch.arguments, strict=True))
    loads = (each for each in body.walk() if each.name == "tt.load" and each.source)
    index_lines = [load.place[1] for load in loads if load.results[0] in pointer]
    loops = (each for each in body.walk() if each.name in LOOPS)
    return OperationCounts(
        op=op.traits.kind,
        counter=counter_of(op, compiled, body) if compiled else op.traits.counter,
        source=op.source or place,
        tensors=tuple(name for _, name in sorted(owners, key=lambda owner: owner[0])),
        instruction=compiled,
        tally=tally,
        addressed_by=frozenset(argument.name for name, argument in arguments if name in pointer),
        masked_by=frozenset(argument.name for name, argument in arguments if name in mask),
        index_line=index_lines[-1] if index_lines else 0,  # of a chain of loads, the last
        loop=next((loop.line for loop in loops if op in memory_ops(loop)), 0),  # the outermost
        is_masked=bool(op.mask),
    )


def _find_merged_stores(
    instructions: Instructions,
) -> dict[Op, MemoryInstruction]:
    """Return stores without an instruction, each with the instruction of a store of the same type.

    The compiler merges stores in different branches.
    """
    stores = {op: each for op, each in instructions.items() if op.name == "tt.store"}
    known = {op.type: each for op, each in stores.items() if not isinstance(each, str)}
    return {
        op: known[op.type]
        for op, each in stores.items()
        if isinstance(each, str) and op.type in known
    }


def read_storages(capture: BaseCapture, launch: CapturedLaunch) -> list[Storage]:
    """Return the memory that a launch's arguments point to."""
    storages = [
        Storage(storage.bytes, find_storage(capture, number))
        for number, storage in enumerate(capture.content.storages)
    ]
    for tensor in filter(None, (argument.own_tensor for argument in launch.arguments)):
        if not tensor.is_known:
            storages[tensor.storage] = replace(storages[tensor.storage], why_unknown=_NOT_RUN)
        elif tensor.array is not None:
            storages[tensor.storage].contents[tensor.element_bytes] = partial(
                _read_array, capture, tensor.array
            )
    return storages


def _read_array(capture: BaseCapture, number: int) -> np.ndarray:
    try:
        return capture.read_array(number)
    except UnreadableCapture as error:
        raise UnsupportedOperation(str(error)) from error


def find_storage(capture: BaseCapture, number: int) -> int:
    """Return the address of a storage's first byte: see `STORAGE_STEP`."""
    return (number + 1) * STORAGE_STEP + capture.content.storages[number].address_bytes


def find_start(capture: BaseCapture, tensor: Tensor) -> int:
    """Return the address of a tensor's first byte."""
    return find_storage(capture, tensor.storage) + tensor.offset_bytes


def read_argument(capture: BaseCapture, argument: Argument) -> int | float | bool | Descriptor:
    """Return an argument's value; for a tensor, its address."""
    if (tensor := argument.own_tensor) is None:
        return argument.number
    address = find_start(capture, tensor)
    if (descriptor := argument.descriptor) is None:
        return address
    return Descriptor(
        tensor.element_bytes, np.array([[address, *descriptor.shape, *descriptor.strides]])
    )


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


def _find_mismatches(
    instructions: Instructions,
    evaluator: Evaluator,
    codes: Mapping[str, str],
) -> dict[Site, Mismatch]:
    """Find the source lines whose PTX or SASS has other instructions than those that were counted."""
    sass = codes["sass"]
    known = {(op.traits.kind, op.location) for op in instructions}
    text = "Inline assembly or a mathematical function accesses memory here, which is not counted."
    mismatches: dict[Site, Mismatch] = {
        (kind, location[0][:2] if location else ()): Mismatch(text, False)
        for kind, location in find_instructions(codes["ptx"]).keys() - known
    }
    tallies = evaluator.memory.tallies
    sites = _count_sites(instructions, tallies, sass)
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
    for site in _merged_in_unrolled_loops(evaluator.body, tallies, sites, codes):
        mismatches.setdefault(site, UNROLLED)
    return mismatches


def _count_sites(
    instructions: Instructions,
    tallies: Mapping[Op, Tally],
    sass: str,
) -> dict[Site, _SiteCounts]:
    sites: dict[Site, _SiteCounts] = {}
    for op, instruction in instructions.items():
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
    codes: Mapping[str, str],
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
            for line, at in locate_lines(codes["ptx"], "ptx")
            if at and at[0][:2] in lines
        )
        in_sass = sum(
            each.traits.semantics == "float addition" and each.source in lines
            for each in parse_sass(codes["sass"])
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
    code = parse_sass(sass)
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
