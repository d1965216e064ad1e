"""Count the requests of every launch in a capture."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from kernels.compiling import ttgir
from kernels.compiling.capture_file import Argument, Capture, CapturedLaunch, Tensor, UnreadableCapture
from kernels.compiling.evaluate import STORAGE_STEP, Descriptor, Evaluator, Storage, swizzles
from kernels.compiling.memory_operations import locate_lines
from kernels.compiling.requests import Instruction, read_instructions

COUNTERS = (
    *(f"{kind}_{unit}" for kind in ("ld", "st", "red", "atom") for unit in ("requests", "sectors")),
    "tma_ld_sectors", "tma_st_sectors",
)  # fmt: skip


@dataclass(frozen=True)
class OperationCounts:
    """Counts of one memory operation of a launch.

    Attributes:
        counter: "ld", "st", "red", "atom", "tma_ld" or "tma_st".
        source: (file without its folders, line) of the operation.
        tensors: names of the arguments that it addresses.
        instruction: PTX instruction without its operands; "" for a descriptor.
        refused: why it was not counted completely; "" if it was.
        is_lower_bound: whether retries or merged instructions make the count uncertain.
    """

    counter: str
    source: tuple[str, int]
    line: int
    tensors: tuple[str, ...]
    instruction: str
    width_bytes: int
    executions: int
    requests: int
    sectors: int
    lines: int
    ideal_sectors: int
    refused: str
    is_lower_bound: bool
    missing: int


@dataclass(frozen=True)
class LaunchCounts:
    """Counts of a launch.

    Attributes:
        notes: what the evaluation assumed or left out.
        seconds: how long the evaluation took.
    """

    operations: tuple[OperationCounts, ...]
    notes: tuple[str, ...]
    seconds: float
    refused: str = ""

    def totals(self) -> dict[str, int | None]:
        """Return the launch-wide counters. A counter is None if one of its operations was refused."""
        return {name: None if self._is_incomplete(name) else self.lower_bound(name) for name in COUNTERS}

    def lower_bound(self, name: str) -> int:
        kind, _, unit = name.rpartition("_")
        return sum(getattr(op, unit) for op in self.operations if op.counter == kind)

    def _is_incomplete(self, name: str) -> bool:
        kind = name.rpartition("_")[0]
        return bool(self.refused) or any(op.refused for op in self.operations if op.counter == kind)


@dataclass
class _Memory:
    """What is known about the storages as launches are evaluated in order."""

    capture: Capture
    writers: dict[int, str] = field(default_factory=dict)

    def address(self, tensor: Tensor) -> int:
        storage = self.capture.content.storages[tensor.storage]
        return (tensor.storage + 1) * STORAGE_STEP + storage.address_bytes + tensor.offset_bytes

    def storages(self, launch: CapturedLaunch) -> list[Storage]:
        storages = [Storage(storage.bytes, storage.address_bytes) for storage in self.capture.content.storages]
        for tensor in _tensors(launch):
            old = storages[tensor.storage]
            if tensor.storage in self.writers:
                why = f"Addresses depend on values that {self.writers[tensor.storage]} stores, and it did not run."
                storages[tensor.storage] = replace(old, why_unknown=why)
            elif tensor.array is not None:
                read = partial(self.read_array, tensor.array)
                storages[tensor.storage] = replace(old, contents={**old.contents, tensor.element_bytes: read})
        return storages

    def read_array(self, number: int) -> np.ndarray:
        try:
            return self.capture.read_array(number)
        except UnreadableCapture as error:
            raise ttgir.UnsupportedOperation(str(error)) from error


def count_launches(capture: Capture) -> Iterator[LaunchCounts]:
    """Count the launches of a capture, in order.

    Raises:
        UnreadableCapture: the compiled code of a launch is damaged.
    """
    memory = _Memory(capture)
    for launch in capture.content.launches:
        start = time.perf_counter()
        try:
            counts, stored = _count_launch(capture, launch, memory)
        except ttgir.UnsupportedOperation as error:
            counts, stored = LaunchCounts((), (), 0.0, str(error)), {tensor.storage for tensor in _tensors(launch)}
        if not launch.ran:
            memory.writers |= dict.fromkeys(stored, capture.content.kernels[launch.kernel].name)
        yield replace(counts, seconds=time.perf_counter() - start)


def _count_launch(capture: Capture, launch: CapturedLaunch, memory: _Memory) -> tuple[LaunchCounts, set[int]]:
    """Return a launch's counts and the storages that it writes to."""
    kernel = capture.content.kernels[launch.kernel]
    if kernel.num_ctas > 1:
        raise ttgir.UnsupportedOperation("A launch with clusters (num_ctas > 1) is not modeled.")
    text, ptx = (capture.read_code(launch.kernel, stage) for stage in ("ttgir", "ptx"))
    body = ttgir.parse(text)
    instructions = read_instructions(body, capture.layouts(kernel), text, ptx, kernel.num_warps)
    arguments = [_evaluated(argument, memory) for argument in launch.arguments]
    if len(arguments) != len(body.arguments):
        raise ttgir.UnsupportedOperation("The launch's arguments do not match the compiled function's.")
    evaluator = Evaluator(body, arguments, launch.grid, memory.storages(launch), instructions, swizzles(text))
    tallies = evaluator.run()
    names: dict[int, list[str]] = {}
    for argument in launch.arguments:
        if tensor := argument.own_tensor:
            names.setdefault(tensor.storage, []).append(argument.name)
    locations = [location for _, location in locate_lines(text, "ttgir")]
    operations = []
    for op in ttgir.memory_ops(body):
        tally, instruction = tallies[op.line], instructions.get(op.line)
        tensors = tuple(name for storage in sorted(tally.storages) for name in names.get(storage, ()))
        requests, sectors, lines, ideal = tally.counts.tolist()
        source = locations[op.line][0][:2] if locations[op.line] else (kernel.file, kernel.line)
        details = ("", 0, False, 0)
        if isinstance(instruction, Instruction):
            details = (instruction.name, instruction.width_bytes, instruction.is_lower_bound, instruction.missing)
        counter = instruction.counter if isinstance(instruction, Instruction) else _counter(op)
        operations.append(
            OperationCounts(
                counter, source, op.line, tensors, details[0], details[1], tally.executions, requests, sectors, lines,
                ideal, tally.refused, details[2], details[3],
            )
        )  # fmt: skip
    return LaunchCounts(tuple(operations), tuple(sorted(evaluator.notes)), 0.0), evaluator.stored


def _evaluated(argument: Argument, memory: _Memory) -> int | float | bool | Descriptor:
    if argument.tensor:
        return memory.address(argument.tensor)
    if made := argument.descriptor:
        return Descriptor(made.shape, made.strides, made.tensor.element_bytes, memory.address(made.tensor))
    return argument.number


def _tensors(launch: CapturedLaunch) -> Iterator[Tensor]:
    yield from filter(None, (argument.own_tensor for argument in launch.arguments))


def _counter(op: ttgir.Op) -> str:
    if op.name in ttgir.TMA_OPS:
        return "tma_ld" if ttgir.TMA_OPS[op.name] == "load" else "tma_st"
    return {"tt.store": "st", "tt.atomic_rmw": "atom", "tt.atomic_cas": "atom"}.get(op.name, "ld")
