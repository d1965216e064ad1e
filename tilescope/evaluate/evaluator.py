"""Evaluate the addresses and masks of a launch from its TTGIR, for all programs at once.

Only the operations that addresses, masks and control flow depend on are evaluated. The kernel's own code never runs.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from tilescope.captures.listings import UnsupportedOperation
from tilescope.evaluate import arithmetic
from tilescope.evaluate.arithmetic import Overflows
from tilescope.evaluate.global_memory import CHUNK, STORAGE_STEP, Descriptor, GlobalMemory
from tilescope.evaluate.values import (
    Unknown,
    Value,
    add,
    check_size,
    choose,
    common_shape,
    conjunction,
    multiply,
    possible,
)
from tilescope.ttgir.graph import Slice
from tilescope.ttgir.parser import MEMORY_OPS, POINTER_OPS, Op, Region, Source, memory_ops, shape_of

# Maximum number of programs that are evaluated at once.
_PROGRAMS_AT_ONCE = 1 << 20

# Bytes per element of `tensormap.replace`'s .elemtype (PTX ISA 9.0). Its numbers differ from CUtensorMapDataType's.
_TENSOR_MAP_BYTES = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2, 4, 4)
# The descriptor copies that are not counted, as kernels call them.
_UNCOUNTED = {
    "ttng.async_tma_gather": "gather",
    "ttng.async_tma_scatter": "scatter",
    "ttng.async_tma_reduce": "atomic",
}


class Evaluator:
    """The state of one evaluation: values by name. A slot of a shared buffer is a pair: the values by index, an index.

    Where it is unknown which programs execute an operation, all that may do so count, and `doubt` says why.

    Args:
        arguments: of the function, in order: numbers, descriptors, or addresses made with STORAGE_STEP.
        depths: for each source line, how many branches of the SASS skip its loads.

    Attributes:
        all_programs: the programs to evaluate, (programs,).
        keeps_order: whether to evaluate the iterations of loops one by one.
    """

    def __init__(
        self,
        body: Region,
        arguments: Sequence[Any],
        grid: Sequence[int],
        memory: GlobalMemory,
        depths: Mapping[Source, int],
    ) -> None:
        self.body = body
        self.grid = (*grid, 1, 1)[:3]
        self.memory = memory
        count = math.prod(self.grid)
        self.all_programs = np.arange(count)
        # Several entries per program while a loop is unrolled.
        self.programs = self.all_programs[:0]
        self.slice = Slice(body, depths)
        self.needed = self.slice.values
        self.has_locks = False
        self.keeps_order = False
        self.doubt = ""
        self.overflows = Overflows(count)
        self.values: dict[str, Any] = {}
        # By address. Memory for the descriptors that programs make is allocated in steps of STORAGE_STEP.
        self.descriptors: dict[int, Descriptor] = {}
        self.allocated = 0
        for name, argument in zip(body.arguments, arguments, strict=True):
            if isinstance(argument, Descriptor):
                slot = self._allocate()
                self.descriptors[slot] = argument
                argument = slot
            self.values[name] = Value(argument)

    def run(self) -> None:
        """Evaluate the launch: fill the tallies of its memory."""
        count = len(self.all_programs)
        with np.errstate(all="ignore"):
            for part in np.array_split(self.all_programs, -(-count // _PROGRAMS_AT_ONCE) or 1):
                self.programs = part
                self._run_region(self.body, np.ones(len(part), bool))

    # Control flow. `active` says which programs execute an operation.

    def _run_region(self, region: Region, active: ndarray) -> None:
        arriving: dict[str, list[tuple[ndarray, list[Any]]]] = {}
        outer_doubt = self.doubt
        # Per program: both sides of an unknown branch get half of the share, and where they meet it is 1 again.
        share = active.astype(float)
        for op in region.ops:
            if op.name == "cf.block":
                share = np.zeros(len(self.programs))
                for part, passed in arriving.get(op.text, []):
                    where = Unknown(self.doubt) if (part * share).any() else part > 0
                    self._assign(op.results, passed, where if share.any() else None)
                    share = share + part
                active = share > 0
                if (share[active] == 1).all():
                    self.doubt = outer_doubt
            elif op.targets:
                masks: Sequence[ndarray] = (active,)
                if op.name == "cf.cond_br":
                    masks = self._branch(op, active, "returns")
                parts = np.maximum(1, np.sum(masks, axis=0))
                for (label, passed), mask in zip(op.targets, masks, strict=True):
                    arriving.setdefault(label, []).append((share * mask / parts, self._get(passed)))
                active = np.zeros(len(self.programs), bool)
            else:
                try:
                    self._run(op, active)
                except UnsupportedOperation as error:
                    self._refuse(op, str(error) if active.any() else "")
        self.doubt = outer_doubt

    def _refuse(self, op: Op, why: str) -> None:
        sunk = (load for load, into in self.slice.sunk.items() if into is op)
        for inner in (*memory_ops(op), *sunk):
            tally = self.memory.tallies[inner]
            tally.refused = tally.refused or why
        if op.name.startswith(("arith.", "math.")):
            shape = common_shape(*filter(None, self._get(op.operands)))
        else:
            is_clear = len(op.results) == 1 or "tensor<" not in op.type
            shape = shape_of(op.type) if is_clear else None
        is_boolean = op.name.startswith("arith.cmp") or arithmetic.bits_of(op.type) == 1
        start = Value(True if is_boolean else 0)
        why = why or "The value of a branch that no program takes is unknown."
        self.values |= dict.fromkeys(op.results, Unknown(why, shape, known=start))

    def _run(self, op: Op, active: ndarray) -> None:
        is_needed = op.has_memory or not self.needed.isdisjoint(op.results)
        self.memory.spend(is_needed + (is_needed * len(self.programs) >> 12))
        if op.name in POINTER_OPS:
            if self.slice.sunk.get(op) is None:
                self._count(op, active)
            self._load(op, active)
        elif op.name == "ttng.tensormap_create":
            self._create_descriptor(op, active)
        elif op.name in _UNCOUNTED:
            raise UnsupportedOperation(
                f"A descriptor's {_UNCOUNTED[op.name]} is not evaluated. {arithmetic.COUNT_IT}"
            )
        elif op.name in MEMORY_OPS:
            self._copy_block(op, active)
        elif op.name in ("ttg.warp_specialize", "tt.call"):
            for region in op.regions:
                self._assign(region.arguments, self._get(op.operands)[: len(region.arguments)])
                self._run_region(region, active)
        elif op.name == "ttg.local_store":
            value, slot = self._get(op.operands)
            self._put(slot, value, active)
        elif is_needed and op.name in _CONTROL_FLOW:
            _CONTROL_FLOW[op.name](self, op, active)
        elif is_needed:
            self._assign(op.results, self._evaluate(op, active))

    def _get(self, names: Sequence[str]) -> list[Any]:
        """Return the values of names; None if they are not needed."""
        return [self.values.get(name) for name in names]

    def _assign(
        self, names: Sequence[str], values: Sequence[Any], where: ndarray | Unknown | None = None
    ) -> None:
        """Assign the values that are needed, or those of some programs."""
        for name, value in zip(names, values, strict=True):
            if name in self.needed and value is not None:
                try:
                    self.values[name] = (
                        value if where is None else choose(where, value, self.values[name])
                    )
                except UnsupportedOperation as error:
                    self.values[name] = Unknown(str(error))

    def _per_program(self, name: str) -> ndarray:
        return np.broadcast_to(self.values[name].base, len(self.programs))

    def _branch(self, op: Op, active: ndarray, verb: str) -> tuple[ndarray, ndarray]:
        """Return the programs whose condition is true, and those for which it is false, or may be."""
        condition = self.values[op.operands[0]]
        is_true = np.broadcast_to(possible(condition).base, len(self.programs))
        if not isinstance(condition, Unknown):
            return active & is_true, active & ~is_true
        if active.any() and not self.doubt:
            self.doubt = (
                f"Whether a program {verb} on line {op.place[1]} is unknown. {condition.why}"
            )
        return active & is_true, active

    def _run_for(self, op: Op, active: ndarray) -> None:
        body = op.regions[0]
        self._check_loop(op, op.operands)
        (low, high, step) = (self.values[name].base for name in op.operands)
        trips = np.broadcast_to(np.maximum(-((low - high) // step), 0), len(self.programs))
        self._count_sunk_loads(op, active & (trips > 0))
        induction, *carried = body.arguments
        most = int(trips[active].max(initial=0))
        fewest = int(trips[active].min(initial=1 << 62))
        at_once = CHUNK // max((math.prod(inner.shape) for inner in memory_ops(body)), default=1)
        is_sequential = self.keeps_order or self.slice.keeps_state(body)
        if most > 4 and at_once > 2 * np.count_nonzero(active) and not is_sequential:
            steps = self._constant_steps(op)
            if steps is not None:
                steps[induction] = Value(low), Value(step)
                return self._run_all_iterations(body, active, trips, steps, at_once)
        self._assign(carried, self._get(op.inits))
        for i in range(most):
            self.memory.spend(0)
            running = active if i < fewest else active & (trips > i)
            self.values[induction] = Value(low + i * step)
            self._run_region(body, running)
            self._assign(carried, self._get(body.yielded), None if i < fewest else running)
        self._assign(op.results, self._get(carried))

    def _constant_steps(self, op: Op) -> dict[str, tuple[Value, Value]] | None:
        """Return the initial value and the constant increment of each carried value; None if any increment varies."""
        body = op.regions[0]
        steps = {}
        inside = {name: inner for inner in body.ops for name in inner.results}
        carried = zip(body.arguments[1:], op.inits, op.results, body.yielded, strict=True)
        for name, initial, result, following in carried:
            if name not in self.needed:
                continue
            growth = inside.get(following)
            if result in self.needed or not growth:
                return None
            if growth.name not in ("arith.addi", "tt.addptr") or growth.operands[0] != name:
                return None
            by = growth.operands[1]
            if by in inside or by in body.arguments or self.values[by].known.terms:
                return None
            increment = arithmetic.evaluate(growth, [Value(0), self.values[by]])
            steps[name] = self.values[initial], increment
        return steps

    def _run_all_iterations(
        self,
        body: Region,
        active: ndarray,
        trips: ndarray,
        steps: dict[str, tuple[Value, Value]],
        at_once: int,
    ) -> None:
        """Run a loop whose iterations are independent: each iteration of each program counts as a program."""
        programs = self.programs
        outer = self.values
        running = np.flatnonzero(active & (trips > 0))
        ends = np.cumsum(trips[running])
        used = {name for inner in body.walk() for name in inner.uses} & outer.keys()
        for start in range(0, int(ends[-1]), at_once):
            pair = np.arange(start, min(start + at_once, int(ends[-1])))
            number = np.searchsorted(ends, pair, side="right")
            program = running[number]
            iteration = Value(pair - (ends[number] - trips[program]))
            self.programs = programs[program]
            self.values = {
                name: outer[name].select(program) if isinstance(outer[name], Value) else outer[name]
                for name in used
            }
            for name, (initial, growth) in steps.items():
                self.values[name] = add(
                    initial.select(program), multiply(growth.select(program), iteration)
                )
            self._run_region(body, np.ones(len(pair), bool))
        self.programs = programs
        self.values = outer

    def _run_while(self, op: Op, active: ndarray) -> None:
        before, after = op.regions
        condition, *passed = before.yielded
        is_lock = not op.inits or self._is_contended(condition)
        if is_lock:
            self.has_locks = True
            why = "Each program tries at least once. Other programs decide whether it retries."
            for inner in memory_ops(op) if active.any() else ():
                tally = self.memory.tallies[inner]
                tally.refused = tally.refused or why
        running = active
        self._assign(before.arguments, self._get(op.inits))
        while True:
            self.memory.spend(0)
            self._run_region(before, running)
            self._assign(op.results, self._get(passed), None if running is active else running)
            if is_lock:
                return
            entering = running is active
            self._check_loop(op, [condition])
            running = running & self._per_program(condition)
            if entering:
                self._count_sunk_loads(op, running)
            if not running.any():
                return
            self._assign(after.arguments, self._get(passed))
            self._run_region(after, running)
            self._assign(before.arguments, self._get(after.yielded))

    def _check_loop(self, op: Op, names: Sequence[str]) -> None:
        for value in self._get(names):
            if isinstance(value, Unknown):
                raise UnsupportedOperation(
                    f"How often the loop on line {op.place[1]} runs is unknown. {value.why}"
                )

    def _run_if(self, op: Op, active: ndarray) -> None:
        results = []
        outer_doubt = self.doubt
        if self._is_contended(op.operands[0]):
            why = "Whether a program reaches this line depends on the order of programs."
            raise UnsupportedOperation(f"{why} {arithmetic.COUNT_IT}")
        masks = self._branch(op, active, "takes the branch")
        self._count_sunk_loads(op, masks[0])
        for region, mask in zip(op.regions, masks, strict=False):
            if mask.any() or op.results:
                self._run_region(region, mask)
            results.append(self._get(region.yielded))
        self._assign(op.results, results[-1])
        condition = self.values[op.operands[0]]
        is_unknown = isinstance(condition, Unknown)
        where = condition if is_unknown else self._per_program(op.operands[0])
        self._assign(op.results, results[0], where)
        self.doubt = outer_doubt

    def _is_contended(self, condition: str) -> bool:
        """Return whether a condition depends on the result of an atomic."""
        return not self.slice.atomics.isdisjoint(self.slice.reach([condition]))

    # Values that need more than arithmetic.

    def _evaluate(self, op: Op, active: ndarray) -> list[Any]:
        operands = self._get(op.operands)
        match op.name:
            case "tt.get_program_id":
                axis = "xyz".index(op.text.split()[0])
                return [Value(self.programs // math.prod(self.grid[:axis]) % self.grid[axis])]
            case "tt.get_num_programs":
                return [Value(self.grid["xyz".index(op.text.split()[0])])]
            case "tt.reduce" | "tt.scan":
                self.memory.spend(op.shape[op.attribute("axis")] * len(op.regions[0].ops))
                return arithmetic.fold(op, operands, self.values)
            case "tt.split":
                return arithmetic.split(operands[0])
            case "ttg.global_scratch_alloc":
                return [Value(self._allocate())]
            case "ttg.local_alloc":
                return [(dict(enumerate(operands)), 0)]
            case "ttg.memdesc_index":
                index = self._per_program(op.operands[1])
                slots = np.unique(index[active] if active.any() else index[:1]).tolist()
                if len(slots) > 1:
                    why = "Programs load addresses from different stages of a pipelined loop. Use num_stages=1."
                    raise UnsupportedOperation(why)
                buffer, _ = operands[0]
                return [(buffer, slots[0])]
            case "ttg.local_load":
                buffer, slot = operands[0]
                if slot not in buffer:
                    raise UnsupportedOperation(
                        f"Accesses depend on a copy in shared memory. {arithmetic.COUNT_IT}"
                    )
                return [buffer[slot]]
        result = arithmetic.evaluate(op, operands)
        if result.unwrapped and not self.doubt:
            self.overflows.note(op, result.unwrapped, self.programs, active)
        return [result]

    def _put(self, slot: Any, value: Any, active: ndarray) -> None:
        if isinstance(slot, tuple) and value is not None:
            buffer, index = slot
            where = Unknown(self.doubt) if self.doubt else active
            buffer[index] = choose(where, value, buffer[index]) if index in buffer else value

    # Memory.

    def _mask(self, op: Op, active: ndarray) -> Value:
        mask = self.values[op.mask] if op.mask else Value(True)
        return mask if active.all() else conjunction(mask, Value(active))

    def _count(self, op: Op, active: ndarray) -> None:
        pointer = self.values[op.operands[0]]
        self.memory.count(op, pointer, self._mask(op, active), self.programs, self.doubt)

    def _count_sunk_loads(self, into: Op, active: ndarray) -> None:
        for load, op in self.slice.sunk.items():
            if op is into:
                self._count(load, active)

    def _load(self, op: Op, active: ndarray) -> None:
        """Read the values that an access loads, if addresses depend on them."""
        slot = (
            self.values.get(op.operands[1]) if op.name == "ttg.async_copy_global_to_local" else None
        )
        is_needed = not self.needed.isdisjoint(op.results)
        pointer = self.values[op.operands[0]]
        mask = self._mask(op, active)
        if isinstance(slot, tuple) or (is_needed and op.name == "tt.load"):
            has_default = op.name == "tt.load" and len(op.operands) > 2
            default = self.values[op.operands[2]] if has_default else Value(0)
            stored = self.slice.find_stored_constant(op.operands[0]) if self.has_locks else None
            try:
                if stored and not op.shape:
                    loaded = self._load_in_turn(op, active, arithmetic.constant(stored))
                else:
                    loaded = self.memory.load(op, pointer, mask, default)
            except UnsupportedOperation as error:
                loaded = Unknown(str(error), common_shape(pointer, mask, default))
            self._put(slot, loaded, active)
            self._assign(op.results, [loaded])
        elif is_needed and op.name == "tt.atomic_cas":
            self.values[op.results[0]] = self.values[op.operands[1]]
        elif is_needed and op.name == "tt.atomic_rmw":
            why = "Accesses depend on the result of an atomic, and so on the order of programs."
            shape = common_shape(pointer, mask)
            self.values[op.results[0]] = Unknown(f"{why} {arithmetic.COUNT_IT}", shape)

    def _load_in_turn(self, op: Op, active: ndarray, stored: Value) -> Value:
        """Return values loaded under a lock: the old one for the first program at each address, else the stored one.

        The order of the programs does not matter for the counts if they do the same behind the lock.
        """
        pointer = self.values[op.operands[0]]
        address = np.broadcast_to(pointer.base, len(active))
        first = np.zeros(len(active), bool)
        running = np.flatnonzero(active)
        first[running[np.unique(address[running], return_index=True)[1]]] = True
        initial = self.memory.load(op, pointer, Value(active), Value(0), is_locked=True)
        return choose(first, initial, stored)

    # Descriptors.

    def _allocate(self) -> int:
        self.allocated += STORAGE_STEP
        return self.allocated

    def _create_descriptor(self, op: Op, active: ndarray) -> None:
        """Read `ttng.tensormap_create`: sizes start with the fastest dimension; strides, in bytes, omit it."""
        box, sizes, strides = (part.count("%") for part in re.findall(r"\[(.*?)\]", op.text)[:3])
        number = op.attribute("elem_type")
        if number >= len(_TENSOR_MAP_BYTES):
            raise UnsupportedOperation(
                "Descriptors of elements smaller than a byte are not counted."
            )
        size = _TENSOR_MAP_BYTES[number]
        running = np.flatnonzero(active)
        slots, address, *rest = (self._per_program(name)[running] for name in op.operands)
        shape = rest[box : box + sizes][::-1]
        steps = [stride // size for stride in rest[box + sizes : box + sizes + strides][::-1]]
        facts = np.stack([address, *shape, *steps, np.ones_like(address)], axis=1)
        for slot in np.unique(slots).tolist():
            descriptor = self.descriptors.get(slot)
            if descriptor is None:
                shape_of_all = math.prod(self.grid), facts.shape[1]
                check_size(*shape_of_all)
                descriptor = Descriptor(size, np.zeros(shape_of_all, np.int64))
                self.descriptors[slot] = descriptor
            descriptor.facts[self.programs[running[slots == slot]]] = facts[slots == slot]
        self.memory.count_descriptors(op, address)

    def _copy_block(self, op: Op, active: ndarray) -> None:
        programs = np.flatnonzero(active & self._per_program(op.mask) if op.mask else active)
        tally = self.memory.tallies[op]
        tally.executions += len(programs)
        if len(programs):
            tally.doubt = tally.doubt or self.doubt
        slots = self._per_program(op.operands[0])[programs]
        for slot in np.unique(slots).tolist():
            some = programs[slots == slot]
            descriptor = self.descriptors.get(slot)
            if descriptor is None:
                raise UnsupportedOperation(
                    "The descriptor was loaded from memory. Pass it as an argument."
                )
            at = np.stack([self._per_program(name)[some] for name in op.coordinates], axis=1)
            self.memory.copy_block(op, descriptor, at, self.programs[some])


_CONTROL_FLOW = {
    "scf.for": Evaluator._run_for,
    "scf.while": Evaluator._run_while,
    "scf.if": Evaluator._run_if,
}
