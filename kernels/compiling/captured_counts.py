"""Count the requests of every launch in a capture."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from kernels.compiling import ttgir
from kernels.compiling.capture_file import Argument, Capture, CapturedLaunch, Tensor, UnreadableCapture
from kernels.compiling.evaluate import STORAGE_STEP, Descriptor, Evaluator, Storage, Tally, swizzles
from kernels.compiling.memory_operations import locate_lines
from kernels.compiling.requests import REQUESTS, SECTORS, Instruction, read_instructions

COUNTERS = (
    *(f"{kind}_{unit}" for kind in ("ld", "st", "red", "atom") for unit in ("requests", "sectors")),
    "tma_ld_sectors", "tma_st_sectors",
)  # fmt: skip

# The kind of each operation, as the API calls it, and Nsight Compute's name of its counters.
_KINDS = {
    "tt.load": ("load", "ld"),
    "ttg.async_copy_global_to_local": ("async copy", "ld"),
    "tt.store": ("store", "st"),
    "tt.atomic_rmw": ("atomic", "atom"),
    "tt.atomic_cas": ("atomic", "atom"),
    **{name: ("descriptor", f"tma_{'ld' if kind == 'load' else 'st'}") for name, kind in ttgir.TMA_OPS.items()},
}


@dataclass(frozen=True)
class OperationCounts:
    """Counts of one memory operation of a launch.

    Attributes:
        op: "load", "async copy", "store", "atomic" or "descriptor".
        counter: "ld", "st", "red", "atom", "tma_ld" or "tma_st".
        source: (file without its folders, line) of the operation.
        tensors: names of the arguments that it addresses.
        instruction: how it was compiled; None for a descriptor or if that is unknown.
        depends_on: names of the arguments that its addresses and mask depend on.
        has_mask: whether it has a mask.
    """

    op: str
    counter: str
    source: tuple[str, int]
    tensors: tuple[str, ...]
    instruction: Instruction | None
    tally: Tally
    depends_on: frozenset[str]
    has_mask: bool

    @property
    def requests(self) -> int:
        return int(self.tally.counts[REQUESTS])

    @property
    def sectors(self) -> int:
        return int(self.tally.counts[SECTORS])

    @property
    def width_bytes(self) -> int:
        return self.instruction.width_bytes if self.instruction else 0


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
        return bool(self.refused) or any(op.tally.refused for op in self.operations if op.counter == kind)


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
    text, ptx, sass = (capture.read_code(launch.kernel, stage) for stage in ("ttgir", "ptx", "sass"))
    body = ttgir.parse(text)
    instructions = read_instructions(body, capture.layouts(kernel), text, ptx, sass, kernel.num_warps)
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
        made = instruction if isinstance(instruction, Instruction) else None
        tensors = tuple(name for storage in sorted(tally.storages) for name in names.get(storage, ()))
        source = locations[op.line][0][:2] if locations[op.line] else (kernel.file, kernel.line)
        kind, counter = _KINDS[op.name]
        roots = filter(None, (op.mask, op.pointer if op.name in ttgir.POINTER_OPS else op.operands[0]))
        reached = evaluator.slice.reach(roots)
        depends_on = frozenset(
            argument.name for argument, name in zip(launch.arguments, body.arguments, strict=True) if name in reached
        )
        counter = made.counter if made else counter
        operations.append(OperationCounts(kind, counter, source, tensors, made, tally, depends_on, op.mask is not None))
    return LaunchCounts(tuple(operations), tuple(sorted(evaluator.notes)), 0.0), evaluator.stored


def _evaluated(argument: Argument, memory: _Memory) -> int | float | bool | Descriptor:
    if argument.tensor:
        return memory.address(argument.tensor)
    if made := argument.descriptor:
        return Descriptor(made.shape, made.strides, made.tensor.element_bytes, memory.address(made.tensor))
    return argument.number


def _tensors(launch: CapturedLaunch) -> Iterator[Tensor]:
    yield from filter(None, (argument.own_tensor for argument in launch.arguments))
