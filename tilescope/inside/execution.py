"""Execute the part of a kernel's SASS that decides which instructions run, and which shared memory they access.

All programs and threads run at once. A block of instructions runs when no thread that has yet to reach it is at a lower
address, so divergent threads reconverge. Threads wait only at barriers of all warps (see `is_barrier`): others, and
copies, always succeed. Once a line has stored to a tensor, the tensor's values are unknown.
"""

import functools
import math
import operator
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilescope.captures.listings import UnsupportedOperation
from tilescope.evaluate.sectors import count_requests
from tilescope.inside.banks import WORD_BYTES, BankAccess, Wavefronts, count_by_warp
from tilescope.sass import semantics
from tilescope.sass.decoding import CONSTANT_REGISTERS, Source, next_register, register, source
from tilescope.sass.instructions import Instruction
from tilescope.sass.plan import (
    GLOBAL_STORES,
    INDIRECT,
    INSTRUCTION_BYTES,
    Budget,
    Plan,
    Planned,
    is_barrier,
)
from tilescope.sass.semantics import LANES, Number

_AXES = {"SR_CTAID.X": 0, "SR_CTAID.Y": 1, "SR_CTAID.Z": 2}
_MOST_REMEMBERED = 1 << 12
# Maximum elements of all values that one launch may compute; a billion take about 2 s.
_MOST_WORK = 1_000_000_000
# Maximum threads, and tables of shared memory, to hold in memory at once.
_MOST_THREADS = 1 << 21
_MOST_TABLES = 1 << 8
# Maximum programs of a launch whose values in shared memory are computed.
_MOST_PROGRAMS = 1 << 12
_SHARED_BYTES = 1 << 18
_SYSTEM_BYTES = 1 << 10
_WIDEST_BYTES = 16
_NO_TABLE = "The capture lacks the targets of a branch. Capture the launch again."
# Atomics of one lane of a program.
_ATOMICS = {"ATOMS.OR": operator.or_, "ATOMS.AND": operator.and_}
# Work to execute a block, one of its steps, and an access to shared memory, whatever the number of threads.
_BLOCK_WORK = 5000
_STEP_WORK = 2000
_ACCESS_WORK = 25_000
# Work to count the request of a thread.
_REQUEST_WORK = 30


@dataclass
class Executions:
    """How often the warps of a launch execute each instruction.

    Attributes:
        by_warp: (warps of a program, instructions) int64, over all programs.
        wavefronts: by the index of each instruction that accesses shared memory.
        accesses: for each of them, an example: its execution in one program.
        refused: why the wavefronts or the requests of an instruction are unknown, by its index.
        uncertain: the instructions whose number of executions depends on unknown values.
        requests: the sums of the `RequestCosts` of each access to global memory that is counted.
    """

    by_warp: np.ndarray
    wavefronts: dict[int, Wavefronts] = field(default_factory=dict)
    accesses: dict[int, BankAccess] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    uncertain: set[int] = field(default_factory=set)
    requests: dict[int, np.ndarray] = field(default_factory=dict)

    @property
    def times(self) -> np.ndarray:
        """The executions of each instruction: (instructions,) int64."""
        return self.by_warp.sum(axis=0)

    @property
    def why_uncertain(self) -> str:
        """Why the number of executed instructions is unknown; "" if it is known."""
        if not self.uncertain:
            return ""
        number = len(self.uncertain)
        return (
            f"Whether {number:,} of {len(self.times):,} instructions are executed depends on values "
            "that are unknown until the kernel runs."
        )


@dataclass(frozen=True)
class LaunchInputs:
    """The inputs of an execution.

    Attributes:
        threads: of a program.
        read_constant: returns the 32-bit word of the constant bank at an offset; None if it is unknown.
        load: returns the elements of global memory at (programs, threads) addresses, and where they are known. Takes
            the addresses, the bytes of an element, and the storages whose values have changed.
        table: the words of constant bank 2.
        find_stored: returns the storages to which a source line stores.
    """

    grid: tuple[int, int, int]
    threads: int
    read_constant: Callable[[int], int | None]
    load: Callable[[np.ndarray, int, Collection[int]], tuple[np.ndarray, np.ndarray]]
    table: Sequence[int] = ()
    find_stored: Callable[[tuple[str, int]], Collection[int]] = lambda _: ()


def execute(
    code: Sequence[Instruction], launch: LaunchInputs, counted: Collection[int] = ()
) -> Executions:
    """Execute a launch.

    Args:
        counted: the indices of loads and stores in global memory whose requests to count.

    Raises:
        UnsupportedOperation: a branch depends on an unknown value, the launch is too large, or there is no code.
    """
    if not code:
        raise UnsupportedOperation("The capture has no SASS.")
    budget = Budget(_MOST_WORK)
    plan = Plan(code, budget, launch.table, counted)
    grid = launch.grid
    sizes = [grid[axis] if name in plan.needed_names else 1 for name, axis in _AXES.items()]
    count = math.prod(sizes)
    repeats = math.prod(grid) // count
    executions = Executions(np.zeros((-(-launch.threads // LANES), len(code)), np.int64))
    at_once = max(1, _MOST_THREADS // launch.threads)
    keeps_shared = plan.reads_shared and count <= _MOST_PROGRAMS
    if keeps_shared:
        at_once = min(at_once, _MOST_TABLES)
    for start in range(0, count, at_once):
        numbers = np.arange(start, min(start + at_once, count))
        coordinates = np.unravel_index(numbers, sizes, order="F")
        _Run(plan, launch, coordinates, executions, budget, keeps_shared).run()
    executions.by_warp *= repeats
    for index, total in executions.wavefronts.items():
        executions.wavefronts[index] = Wavefronts(*(repeats * each for each in total))
    for index in executions.requests:
        executions.requests[index] *= repeats
    return executions


# Threads at the start of each block: a mask per branch that leads there, and the registers that the block needs.
_Queue = dict[int, tuple[list[Any], dict[str, Number], dict[str, Any]]]


class _Run:
    """An execution of programs of a launch. `known` has a mask for each register that is not known everywhere."""

    def __init__(
        self,
        plan: Plan,
        launch: LaunchInputs,
        coordinates: Sequence[np.ndarray],
        executions: Executions,
        budget: Budget,
        keeps_shared: bool,
    ) -> None:
        self.plan = plan
        self.launch = launch
        self.executions = executions
        self.budget = budget
        self.keeps_shared = keeps_shared
        self.shape = (len(coordinates[0]), launch.threads)
        self.values: dict[str, Number] = {"SR_TID.X": np.arange(launch.threads)[None]}
        for name, axis in _AXES.items():
            self.values[name] = coordinates[axis][:, None]
        self.values["SR_LANEID"] = np.arange(launch.threads)[None] % LANES
        self.known: dict[str, Any] = {}
        # Accesses whose addresses and masks have the same random hash count as equal.
        random = np.random.default_rng(1)
        self.factors = random.integers(1, 1 << 63, (2, launch.threads), np.uint64) | np.uint64(1)
        self.waiting: _Queue = {}
        self.at_barriers: _Queue = {}
        self.shared: _SharedMemory | None = None
        # The storages to which programs have stored.
        self.stored = set[int]()
        self.counted: dict[tuple[int, int, int], Wavefronts] = {}
        # The threads that run the current block, and those of them that run it together. Registers of other threads
        # may hold any value.
        self.active: Any = True
        self.groups: Sequence[Any] = ()

    def run(self) -> None:
        self._send(self.waiting, 0, True)
        while self.waiting or self.at_barriers:
            if not self.waiting:
                self.waiting, self.at_barriers = self.at_barriers, self.waiting
            start = min(self.waiting)
            arriving, self.values, self.known = self.waiting.pop(start)
            self._leave(start, self._run_block(start, arriving))

    def _run_block(self, start: int, arriving: list[Any]) -> list[Any]:
        """Execute a block, and return the groups of threads that leave it together."""
        plan = self.plan
        self.active = functools.reduce(operator.or_, arriving)
        self.groups = arriving
        self.budget.spend(_BLOCK_WORK + _STEP_WORK * len(plan.steps[start]))
        # Divergent lanes of a warp run one after the other, until they reconverge.
        times = np.sum([self._count_warps(threads) for threads in arriving], axis=0)
        self.executions.by_warp[:, start : plan.blocks[start]] += times[:, None]
        if start in plan.convergent and not all(map(self._are_whole_warps, arriving)):
            _, line = plan.convergent[start].instruction.source
            raise UnsupportedOperation(
                f"Lanes of a warp diverge before they exchange values on line {line}, which is not supported."
            )
        for planned in plan.steps[start]:
            self._run(planned)
        is_converged = np.array_equal(times, self._count_warps(self.active))
        return [self.active] if plan.reconverges(start) or is_converged else arriving

    def _leave(self, start: int, groups: list[Any]) -> None:
        """Send threads from the end of a block to the blocks that follow."""
        plan = self.plan
        end = plan.blocks[start]
        planned = plan.planned[end - 1]
        last = planned.instruction
        jump = last.traits.jump
        condition: Any = False
        waits = is_barrier(last)
        if waits or jump:
            condition = self._condition(planned, self.active)
            is_exit = condition is None and jump == "exit"
            if is_exit and start not in (following := plan.reach(end, None)):
                # All threads are assumed to continue.
                self._mark_uncertain(following)
                condition = False
            elif condition is None:
                self._send(self.waiting, self._skip(start), self.active)
                return
        targets: list[tuple[int | None, Any]] = [(end if waits else last.target, condition)]
        if jump in INDIRECT:
            targets = self._find_targets(planned, self.active & condition)
        for group in groups:
            if jump == "absolute" and np.any(group & condition):
                raise UnsupportedOperation(f"{last.opcode} is not supported.")
            for target, where in targets:
                taken = group & where
                if np.any(taken) and target is not None:
                    self._send(self.at_barriers if waits else self.waiting, target, taken)
            rest = group & (condition ^ True)
            if np.any(rest) and end < len(plan.code):
                self._send(self.waiting, end, rest)

    def _send(self, queue: _Queue, start: int, threads: Any) -> None:
        """Let threads wait at the start of a block."""
        live = self.plan.live_in[start]
        values = {name: self.values.get(name, 0) for name in live}
        known = {name: self.known.get(name, True) for name in live}
        masks, *registers = queue.setdefault(start, ([], values, known))
        masks.append(threads)
        for own, merged in zip((values, known), registers, strict=True):
            for name, value in own.items():
                if value is not merged[name]:
                    merged[name] = semantics.select(threads, value, merged[name])

    def _count_warps(self, active: Any) -> np.ndarray:
        """Return how often each warp of a program executes something that these threads execute."""
        programs, threads = self.shape
        rows: Any = np.atleast_2d(active)
        if rows.shape[1] > 1:
            rows = rows.reshape(len(rows), -1, LANES).any(axis=2)
        times = rows.sum(axis=0) * (programs // len(rows))
        return np.broadcast_to(times, (-(-threads // LANES),))

    def _are_whole_warps(self, threads: Any) -> bool:
        lanes = self._full(threads).reshape(-1, LANES)
        return np.array_equal(lanes.any(axis=1), lanes.all(axis=1))

    def _find_targets(self, planned: Planned, where: Any) -> list[tuple[int | None, Any]]:
        """Return the blocks to which an indirect jump leads, and the threads of each."""
        address, known = self._read(planned.sources[0])
        if not self._is_known(known, where):
            is_indexed = planned.instruction.traits.jump == "indexed"
            lacks_table = is_indexed and not self.launch.table
            raise UnsupportedOperation(_NO_TABLE if lacks_table else _explain(planned))
        reached = np.unique(
            np.broadcast_to(address, self.shape)[np.broadcast_to(where, self.shape)]
        )
        return [(each // INSTRUCTION_BYTES, where & (address == each)) for each in reached.tolist()]

    def _skip(self, start: int) -> int:
        """Skip the blocks between an unknown branch and the block where its paths reconverge, and return that block.

        Raises:
            UnsupportedOperation: the paths do not reconverge before the end.
        """
        plan = self.plan
        after = plan.find_reconvergence(start)
        if after is None:
            raise UnsupportedOperation(_explain(plan.planned[plan.blocks[start] - 1]))
        # Blocks in between are slow paths for rare operands, or functions, which compute floating-point numbers.
        for planned in self._mark_uncertain(plan.find_between(start, after)):
            self._forget(planned)
        if plan.code[after].effect == "end convergence":
            self.executions.uncertain.add(after)
        return after

    def _mark_uncertain(self, blocks: set[int]) -> list[Planned]:
        """Mark as unknown how often some blocks run, and return their instructions."""
        plan = self.plan
        marked = [each for block in blocks for each in plan.planned[block : plan.blocks[block]]]
        for planned in marked:
            self.executions.uncertain.add(planned.index)
            if planned.instruction.traits.smem:
                self._refuse(planned, "The number of executions of an access")
        return marked

    def _condition(self, planned: Planned, active: Any) -> Any:
        """Return where a jump is taken; None if that is unknown."""
        result: Any = True
        for each in planned.conditions:
            value, known = self._read(each)
            if not self._is_known(known, active):
                return None
            result = result & value
        if planned.instruction.opcode == "BRA.U" and isinstance(result, np.ndarray):
            # It is taken only if all lanes of the warp agree.
            lanes = self._full(result | (active ^ True)).reshape(-1, self.shape[1] // LANES, LANES)
            result = np.repeat(lanes.all(axis=2), LANES, axis=1)
        return result

    def _read(self, operand: Source) -> tuple[Number, Any]:
        """Return an operand's value, and where it is known."""
        if operand.constant is not None:
            at = operand.constant
            words = [self.launch.read_constant(at + 4 * k) for k in range(operand.words)]
            return (0, False) if None in words else (operand.combine(*words), True)
        values = []
        known: Any = True
        for name in operand.registers:
            # No result depends on a register that was never written
            values.append(self.values.get(name, 0))
            if name in self.known:
                known = known & self.known[name]
        return operand.combine(*values), known

    def _write(self, name: str, value: Number, known: Any, condition: Any) -> None:
        """Write a register where a condition holds."""
        if not name or name in CONSTANT_REGISTERS:
            return
        if condition is not True:
            old = self.values.get(name, 0)
            before = self.known.get(name, True)
            if known is not True or before is not True:
                known = semantics.select(condition, known, before)
            value = semantics.select(condition, value, old)
        self.values[name] = value
        if known is True:
            self.known.pop(name, None)
        else:
            self.known[name] = known

    def _forget(self, planned: Planned, condition: Any = True) -> None:
        """Mark the results of an instruction as unknown where a condition holds."""
        for name in planned.writes:
            self._write(name, 0, False, condition)

    def _run(self, planned: Planned) -> None:
        condition: Any = True
        traits = planned.instruction.traits
        if traits.gmem in GLOBAL_STORES:
            self.stored.update(self.launch.find_stored(planned.instruction.source))
        if planned.predicate:
            condition, known = self._read(planned.predicate)
            if not self._is_known(known, self.active):
                if traits.smem or planned.index in self.plan.counted:
                    self._refuse(planned, "The predicate of an access")
                self._forget(planned)
                return
        if planned.index in self.plan.counted:
            self._count_requests(planned, condition)
        if traits.smem:
            self._access_shared(planned, condition)
        if condition is False or not (planned.writes or traits.smem):
            return
        if planned.compute:
            self._compute(planned, planned.compute, condition)
            return
        if traits.lanes:
            self._collect(planned, condition)
            return
        match traits.semantics:
            case "constant":
                self._load_constant(planned, condition)
            case "global load":
                self._load(planned, condition)
            case "shared memory" if traits.smem != "atomic" or not planned.writes:
                self._move_shared(planned, condition)
            case "success" if planned.writes:
                # A barrier's phase is complete, and tensor memory and registers are free.
                self._write(planned.writes[0], True, True, condition)
            case _ if "CAS" in planned.instruction.opcode:
                # The first attempt succeeds
                value, known = self._read(planned.sources[-1])
                self._write(planned.writes[0], value, known, condition)
            case _:
                self._forget(planned, condition)

    def _is_known(self, known: Any, where: Any) -> bool:
        return known is True or not np.any(where & (np.asarray(known) ^ True))

    def _compute(self, planned: Planned, compute: Callable[..., Any], condition: Any) -> None:
        values = []
        known: Any = True
        for each in planned.sources:
            value, is_known = self._read(each)
            values.append(value)
            known = known & is_known
        if known is False:
            results: Sequence[Number] = (0,) * len(planned.writes)
        else:
            results = compute(*values)
        for name, result in zip(planned.writes, results, strict=False):
            if isinstance(result, np.ndarray):
                self.budget.spend(result.size)
            self._write(name, result, known, condition)

    def _load_constant(self, planned: Planned, condition: Any) -> None:
        operand = planned.instruction.operands[-1]
        if operand.startswith("c[0x2]"):
            place, known = self._read(planned.sources[0])
            table = np.array([*self.launch.table, 0])
            index = np.minimum(np.asarray(place) // WORD_BYTES, len(self.launch.table))
            known = known & (index < len(self.launch.table))
            self._write(planned.writes[0], table[index], known, condition)
            return
        constant = source(operand)
        for k, name in enumerate(planned.writes):
            word = None
            if constant and constant.constant is not None:
                word = self.launch.read_constant(constant.constant + 4 * k)
            self._write(name, word or 0, word is not None, condition)

    def _full(self, value: Number) -> np.ndarray:
        rows = value.shape[0] if isinstance(value, np.ndarray) and value.ndim else 1
        return np.broadcast_to(value, (rows, self.shape[1]))

    def _collect(self, planned: Planned, condition: Any) -> None:
        where = self.active & condition
        mode = "".join(planned.instruction.opcode.split(".")[1:2])
        operands = [self._read(each) for each in planned.sources]
        values = [value for value, _ in operands]
        are_known = [is_known is True for _, is_known in operands]
        known: Any = all(are_known)
        self.budget.spend(self.shape[1])
        match planned.instruction.traits.lanes:
            case "shuffle":
                shuffle = functools.partial(semantics.shuffle, mode, by=values[1], clamp=values[2])
                if are_known == [False, True, True]:
                    known = shuffle(self._full(operands[0][1]))
                results: list[Number] = [True, shuffle(self._full(values[0]))]
            case "elect":
                results = [semantics.elect(self._full(where)), 0]
            case "vote":
                is_all = mode == "ALL"
                votes = values[-1] | (where ^ True) if is_all else values[-1] & where
                results = semantics.vote(self._full(votes), is_all)
                if planned.writes[0].lstrip("U").startswith("P"):
                    del results[0]
            case _:
                known = False
                results = [0, 0]
        for name, result in zip(planned.writes, results, strict=False):
            self._write(name, result, known, condition)

    def _load(self, planned: Planned, condition: Any) -> None:
        place, known = self._read(planned.sources[-1])
        where = self.active & condition
        each = min(planned.instruction.lane_bytes, 4)
        if known is False:
            self._forget(planned, condition)
            return
        for k, name in enumerate(planned.writes):
            at = np.atleast_2d(place + 4 * k)
            on = np.broadcast_to(where, np.broadcast_shapes(at.shape, np.shape(where)))
            values, is_loaded = self.launch.load(np.where(on & known, at, -1), each, self.stored)
            if ".S8" in planned.instruction.opcode or ".S16" in planned.instruction.opcode:
                values = semantics.extend(values, 8 * each, True)
            self.budget.spend(values.size)
            self._write(name, values, bool(is_loaded.all()) or (is_loaded | ~on), condition)

    def _count_requests(self, planned: Planned, condition: Any) -> None:
        place, known = self._read(planned.sources[0])
        if not self._is_known(known, self.active & condition):
            self._refuse(planned, "The address of an access")
            return
        width_bytes = planned.instruction.lane_bytes
        for threads in self.groups:
            self.budget.spend(_REQUEST_WORK * math.prod(self.shape))
            address, active = (
                np.broadcast_to(each, self.shape).reshape(-1, LANES)
                for each in (place, np.asarray(threads & condition, bool))
            )
            costs = np.array(count_requests(address, active, width_bytes)).sum(axis=1)
            requests = self.executions.requests
            requests[planned.index] = requests.get(planned.index, 0) + costs

    # Shared and local memory.

    def _access_shared(self, planned: Planned, condition: Any) -> None:
        """Count the wavefronts of an access."""
        index = planned.index
        place, known = self._read(planned.sources[0])
        if not self._is_known(known, self.active & condition):
            self._refuse(planned, "The address of an access")
            return
        before = self.executions.wavefronts.setdefault(index, Wavefronts(0, 0))
        address = np.atleast_2d(place)
        on = np.atleast_2d(np.asarray(condition, bool))  # a constant predicate is a number
        repeats = self.shape[0]
        if np.shape(self.active)[-1:] == (1,) and max(len(address), len(on)) == 1:
            repeats = int(np.count_nonzero(self.active)) * (repeats // len(self.active))
        else:
            on = np.atleast_2d(self.active & on)
        if not repeats or not on.any():
            return
        key = (index, hash(address.tobytes()), hash(on.tobytes()))
        counted = self.counted.get(key)
        if counted is None:
            self.budget.spend(2 * max(address.size, on.size))
            counted, example = self._count_access(planned.instruction.opcode, address, on)
            if len(self.counted) < _MOST_REMEMBERED:
                self.counted[key] = counted
            self.executions.accesses.setdefault(index, example)
        times = repeats // max(len(address), len(on))
        self.executions.wavefronts[index] = Wavefronts(
            before.actual + times * counted.actual, before.ideal + times * counted.ideal
        )

    def _count_access(
        self, opcode: str, address: np.ndarray, on: np.ndarray
    ) -> tuple[Wavefronts, BankAccess]:
        """Count an access of all programs. Equal ones are counted once."""
        # Shifting all addresses by a multiple of 128 bytes does not change the banks.
        base = address.min(axis=1, keepdims=True) // 128 * 128
        code = 0
        for part, factors in zip((address - base, on), self.factors, strict=True):
            code = code + part.astype(np.uint64) @ factors[: part.shape[1]]
        _, first, times = np.unique(code, return_index=True, return_counts=True)
        shape = len(first), self.shape[1]
        self.budget.spend(_ACCESS_WORK + 10 * math.prod(shape))
        chosen = [
            np.broadcast_to(each[first % len(each)], shape).reshape(shape[0], -1, LANES)
            for each in (address, on)
        ]
        access = BankAccess(opcode, *chosen)
        counted = count_by_warp(access).reshape(2, shape[0], -1).sum(axis=2) @ times
        fullest = int(chosen[1].sum(axis=(1, 2)).argmax())
        example = BankAccess(opcode, *(each[[fullest]] for each in chosen))
        return Wavefronts(*counted.tolist()), example

    def _refuse(self, planned: Planned, what: str) -> None:
        self.executions.refused.setdefault(planned.index, _explain(planned, what))

    def _move_shared(self, planned: Planned, condition: Any) -> None:
        instruction = planned.instruction
        where = self.active & condition
        if not self.plan.reads_shared:
            return
        place, known = self._read(planned.sources[0])
        is_known = self._is_known(known, where) and self.keeps_shared
        if instruction.traits.widths == "matrices" or not is_known:
            self._forget(planned, condition)
            return
        if self.shared is None:
            # The system's part is zero: no tensor memory is allocated yet.
            system_bytes = _SYSTEM_BYTES * self.plan.allocates_tensor_memory
            self.shared = _SharedMemory(self.shape[0], system_bytes)
        width = min(instruction.lane_bytes, 4)
        at = np.broadcast_to(place, self.shape) % _SHARED_BYTES
        on = np.broadcast_to(where, self.shape)
        for k in range(instruction.lane_registers):
            self.budget.spend(_ACCESS_WORK + 6 * at.size)
            address = at + k * width
            if planned.writes:
                value, known = self.shared.load(address, width)
                self._write(planned.writes[k], value, bool(known[on].all()) or known, condition)
            elif instruction.traits.smem != "load":
                value, known = self._read(register(next_register(instruction.operands[-1], k)))
                if combine := _ATOMICS.get(instruction.opcode):
                    value = combine(self.shared.load(address, width)[0], value)
                elif instruction.traits.smem == "atomic":
                    known = False
                self.shared.store(address, width, on, value, known)


class _SharedMemory:
    """The bytes of each program's shared memory, and 1 where they are known. The first ones are."""

    def __init__(self, programs: int, known_bytes: int) -> None:
        self._bytes = np.zeros((2, programs, _SHARED_BYTES + _WIDEST_BYTES), np.uint8)
        self._bytes[1, :, :known_bytes] = 1
        self._programs = np.arange(programs)[:, None]

    def load(self, address: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the words at (programs, threads) addresses, and which are known."""
        contents, known = self._bytes.view(f"u{width}")[:, self._programs, address // width]
        return contents.astype(np.int64), known == int.from_bytes(b"\1" * width)

    def store(
        self, address: np.ndarray, width: int, on: np.ndarray, value: Number, known: Any
    ) -> None:
        """Store words of some threads."""
        programs = np.broadcast_to(self._programs, on.shape)[on]
        place = programs, (address // width)[on]
        contents, are_known = self._bytes.view(f"u{width}")
        contents[place] = np.broadcast_to(value, on.shape)[on]
        are_known[place] = np.broadcast_to(known, on.shape)[on] * int.from_bytes(b"\1" * width)


def _explain(planned: Planned, what: str = "A branch") -> str:
    _, line = planned.instruction.source
    place = f" on line {line}" if line else ""
    return f"{what}{place} depends on a value that is unknown until the kernel runs."
