"""Execute the part of a kernel's SASS that decides which instructions run, and which shared memory they access.

All programs and threads run at once. A block of instructions runs when no thread that has yet to reach it is at a lower
address, so divergent threads reconverge. Threads wait only at barriers of all warps (see `is_barrier`): others, and
copies, always succeed. Once a line has stored to a tensor, the tensor's values are unknown.
"""

import functools
import math
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilescope.captures.listings import UnsupportedOperation
from tilescope.evaluate.sectors import count_requests
from tilescope.inside.banks import BankAccess, Wavefronts, count_by_warp, group_equal_accesses
from tilescope.inside.threads import (
    ACCESS_WORK,
    PROGRAM_AXES,
    UNWRITTEN,
    LaunchInputs,
    Register,
    Threads,
    choose,
    is_known,
)
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

_MOST_REMEMBERED = 1 << 12
# Maximum elements of all values that one launch may compute; a billion take about 2 s.
_MOST_WORK = 1_000_000_000
# Maximum threads, and tables of shared memory, to hold in memory at once.
_MOST_THREADS = 1 << 21
_MOST_TABLES = 1 << 8
# Maximum programs of a launch whose values in shared memory are computed.
_MOST_PROGRAMS = 1 << 12
_NO_TABLE = "The capture lacks the targets of a branch. Capture the launch again."
# Work to execute a block and one of its steps, whatever the number of threads.
_BLOCK_WORK = 5000
_STEP_WORK = 2000
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
    sizes = [grid[axis] if name in plan.needed_names else 1 for name, axis in PROGRAM_AXES.items()]
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
        _Run(plan, launch, coordinates, budget, executions, keeps_shared).run()
    executions.by_warp *= repeats
    for index, total in executions.wavefronts.items():
        executions.wavefronts[index] = Wavefronts(*(repeats * each for each in total))
    for index in executions.requests:
        executions.requests[index] *= repeats
    return executions


# Threads at the start of each block: a mask per branch that leads there, and the registers that the block needs.
_Queue = dict[int, tuple[list[Any], dict[str, Register]]]


class _Run(Threads):
    """An execution of programs of a launch."""

    def __init__(
        self,
        plan: Plan,
        launch: LaunchInputs,
        coordinates: Sequence[np.ndarray],
        budget: Budget,
        executions: Executions,
        keeps_shared: bool,
    ) -> None:
        super().__init__(plan, launch, coordinates, budget, keeps_shared)
        self.executions = executions
        self.waiting: _Queue = {}
        self.at_barriers: _Queue = {}
        self.counted: dict[tuple[int, int, int], Wavefronts] = {}
        # The active threads that run the current block together.
        self.groups: Sequence[Any] = ()

    def run(self) -> None:
        self._send(self.waiting, 0, True)
        while self.waiting or self.at_barriers:
            if not self.waiting:
                self.waiting, self.at_barriers = self.at_barriers, self.waiting
            start = min(self.waiting)
            arriving, self.registers = self.waiting.pop(start)
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
        live = {name: self.registers.get(name, UNWRITTEN) for name in self.plan.live_in[start]}
        masks, registers = queue.setdefault(start, ([], live))
        masks.append(threads)
        for name, register in live.items():
            registers[name] = choose(threads, register, registers[name])

    def _count_warps(self, active: Any) -> np.ndarray:
        """Return how often each warp of a program executes something that these threads execute."""
        programs, threads = self.shape
        rows: Any = np.atleast_2d(active)
        if rows.shape[1] > 1:
            rows = rows.reshape(len(rows), -1, LANES).any(axis=2)
        times = rows.sum(axis=0) * (programs // len(rows))
        return np.broadcast_to(times, (-(-threads // LANES),))

    def _are_whole_warps(self, threads: Any) -> bool:
        lanes = self.full(threads).reshape(-1, LANES)
        return np.array_equal(lanes.any(axis=1), lanes.all(axis=1))

    def _find_targets(self, planned: Planned, where: Any) -> list[tuple[int | None, Any]]:
        """Return the blocks to which an indirect jump leads, and the threads of each."""
        address, known = self.read(planned.sources[0])
        if not is_known(known, where):
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
            self.forget(planned)
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
            value, known = self.read(each)
            if not is_known(known, active):
                return None
            result = result & value
        if planned.instruction.opcode == "BRA.U" and isinstance(result, np.ndarray):
            # It is taken only if all lanes of the warp agree.
            lanes = self.full(result | (active ^ True)).reshape(-1, self.shape[1] // LANES, LANES)
            result = np.repeat(lanes.all(axis=2), LANES, axis=1)
        return result

    def _run(self, planned: Planned) -> None:
        condition: Any = True
        traits = planned.instruction.traits
        is_counted = planned.index in self.plan.counted
        if traits.gmem in GLOBAL_STORES:
            self.stored.update(self.launch.find_stored(planned.instruction.source))
        if planned.predicate:
            condition, known = self.read(planned.predicate)
            if not is_known(known, self.active):
                if traits.smem or is_counted:
                    self._refuse(planned, "The predicate of an access")
                self.forget(planned)
                return
        if is_counted:
            self._count_requests(planned, condition)
        if traits.smem:
            self._access_shared(planned, condition)
        if condition is not False and (planned.writes or traits.smem):
            self.write(planned, self.evaluate(planned, condition), condition)

    def _find_address(self, planned: Planned, condition: Any) -> Number | None:
        """Return the address of an access; None if it is unknown."""
        place, known = self.read(planned.sources[0])
        if is_known(known, self.active & condition):
            return place
        self._refuse(planned, "The address of an access")
        return None

    def _count_requests(self, planned: Planned, condition: Any) -> None:
        place = self._find_address(planned, condition)
        if place is None:
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

    def _access_shared(self, planned: Planned, condition: Any) -> None:
        """Count the wavefronts of an access to shared memory."""
        index = planned.index
        place = self._find_address(planned, condition)
        if place is None:
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
        counted = self._count_wavefronts(planned, address, on)
        times = repeats // max(len(address), len(on))
        self.executions.wavefronts[index] = Wavefronts(
            before.actual + times * counted.actual, before.ideal + times * counted.ideal
        )

    def _count_wavefronts(
        self, planned: Planned, address: np.ndarray, on: np.ndarray
    ) -> Wavefronts:
        """Count the wavefronts of an access by all programs. Those of equal accesses are remembered."""
        key = (planned.index, hash(address.tobytes()), hash(on.tobytes()))
        if key in self.counted:
            return self.counted[key]
        self.budget.spend(2 * max(address.size, on.size))
        opcode = planned.instruction.opcode
        access, numbers = group_equal_accesses(opcode, address, on, self.shape[1])
        self.budget.spend(ACCESS_WORK + 10 * access.address.size)
        self.executions.accesses.setdefault(planned.index, access.fullest)
        wavefronts = count_by_warp(access).reshape(2, len(numbers), -1).sum(axis=2) @ numbers
        counted = Wavefronts(*wavefronts.tolist())
        if len(self.counted) < _MOST_REMEMBERED:
            self.counted[key] = counted
        return counted

    def _refuse(self, planned: Planned, what: str) -> None:
        self.executions.refused.setdefault(planned.index, _explain(planned, what))


def _explain(planned: Planned, what: str = "A branch") -> str:
    _, line = planned.instruction.source
    place = f" on line {line}" if line else ""
    return f"{what}{place} depends on a value that is unknown until the kernel runs."
