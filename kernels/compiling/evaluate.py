"""Evaluate the addresses and masks of a launch from its TTGIR, for all programs at once, and count its requests.

Only the operations that addresses, masks and control flow depend on are executed. Each class of equal executions is
counted once: addresses that are equal up to whole lines, and equal masks. Runs no code of the kernel's author.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels.compiling import arithmetic
from kernels.compiling.listings import UnsupportedOperation
from kernels.compiling.requests import Instruction, count_blocks
from kernels.compiling.ttgir import (
    MEMORY_OPS,
    POINTER_OPS,
    Op,
    Region,
    Slice,
    is_other_memory,
    memory_ops,
    pointee_bytes,
)
from kernels.compiling.values import (
    Term,
    Value,
    add,
    apply,
    check_size,
    choose,
    conjunction,
    group,
    keys_of,
    multiply,
    pick,
)
from kernels.sectors import GRANULE_BYTES, LINE_BYTES, SECTORS, box_row_bytes, count_padding, count_requests

# Storages start at multiples of this, so that an address names its storage, even one before its start.
STORAGE_STEP = 1 << 40

# Maximum number of elements that are evaluated or counted at once.
_CHUNK = 1 << 22
# With more new classes than this in one execution, most are unique, and remembering them costs more than it saves.
_MOST_REMEMBERED = 1 << 14
# Limits of a launch: its programs, and the work of its evaluation. A unit of work takes about 20 µs.
_MOST_PROGRAMS, _MOST_WORK = 1 << 22, 1 << 18

# Number of executions whose start is remembered: enough for a map of programs.
_MOST_STARTS = 1 << 16

# Bytes per element of CUtensorMapDataType (cuda.h).
_TENSOR_MAP_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4, 1)


def storage_number(address: Any) -> Any:
    return (address + STORAGE_STEP // 2) // STORAGE_STEP - 1


@dataclass(frozen=True)
class Descriptor:
    """A tensor descriptor. Shape and strides are in elements.

    Attributes:
        address: first byte of its tensor.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element_bytes: int
    address: int


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
    contents: Mapping[int, Callable[[], np.ndarray]] = field(default_factory=dict)
    why_unknown: str = "The capture holds no copy of the tensor's values."


@dataclass(frozen=True)
class Example:
    """An execution of an operation by one program: each element's first byte, and whether its mask is true."""

    program: int
    address: np.ndarray
    active: np.ndarray


@dataclass
class Tally:
    """Counts of one operation over the whole launch.

    Attributes:
        executions: number of executions with an active program, over all programs.
        counts: (4,) int64: requests, sectors, lines, ideal sectors.
        storages: the storages that it addresses.
        example: its first execution.
        starts: (program, address of its block's lowest byte) of the first executions, (executions,) each.
        outside: an execution with an element outside its storage, and the element's index in the block.
        refused: why the counts are incomplete; "" if they are complete.
        classes: for each class of executions, as far as remembered, its counts and the smallest and largest address of
            an active element.
    """

    executions: int = 0
    counts: np.ndarray = field(default_factory=lambda: np.zeros(4, np.int64))
    storages: set[int] = field(default_factory=set)
    example: Example | None = None
    starts: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    outside: tuple[Example, tuple[int, ...]] | None = None
    refused: str = ""
    classes: dict[tuple[int, ...], np.ndarray] = field(default_factory=dict)


class _Unknown(Value):
    """A value that could not be evaluated. Any use raises the reason."""

    def __init__(self, why: str) -> None:
        self.why = why

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedOperation(self.why)


class _Buffer:
    """A buffer in shared memory: the value at each index."""

    def __init__(self) -> None:
        self.values: dict[int, Value] = {}


class Evaluator:
    """The state of one evaluation: values by name, and the tally of each memory operation.

    Args:
        arguments: of the function, in order: numbers, descriptors, or addresses made with STORAGE_STEP.
        storages: storage number n starts at (n + 1) · STORAGE_STEP.
        instructions: for the line of each operation on pointers its instruction, or why it is unknown.
        programs: the programs to evaluate; None for all.
    """

    def __init__(
        self,
        body: Region,
        arguments: Sequence[int | float | bool | Descriptor],
        grid: Sequence[int],
        storages: Sequence[Storage],
        instructions: Mapping[int, Instruction | str],
        programs: np.ndarray | None = None,
    ) -> None:
        self.body, self.storages, self.instructions = body, storages, instructions
        self.starts = np.array([(n + 1) * STORAGE_STEP + storage.start_bytes for n, storage in enumerate(storages)])
        self.ends = self.starts + np.array([storage.bytes for storage in storages], dtype=np.int64)
        self.grid = (*grid, 1, 1)[:3]
        if math.prod(self.grid) > _MOST_PROGRAMS:
            raise UnsupportedOperation(
                f"The launch has {math.prod(self.grid):,} programs; the limit is {_MOST_PROGRAMS:,}."
            )
        self.work = 0
        self.slice = Slice(body)
        self.needed = self.slice.values
        # Several entries per program while a loop is unrolled.
        self.programs = np.arange(int(np.prod(self.grid))) if programs is None else programs
        self.descriptors: list[Descriptor | None] = []
        self.tallies = {op.line: Tally() for op in memory_ops(body)}
        self.deferred: dict[int, list[Op]] = {}  # for the line of a loop, loads that ptxas moves behind its first test
        self.stored: set[int] = set()
        self.notes: set[str] = set()
        self.values: dict[str, Any] = {}
        for name, argument in zip(body.arguments, arguments, strict=True):
            if isinstance(argument, Descriptor):
                self.descriptors.append(argument)
                argument = len(self.descriptors) - 1
            self.values[name] = Value(argument)

    def run(self) -> dict[int, Tally]:
        """Evaluate the launch and return the tally of each memory operation, by its line in the TTGIR."""
        with np.errstate(all="ignore"):
            self._run_region(self.body, np.ones(len(self.programs), bool))
        return self.tallies

    # Control flow. `active` says which programs execute an operation.

    def _run_region(self, region: Region, active: np.ndarray) -> None:
        arriving: dict[str, list[tuple[np.ndarray, list[Any]]]] = {}
        for op in region.ops:
            if op.name == "cf.block":
                active = self._enter_block(op, arriving.get(op.text, []))
            elif op.name in ("cf.br", "cf.cond_br"):
                masks = [active]
                if op.name == "cf.cond_br":
                    condition = self._per_program(self.values[op.operands[0]])
                    masks = [active & condition, active & ~condition]
                for (label, passed), mask in zip(op.targets, masks, strict=True):
                    arriving.setdefault(label, []).append((mask, [self.values.get(name) for name in passed]))
                active = np.zeros(len(self.programs), bool)
            else:
                try:
                    self._run(op, active)
                except UnsupportedOperation as error:
                    self._refuse(op, str(error) if active.any() else "")

    def _enter_block(self, op: Op, branches: list[tuple[np.ndarray, list[Any]]]) -> np.ndarray:
        active = np.zeros(len(self.programs), bool)
        for mask, passed in branches:
            for name, value in zip(op.results, passed, strict=True):
                if name in self.needed and value is not None:
                    self.values[name] = choose(mask, value, self.values[name]) if active.any() else value
            active = active | mask
        return active

    def _refuse(self, op: Op, why: str) -> None:
        for inner in memory_ops(Region([], [op])):
            self.tallies[inner.line].refused = self.tallies[inner.line].refused or why
        unknown = _Unknown(why or "The value of a branch that no program takes is unknown.")
        self.values |= dict.fromkeys(op.results, unknown)

    def _run(self, op: Op, active: np.ndarray) -> None:
        is_needed = op.has_memory or any(name in self.needed for name in op.results)
        self._spend(is_needed + (is_needed * len(self.programs) >> 12))
        if op.line in self.slice.sunk:
            self.deferred.setdefault(self.slice.sunk[op.line].line, []).append(op)
            self._load_if_needed(op, active)
        elif op.name in POINTER_OPS:
            self._access(op, active)
        elif op.name in MEMORY_OPS:
            self._copy_block(op, active)
        elif op.name == "ttng.tensormap_create":
            self._create_descriptor(op)
        elif op.name == "ttg.warp_specialize":
            for inner in op.regions:
                if inner.arguments:
                    self._assign(inner.arguments, [self.values.get(name) for name in op.operands])
                self._run_region(inner, active)
        elif op.name == "ttg.local_store":
            self._put(self.values.get(op.operands[1]), self.values.get(op.operands[0]), active)
        elif is_other_memory(op):
            self.notes.add(f"{op.name} is not counted.")
            if any(name in self.needed for name in op.results):
                raise UnsupportedOperation(f"Addresses depend on {op.name}, which is not modeled.")
        elif op.name in ("scf.for", "scf.while", "scf.if") and is_needed:
            {"scf.for": self._run_for, "scf.while": self._run_while, "scf.if": self._run_if}[op.name](op, active)
        elif is_needed:
            self.values[op.results[0]] = self._evaluate(op, active)

    def _spend(self, work: int) -> None:
        self.work += work
        if self.work > _MOST_WORK:
            raise UnsupportedOperation(f"Its loops or its grid are too large to evaluate: over {_MOST_WORK:,} steps.")

    def _assign(self, names: Sequence[str], values: Sequence[Any]) -> None:
        self.values |= {name: value for name, value in zip(names, values, strict=True) if value is not None}

    def _per_program(self, value: Value) -> np.ndarray:
        return np.broadcast_to(value.base, len(self.programs))

    def _run_for(self, op: Op, active: np.ndarray) -> None:
        low, high, step = (self.values[name].base for name in op.operands[:3])
        trips = np.broadcast_to(np.maximum(-((low - high) // step), 0), len(self.programs))
        for load in self.deferred.pop(op.line, []):
            self._count_access(load, active & (trips > 0))
        body = op.regions[0]
        induction, *carried = body.arguments
        kept = [k for k, name in enumerate(carried) if name in self.needed]
        now = {k: self.values[op.inits[k]] for k in kept}
        most, fewest = int(trips[active].max(initial=0)), int(trips[active].min(initial=1 << 62))
        at_once = _CHUNK // max((int(np.prod(inner.shape)) for inner in memory_ops(body)), default=1)
        if most > 4 and at_once > 2 * np.count_nonzero(active):
            steps = self._constant_steps(op, kept)
            if steps is not None:
                return self._run_all_iterations(op, active, low, step, trips, steps, at_once)
        for i in range(most):
            running = active if i < fewest else active & (trips > i)
            self.values[induction] = Value(low + i * step)
            self.values |= {carried[k]: now[k] for k in kept}
            self._run_region(body, running)
            new = {k: self.values[body.ops[-1].operands[k]] for k in kept}
            now = new if i < fewest else {k: choose(running, new[k], now[k]) for k in kept}
        self.values |= {op.results[k]: now[k] for k in kept}

    def _constant_steps(self, op: Op, kept: list[int]) -> dict[int, Value] | None:
        """Return the growth per iteration of each carried value; None unless it is a number that stays the same."""
        body, steps = op.regions[0], {}
        inside = {name: inner for inner in body.ops for name in inner.results}
        for k in kept:
            growth = inside.get(body.ops[-1].operands[k])
            if op.results[k] in self.needed or not growth or growth.name not in ("arith.addi", "tt.addptr"):
                return None
            base, by = growth.operands
            if base != body.arguments[k + 1] or by in inside or by in body.arguments or self.values[by].terms:
                return None
            size = pointee_bytes(growth.type) if growth.name == "tt.addptr" else 1
            steps[k] = multiply(self.values[by], Value(size))
        return steps

    def _run_all_iterations(
        self, op: Op, active: np.ndarray, low: np.ndarray, step: np.ndarray, trips: np.ndarray,
        steps: Mapping[int, Value], at_once: int,
    ) -> None:  # fmt: skip
        """Run a loop whose iterations are independent: each iteration of each program counts as a program."""
        body, outer = op.regions[0], (self.programs, self.values)
        running = np.flatnonzero(active & (trips > 0))
        ends = np.cumsum(trips[running])
        used = {name for inner in body.walk() for name in (*inner.operands, *inner.inits)} & self.values.keys()
        for start in range(0, int(ends[-1]) if len(ends) else 0, at_once):
            pair = np.arange(start, min(start + at_once, int(ends[-1])))
            number = np.searchsorted(ends, pair, side="right")
            program = running[number]
            iteration = Value(pair - (ends[number] - trips[program]))
            values = {
                name: value.select(program) if type(value) is Value else value
                for name, value in ((name, outer[1][name]) for name in used)
            }
            origin = Value(low).select(program), multiply(iteration, Value(step).select(program))
            values[body.arguments[0]] = add(*origin)
            for k, growth in steps.items():
                initial = outer[1][op.inits[k]].select(program)
                values[body.arguments[k + 1]] = add(initial, multiply(growth.select(program), iteration))
            self.programs, self.values = outer[0][program], values
            self._run_region(body, np.ones(len(pair), bool))
        self.programs, self.values = outer

    def _run_while(self, op: Op, active: np.ndarray) -> None:
        before, after = op.regions
        now, running = [self.values.get(name) for name in op.inits], active
        while True:
            self._assign(before.arguments, now)
            self._run_region(before, running)
            condition, *passed = before.ops[-1].operands
            values: list[Any] = [self.values.get(name) for name in passed]
            for name, value in zip(op.results, values, strict=True):
                if name in self.needed:
                    is_first = running is active
                    self.values[name] = value if is_first else choose(running, value, self.values[name])
            running = running & self._per_program(self.values[condition])
            if not running.any():
                return
            self._assign(after.arguments, values)
            self._run_region(after, running)
            now = [self.values.get(name) for name in after.ops[-1].operands]

    def _run_if(self, op: Op, active: np.ndarray) -> None:
        condition = self._per_program(self.values[op.operands[0]])
        results: list[list[Any]] = []
        for region, mask in zip(op.regions, (active & condition, active & ~condition), strict=False):
            if mask.any() or op.results:
                self._run_region(region, mask)
            results.append([self.values.get(name) for name in region.ops[-1].operands] if op.results else [])
        for k, name in enumerate(op.results):
            if name in self.needed:
                self.values[name] = choose(condition, results[0][k], results[1][k])

    # Values that need more than arithmetic.

    def _evaluate(self, op: Op, active: np.ndarray) -> Any:
        operands: list[Any] = [self.values.get(name) for name in op.operands]
        match op.name:
            case "tt.get_program_id":
                axis = "xyz".index(op.text.split()[0])
                return Value(self.programs // int(np.prod(self.grid[:axis])) % self.grid[axis])
            case "tt.get_num_programs":
                return Value(self.grid["xyz".index(op.text.split()[0])])
            case "tt.reduce" | "tt.scan":
                return self._fold(op, operands)
            case "ttg.global_scratch_alloc":
                self.descriptors.append(None)
                return Value(len(self.descriptors) - 1)
            case "ttg.local_alloc":
                buffer = _Buffer()
                if operands:
                    buffer.values[0] = operands[0]
                return buffer
            case "ttg.memdesc_index" | "ttg.memdesc_subview" if isinstance(operands[0], _Buffer):
                index = np.unique(self._per_program(operands[1])[active]) if active.any() else operands[1].base[:1]
                if len(index) > 1:
                    raise UnsupportedOperation("Programs read different slots of a shared buffer.")
                return operands[0], int(index[0])
            case "ttg.local_load":
                buffer, index = operands[0] if isinstance(operands[0], tuple) else (operands[0], 0)
                if not isinstance(buffer, _Buffer) or index not in buffer.values:
                    raise UnsupportedOperation(getattr(buffer, "why", "The contents of a shared buffer are unknown."))
                return buffer.values[index]
        return arithmetic.evaluate(op, operands)

    def _put(self, slot: Any, value: Any, active: np.ndarray) -> None:
        if isinstance(slot, tuple) and value is not None:
            buffer, index = slot
            old = buffer.values.get(index)
            buffer.values[index] = value if old is None else choose(active, value, old)

    def _fold(self, op: Op, operands: list[Value]) -> Value:
        """Reduce or scan along an axis, in order, with the operation's own region."""
        region, match = op.regions[0], re.search(r"axis = (\d+)", op.text)
        axis, shape = int(match[1]) + 1 if match else 1, op.reduced_shape
        first, index = group(keys_of(*operands))
        check_size(len(first), *shape)
        self._spend(shape[axis - 1] * len(region.ops))
        parts = [np.broadcast_to(value.with_rank(len(shape)).blocks(first), (len(first), *shape)) for value in operands]
        order = range(shape[axis - 1])
        if "reverse = true" in op.text:
            order = order[::-1]
        total, steps = [np.take(part, order[0], axis) for part in parts], []
        for i in order:
            if i != order[0]:
                elements = [*total, *(np.take(part, i, axis) for part in parts)]
                self._assign(region.arguments, [Value(element.ravel()) for element in elements])
                for inner in region.ops[:-1]:
                    self.values[inner.results[0]] = arithmetic.evaluate(inner, [self.values[n] for n in inner.operands])
                results = (self.values[name].base for name in region.ops[-1].operands)
                total = [np.broadcast_to(base, total[0].size).reshape(total[0].shape) for base in results]
            steps.append(total)
        if op.name == "tt.scan":
            ordered = steps[::-1] if "reverse = true" in op.text else steps
            total = [np.stack([step[k] for step in ordered], axis) for k in range(len(operands))]
        for name, table in zip(op.results, total, strict=True):
            if table.ndim == 1:
                self.values[name] = Value(table if index is None else table[index])
            else:
                self.values[name] = Value(np.zeros(1, table.dtype), [Term(np.ascontiguousarray(table), index)])
        return self.values[op.results[0]]

    # Memory.

    def _access(self, op: Op, active: np.ndarray) -> None:
        self._count_access(op, active)
        if op.name in ("tt.store", "tt.atomic_rmw", "tt.atomic_cas"):
            self.stored |= self.tallies[op.line].storages
        self._load_if_needed(op, active)

    def _mask(self, op: Op, active: np.ndarray) -> Value:
        mask = self.values[op.mask] if op.mask else Value(True)
        return mask if active.all() else conjunction(mask, Value(active))

    def _count_access(self, op: Op, active: np.ndarray) -> None:
        self._count(op, self.values[op.operands[0]], self._mask(op, active), self.instructions[op.line])

    def _load_if_needed(self, op: Op, active: np.ndarray) -> None:
        """Read the values that an access loads, if addresses depend on them."""
        pointer, mask = self.values[op.operands[0]], self._mask(op, active)
        if op.name == "ttg.async_copy_global_to_local":
            slot = self.values.get(op.operands[1])
            if isinstance(slot, tuple):
                self._put(slot, self._load(op, pointer, mask), active)
        elif op.results and op.results[0] in self.needed:
            if op.name == "tt.atomic_cas":
                self.notes.add("tt.atomic_cas is evaluated as if no other program interfered.")
                self.values[op.results[0]] = self.values[op.operands[1]]
            elif op.name == "tt.load":
                self.values[op.results[0]] = self._load(op, pointer, mask)
            else:
                raise UnsupportedOperation(f"Addresses depend on the result of {op.name}.")

    def _load(self, op: Op, pointer: Value, mask: Value) -> Value:
        has_default = op.name == "tt.load" and len(op.operands) > 2
        default = self.values[op.operands[2]] if has_default else Value(0)
        size, shape = pointee_bytes(op.text), op.shape

        def read(address: np.ndarray, active: np.ndarray, default: np.ndarray) -> np.ndarray:
            address, active, result = np.broadcast_arrays(address, active, default)
            storage = storage_number(address)
            for number in np.unique(storage[active]):
                contents = self._contents(int(number), size)
                inside = active & (storage == number)
                dtype = contents.dtype if contents.dtype.kind == "f" else np.dtype(np.int64)
                result = np.array(result, np.result_type(result.dtype, dtype) if dtype.kind == "f" else dtype)
                place = (address[inside] - self.starts[number]) // size
                if place.size and not (place.min() >= 0 and place.max() < len(contents)):
                    raise UnsupportedOperation("A load that addresses depend on reads outside its tensor's memory.")
                result[inside] = contents[place]
            return np.asarray(result)

        loaded = apply(read, pointer, mask, default)
        return loaded.map_blocks(lambda table: np.broadcast_to(table, (len(table), *shape)))

    def _contents(self, number: int, size: int) -> np.ndarray:
        if not 0 <= number < len(self.storages):
            raise UnsupportedOperation("An address was read from memory: a tensor of pointers.")
        if number in self.stored:
            raise UnsupportedOperation("Addresses depend on values that this kernel stores.")
        storage = self.storages[number]
        if size not in storage.contents:
            raise UnsupportedOperation(storage.why_unknown)
        return storage.contents[size]()

    def _count(self, op: Op, pointer: Value, mask: Value, instruction: Instruction | str) -> None:
        tally = self.tallies[op.line]
        programs = np.flatnonzero(self._per_program(Value(mask.base)))
        tally.executions += len(programs)
        if not len(programs):
            return
        base = self._per_program(pointer)
        keys: list[np.ndarray] = []
        for term in pointer.terms:
            base = base + term.per_program(term.first)
            keys.append(term.per_program(term.fingerprints))
        keys += [term.per_program(term.fingerprints) for term in mask.terms]
        starts = base if len(programs) == len(base) else base[programs]
        lowest, highest = int(starts.min()), int(starts.max())
        is_single = storage_number(lowest) == storage_number(highest)
        tally.storages.update([storage_number(lowest)] if is_single else np.unique(storage_number(starts)).tolist())
        if isinstance(instruction, str):
            raise UnsupportedOperation(instruction)
        keys = [pick(key, programs) for key in (base % LINE_BYTES, *keys)]
        first, index = group(keys)
        times = np.array([len(programs)]) if index is None else np.bincount(index)
        known, facts = tally.classes, np.zeros((len(first), 6), np.int64)
        is_new = np.ones(len(first), bool)
        if len(first) <= _MOST_REMEMBERED:
            names = list(zip(*(np.broadcast_to(pick(key, first), len(first)).tolist() for key in keys), strict=True))
            for i, name in enumerate(names):
                if name in known:
                    facts[i], is_new[i] = known[name], False
        self._spend(int(is_new.sum()) * math.prod(op.shape) >> 9)
        at_once = max(1, _CHUNK // max(1, int(np.prod(op.shape))))
        for some in np.array_split(np.flatnonzero(is_new), -(-np.count_nonzero(is_new) // at_once) or 1):
            if len(some):
                members = programs[first[some]]
                facts[some] = self._count_class(op, pointer, mask, instruction, members)
                facts[some, 4:] -= base[members, None]
        if len(first) <= _MOST_REMEMBERED:
            known |= {names[i]: facts[i] for i in np.flatnonzero(is_new)}
        tally.counts += (facts[:, :4] * times[:, None]).sum(axis=0)
        issued, each = facts[:, 0] > 0, np.zeros(len(programs), int) if index is None else index
        if not issued.any():
            return
        if sum(len(number) for number, _ in tally.starts) < _MOST_STARTS:
            some = np.flatnonzero(issued[each])[:_MOST_STARTS]
            tally.starts.append((self.programs[programs[some]], (starts + facts[each, 4])[some]))
        low, high = lowest + int(facts[issued, 4].min()), highest + int(facts[issued, 5].max())
        number = storage_number(low)
        is_known = 0 <= number < len(self.starts)
        if tally.outside or (is_known and low >= self.starts[number] and high < self.ends[number]):
            return
        ends = starts[issued[each], None] + facts[each[issued[each]], 4:]
        self._check_bounds(op, pointer, mask, programs[issued[each]], ends)

    def _blocks(self, op: Op, pointer: Value, mask: Value, programs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rank, shape = len(op.shape), (len(programs), *op.shape)
        address, active = (np.broadcast_to(v.with_rank(rank).blocks(programs), shape) for v in (pointer, mask))
        return address, active

    def _count_class(
        self, op: Op, pointer: Value, mask: Value, instruction: Instruction, programs: np.ndarray
    ) -> np.ndarray:
        """Return for each program its counts and the smallest and largest address of an active element."""
        address, active = self._blocks(op, pointer, mask, programs)
        counts = count_blocks(instruction, op.name == "tt.load", address, active)
        if self.tallies[op.line].example is None and counts[:, 0].any():
            row = int(counts[:, 0].argmax())
            self.tallies[op.line].example = Example(int(self.programs[programs[row]]), address[row], active[row])
        address, active = (part.reshape(len(programs), -1) for part in (address, active))
        low = np.where(active, address, np.iinfo(np.int64).max).min(axis=1)
        return np.column_stack([counts, low, np.where(active, address, -1).max(axis=1)])

    def _check_bounds(self, op: Op, pointer: Value, mask: Value, programs: np.ndarray, ends: np.ndarray) -> None:
        """Keep an execution that accesses an element outside its storage.

        Args:
            ends: (programs, 2), the smallest and largest address of an active element.
        """
        number = storage_number(ends)
        known = (number >= 0) & (number < len(self.storages))
        number = np.where(known, number, 0)
        outside = known & ((ends < self.starts[number]) | (ends >= self.ends[number]))
        for program in programs[outside.any(axis=1)][:1]:
            address, active = (part[0] for part in self._blocks(op, pointer, mask, np.array([program])))
            number = np.clip(storage_number(address), 0, len(self.storages) - 1)
            places = np.argwhere(active & ((address < self.starts[number]) | (address >= self.ends[number])))
            example = Example(int(self.programs[program]), address, active)
            self.tallies[op.line].outside = example, tuple(places[0].tolist())

    # Descriptors.

    def _create_descriptor(self, op: Op) -> None:
        """Read `ttng.tensormap_create`: sizes start with the fastest dimension; strides, in bytes, omit it."""
        counts = [part.count("%") for part in re.findall(r"\[(.*?)\]", op.text)]
        numbers = [self.values[name].base for name in op.operands]
        if any(len(np.unique(number)) > 1 for number in numbers[1:]):
            raise UnsupportedOperation("Programs create different descriptors.")
        slot, address, *rest = (int(number[0]) for number in numbers)
        box, sizes, strides = counts[:3]
        match = re.search(r"elem_type = (\d+)", op.text)
        size = _TENSOR_MAP_BYTES[int(match[1]) if match else 0]
        shape = tuple(rest[box : box + sizes][::-1])
        steps = (*(stride // size for stride in rest[box + sizes : box + sizes + strides][::-1]), 1)
        self.descriptors[slot] = Descriptor(shape, steps, size, address)

    def _copy_block(self, op: Op, active: np.ndarray) -> None:
        """Count a copy by the tensor memory accelerator, box row by box row: see `kernels.sectors`."""
        tally = self.tallies[op.line]
        if op.mask:
            active = active & self._per_program(self.values[op.mask])
        programs = np.flatnonzero(active)
        tally.executions += len(programs)
        if not len(programs):
            return
        numbers = np.unique(self._per_program(self.values[op.operands[0]])[programs])
        descriptor = self.descriptors[int(numbers[0])]
        if len(numbers) > 1 or descriptor is None:
            raise UnsupportedOperation("Programs use different descriptors in one copy.")
        tally.storages.add(storage_number(descriptor.address))
        is_load = MEMORY_OPS[op.name].counter == "tma_ld"
        if not is_load:
            self.stored |= tally.storages
        block = np.array(op.shape)
        check_size(*block.tolist())
        size, strides = descriptor.element_bytes, np.array(descriptor.strides)
        at = np.stack([self._per_program(self.values[name])[programs] for name in op.coordinates], axis=1)
        before, after = np.clip(-at, 0, block), np.clip(np.array(descriptor.shape) - at, 0, block)
        start = (descriptor.address + (at * strides).sum(axis=1) * size) % LINE_BYTES
        classes, times = np.unique(np.column_stack([start, before, after]), axis=0, return_counts=True)
        granule = GRANULE_BYTES // size
        places = np.indices((*block[:-1], block[-1] // granule)).reshape(len(block), -1)
        places[-1] *= granule
        per_row = box_row_bytes(op.swizzle_bytes, int(block[-1]) * size) // GRANULE_BYTES
        for (start, *limits), count in zip(classes.tolist(), times.tolist(), strict=True):
            low, high = (np.array(part)[:, None] for part in (limits[: len(block)], limits[len(block) :]))
            inside = ((places >= low) & (places < high)).all(axis=0).reshape(-1, per_row)
            address = (start + (places * strides[:, None]).sum(axis=0) * size).reshape(-1, per_row)
            sectors = count_requests(address, inside, GRANULE_BYTES)[:, SECTORS].sum()
            tally.counts[SECTORS] += (sectors + is_load * count_padding(inside).sum()) * count
