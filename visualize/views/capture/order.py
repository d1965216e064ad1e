"""The program order of a captured launch: which program stores which block."""

import math
from collections.abc import Iterator

import numpy as np

from tilescope.captures.reader import CapturedLaunch
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Tiles
from tilescope.evaluate.counts import OperationCounts
from tilescope.evaluate.global_memory import STORAGE_STEP
from tilescope.reports.launch import Launches
from visualize.predict.schedule import MAX_TILES, Schedule, programs_per_sm


def captured_schedule(launches: Launches, number: int) -> Schedule | None:
    """Return the schedule of a launch, by the first tensor whose blocks it stores whole and once each.

    It is None without such a tensor, or if the GPU is not in our table.
    """
    gpu = GPUS.get(launches.gpu)
    stored = next(_stored_blocks(launches, number), None)
    if gpu is None or stored is None:
        return None
    tensor, tiles = stored
    kernel = launches.kernel(number)
    return Schedule(
        gpu,
        kernel.num_warps,
        programs=launches.programs(number),
        tiles=tiles,
        extents=(int(tiles.pid_m.max()) + 1, int(tiles.pid_n.max()) + 1),
        panels=None,
        transposed={tensor: False},
        k_blocks=0,
        slices=1,
        resident_programs=gpu.sms * programs_per_sm(gpu, kernel.num_warps, kernel),
        resident_source="compiled",
    )


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
            tiles = Tiles(program[order], row[order], column[order], zeros)
            yield " or ".join(op.tensors), tiles


def _find_blocks(
    launch: CapturedLaunch, op: OperationCounts, address: np.ndarray
) -> tuple[np.ndarray, ...] | None:
    """Return the program, the row and the column of each block that is stored; None if blocks are not rectangles.

    Args:
        address: of the elements of one block.
    """
    tensor = launch.find_tensor(op.tensors)
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
