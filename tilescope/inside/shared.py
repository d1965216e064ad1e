"""Sum the accesses to shared memory by source line and opcode."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tilescope.captures.listings import find_user_place
from tilescope.evaluate.counts import LaunchCounts, OperationCounts
from tilescope.evaluate.sectors import LANES
from tilescope.inside.banks import BankAccess, Wavefronts, count_copy_wavefronts, count_wavefronts
from tilescope.inside.execution import Executions
from tilescope.inside.report import SharedAccess, SharedBuffer
from tilescope.sass.listing import Instruction
from tilescope.sass.registers import count_group_rows
from tilescope.ttgir.parser import Op

# The user's files and lines that call a line of Triton's library.
Callers = Mapping[tuple[str, int], tuple[tuple[str, int], ...]]

_UNMATCHED = "The LDGSTS instructions could not be matched with the copies of the source line."


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
            if total is None:
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
            each = count_copy_wavefronts(instruction.opcode, address, reads, access)
            wavefronts += number * np.array(each)
    if reading > times:
        return None
    # The other executions write only zeros.
    is_true = is_taken and predicate == "!P0" and reading
    rest = wavefronts // reading if is_true else np.array(once)
    return wavefronts + (times - reading) * rest
