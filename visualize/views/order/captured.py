"""Draw the program order of a script's launch, from the blocks that its programs store."""

import numpy as np

from tilescope.captures.content import CapturedLaunch
from tilescope.declare.gpus import ALL_GPUS
from tilescope.declare.spec import Tiles
from tilescope.evaluate.counts import OperationCounts
from tilescope.evaluate.global_memory import STORAGE_STEP
from tilescope.numbers import count_noun
from tilescope.reports.launch import Launches
from visualize.predict.schedule import MAX_TILES, Schedule, player_steps, programs_per_sm, steps
from visualize.views.order.map_figure import Order, map_figure, player_data
from visualize.views.order.text import occupancy_table, waves_sentence
from visualize.views.panel import Slots
from visualize.views.prose import headline
from visualize.views.slots import NONE, plot_value


def draw_launch_order(launches: Launches, number: int, step: int) -> Slots:
    """Draw which program stores each block, step by step.

    Args:
        number: of the launch.
    """
    kernel = launches.kernel(number).name
    planned = _plan_order(launches, number)
    programs, noun = count_noun(launches.programs(number), "program").split()
    if planned is None:
        none = "No store of this launch covers a tensor with rectangular blocks, each stored once."
        why = launches.content.not_modelled or none
        return {
            "program-order-headline": headline(programs, noun, why),
            "program-order-plot": NONE,
            "program-order-occupancy": "",
        }
    (tensor,) = planned.transposed
    order = Order(kernel, planned, player_steps(planned))
    waves = steps(planned) if order.steps.is_single else order.steps
    what = f"{noun} in {count_noun(len(waves.tiles), waves.name)}"
    stored = f"Each block of {tensor} has the color of the program that writes it."
    return {
        "program-order-headline": headline(programs, what, stored, waves_sentence(planned, waves)),
        "program-order-plot": plot_value(
            map_figure([order], ("block row", "block column")),
            f"{planned.extents} {kernel}",
            player_data([order], step, 0, 0),
            about=launches.caption,
        ),
        "program-order-occupancy": occupancy_table(planned),
    }


def _plan_order(launches: Launches, number: int) -> Schedule | None:
    """Return the schedule of a launch, by the first tensor whose blocks it stores whole and once each.

    It is None without such a tensor, or if the GPU is not in our table.
    """
    gpu = ALL_GPUS.get(launches.gpu)
    kernel = launches.kernel(number)
    for op in launches.counts(number).operations:
        tiles = _find_blocks(launches.content.launches[number], op)
        if gpu and tiles:
            return Schedule(
                gpu,
                kernel.num_warps,
                programs=launches.programs(number),
                tiles=tiles,
                extents=(int(tiles.pid_m.max()) + 1, int(tiles.pid_n.max()) + 1),
                panels=None,
                transposed={" or ".join(op.tensors): False},
                k_blocks=0,
                slices=1,
                resident_programs=gpu.sms * programs_per_sm(gpu, kernel.num_warps, kernel),
                resident_source="compiled",
            )
    return None


def _find_blocks(launch: CapturedLaunch, op: OperationCounts) -> Tiles | None:
    """Return the block that each program stores; None unless rectangular blocks of one size cover a tensor."""
    tensor = launch.find_tensor(op.tensors)
    example = op.tally.example
    if op.op != "store" or tensor is None or example is None or not op.tally.starts:
        return None
    pitch = max(1, tensor.shape[-1] if tensor.shape else 1)
    if len(tensor.shape) > 1 and tensor.strides[-1] == 1:
        pitch = max(1, tensor.strides[-2])

    def split(address: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        element = (address % STORAGE_STEP - tensor.offset_bytes) // tensor.element_bytes
        return np.divmod(element, pitch)

    elements = split(example.address[example.active])
    height, width = (len(np.unique(places)) for places in elements)
    program, start = (np.concatenate(part) for part in zip(*op.tally.starts, strict=True))
    row, column = split(start)
    row //= height
    column //= width
    count = (int(row.max()) + 1) * (int(column.max()) + 1)
    place = row * (column.max() + 1) + column
    is_rectangle = height * width == len(elements[0]) and min(row.min(), column.min()) >= 0
    if not is_rectangle or count > MAX_TILES:
        return None
    if not np.array_equal(np.sort(place), np.arange(count)):
        return None
    order = np.argsort(program, kind="stable")
    return Tiles(program[order], row[order], column[order], np.zeros_like(place))
