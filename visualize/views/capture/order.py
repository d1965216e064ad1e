"""The program order of a captured launch: which program stores which block, as our own kernels declare it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from kernels.capture.reader import CapturedKernel, CapturedLaunch
from kernels.evaluate.counts import OperationCounts
from kernels.evaluate.memory import STORAGE_STEP
from kernels.gpus import GPUS
from kernels.instructions import CompiledFacts
from kernels.spec import Family, Kernel, Launch, TensorSpec, Tiles
from visualize.predict.schedule import MAX_TILES, Schedule, schedule
from visualize.views.capture.launches import Launches


@dataclass(frozen=True)
class _Config:
    num_warps: int


def captured_schedule(launches: Launches, number: int) -> Schedule | None:
    """Return the schedule of a launch, by the first tensor whose blocks it stores whole and once each.

    It is None without such a tensor, or if the GPU is not in our table.
    """
    launch = declare_launch(launches, number)
    found = next(_stored_blocks(launches, number), None)
    if launch is None or found is None:
        return None
    tensor, tiles = found
    extents = {"m": int(tiles.pid_m.max()) + 1, "n": int(tiles.pid_n.max()) + 1}
    code = launches.kernel(number)
    grid = launches.content.launches[number].grid
    family = Family(
        id="script",
        problem=type(None),
        tensors=lambda _: {tensor: TensorSpec((extents["m"], extents["n"]), is_input=False)},
        reference=_unknown,
        baseline=_unknown,
        baseline_name=_unknown,
        magnitude="",
    )
    kernel = Kernel(
        id=code.name,
        title=code.name,
        headline="",
        family=family,
        config=_Config,
        jitted=None,
        grid=lambda _: grid,
        extents=lambda _: extents,
        tiles=lambda *_: tiles,
        accesses=lambda _: (),
        arguments=_unknown,
    )
    return schedule(kernel, launch, compiled=compiled_facts(code))


def declare_launch(launches: Launches, number: int) -> Launch | None:
    """Return a launch as our own kernels have it; None if the GPU is not in our table."""
    gpu = GPUS.get(launches.gpu)
    config = _Config(launches.kernel(number).num_warps)
    return Launch(None, config, gpu) if gpu else None


def compiled_facts(kernel: CapturedKernel) -> CompiledFacts:
    needs = kernel.registers, kernel.spilled_bytes, kernel.shared_bytes
    return CompiledFacts(*needs, operations=(), shared=(), conversions=(), unreadable="")


def _stored_blocks(launches: Launches, number: int) -> Iterator[tuple[str, Tiles]]:
    """Yield each tensor that is covered by rectangular blocks of one size, and the block of each program."""
    launch = launches.content.launches[number]
    for op in launches.counts(number).operations:
        example = op.tally.example
        if op.op != "store" or example is None or not op.tally.starts:
            continue
        blocks = _find_blocks(launch, op, example.address[example.active])
        if blocks is None:
            continue
        program, row, column = blocks
        shape = int(row.max()) + 1, int(column.max()) + 1
        place = row * shape[1] + column
        is_whole = min(int(row.min()), int(column.min())) >= 0 and math.prod(shape) <= MAX_TILES
        if is_whole and np.array_equal(np.sort(place), np.arange(math.prod(shape))):
            order = np.argsort(program, kind="stable")
            zeros = np.zeros_like(place)
            tiles = Tiles(program[order], row[order], column[order], zeros, group=zeros)
            yield " or ".join(op.tensors), tiles


def _find_blocks(
    launch: CapturedLaunch, op: OperationCounts, address: np.ndarray
) -> tuple[np.ndarray, ...] | None:
    """Return the program, the row and the column of each block that is stored; None if blocks are not rectangles.

    Args:
        address: of the elements of one block.
    """
    tensors = (argument.own_tensor for argument in launch.arguments if argument.name in op.tensors)
    tensor = next(filter(None, tensors), None)
    if tensor is None:
        return None
    pitch = max(1, tensor.shape[-1] if tensor.shape else 1)
    if len(tensor.shape) > 1 and tensor.strides[-1] == 1:
        pitch = max(1, tensor.strides[-2])

    def split(bytes_: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.divmod(
            (bytes_ % STORAGE_STEP - tensor.offset_bytes) // tensor.element_bytes, pitch
        )

    rows, columns = split(address)
    height = len(np.unique(rows))
    width = len(np.unique(columns))
    if height * width != len(address):
        return None
    program, start = (np.concatenate(part) for part in zip(*op.tally.starts, strict=True))
    row, column = split(start)
    return program, row // height, column // width


def _unknown(*_: Any) -> NoReturn:
    raise TypeError("A captured launch declares no reference and no arguments.")
