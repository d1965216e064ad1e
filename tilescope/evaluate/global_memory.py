"""Count the accesses of a launch's programs to global memory, and read the values that addresses depend on.

Each class of equal executions is counted once: addresses that are equal up to whole lines, and equal masks.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from tilescope.captures.listings import UnsupportedOperation
from tilescope.evaluate.counts import Example, Probe, Sampler, Tally
from tilescope.evaluate.instructions import MemoryInstruction
from tilescope.evaluate.sectors import (
    ADDRESS_RANGE,
    LINE_BYTES,
    SECTOR_BYTES,
    RequestCosts,
    count_box_rows,
    count_most,
)
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
from tilescope.ttgir.parser import Op, Region, memory_ops

# Storage number n starts near (n + 1) · STORAGE_STEP, so an address identifies its storage, even if it lies before the
# storage's start.
STORAGE_STEP = 1 << 40

# Limit of an evaluation. A unit of work takes about 20 µs.
MOST_WORK = 1 << 18
# Maximum number of elements that are counted at once.
CHUNK = 1 << 22
# Counts of executions with more classes than this are not cached: most of their classes occur once.
_MOST_REMEMBERED = 1 << 12
# Maximum number of classes whose lanes are kept at a time, for copies to shared memory.
_MOST_COPIES = 1 << 8
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
    facts: ndarray

    def locate(self, at: ndarray, block: ndarray, programs: ndarray) -> tuple[ndarray, ...]:
        """Locate blocks whose first elements are at coordinates: (programs, dimensions) int64.

        Returns:
            The address of each block's first element, the first and the last coordinates in the block that lie inside
            the tensor, and the strides.
        """
        facts = pick(self.facts, programs)
        address, shape, strides = np.split(facts, [1, 1 + len(block)], axis=1)
        start = address[:, 0] + (at * strides).sum(axis=1) * self.element_bytes
        inside = (np.clip(edge - at, 0, block) for edge in (0, shape))
        return start, *inside, np.broadcast_to(strides, at.shape)


@dataclass(frozen=True)
class Storage:
    """Memory that arguments point to.

    Attributes:
        bytes: its size.
        start: the address of its first byte.
        contents: for each size of an element, a function that returns the elements from its start.
        why_unknown: a sentence that says why its contents are unknown.
    """

    bytes: int
    start: int
    contents: dict[int, Callable[[], ndarray]] = field(default_factory=dict)
    why_unknown: str = "The capture holds no copy of the tensor's values."


@dataclass(frozen=True)
class PointerAccess:
    """An execution of an operation on pointers by some of the programs. Parts of it may be unknown.

    Attributes:
        mask: where elements may be active.
        programs: (programs,) their numbers. A member is an index into them.
        num_warps: warps of a program.
    """

    op: Op
    instruction: MemoryInstruction
    pointer: Value
    mask: Value
    programs: ndarray
    num_warps: int

    @property
    def unknown(self) -> Unknown | None:
        return self.pointer if isinstance(self.pointer, Unknown) else None

    def lanes(self, members: ndarray) -> tuple[ndarray, ndarray]:
        """Return the lanes' addresses and which are active, (members, requests, lanes) each."""
        place, owner = self.instruction.lanes(self.num_warps)
        address, active = (
            np.broadcast_to(
                value.with_rank(len(self.op.shape)).at(members, place),
                (len(members), *owner.shape),
            )
            for value in (self.pointer.known, self.mask)
        )
        return address, active & owner

    def number_unknown(self, unknown: Unknown) -> ndarray:
        """Number the unknown integers. Return each lane's, (requests, lanes); lanes with the same number share it."""
        shape = self.op.shape if unknown.shape is None else unknown.shape
        table = np.arange(math.prod(shape)).reshape(1, *shape)
        place, owner = self.instruction.lanes(self.num_warps)
        number = from_table(table).with_rank(len(self.op.shape)).at(np.zeros(1, int), place)
        return np.broadcast_to(number[0], owner.shape)

    def example(self, member: int) -> Example:
        address, active = (
            value.full_blocks(np.array([member]), self.op.shape)[0]
            for value in (self.pointer.known, self.mask)
        )
        return Example(int(self.programs[member]), address, active)


@dataclass(frozen=True)
class _Classes:
    """The members that execute an access, in classes of equal cost.

    Attributes:
        key: equal for executions of an operation with the same classes.
        running: (executions,) the members.
        start: (executions,) the address of the first element of each member's block.
        first: (classes,) an index into `running` for each class.
        number: (executions,) the class of each member.
    """

    key: Any
    running: ndarray
    start: ndarray
    first: ndarray
    number: ndarray

    @property
    def times(self) -> ndarray:
        """The number of members in each class."""
        return np.bincount(self.number)


class _ClassCosts(NamedTuple):
    """The costs of a member of each class, (classes,) int64 each.

    Attributes:
        requests: the sums over its requests.
        low, high: its first and its last active byte, from its block's first element.
        elements: number of active elements.
    """

    requests: RequestCosts
    low: ndarray
    high: ndarray
    elements: ndarray


class GlobalMemory:
    """Global memory and the tally of each operation on it.

    Args:
        instructions: for each operation its instruction, or why it is unknown.
        num_warps: warps of a program.
        programs: of the launch.
        sms: of the GPU.

    Attributes:
        on_access: called with each execution on known addresses, and the members that certainly execute it.
    """

    def __init__(
        self,
        body: Region,
        storages: Sequence[Storage],
        instructions: Mapping[Op, MemoryInstruction | str],
        num_warps: int,
        programs: int,
        sms: int,
    ) -> None:
        self.storages = storages
        self.instructions = instructions
        self.num_warps = num_warps
        self.work = 0
        self.starts = np.array([storage.start for storage in storages], dtype=np.int64)
        self.ends = self.starts + np.array([storage.bytes for storage in storages], dtype=np.int64)
        self.stored: set[int] = set()
        self.on_access: Callable[[PointerAccess, ndarray], None] = lambda access, members: None
        self.sampler = Sampler(programs)
        self.probe = Probe(programs, sms)
        self.tallies = {op: Tally() for op in memory_ops(body)}
        self._costs = defaultdict[Op, dict[Any, _ClassCosts]](dict)

    def spend(self, work: int) -> None:
        """Add to the work of the evaluation.

        Raises:
            UnsupportedOperation: it exceeds the limit.
        """
        self.work += work
        if self.work > MOST_WORK:
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

        def read(address: ndarray, active: ndarray, result: ndarray) -> ndarray:
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

    def _contents(self, number: int, size: int, is_locked: bool) -> ndarray:
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
        self, op: Op, pointer: Value, mask: Value, programs: ndarray, doubt: str = ""
    ) -> None:
        """Count an execution of an operation on pointers.

        Args:
            mask: also false for programs that do not execute it.
            programs: (programs,) their numbers.
            doubt: why it is unknown whether programs execute it; "" if they do.
        """
        tally = self.tallies[op]
        if isinstance(mask, Unknown):
            doubt = doubt or mask.why
        mask = possible(mask)
        running = np.flatnonzero(np.broadcast_to(mask.base, len(programs)))
        tally.executions += len(running)
        if not len(running):
            return
        tally.doubt = tally.doubt or doubt
        start = pick(pointer.known.first, running)
        self._find_storages(op, start)
        instruction = self.instructions[op]
        if isinstance(instruction, str):
            raise UnsupportedOperation(instruction)
        if not instruction.kept:
            return
        access = PointerAccess(op, instruction, pointer, mask, programs, self.num_warps)
        classes = _classify(access, running, start)
        costs = self._costs[op].get(classes.key)
        if costs is None:
            costs = self._count_classes(access, classes)
            if len(classes.first) <= _MOST_REMEMBERED:
                self._costs[op][classes.key] = costs
        times = classes.times
        tally.counts += np.array(costs.requests) @ times
        tally.elements += int(costs.elements @ times)
        if op.name == "ttg.async_copy_global_to_local":
            self._keep_lanes(access, classes)
        if not costs.requests.requests.any():
            return
        if access.unknown:
            tally.unplaced = access.unknown.why
        else:
            self._place(access, classes, costs, not doubt)

    def _keep_lanes(self, access: PointerAccess, classes: _Classes) -> None:
        copies = self.tallies[access.op].copies
        count = len(classes.first)
        if classes.key not in copies and count <= _MOST_COPIES:
            lanes = access.lanes(classes.running[classes.first])
            copies[classes.key] = (*lanes, np.zeros(count, np.int64))
        if classes.key in copies:
            copies[classes.key][2][:] += classes.times

    def _place(
        self, access: PointerAccess, classes: _Classes, costs: _ClassCosts, is_certain: bool
    ) -> None:
        """Sample where executions are in memory. If they are certain, look for those outside their storage, too."""
        tally = self.tallies[access.op]
        programs = access.programs
        running = classes.running
        start = classes.start[classes.first]
        moved = _moved_bytes(start + costs.low, start + costs.high, costs.requests.sectors)
        issued = np.flatnonzero(moved[classes.number])
        running = running[issued]
        low, high, size, elements = (
            column[classes.number[issued]]
            for column in (costs.low, costs.high, moved, costs.elements)
        )
        low = classes.start[issued] + low
        high = classes.start[issued] + high
        self.sampler.add(tally.touches, programs[running], low, high, size)
        if not is_certain:
            return
        self.on_access(access, classes.running)
        if access.op.name == "tt.load":
            members = self.probe.find_members(programs, classes.running)
            self.probe.record(tally.loads, programs[members], *access.lanes(members))
        if sum(len(number) for number, _ in tally.starts) < _MOST_STARTS:
            some = slice(_MOST_STARTS)
            tally.starts.append((programs[running[some]], low[some]))
            tally.spans.append(((high - low)[some], elements[some]))
        if tally.outside is None and self._are_outside(np.array([low.min(), high.max()])).any():
            is_outside = self._are_outside(low) | self._are_outside(high)
            for member in running[is_outside][:1]:
                example = access.example(member)
                wrong = np.argwhere(example.active & self._are_outside(example.address))
                tally.outside = example, tuple(wrong[0].tolist())

    def _find_storages(self, op: Op, address: ndarray) -> None:
        """Add the storages of addresses to those that an operation accesses."""
        numbers = storage_number(np.array([address.min(), address.max()]))
        if numbers[0] != numbers[1]:
            numbers = np.unique(storage_number(address))
        storages = self.tallies[op].storages
        storages.update(numbers.tolist())
        if op.traits.counter not in ("ld", "tma_ld"):
            self.stored |= storages

    def _are_outside(self, address: ndarray) -> ndarray:
        """Return which addresses lie outside their storage. Pointers read from memory have none and are not checked."""
        number = storage_number(address)
        is_known = (number >= 0) & (number < len(self.storages))
        number = np.where(is_known, number, 0)
        return is_known & ((address < self.starts[number]) | (address >= self.ends[number]))

    def _count_classes(self, access: PointerAccess, classes: _Classes) -> _ClassCosts:
        members = classes.running[classes.first]
        start = classes.start[classes.first]
        _, owner = access.instruction.lanes(self.num_warps)
        self.spend(len(members) * owner.size >> (4 if access.unknown else 9))
        parts = np.array_split(members, -(-len(members) // max(1, CHUNK // owner.size)))
        costs = [self._count_members(access, part) for part in parts]
        columns = (np.concatenate(column, axis=-1) for column in zip(*costs, strict=True))
        requests, low, high, elements = columns
        return _ClassCosts(RequestCosts(*requests), low - start, high - start, elements)

    def _count_members(self, access: PointerAccess, members: ndarray) -> _ClassCosts:
        """Return the costs of members, each its own class. `low` and `high` are addresses."""
        instruction = access.instruction
        tally = self.tallies[access.op]
        address, active = access.lanes(members)
        lanes = address.reshape(-1, address.shape[2]), active.reshape(-1, address.shape[2])
        if access.unknown:
            unknown = access.unknown
            step = max(instruction.width_bytes, math.gcd(unknown.multiple, LINE_BYTES))
            number = np.resize(access.number_unknown(unknown), lanes[0].shape)
            costs, is_exact = count_most(instruction.count_requests, *lanes, number, step)
            tally.doubt = tally.doubt or ("" if is_exact else unknown.why)
        else:
            costs = np.array(instruction.count_requests(*lanes))
        issued = costs[0].reshape(-1, instruction.kept)
        tally.issued = tally.issued | issued.any(axis=0)
        requests = RequestCosts(*costs.reshape(len(costs), len(members), -1).sum(axis=2))
        if not (access.unknown or tally.doubt or tally.example) and requests.requests.any():
            is_fullest = requests.requests == requests.requests.max()
            tally.example = access.example(members[(is_fullest * requests.sectors).argmax()])
        last = max(0, instruction.width_bytes - instruction.element_bytes)
        elements = access.mask.full_blocks(members, access.op.shape).reshape(len(members), -1)
        return _ClassCosts(
            requests,
            low=np.where(active, address, np.iinfo(np.int64).max).min(axis=(1, 2)),
            high=np.where(active, address, -1).max(axis=(1, 2)) + last,
            elements=np.count_nonzero(elements, axis=1),
        )

    def count_descriptors(self, op: Op, address: ndarray) -> None:
        """Count the 128-byte descriptors that programs create: one warp writes each with an atomic exchange.

        Args:
            address: (programs,) the first byte of each descriptor's tensor.
        """
        tally = self.tallies[op]
        tally.executions += len(address)
        tally.storages.update(np.unique(storage_number(address)).tolist())
        sectors = LINE_BYTES // SECTOR_BYTES
        tally.counts += len(address) * np.array(RequestCosts(1, sectors, 1, sectors, LINE_BYTES))

    def copy_block(self, op: Op, descriptor: Descriptor, at: ndarray, programs: ndarray) -> None:
        """Count a copy by the tensor memory accelerator, box row by box row: see `tilescope.evaluate.sectors`.

        Bytes outside the tensor are counted like those of its edge, but they are not traffic.

        Args:
            at: (programs, dimensions) int64, the block's first element.
            programs: (programs,) their numbers.
        """
        tally = self.tallies[op]
        size = descriptor.element_bytes
        shape = op.shape[-at.shape[1] :]
        block = np.array(shape)
        check_size(*op.shape)
        start, before, after, strides = descriptor.locate(at, block, programs)
        self._find_storages(op, start)
        is_inside = (after > before).all(axis=1)
        if not tally.doubt:
            tally.starts.append((programs[is_inside], start[is_inside]))
            tally.missing += programs[~is_inside].tolist()
        keys = np.column_stack([start % LINE_BYTES, before, after, strides])
        classes, index, times = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
        is_load = op.traits.counter == "tma_ld"
        costs = [
            count_box_rows(shape, size, op.swizzle_bytes, is_load, first, limits)
            for first, *limits in classes
        ]
        sectors, touched, elements = np.array(costs).T
        tally.counts += np.array(RequestCosts(sectors=sectors @ times))
        tally.elements += int(elements @ times)
        if not is_inside.any():
            return
        low = start + (before * strides).sum(axis=1) * size
        high = low + ((after - before - 1) * strides).sum(axis=1) * size + size - 1
        moved = _moved_bytes(low, high, touched[index.ravel()])
        parts = (column[is_inside] for column in (programs, low, high, moved))
        self.sampler.add(tally.touches, *parts)


def _classify(access: PointerAccess, running: ndarray, start: ndarray) -> _Classes:
    """Group the members that execute an access: by address up to whole lines, and by mask."""
    op = access.op
    # An atomic's sectors depend on more than the place within a line. Of larger launches, one member of each class
    # of addresses that are equal up to whole lines is counted.
    is_small = len(access.programs) * math.prod(op.shape) <= CHUNK
    unit = ADDRESS_RANGE if op.name.startswith("tt.atomic") and is_small else LINE_BYTES
    terms = *access.pointer.known.terms, *access.mask.terms
    prints = (pick(term.per_program(term.fingerprints), running) for term in terms)
    numbers = [start % unit, *prints]
    first, number = group(numbers)
    name = b"".join(np.broadcast_to(pick(each, first), len(first)).tobytes() for each in numbers)
    unknown = access.unknown
    key = name, unknown and (unknown.shape, unknown.multiple)
    number = np.zeros(len(running), int) if number is None else number
    return _Classes(key, running, np.broadcast_to(start, len(running)), first, number)


def _moved_bytes(low: ndarray, high: ndarray, sectors: ndarray) -> ndarray:
    """Return the bytes of the sectors that executions move. Several requests may touch the same sectors."""
    spanned = high // SECTOR_BYTES - low // SECTOR_BYTES + 1
    return np.where(sectors > 0, np.minimum(sectors, spanned), 0) * SECTOR_BYTES
