"""Execute the part of a kernel's SASS that decides which instructions run, and which shared memory they access.

All programs and threads run at once. A block of instructions runs when no thread that has yet to reach it is at a lower
address, so threads that took different branches meet again. Threads never wait: barriers and copies always succeed.
"""

import functools
import math
import operator
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kernels.evaluate.listings import UnsupportedOperation
from kernels.inside import semantics
from kernels.inside.banks import Access, Wavefronts, count_wavefronts
from kernels.inside.decoding import (
    Source,
    Step,
    address,
    decode,
    destinations,
    next_register,
    predicate,
    register,
    source,
    width_bytes,
)
from kernels.inside.sass import Instruction
from kernels.inside.semantics import LANES, Number

SHARED = ("LDS", "STS", "LDSM", "STSM", "LDGSTS", "ATOMS")
_AXES = {"SR_CTAID.X": 0, "SR_CTAID.Y": 1, "SR_CTAID.Z": 2}
_COLLECTIVE = ("SHFL", "VOTE", "VOTEU", "ELECT", "MATCH")
_JUMPS = ("BRA", "EXIT", "BRX", "RET", "CALL", "BSYNC", "JMP", "KILL")
_MOST_REMEMBERED = 1 << 12
_INSTRUCTION_BYTES = 16
_RANDOM = np.random.default_rng(1)
# Elements of all values that one launch may compute; a billion take about 2 s.
_MOST_WORK = 1_000_000_000


@dataclass
class Executions:
    """How often the warps of a launch execute each instruction.

    Attributes:
        times: (instructions,) int64.
        wavefronts: by the index of each instruction that accesses shared memory.
        accesses: for each of them, the first execution of a program.
        refused: why the wavefronts of an instruction are unknown, by its index.
        uncertain: the instructions whose number of executions depends on unknown values.
    """

    times: np.ndarray
    wavefronts: dict[int, Wavefronts] = field(default_factory=dict)
    accesses: dict[int, Access] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    uncertain: set[int] = field(default_factory=set)

    @property
    def why_uncertain(self) -> str:
        """Why the number of executed instructions is unknown; "" if it is known."""
        if not self.uncertain:
            return ""
        number = len(self.uncertain)
        return (
            f"Whether {number:,} of {len(self.times):,} instructions are executed depends on values "
            "that are not known without running the kernel."
        )


@dataclass(frozen=True)
class Launch:
    """What an execution needs to know of a launch.

    Attributes:
        threads: of a program.
        read_constant: returns the 32-bit word of the constant bank at an offset; None if it is unknown.
        load: returns the elements of global memory at (programs, threads) addresses, and where they are known.
    """

    grid: tuple[int, int, int]
    threads: int
    read_constant: Callable[[int], int | None]
    load: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def execute(code: Sequence[Instruction], launch: Launch) -> Executions:
    """Execute a launch.

    Raises:
        UnsupportedOperation: a branch depends on an unknown value, the launch is too large, or there is no code.
    """
    if not code:
        raise UnsupportedOperation("The capture has no SASS.")
    plan = _Plan(code)
    grid = launch.grid
    axes = [axis for name, axis in _AXES.items() if name in plan.needed_names]
    sizes = [grid[axis] for axis in axes]
    count = math.prod(sizes)
    repeats = math.prod(grid) // count
    executions = Executions(np.zeros(len(code), np.int64))
    at_once = max(1, (1 << 21) // launch.threads)
    budget = [_MOST_WORK]
    for start in range(0, count, at_once):
        numbers = np.arange(start, min(start + at_once, count))
        coordinates = {}
        for axis, size in zip(axes, sizes, strict=True):
            coordinates[axis] = numbers % size
            numbers = numbers // size
        _Run(plan, launch, coordinates, executions, budget).run()
    executions.times *= repeats
    for index, total in executions.wavefronts.items():
        executions.wavefronts[index] = Wavefronts(*(repeats * each for each in total))
    return executions


@dataclass(frozen=True)
class _Planned:
    """An instruction of the plan: `step` is None if its results can't be computed."""

    index: int
    instruction: Instruction
    predicate: Source | None
    writes: tuple[str, ...]
    sources: tuple[Source, ...]
    step: Step | None


class _Plan:
    """The blocks of a listing, and the instructions whose results are needed."""

    def __init__(self, code: Sequence[Instruction]) -> None:
        self.code = code
        leaders = {0}
        for index, instruction in enumerate(code):
            if instruction.name in _JUMPS:
                leaders.add(index + 1)
                if instruction.name == "BSYNC":
                    leaders.add(index)
            if instruction.target is not None:
                leaders.add(instruction.target)
        self.return_points = [
            index + 1
            for index, each in enumerate(code)
            if each.name == "CALL" and index + 1 < len(code)
        ]
        self.starts = sorted(leaders - {len(code)})
        ends = [*self.starts[1:], len(code)]
        self.blocks = dict(zip(self.starts, ends, strict=True))
        self.planned = [self._plan(index, each) for index, each in enumerate(code)]
        self.reads_shared = False
        needed = self._find_needed()
        if any(code[index].name in ("LDS", "LDSM") for index in needed):
            self.reads_shared = True
            needed = self._find_needed()
        self.needed_names = {
            name
            for index in needed
            for each in self.planned[index].sources
            for name in each.registers
        }
        self.steps = {
            start: [
                self.planned[index]
                for index in range(start, end)
                if index in needed or code[index].name in SHARED
            ]
            for start, end in self.blocks.items()
        }

    def _plan(self, index: int, instruction: Instruction) -> _Planned:
        name = instruction.name
        condition = predicate(instruction.predicate)
        step = decode(instruction)
        writes, reads = destinations(instruction)
        if step:
            return _Planned(index, instruction, condition, step.writes, step.sources, step)
        names = [each.lstrip("-!~") for each in writes if each not in ("RZ", "PT", "URZ", "UPT")]
        sources: list[Source | None] = []
        if name in ("LDG", "LDS", "LDC", "ULDC", "LDCU", "LDSM", "ATOMG", "ATOM", "ATOMS"):
            count = max(1, width_bytes(instruction.opcode) // 4)
            result = writes[-1] if writes else ""
            names = [next_register(result, k) for k in range(count) if result not in ("RZ", "URZ")]
            sources = [address(each) for each in reads if "[" in each and not each.startswith("c[")]
            if "CAS" in instruction.opcode:
                sources.append(source(reads[1]))
        elif name in ("STS", "STSM", "LDGSTS", "STG", "ST"):
            names = []
            sources = [address(instruction.operands[0])]
        elif name in _COLLECTIVE:
            sources = [source(each) for each in reads]
            names = list(writes)
        elif name == "RET":
            names = []
            sources = [source(instruction.operands[0].split()[0])]
        return _Planned(
            index, instruction, condition, tuple(names), tuple(filter(None, sources)), None
        )

    def _roots(self, planned: _Planned) -> list[Source]:
        """Return what the execution needs to know of an instruction itself."""
        instruction = planned.instruction
        name = instruction.name
        roots = [planned.predicate] if planned.predicate else []
        if name == "RET":
            return [*roots, *planned.sources]
        if name in _JUMPS:
            first = instruction.operands[0] if instruction.operands else ""
            if first.lstrip("!~").startswith(("P", "UP")):
                roots.append(source(first))
            return [each for each in roots if each]
        if name in SHARED:
            roots += planned.sources[:1]
            if self.reads_shared and name == "STS":
                value = instruction.operands[1]
                roots += [
                    register(next_register(value, k))
                    for k in range(max(1, width_bytes(instruction.opcode) // 4))
                ]
            return roots
        return []

    def successors(self, start: int) -> list[int]:
        last = self.code[self.blocks[start] - 1]
        follows = [] if last.target is None or last.name == "BSSY" else [last.target]
        if last.name == "RET":
            follows = self.return_points
        is_end = last.name in ("EXIT", "BRA", "CALL", "RET", "JMP", "KILL") and not _is_conditional(
            last
        )
        return follows if is_end else [*follows, self.blocks[start]]

    def reach(self, start: int, end: int | None) -> set[int]:
        """Return the blocks that `start` reaches without passing `end`."""
        reached = {start}
        pending = [start]
        while pending:
            for each in self.successors(pending.pop()):
                if each not in reached and each != end and each in self.blocks:
                    reached.add(each)
                    pending.append(each)
        return reached

    def meeting_point(self, start: int) -> int | None:
        """Return the first block that every path from a block passes; None if there is none."""
        for block in sorted(self.reach(start, None) - {start}):
            ends = [
                each
                for each in self.reach(start, block)
                if not set(self.successors(each)) & set(self.blocks)
            ]
            if block > start and not ends:
                return block
        return None

    def _find_needed(self) -> set[int]:
        """Return the instructions whose results reach a root. Set the registers that are live before each block."""
        needed = set[int]()
        self.live_in = live_in = dict.fromkeys(self.starts, frozenset[str]())
        changed = True
        while changed:
            changed = False
            for start in reversed(self.starts):
                live = set[str]().union(
                    *(live_in[each] for each in self.successors(start) if each in live_in)
                )
                for index in range(self.blocks[start] - 1, start - 1, -1):
                    planned = self.planned[index]
                    if not live.isdisjoint(planned.writes):
                        needed.add(index)
                        if not planned.predicate:
                            live.difference_update(planned.writes)
                        for each in (*planned.sources, *filter(None, [planned.predicate])):
                            live.update(each.registers)
                    for each in self._roots(planned):
                        live.update(each.registers)
                if frozenset(live) != live_in[start]:
                    live_in[start] = frozenset(live)
                    changed = True
        return needed


def _is_conditional(instruction: Instruction) -> bool:
    operand = instruction.operands[0] if instruction.operands else ""
    return bool(instruction.predicate) or operand.lstrip("!~").startswith(("P", "UP"))


class _Run:
    """One execution. `known` says of a register where its value is known, unless it is known everywhere."""

    def __init__(
        self,
        plan: _Plan,
        launch: Launch,
        coordinates: Mapping[int, np.ndarray],
        executions: Executions,
        budget: list[int],
    ) -> None:
        self.plan = plan
        self.launch = launch
        self.executions = executions
        self.budget = budget
        count = next((len(each) for each in coordinates.values()), 1)
        self.shape = (count, launch.threads)
        self.values: dict[str, Number] = {"SR_TID.X": np.arange(launch.threads)[None]}
        for name, axis in _AXES.items():
            if axis in coordinates:
                self.values[name] = coordinates[axis][:, None]
        for name in ("SR_CgaCtaId", "SR_TID.Y", "SR_TID.Z"):
            self.values[name] = 0
        self.values["SR_LANEID"] = np.arange(launch.threads)[None] % LANES
        self.known: dict[str, Any] = {}
        self.shared: dict[str, np.ndarray] = {}
        self.counted: dict[tuple[int, bytes, bytes], Wavefronts] = {}
        # The threads that run the current block, and the registers that waiting threads need.
        self.active: Any = True
        self.kept = frozenset[str]()

    def run(self) -> None:
        plan = self.plan
        # The threads that wait at the start of each block, by the block from which they come.
        waiting = defaultdict[int, list[Any]](list)
        waiting[0].append(True)
        while waiting:
            start = min(waiting)
            arriving = waiting.pop(start)
            active = functools.reduce(operator.or_, arriving)
            end = plan.blocks[start]
            self._spend(1)
            # Lanes of a warp that took different branches run one after the other, until BSYNC.
            groups = arriving
            times = sum(map(self._count_warps, arriving))
            self.executions.times[start:end] += times
            if plan.code[start].name == "BSYNC" or times == self._count_warps(active):
                groups = [active]
            self.active = active
            self.kept = frozenset[str]().union(*(plan.live_in[each] for each in waiting))
            for planned in plan.steps[start]:
                self._run(planned)
            last = plan.code[end - 1]
            condition: Any = False
            if last.name in _JUMPS and last.name != "BSYNC":
                condition = self._condition(plan.planned[end - 1], active)
                if condition is None:
                    waiting[self._skip(start)].append(active)
                    continue
            target = last.target
            if last.name == "RET":
                target = self._return_point(plan.planned[end - 1])
            for group in groups:
                taken = group & condition
                rest = group & (condition ^ True)
                if last.name in ("BRX", "JMP") and np.any(taken):
                    raise UnsupportedOperation(f"{last.opcode} is not executed.")
                if np.any(taken) and target is not None:
                    waiting[target].append(taken)
                if np.any(rest) and end < len(plan.code):
                    waiting[end].append(rest)

    def _spend(self, elements: int) -> None:
        self.budget[0] -= elements + 300
        if self.budget[0] < 0:
            raise UnsupportedOperation(
                "The launch is too large to execute. Launch a smaller shape."
            )

    def _count_warps(self, active: Any) -> int:
        programs, threads = self.shape
        if active is True:
            return programs * (-(-threads // LANES))
        if active is False:
            return 0
        if active.shape[-1] == 1:
            return int(np.count_nonzero(np.broadcast_to(active, (programs, 1)))) * (
                threads // LANES
            )
        warps = active.reshape(active.shape[0], -1, LANES).any(axis=2)
        return int(np.count_nonzero(warps)) * (programs // active.shape[0])

    def _return_point(self, planned: _Planned) -> int:
        address, known = self._read(planned.sources[0])
        if known is not True or not isinstance(address, int):
            raise UnsupportedOperation("A function's return address is not constant.")
        return address // _INSTRUCTION_BYTES

    def _skip(self, start: int) -> int:
        """Skip the blocks that only some outcomes of a branch reach, and return the block where all outcomes meet.

        Raises:
            UnsupportedOperation: they meet only at the end.
        """
        plan = self.plan
        after = plan.meeting_point(start)
        if after is None:
            raise UnsupportedOperation(_explain(plan.planned[plan.blocks[start] - 1]))
        self._distrust(plan.reach(start, after) - {start})
        if plan.code[after].name == "BSYNC":
            self.executions.uncertain.add(after)
        return after

    def _distrust(self, blocks: set[int]) -> None:
        """Note that nothing is known of some blocks: how often they run, or what they compute.

        They are slow paths for rare operands, or functions. Those of Triton compute floating-point numbers.
        """
        plan = self.plan
        for block in blocks:
            for index in range(block, plan.blocks[block]):
                self.executions.uncertain.add(index)
                if plan.code[index].name in SHARED:
                    self._refuse(plan.planned[index], "How often it is executed")
                for name in plan.planned[index].writes:
                    self._write(name, 0, False, True)

    def _condition(self, planned: _Planned, active: Any) -> Any:
        """Return where a jump is taken; None if that is unknown."""
        result: Any = True
        operand = planned.instruction.operands[0] if planned.instruction.operands else ""
        is_operand = operand.lstrip("!~").startswith(("P", "UP"))
        for each in (planned.predicate, source(operand) if is_operand else None):
            if each is None:
                continue
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
            word = self.launch.read_constant(operand.constant)
            return (0, False) if word is None else (operand.combine(word), True)
        values = []
        known: Any = True
        for name in operand.registers:
            # No result depends on a register that was never written
            values.append(self.values.get(name, 0))
            if name in self.known:
                known = known & self.known[name]
        return operand.combine(*values), known

    def _write(self, name: str, value: Number, known: Any, condition: Any) -> None:
        """Write a register where a condition holds, of the active threads.

        Other threads keep their value, unless none of them needs it.
        """
        if name in ("RZ", "URZ", "PT", "UPT", ""):
            return
        where = self.active & condition if name in self.kept else condition
        if where is not True:
            old = self.values.get(name, 0)
            before = self.known.get(name, True)
            if known is not True or before is not True:
                known = semantics.select(where, known, before)
            value = semantics.select(where, value, old)
        self.values[name] = value
        if known is True:
            self.known.pop(name, None)
        else:
            self.known[name] = known

    def _run(self, planned: _Planned) -> None:
        condition: Any = True
        if planned.predicate:
            condition, known = self._read(planned.predicate)
            if not self._is_known(known, self.active):
                if planned.instruction.name in SHARED:
                    self._refuse(planned, "Which lanes access it")
                for name in planned.writes:
                    self._write(name, 0, False, True)
                return
        name = planned.instruction.name
        if name in SHARED:
            self._access_shared(planned, condition)
        if condition is False:
            return
        if planned.step:
            self._compute(planned, planned.step, condition)
        elif name in ("LDC", "ULDC", "LDCU"):
            self._load_constant(planned, condition)
        elif name in _COLLECTIVE:
            self._collect(planned, condition)
        elif name in ("LDG", "LD"):
            self._load(planned, condition)
        elif name in ("LDS", "LDSM", "STS"):
            self._move_shared(planned, condition)
        elif name == "SYNCS" and planned.writes:
            self._write(planned.writes[0], True, True, condition)
        elif "CAS" in planned.instruction.opcode:
            # The first attempt succeeds
            value, known = self._read(planned.sources[-1])
            self._write(planned.writes[0], value, known, condition)
        else:
            for each in planned.writes:
                self._write(each, 0, False, condition)

    def _is_known(self, known: Any, where: Any) -> bool:
        return known is True or not np.any(where & (np.asarray(known) ^ True))

    def _compute(self, planned: _Planned, step: Step, condition: Any) -> None:
        values = []
        known: Any = True
        for each in step.sources:
            value, is_known = self._read(each)
            values.append(value)
            if is_known is not True:
                known = known & is_known
        if known is False:
            results: Sequence[Number] = (0,) * len(step.writes)
        else:
            results = step.compute(*values)
        for name, result in zip(step.writes, results, strict=False):
            if isinstance(result, np.ndarray):
                self._spend(result.size)
            self._write(name, result, known, condition)

    def _load_constant(self, planned: _Planned, condition: Any) -> None:
        operand = planned.instruction.operands[-1]
        constant = source(operand)
        for k, name in enumerate(planned.writes):
            word = None
            if constant and constant.constant is not None:
                word = self.launch.read_constant(constant.constant + 4 * k)
            self._write(name, word or 0, word is not None, condition)

    def _full(self, value: Number) -> np.ndarray:
        rows = value.shape[0] if isinstance(value, np.ndarray) and value.ndim else 1
        return np.broadcast_to(value, (rows, self.shape[1]))

    def _collect(self, planned: _Planned, condition: Any) -> None:
        instruction = planned.instruction
        where = self.active & condition
        parts = instruction.opcode.split(".")
        read = [self._read(each) for each in planned.sources]
        known: Any = all(is_known is True for _, is_known in read)
        values = [value for value, _ in read]
        self._spend(self.shape[1])
        match parts[0]:
            case "SHFL":
                result = semantics.shuffle(parts[1], self._full(values[0]), values[1], values[2])
                if read[1][1] is True and read[2][1] is True and read[0][1] is not True:
                    known = semantics.shuffle(
                        parts[1], self._full(read[0][1]), values[1], values[2]
                    )
                results = [True, result]
            case "ELECT":
                on = self._full(where).reshape(-1, self.shape[1] // LANES, LANES)
                first = np.argmax(on, axis=2)[:, :, None] == np.arange(LANES)
                results = [(first & on).reshape(-1, self.shape[1]), 0]
            case "VOTE" | "VOTEU":
                on = self._full(
                    values[-1] & where if parts[1] != "ALL" else values[-1] | (where ^ True)
                )
                lanes = on.reshape(-1, self.shape[1] // LANES, LANES)
                total = lanes.all(axis=2) if parts[1] == "ALL" else lanes.any(axis=2)
                ballot = (lanes * (1 << np.arange(LANES))).sum(axis=2)
                spread = [np.repeat(each, LANES, axis=1) for each in (ballot, total)]
                is_predicate = planned.writes[0].lstrip("U").startswith("P")
                results = spread[1:] if is_predicate else spread
            case _:
                known = False
                results = [0, 0]
        for name, result in zip(planned.writes, results, strict=False):
            self._write(name, result, known, condition)

    def _load(self, planned: _Planned, condition: Any) -> None:
        place, known = self._read(planned.sources[-1])
        where = self.active & condition
        width = width_bytes(planned.instruction.opcode)
        each = min(width, 4)
        for k, name in enumerate(planned.writes):
            if known is not True:
                self._write(name, 0, False, condition)
                continue
            at = np.asarray(place + 4 * k)
            at = at.reshape((1,) * (2 - at.ndim) + at.shape)
            on = np.broadcast_to(where, np.broadcast_shapes(at.shape, np.shape(where)))
            values, is_loaded = self.launch.load(np.where(on, at, -1), each)
            if ".S8" in planned.instruction.opcode or ".S16" in planned.instruction.opcode:
                values = semantics.extend(values, 8 * each, True)
            self._spend(values.size)
            self._write(name, values, bool(is_loaded.all()) or (is_loaded | ~on), condition)

    # Shared and local memory.

    def _access_shared(self, planned: _Planned, condition: Any) -> None:
        """Count the wavefronts of an access."""
        index = planned.index
        place, known = self._read(planned.sources[0])
        if not self._is_known(known, self.active & condition):
            self._refuse(planned, "Its address")
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
        key = (index, address.tobytes(), on.tobytes())
        counted = self.counted.get(key)
        if counted is None:
            self._spend(2 * max(address.size, on.size))
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
    ) -> tuple[Wavefronts, Access]:
        """Count an access of all programs. Equal ones are counted once."""
        # Of numbers that are equal up to multiples of 128 bytes, the same banks serve each word.
        shape = max(len(address), len(on)), self.shape[1]
        base = address.min(axis=1, keepdims=True) // 128 * 128
        code = np.zeros(shape[0], np.uint64)
        for part in (address - base, on):
            factors = _RANDOM.integers(1, 1 << 63, part.shape[1], np.uint64) | np.uint64(1)
            code = code + (part.astype(np.uint64) * factors).sum(axis=1)
        _, first, times = np.unique(code, return_index=True, return_counts=True)
        total = Wavefronts(0, 0)
        examples = []
        for row, count in zip(first.tolist(), times.tolist(), strict=True):
            access = Access(
                opcode,
                np.broadcast_to(address[row % len(address)], shape[1]).reshape(1, -1, LANES),
                np.broadcast_to(on[row % len(on)], shape[1]).reshape(1, -1, LANES),
            )
            each = count_wavefronts(access)
            total = Wavefronts(total.actual + count * each.actual, total.ideal + count * each.ideal)
            examples.append(access)
        return total, max(examples, key=lambda access: int(access.active.sum()))

    def _refuse(self, planned: _Planned, what: str) -> None:
        self.executions.refused.setdefault(planned.index, _explain(planned, what))

    def _words(self) -> tuple[np.ndarray, np.ndarray]:
        if not self.shared:
            size = 1 << 18
            self.shared["bytes"] = np.zeros((self.shape[0], size), np.uint8)
            self.shared["known"] = np.zeros((self.shape[0], size), bool)
        return self.shared["bytes"], self.shared["known"]

    def _move_shared(self, planned: _Planned, condition: Any) -> None:
        instruction = planned.instruction
        where = self.active & condition
        is_store = instruction.name == "STS"
        if not self.plan.reads_shared:
            return
        place, known = self._read(planned.sources[0])
        if instruction.name == "LDSM" or known is not True or self.shape[0] > 4096:
            for name in planned.writes:
                self._write(name, 0, False, condition)
            return
        contents, is_known = self._words()
        width = width_bytes(instruction.opcode)
        each = min(width, 4)
        rows = np.arange(self.shape[0])[:, None]
        at = np.broadcast_to(place, self.shape) & (1 << 18) - 1
        on = np.broadcast_to(where, self.shape)
        self._spend(at.size * each)
        for k in range(max(1, width // 4)):
            offset = at + 4 * k
            if is_store:
                value, value_known = self._read(register(next_register(instruction.operands[1], k)))
                value = np.broadcast_to(value, self.shape)
                value_known = np.broadcast_to(value_known, self.shape)
                for byte in range(each):
                    target = np.broadcast_to(rows, self.shape)[on], (offset + byte)[on]
                    contents[target] = (value >> 8 * byte & 255)[on]
                    is_known[target] = value_known[on]
            elif planned.writes:
                total = sum(
                    contents[rows, offset + byte].astype(np.int64) << 8 * byte
                    for byte in range(each)
                )
                loaded = is_known[rows, offset]
                self._write(planned.writes[k], total, bool(loaded[on].all()) or loaded, condition)


def _explain(planned: _Planned, what: str = "Whether it branches") -> str:
    location = planned.instruction.location
    line = f" in line {location[0][1]}" if location else ""
    return f"{what}{line} depends on a value that is not known without running the kernel."
