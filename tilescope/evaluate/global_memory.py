"""Count the accesses of a launch's programs to global memory, and read the values that addresses depend on.

Each class of equal executions is counted once: addresses that are equal up to whole lines, and equal masks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilescope.captures.listings import UnsupportedOperation
from tilescope.evaluate.atomics import ADDRESS_RANGE
from tilescope.evaluate.counts import Example, Tally
from tilescope.evaluate.instructions import Instruction
from tilescope.evaluate.probe import Probe
from tilescope.evaluate.sectors import (
    EXTRA,
    GRANULE_BYTES,
    LINE_BYTES,
    LINES,
    REPEATED,
    REQUESTS,
    SECTOR_BYTES,
    SECTORS,
    box_lanes,
    count_requests,
)
from tilescope.evaluate.touches import Sampler
from tilescope.evaluate.ttgir import MEMORY_OPS, Op, Region, memory_ops
from tilescope.evaluate.values import (
    Unknown,
    Value,
    apply,
    check_size,
    from_table,
    group,
    pick,
    possible,
)

# Storages are this far apart, so an address identifies its storage, even if it lies before the storage's start.
STORAGE_STEP = 1 << 40

# Limit of an evaluation. A unit of work takes about 20 µs.
_MOST_WORK = 1 << 18
# Maximum number of elements that are counted at once.
CHUNK = 1 << 22
# Counts of executions with more classes than this are not cached: most of their classes occur once.
_MOST_REMEMBERED = 1 << 12
# Maximum number of classes whose lanes are kept at a time, for copies to shared memory.
_MOST_COPIES = 1 << 8
# Counts that depend on where the bytes lie.
_PLACED = [SECTORS, LINES, EXTRA, REPEATED]
# Bytes between lanes with different unknown addresses, while their distinct bytes are counted.
_FAR = 1 << 24
# Number of executions whose start is remembered: enough for a map of programs.
_MOST_STARTS = 1 << 16


def storage_number(address: Any) -> Any:
    return (
        address + (STORAGE_STEP >> 1) >> STORAGE_STEP.bit_length() - 1
    ) - 1  # rounded; shifts are fast


@dataclass(frozen=True)
class Descriptor:
    """A tensor descriptor of each program.

    Attributes:
        facts: (programs, 1 + 2 * dimensions) int64, or one row if the host made it: the first byte of its tensor, its
            shape and its strides in elements.
    """

    element_bytes: int
    facts: np.ndarray


@dataclass(frozen=True)
class Storage:
    """Memory that arguments point to.

    Attributes:
        bytes: its size.
        start_bytes: its start, from a multiple of STORAGE_STEP.
        contents: for each size of an element, a function that returns the elements from its start.
        why_unknown: a sentence that says why its contents are unknown.
    """

    bytes: int
    start_bytes: int = 0
    contents: dict[int, Callable[[], np.ndarray]] = field(default_factory=dict)
    why_unknown: str = "The capture holds no copy of the tensor's values."


class GlobalMemory:
    """Global memory and the tally of each operation on it.

    Args:
        storages: storage number n starts at (n + 1) · STORAGE_STEP.
        instructions: for each operation its instruction, or why it is unknown.
        num_warps: warps of a program.
        programs: of the launch.
        sms: of the GPU.
    """

    def __init__(
        self,
        body: Region,
        storages: Sequence[Storage],
        instructions: Mapping[Op, Instruction | str],
        num_warps: int,
        programs: int,
        sms: int,
    ) -> None:
        self.storages = storages
        self.instructions = instructions
        self.num_warps = num_warps
        self.work = 0
        self.starts = np.array(
            [n * STORAGE_STEP + storage.start_bytes for n, storage in enumerate(storages, 1)]
        )
        self.ends = self.starts + np.array([storage.bytes for storage in storages], dtype=np.int64)
        self.stored: set[int] = set()
        self.sampler = Sampler(programs)
        self.probe = Probe(programs, sms)
        self.tallies = {op: Tally() for op in memory_ops(body)}

    def spend(self, work: int) -> None:
        """Add to the work of the evaluation.

        Raises:
            UnsupportedOperation: it exceeds the limit.
        """
        self.work += work
        if self.work > _MOST_WORK:
            raise UnsupportedOperation(
                "The loops or the grid of this launch are too large to evaluate. Launch a smaller shape."
            )

    def load(
        self, op: Op, pointer: Value, mask: Value, default: Value, is_locked: bool = False
    ) -> Value:
        """Return the values that an operation loads.

        Args:
            is_locked: whether it is known which programs load them before the kernel stores others.
        """
        size = op.element_bytes
        shape = op.shape

        def read(address: np.ndarray, active: np.ndarray, result: np.ndarray) -> np.ndarray:
            address, active, result = np.broadcast_arrays(address, active, result)
            storage = storage_number(address)
            for number in np.unique(storage[active]).tolist():
                contents = self._contents(number, size, is_locked)
                inside = active & (storage == number)
                place = (address[inside] - self.starts[number]) // size
                if place.min() < 0 or place.max() >= len(contents):
                    raise UnsupportedOperation(
                        "Accesses depend on an index that is loaded from outside its tensor."
                    )
                is_float = contents.dtype.kind == "f"
                result = result.astype(np.result_type(result, contents if is_float else np.int64))
                result[inside] = contents[place]
            return result

        loaded = apply(read, pointer, mask, default)
        return loaded.map_blocks(lambda table: np.broadcast_to(table, (len(table), *shape)))

    def _contents(self, number: int, size: int, is_locked: bool) -> np.ndarray:
        if not 0 <= number < len(self.storages):
            raise UnsupportedOperation(
                "Accesses depend on a load through a pointer that was itself loaded."
            )
        if number in self.stored and not is_locked:
            raise UnsupportedOperation("Accesses depend on values that this kernel itself stores.")
        storage = self.storages[number]
        if size not in storage.contents:
            raise UnsupportedOperation(storage.why_unknown)
        return storage.contents[size]()

    def count(
        self, op: Op, pointer: Value, mask: Value, programs: np.ndarray, doubt: str = ""
    ) -> None:
        """Count an execution of an operation on pointers.

        Args:
            mask: also false for programs that do not execute it.
            programs: (programs,) their numbers.
            doubt: why it is unknown whether programs execute it; "" if they do.
        """
        tally = self.tallies[op]
        instruction = self.instructions[op]
        unknown = pointer if isinstance(pointer, Unknown) else None
        if isinstance(mask, Unknown):
            doubt = doubt or mask.why
        pointer = pointer.known
        mask = possible(mask)
        running = np.flatnonzero(np.broadcast_to(mask.base, len(programs)))
        tally.executions += len(running)
        if not len(running):
            return
        tally.doubt = tally.doubt or doubt
        base = sum((term.per_program(term.first) for term in pointer.terms), pointer.base)
        terms = (*pointer.terms, *mask.terms)
        # An atomic's sectors depend on more than the place within a line. Of larger launches, one member of each class
        # of addresses that are equal up to whole lines is counted.
        is_small = len(programs) * math.prod(op.shape) <= CHUNK
        unit = ADDRESS_RANGE if op.name.startswith("tt.atomic") and is_small else LINE_BYTES
        keys = [base % unit, *(term.per_program(term.fingerprints) for term in terms)]
        base = np.broadcast_to(base, len(programs))
        starts = base if len(running) == len(base) else base[running]
        lowest = int(starts.min())
        highest = int(starts.max())
        numbers = {storage_number(lowest), storage_number(highest)}
        if len(numbers) > 1:
            numbers.update(np.unique(storage_number(starts)).tolist())
        tally.storages |= numbers
        if MEMORY_OPS[op.name].kind in ("store", "atomic"):
            self.stored |= tally.storages
        if isinstance(instruction, str):
            raise UnsupportedOperation(instruction)
        if instruction.is_merged and all(instruction.is_merged):
            return
        keys = [pick(key, running) for key in keys]
        first, index = group(keys)
        name = b"".join(np.broadcast_to(pick(key, first), len(first)).tobytes() for key in keys)
        if unknown:
            name += f"{unknown.shape} {unknown.multiple}".encode()
        facts = tally.classes.get(name)
        if facts is None:
            facts = self._count_classes(
                op, pointer, mask, instruction, running[first], programs, unknown
            )
            facts[:, 7:9] -= base[running[first], None]
            if len(first) <= _MOST_REMEMBERED:
                tally.classes[name] = facts
        times = np.array([len(running)]) if index is None else np.bincount(index)
        if op.name == "ttg.async_copy_global_to_local":
            if name not in tally.copies and len(first) <= _MOST_COPIES:
                lanes = self._lanes(op, pointer, mask, instruction, running[first])
                tally.copies[name] = (*lanes, np.zeros(len(first), np.int64))
            if name in tally.copies:
                tally.copies[name][2][:] += times
        tally.counts += times @ facts[:, :7]
        tally.loaded_sectors += int(facts[:, 9] @ times)
        tally.elements += int(facts[:, 10] @ times)
        issued = facts[:, REQUESTS] > 0
        if not issued.any():
            return
        if unknown:
            tally.unplaced = unknown.why
            return
        self._sample(tally, programs[running], starts, facts, first, index)
        if doubt:
            return
        each = np.zeros(len(running), int) if index is None else index
        if sum(len(number) for number, _ in tally.starts) < _MOST_STARTS:
            some = np.flatnonzero(issued[each])[:_MOST_STARTS]
            low, high, elements = facts[each[some]][:, [7, 8, 10]].T
            tally.starts.append((programs[running[some]], starts[some] + low))
            tally.spans.append((high - low, elements))
        if op.name == "tt.load":
            members = self.probe.find_members(programs, running)
            lanes = self._lanes(op, pointer, mask, instruction, members)
            self.probe.record(tally.loads, programs[members], *lanes)
        span = lowest + facts[issued, 7].min(), highest + facts[issued, 8].max()
        if tally.outside is None and self._are_outside(np.array(span)).any():
            some = np.flatnonzero(issued[each])
            outside = self._are_outside(starts[some, None] + facts[each[some], 7:9]).any(axis=1)
            for member in running[some[outside]][:1]:
                example = _make_example(op, pointer, mask, programs, member)
                wrong = np.argwhere(example.active & self._are_outside(example.address))
                tally.outside = example, tuple(wrong[0].tolist())

    def _sample(
        self,
        tally: Tally,
        programs: np.ndarray,
        starts: np.ndarray,
        facts: np.ndarray,
        first: np.ndarray,
        index: np.ndarray | None,
    ) -> None:
        """Sample executions, (executions,) each: their programs, and the address of their first element.

        Args:
            facts: of each class.
            first, index: one member of each class, and the class of each execution; None with one class.
        """
        low, high = facts[:, 7:9].T
        start = starts[first]
        spanned = (start + high) // SECTOR_BYTES - (start + low) // SECTOR_BYTES + 1
        sectors = facts[:, SECTORS]
        size = np.where(sectors > 0, np.minimum(sectors, spanned), 0) * SECTOR_BYTES
        length = high - low
        if index is not None:
            low, length, size = (each[index] for each in (low, length, size))
        low = starts + low
        if not size.all():
            issued = np.flatnonzero(size)
            programs = programs[issued]
            low, length, size = (each[issued] for each in (low, length, size))
        self.sampler.add(tally.touches, programs, low, length, size)

    def _are_outside(self, address: np.ndarray) -> np.ndarray:
        """Return which addresses lie outside their storage. Pointers read from memory have none and are not checked."""
        number = storage_number(address)
        is_known = (number >= 0) & (number < len(self.storages))
        number = np.where(is_known, number, 0)
        return is_known & ((address < self.starts[number]) | (address >= self.ends[number]))

    def _count_classes(
        self,
        op: Op,
        pointer: Value,
        mask: Value,
        instruction: Instruction,
        members: np.ndarray,
        programs: np.ndarray,
        unknown: Unknown | None,
    ) -> np.ndarray:
        """Return for each member its facts: see `Tally.classes`."""
        tally = self.tallies[op]
        rank = len(op.shape)
        place, owner = instruction.lanes(self.num_warps)
        last = max(0, instruction.width_bytes - instruction.element_bytes)
        self.spend(len(members) * owner.size >> (4 if unknown else 9))
        facts = []
        for some in np.array_split(members, -(-len(members) // max(1, CHUNK // owner.size))):
            shape = len(some), *owner.shape
            address, on = self._lanes(op, pointer, mask, instruction, some)
            lanes = address.reshape(-1, shape[2]), on.reshape(-1, shape[2]), instruction.width_bytes
            requests = count_requests(*lanes, instruction.instruction)
            if unknown:
                varies = op.shape if unknown.shape is None else unknown.shape
                numbers = from_table(np.arange(math.prod(varies)).reshape(1, *varies))
                number = np.broadcast_to(numbers.with_rank(rank).at(some[:1], place), shape)
                requests, is_exact = _count_most(
                    *lanes, instruction.instruction, number.reshape(-1, shape[2]), unknown.multiple
                )
                tally.doubt = tally.doubt or ("" if is_exact else unknown.why)
            requests = requests.reshape(*shape[:2], -1)
            issued = requests[..., REQUESTS].reshape(-1, instruction.kept)
            tally.issued = tally.issued | issued.any(axis=0)
            counts = requests.sum(axis=1)
            is_known = not unknown and not tally.doubt
            if tally.example is None and is_known and counts[:, REQUESTS].any():
                member = some[counts[:, REQUESTS].argmax()]
                tally.example = _make_example(op, pointer, mask, programs, member)
            low = np.where(on, address, np.iinfo(np.int64).max).min(axis=(1, 2))
            high = np.where(on, address, -1).max(axis=(1, 2)) + last
            loaded = counts[:, SECTORS]
            if instruction.swaps:
                loaded = count_requests(*lanes)[:, SECTORS].reshape(shape[:2]).sum(axis=1)
            blocks = mask.with_rank(rank).blocks(some)
            elements = np.count_nonzero(blocks, axis=tuple(range(1, rank + 1)))
            elements = elements * (math.prod(op.shape) // blocks[0].size)
            elements = np.broadcast_to(elements, len(some))
            facts.append(np.column_stack([counts, low, high, loaded, elements]))
        return np.concatenate(facts)

    def _lanes(
        self, op: Op, pointer: Value, mask: Value, instruction: Instruction, members: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the lanes' addresses and which are active, (members, requests, lanes) each."""
        place, owner = instruction.lanes(self.num_warps)
        shape = len(members), *owner.shape
        address, on = (
            np.broadcast_to(value.with_rank(len(op.shape)).at(members, place), shape)
            for value in (pointer, mask)
        )
        return address, on & owner

    def count_descriptors(self, op: Op, address: np.ndarray) -> None:
        """Count the 128-byte descriptors that programs create: one warp writes each with an atomic exchange.

        Args:
            address: (programs,) the first byte of each descriptor's tensor.
        """
        tally = self.tallies[op]
        tally.executions += len(address)
        tally.storages.update(np.unique(storage_number(address)).tolist())
        sectors = LINE_BYTES // SECTOR_BYTES
        tally.counts += len(address) * np.array([1, sectors, 1, sectors, LINE_BYTES, 0, 0])

    def copy_block(
        self, op: Op, descriptor: Descriptor, at: np.ndarray, programs: np.ndarray
    ) -> None:
        """Count a copy by the tensor memory accelerator, box row by box row: see `tilescope.evaluate.sectors`.

        Bytes outside the tensor are counted like those of its edge, but they are not traffic.

        Args:
            at: (programs, dimensions) int64, the block's first element.
            programs: (programs,) their numbers.
        """
        tally = self.tallies[op]
        size = descriptor.element_bytes
        of_all = descriptor.facts
        facts = np.broadcast_to(pick(of_all, programs), (len(programs), of_all.shape[1]))
        is_load = MEMORY_OPS[op.name].counter == "tma_ld"
        block = np.array(op.shape[-at.shape[1] :])
        address, shape, strides = np.split(facts, [1, 1 + len(block)], axis=1)
        storages = set(np.unique(storage_number(address)).tolist())
        tally.storages |= storages
        if not is_load:
            self.stored |= storages
        check_size(*op.shape)
        before = np.clip(-at, 0, block)
        after = np.clip(shape - at, 0, block)
        start = address[:, 0] + (at * strides).sum(axis=1) * size
        is_inside = (after > before).all(axis=1)
        if not tally.doubt:
            tally.starts.append((programs[is_inside], start[is_inside]))
            tally.missing += programs[~is_inside].tolist()
        rows = np.column_stack([start % LINE_BYTES, before, after, strides])
        classes, index, times = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
        touched = []
        instruction = "cp.async.bulk" + ".global.shared" * (not is_load)
        places = box_lanes(block.tolist(), size, op.swizzle_bytes)
        for (first, *limits), count in zip(classes, times.tolist(), strict=True):
            low, high, steps = np.split(np.array(limits)[:, None, None], 3)
            address = first + (places * steps).sum(axis=0) * size
            inside = ((places >= low) & (places < high)).all(axis=0)
            counts = count_requests(address, np.asarray(inside), GRANULE_BYTES, instruction)
            tally.counts[SECTORS] += count * counts[:, SECTORS].sum()
            touched.append((counts[:, SECTORS] - counts[:, EXTRA]).sum())
            tally.elements += int(inside.sum()) * GRANULE_BYTES // size * count
        if not is_inside.any():
            return
        start += (before * strides).sum(axis=1) * size
        length = ((after - before - 1) * strides).sum(axis=1) * size + size - 1
        spanned = (start + length) // SECTOR_BYTES - start // SECTOR_BYTES + 1
        moved = np.minimum(spanned, np.array(touched)[index.ravel()]) * SECTOR_BYTES
        parts = (each[is_inside] for each in (programs, start, length, moved))
        self.sampler.add(tally.touches, *parts)


def _count_most(
    address: np.ndarray,
    active: np.ndarray,
    width_bytes: int,
    instruction: str,
    number: np.ndarray,
    multiple: int,
) -> tuple[np.ndarray, bool]:
    """Return the largest counts of requests whose addresses lack unknown numbers, and whether all are equal.

    Args:
        number: (requests, lanes), lanes whose unknown numbers are equal have the same.
        multiple: the unknown numbers are multiples of it, and a lane's address is a multiple of its width.
    """
    step = max(width_bytes, math.gcd(multiple, LINE_BYTES))
    total = count_requests(address + number * _FAR, active, width_bytes, instruction)
    total[:, _PLACED] = 0
    is_exact = True
    while active.any():
        lowest = np.where(active, number, number.max()).min(axis=1, keepdims=True)
        own = active & (number == lowest)
        # A single lane touches one sector, wherever it is.
        end = LINE_BYTES if np.count_nonzero(own, axis=1).max() > 1 else 1
        counts = np.stack(
            [
                count_requests(address + shift, own, width_bytes, instruction)[:, _PLACED]
                for shift in range(0, end, step)
            ]
        )
        total[:, _PLACED] += counts.max(axis=0)
        active = active & ~own
        is_same = counts[..., 0].max(axis=0) == counts[..., 0].min(axis=0)
        is_exact = is_exact and bool(is_same.all()) and not active.any()
    return total, is_exact


def _make_example(
    op: Op, pointer: Value, mask: Value, programs: np.ndarray, member: int
) -> Example:
    blocks = (
        value.with_rank(len(op.shape)).blocks(np.array([member])) for value in (pointer, mask)
    )
    return Example(int(programs[member]), *(np.broadcast_to(each[0], op.shape) for each in blocks))
