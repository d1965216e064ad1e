"""Count the operations of captured launches."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from tilescope.captures.listings import UnsupportedOperation, isolate
from tilescope.captures.reader import (
    Argument,
    BaseCapture,
    Build,
    CapturedLaunch,
    Tensor,
    UnreadableCapture,
)
from tilescope.evaluate.assembly import Mismatch, find_mismatches, load_depths
from tilescope.evaluate.counts import RETRIES, LaunchCounts, OperationCounts, Tally
from tilescope.evaluate.evaluator import Evaluator
from tilescope.evaluate.global_memory import STORAGE_STEP, Descriptor, GlobalMemory, Storage
from tilescope.evaluate.instructions import Instruction
from tilescope.evaluate.matching import counter_of, read_instructions
from tilescope.evaluate.sectors import RequestCosts
from tilescope.evaluate.touches import Touches
from tilescope.ttgir.operations import LOOPS, MEMORY_OPS, POINTER_OPS
from tilescope.ttgir.parser import Op, memory_ops, parse

_NOT_RUN = "Accesses depend on values from an earlier launch, which did not run. Use --values to interpret it first."
_MOVED = Mismatch(
    "The compiler moved this load behind a branch. The count is an upper bound.", True
)


@isolate(lambda why, *_: LaunchCounts((), why))
def count_launch(
    capture: BaseCapture,
    launch: CapturedLaunch,
    programs: np.ndarray | None = None,
    is_textbook: bool = False,
    build: Build | None = None,
) -> LaunchCounts:
    """Count a launch's requests.

    Args:
        programs: count only these programs.
        is_textbook: count as in the textbook: lane i takes element i of the block, row by row.
        build: how the kernel is compiled; None for the captured code.
    """
    build = build or capture.build(launch.kernel)
    kernel, codes = build
    instructions, evaluator = _evaluate(capture, launch, build, programs, is_textbook)
    body = evaluator.body
    memory = evaluator.memory
    mismatches = (
        {}
        if is_textbook
        else find_mismatches(body, instructions, memory.tallies, codes["ptx"], codes["sass"])
    )
    place = kernel.file, kernel.line
    operations = []
    for op in memory_ops(body):
        if evaluator.slice.sunk.get(op, op) is None:
            mismatches.setdefault(op.site, _MOVED)
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


def _evaluate(
    capture: BaseCapture,
    launch: CapturedLaunch,
    build: Build,
    programs: np.ndarray | None,
    is_textbook: bool,
) -> tuple[dict[Op, Instruction | str], Evaluator]:
    """Evaluate a launch. Of stores that the compiler merged, only the traffic is counted.

    Returns:
        The instruction of each operation, or why it is unknown, and the evaluator.
    """
    kernel, codes = build
    if kernel.num_ctas > 1:
        raise UnsupportedOperation(
            "Launches with num_ctas > 1 are not evaluated. On a GPU, --count counts them."
        )
    body = parse(codes["ttgir"])
    if len(launch.arguments) != len(body.arguments):
        raise UnsupportedOperation("The launch's arguments do not match the compiled function's.")
    layouts = capture.layouts(kernel)
    instructions = read_instructions(body, layouts, codes["ptx"], codes["sass"])
    if is_textbook:
        instructions = {
            op: i if isinstance(i, str) else i.textbook for op, i in instructions.items()
        }
    merged = _find_merged_stores(instructions)
    memory = GlobalMemory(
        body,
        read_storages(capture, launch),
        instructions | merged,
        kernel.num_warps,
        math.prod(launch.grid),
        capture.content.gpu["sms"],
    )
    arguments = [read_argument(capture, argument) for argument in launch.arguments]
    evaluator = Evaluator(
        body, arguments, launch.grid, memory, programs, load_depths(codes["sass"])
    )
    evaluator.run()
    for op in merged:
        tally = memory.tallies[op]
        if tally.executions:
            tally.refused = tally.refused or str(instructions[op])
            tally.doubt = tally.refused
    return instructions, evaluator


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
    instruction: Instruction | str,
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
    compiled = instruction if isinstance(instruction, Instruction) and has_lanes else None
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
    )


def _find_merged_stores(
    instructions: Mapping[Op, Instruction | str],
) -> dict[Op, Instruction]:
    """Return stores without an instruction, each with the instruction of a store of the same type.

    The compiler merges stores in different branches.
    """
    known = {
        op.type: instruction
        for op, instruction in instructions.items()
        if op.name == "tt.store" and isinstance(instruction, Instruction)
    }
    return {
        op: known[op.type]
        for op, instruction in instructions.items()
        if op.name == "tt.store" and isinstance(instruction, str) and op.type in known
    }


def read_storages(capture: BaseCapture, launch: CapturedLaunch) -> list[Storage]:
    """Return the memory that a launch's arguments point to. Storage number n starts at (n + 1) · STORAGE_STEP."""
    storages = [
        Storage(storage.bytes, storage.address_bytes) for storage in capture.content.storages
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


def find_start(capture: BaseCapture, tensor: Tensor) -> int:
    """Return the address of a tensor's first byte: see `STORAGE_STEP`."""
    storage = capture.content.storages[tensor.storage]
    return (tensor.storage + 1) * STORAGE_STEP + storage.address_bytes + tensor.offset_bytes


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
