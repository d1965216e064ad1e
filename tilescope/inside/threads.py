"""The threads of a launch: what they start with, and how each instruction changes registers and shared memory."""

import functools
import operator
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilescope.captures.content import CapturedLaunch
from tilescope.captures.listings import UnsupportedOperation
from tilescope.captures.reader import BaseCapture, Build
from tilescope.evaluate.captured import read_argument, read_storages
from tilescope.evaluate.counts import LaunchCounts
from tilescope.evaluate.global_memory import Descriptor, Storage, storage_number
from tilescope.inside.banks import SYSTEM_BYTES, WORD_BYTES
from tilescope.sass import semantics
from tilescope.sass.decoding import CONSTANT_REGISTERS, Source, next_register, register, source
from tilescope.sass.instructions import read_table
from tilescope.sass.plan import Budget, Plan, Planned
from tilescope.sass.semantics import LANES, Number

PROGRAM_AXES = {"SR_CTAID.X": 0, "SR_CTAID.Y": 1, "SR_CTAID.Z": 2}
# Atomics of one lane of a program.
_ATOMICS = {"ATOMS.OR": operator.or_, "ATOMS.AND": operator.and_}
# Work to access shared memory, whatever the number of threads.
ACCESS_WORK = 25_000
# More than any GPU's shared memory.
_SHARED_BYTES = 1 << 18
_WIDEST_BYTES = 16

# Offsets in the constant bank, from a compute capability on: the numbers of threads and of programs along x, y and z,
# the size of local memory, and the arguments.
_LAUNCH_AT = (
    (100, 0x360, 0x370, 0x37C, 0x380),
    (90, 0, 12, 0x28, 0x210),
    (70, 0, 12, 0x28, 0x160),
)
_TARGET = re.compile(r"^\.target sm_(\d+)", re.MULTILINE)
_PARAMETER = re.compile(r"^\s*\.param\s+(?:\.align (\d+) )?\.(\w)(\d+).*?(?:\[(\d+)\])?,?$")


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


def make_launch(
    capture: BaseCapture,
    launch: CapturedLaunch,
    counts: LaunchCounts,
    build: Build | None = None,
) -> LaunchInputs:
    """Return a launch for `execute`.

    Args:
        counts: the launch's requests to global memory.
        build: the compiled kernel, if it is not the captured one.
    """
    kernel, codes = build or capture.build(launch.kernel)
    (target,) = _TARGET.findall(codes["ptx"])
    threads_at, programs_at, local_at, start = next(
        places for capability, *places in _LAUNCH_AT if int(target) >= capability
    )
    arguments = [read_argument(capture, argument) for argument in launch.arguments]
    words = _place_arguments(codes["ptx"], start, arguments)
    threads = LANES * kernel.num_warps
    for at, numbers in ((threads_at, (threads, 1, 1)), (programs_at, launch.grid)):
        words |= {at + 4 * axis: number for axis, number in enumerate(numbers)}
    words[local_at] = 0
    memory = _Memory(read_storages(capture, launch), counts)
    return LaunchInputs(
        launch.grid,
        threads,
        words.get,
        memory.load,
        read_table(codes["sass"]),
        memory.find_stored,
    )


class _Memory:
    """The known values in global memory."""

    def __init__(self, storages: Sequence[Storage], counts: LaunchCounts) -> None:
        self._storages = storages
        self._read = functools.cache(self._read_bytes)
        self._stored = defaultdict[tuple[str, int], set[int]](set)
        all_storages = {*range(len(storages))}
        for op in counts.operations:
            if op.counter not in ("ld", "tma_ld"):
                is_unknown = op.tally.refused and not op.tally.storages
                self._stored[op.source] |= all_storages if is_unknown else op.tally.storages

    def find_stored(self, source: tuple[str, int]) -> set[int]:
        """Return the storages to which a source line stores; those of all lines if it is unknown."""
        if source in self._stored:
            return self._stored[source]
        return set[int]().union(*self._stored.values())

    def load(
        self, address: np.ndarray, width: int, stored: Collection[int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the elements of `width` bytes at addresses, and where they are known.

        Args:
            stored: the storages whose values have changed.
        """
        values = np.zeros(address.shape, np.int64)
        known = np.zeros(address.shape, bool)
        numbers = storage_number(address)
        for number in np.unique(numbers).tolist():
            if not 0 <= number < len(self._storages) or number in stored:
                continue
            contents = self._read(number)
            place = address - self._storages[number].start
            inside = (numbers == number) & (place >= 0) & (place + width <= len(contents))
            for byte in range(width):
                values[inside] |= contents[place[inside] + byte].astype(np.int64) << 8 * byte
            known |= inside
        return values, known

    def _read_bytes(self, number: int) -> np.ndarray:
        for element_bytes, read in self._storages[number].contents.items():
            with suppress(UnsupportedOperation):  # there is no copy of the values
                contents = read()
                if contents.itemsize == element_bytes:  # a copy of bfloat16 is wider
                    return contents.view(np.uint8)
        return np.zeros(0, np.uint8)


def _place_arguments(
    ptx: str, start: int, values: Sequence[int | float | bool | Descriptor]
) -> dict[int, int]:
    """Return the words of the arguments by their offset in the constant bank."""
    declaration = ptx.split(".entry", 1)[1].split("{", 1)[0]
    parameters = filter(None, map(_PARAMETER.match, declaration.splitlines()))
    words = {}
    at = start
    for match, value in zip(parameters, values, strict=False):  # Triton adds scratch memory
        align, kind, bits, count = match.groups()
        size = int(bits) // 8 * int(count or 1)
        step = int(align) if align else size
        at = -(-at // step) * step
        if not isinstance(value, Descriptor):
            if kind == "f":
                data = struct.pack("<d" if size == 8 else "<f", value)
            else:
                data = (int(value) & (1 << 8 * size) - 1).to_bytes(size, "little")
            for place in range(0, size, 4):
                words[at + place] = int.from_bytes(data[place : place + 4], "little")
        at += size
    return words


# A register's value, and where it is known.
Register = tuple[Number, Any]
# No result depends on a register that was never written.
UNWRITTEN: Register = (0, True)
_UNKNOWN: Register = (0, False)


class Threads:
    """The threads of some programs of a launch.

    Args:
        coordinates: of the programs, by axis.
        keeps_shared: whether to compute the values in shared memory.
    """

    def __init__(
        self,
        plan: Plan,
        launch: LaunchInputs,
        coordinates: Sequence[np.ndarray],
        budget: Budget,
        keeps_shared: bool,
    ) -> None:
        self.plan = plan
        self.launch = launch
        self.budget = budget
        self.keeps_shared = keeps_shared
        self.shape = (len(coordinates[0]), launch.threads)
        thread = np.arange(launch.threads)[None]
        self.registers: dict[str, Register] = {
            "SR_TID.X": (thread, True),
            "SR_LANEID": (thread % LANES, True),
            **{name: (coordinates[axis][:, None], True) for name, axis in PROGRAM_AXES.items()},
        }
        self.shared: _SharedMemory | None = None
        # The storages to which programs have stored.
        self.stored = set[int]()
        # The threads that run the current block. Registers of other threads may hold any value.
        self.active: Any = True

    def read(self, operand: Source) -> Register:
        """Return an operand's value, and where it is known."""
        if operand.constant is not None:
            at = operand.constant
            words = [self.launch.read_constant(at + 4 * k) for k in range(operand.words)]
            return _UNKNOWN if None in words else (operand.combine(*words), True)
        registers = [self.registers.get(name, UNWRITTEN) for name in operand.registers]
        return operand.combine(*(value for value, _ in registers)), _all_known(registers)

    def write(self, planned: Planned, results: Iterable[Register], condition: Any = True) -> None:
        """Write the results of an instruction where a condition holds."""
        for name, result in zip(planned.writes, results, strict=False):
            if name and name not in CONSTANT_REGISTERS:
                old = self.registers.get(name, UNWRITTEN)
                self.registers[name] = choose(condition, result, old)

    def forget(self, planned: Planned) -> None:
        self.write(planned, _unknown_results(planned))

    def evaluate(self, planned: Planned, condition: Any) -> Iterable[Register]:
        traits = planned.instruction.traits
        if planned.compute:
            return self._compute(planned, planned.compute)
        if traits.lanes:
            return self._exchange(planned, self.active & condition)
        match traits.semantics:
            case "constant":
                return self._load_constant(planned)
            case "global load":
                return self._load(planned, self.active & condition)
            case "shared memory" if traits.smem != "atomic" or not planned.writes:
                return self._move_shared(planned, self.active & condition)
            case "success":
                # A barrier's phase is complete, and tensor memory and registers are free.
                return [(True, True)]
            case _ if "CAS" in planned.instruction.opcode:
                # The first attempt succeeds
                return [self.read(planned.sources[-1])]
        return _unknown_results(planned)

    def _compute(self, planned: Planned, compute: Callable[..., Any]) -> Iterable[Register]:
        operands = [self.read(each) for each in planned.sources]
        known = _all_known(operands)
        if known is False:
            return _unknown_results(planned)
        results = compute(*(value for value, _ in operands))
        self.budget.spend(sum(each.size for each in results if isinstance(each, np.ndarray)))
        return [(result, known) for result in results]

    def _load_constant(self, planned: Planned) -> Iterable[Register]:
        operand = planned.instruction.operands[-1]
        if operand.startswith("c[0x2]"):
            place, known = self.read(planned.sources[0])
            table = np.array([*self.launch.table, 0])
            index = np.minimum(np.asarray(place) // WORD_BYTES, len(self.launch.table))
            return [(table[index], known & (index < len(self.launch.table)))]
        constant = source(operand)
        if not constant or constant.constant is None:
            return _unknown_results(planned)
        places = (constant.constant + 4 * k for k in range(len(planned.writes)))
        words = map(self.launch.read_constant, places)
        return [(word or 0, word is not None) for word in words]

    def full(self, value: Number) -> np.ndarray:
        rows = value.shape[0] if isinstance(value, np.ndarray) and value.ndim else 1
        return np.broadcast_to(value, (rows, self.shape[1]))

    def _exchange(self, planned: Planned, where: Any) -> Iterable[Register]:
        """Combine the values of a warp's lanes."""
        mode = "".join(planned.instruction.opcode.split(".")[1:2])
        operands = [self.read(each) for each in planned.sources]
        values = [value for value, _ in operands]
        are_known = [is_known is True for _, is_known in operands]
        known: Any = all(are_known)
        self.budget.spend(self.shape[1])
        results: Sequence[Number]
        match planned.instruction.traits.lanes:
            case "shuffle":
                shuffle = functools.partial(semantics.shuffle, mode, by=values[1], clamp=values[2])
                if are_known == [False, True, True]:
                    known = shuffle(self.full(operands[0][1]))
                results = True, shuffle(self.full(values[0]))
            case "elect":
                results = semantics.elect(self.full(where)), 0
            case "vote":
                is_all = mode == "ALL"
                votes = values[-1] | (where ^ True) if is_all else values[-1] & where
                has_ballot = not planned.writes[0].lstrip("U").startswith("P")
                results = semantics.vote(self.full(votes), is_all)[not has_ballot :]
            case _:
                return _unknown_results(planned)
        return [(result, known) for result in results]

    def _load(self, planned: Planned, where: Any) -> Iterable[Register]:
        place, known = self.read(planned.sources[-1])
        width = min(planned.instruction.lane_bytes, 4)
        if known is False:
            return _unknown_results(planned)
        results = []
        for k in range(len(planned.writes)):
            at = np.atleast_2d(place + 4 * k)
            on = np.broadcast_to(where, np.broadcast_shapes(at.shape, np.shape(where)))
            values, is_loaded = self.launch.load(np.where(on & known, at, -1), width, self.stored)
            if ".S8" in planned.instruction.opcode or ".S16" in planned.instruction.opcode:
                values = semantics.extend(values, 8 * width, True)
            self.budget.spend(values.size)
            results.append((values, bool(is_loaded.all()) or (is_loaded | ~on)))
        return results

    def _move_shared(self, planned: Planned, where: Any) -> Iterable[Register]:
        instruction = planned.instruction
        if not self.plan.reads_shared:
            return ()
        place, known = self.read(planned.sources[0])
        is_kept = self.keeps_shared and instruction.traits.widths != "matrices"
        if not (is_kept and is_known(known, where)):
            return _unknown_results(planned)
        if self.shared is None:
            # The system's part is zero: no tensor memory is allocated yet.
            system_bytes = SYSTEM_BYTES * self.plan.allocates_tensor_memory
            self.shared = _SharedMemory(self.shape[0], system_bytes)
        width = min(instruction.lane_bytes, 4)
        at = np.broadcast_to(place, self.shape) % _SHARED_BYTES
        on = np.broadcast_to(where, self.shape)
        loaded = []
        for k in range(instruction.lane_registers):
            self.budget.spend(ACCESS_WORK + 6 * at.size)
            address = at + k * width
            if planned.writes:
                value, known = self.shared.load(address, width)
                loaded.append((value, bool(known[on].all()) or known))
            elif instruction.traits.smem != "load":
                value, known = self.read(register(next_register(instruction.operands[-1], k)))
                if combine := _ATOMICS.get(instruction.opcode):
                    value = combine(self.shared.load(address, width)[0], value)
                elif instruction.traits.smem == "atomic":
                    known = False
                self.shared.store(address, width, on, value, known)
        return loaded


def choose(condition: Any, new: Register, old: Register) -> Register:
    """Return a register with a new value where a condition holds."""
    pairs = zip(new, old, strict=True)
    value, known = (a if a is b else semantics.select(condition, a, b) for a, b in pairs)
    return value, known


def _all_known(registers: Iterable[Register]) -> Any:
    """Return where all registers are known."""
    return functools.reduce(operator.and_, (known for _, known in registers), True)


def is_known(known: Any, where: Any) -> bool:
    return known is True or not np.any(where & (np.asarray(known) ^ True))


def _unknown_results(planned: Planned) -> Iterable[Register]:
    return [_UNKNOWN] * len(planned.writes)


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
