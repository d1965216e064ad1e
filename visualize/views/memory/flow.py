"""The requests of one operation as the Memory view draws them, and the kernel that it contrasts them with."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from kernels import discover, orders
from kernels.accesses import MemoryOperation
from kernels.experiment import Experiment, from_json, resolve_gpu
from kernels.jit import on_arrays
from kernels.knobs import ConfigError, knob
from kernels.measuring.counters import COUNTERS
from kernels.results import records
from kernels.spec import DTYPE_BYTES, Access, FlatAccess, Kernel, Launch, TensorSpec
from visualize.predict import coalescing, textbook
from visualize.predict.request_lines import MOST_LINES, RequestLines, matching_requests, request_lines
from visualize.predict.textbook import Textbook
from visualize.predict.traffic import Matrix, Operation, Requests, Tile
from visualize.views import theme
from visualize.views.memory.figures import flow_figure, request_frames
from visualize.views.plot import plot_value
from visualize.views.state import State

# The most cells, over all requests, that one figure carries, so that a redraw stays small.
_MOST_CELLS = 1 << 16

# From this ratio of efficiencies, a contrast shows waste; below, it shows lanes beside boxes.
_NOTABLE_RATIO = 1.1

# Triton's launcher tells the compiler which sizes this divides.
_DIVISOR = 16


@dataclass(frozen=True)
class LaneView:
    """The operation, program and request in the picture."""

    of_kernel: ClassVar[bool] = True

    operation: str = knob(
        "worst", "Picture", "A memory operation of the kernel. worst: the one that wastes the most sectors.",
        choices=("worst", *map(str, range(16))), label="Memory operation",
    )  # fmt: skip
    model: str = knob(
        "compiled", "", "compiled: as the compiler chose. textbook: as on a blackboard.",
        choices=("compiled", "textbook"), label="Requests",
    )  # fmt: skip
    program: int = knob(
        0, "Picture", "The program (pid) whose first tile is drawn.",
        low=0, high=2**28, stops="powers", label="Program",
    )  # fmt: skip
    request: int = knob(0, "", "The warp request that is drawn. The scrubber sets it.", low=0, high=2**20)


@dataclass(frozen=True)
class Flow:
    """One execution of one operation in one program, as compiled or on the blackboard.

    Attributes:
        first: the first element of its block: row and column, or an index.
        tensor: the tensor that it addresses.
        lanes: its requests.
        code: the operation as compiled; None on the blackboard.
    """

    access: Access | FlatAccess
    first: tuple[int, ...]
    tensor: TensorSpec
    lanes: Requests
    code: MemoryOperation | None

    @property
    def is_box(self) -> bool:
        """Whether the operation is a descriptor's copy, which no lane issues."""
        return self.code is not None and self.code.layout is None

    @property
    def block(self) -> str:
        """The block in words: zoom survives a redraw of the same block."""
        return f"{self.access.op} {self.access.tensor} {self.first} {self.access.elements}"

    @property
    def title(self) -> str:
        """The model and the request, with {} for the request's number."""
        count, element_bytes = len(self.lanes.row), self.lanes.matrix.element_bytes
        if self.code is None or not self.is_box:
            return f"{'Compiled' if self.code else 'Blackboard'}: request {{}} of {count:,}"
        boxes = coalescing.box_count(self.access, self.code, element_bytes)
        return f"Compiled: {'one TMA box' if boxes == 1 else f'{boxes} TMA boxes'}"

    @property
    def tile(self) -> Tile:
        if self.code is None:
            return textbook.tile(self.lanes)
        return coalescing.tile(self.access, self.lanes.matrix, self.first, self.code)

    def lines(self, numbers: np.ndarray) -> RequestLines:
        """Lay out some of the requests on lines. A descriptor's block costs the sectors of its box rows."""
        lines = request_lines(self.lanes, numbers)
        if self.code is None or not self.is_box:
            return lines
        cost = coalescing.cost(self.lanes, self.access, self.code, self.tensor)
        return replace(lines, sectors=np.full_like(lines.sectors, cost.sectors))


def make_flow(
    kernel: Kernel,
    launch: Launch,
    number: int,
    code: MemoryOperation | None,
    machine: Textbook | None = None,
    program: int = 0,
) -> Flow:
    """Return the first execution of an operation in a program.

    Args:
        number: index of the operation.
        code: the operation as compiled; None for the blackboard.
        machine: the blackboard's warp, line and element sizes.
    """
    access = kernel.accesses(launch)[number]
    tiles = kernel.tiles(np.array([min(program, kernel.programs(launch) - 1)]), launch)
    extents = kernel.extents(launch)
    step, _ = on_arrays(orders.slice_of_k)(tiles.pid_k[:1], extents.get("k", 1), extents.get("slice", 1))
    place = {"m": int(tiles.pid_m[0]), "n": int(tiles.pid_n[0]), "k": int(step[0])}
    axes = (access.run,) if isinstance(access, FlatAccess) else (access.rows, access.columns)
    first = tuple(int(axis.start(place[axis.index], axis.block)) for axis in axes)
    tensor, dtype = kernel.family.tensors(launch.problem)[access.tensor], launch.problem.dtype
    if code is not None:
        lanes = coalescing.requests(access, Matrix(*tensor.stored, DTYPE_BYTES[dtype]), first, code)
    else:
        machine = machine or Textbook()
        lanes = textbook.requests(access, machine.matrix(tensor.stored, dtype), first, machine)
    return Flow(access, first, tensor, lanes, code)


def flow_plot(flow: Flow, request: int, about: str, more: Mapping[str, Any], other: Flow | None = None) -> str:
    """Return the value of the plot that draws a flow, with the requests around `request` for the scrubber.

    Args:
        about: the caption of a saved picture.
        more: further fields of the figure's `meta.requests`, for the script.
        other: the same operation in the other model, for the switch.
    """
    total, matrix, per_request = len(flow.lanes.row), flow.lanes.matrix, flow.lanes.row.shape[1]
    request = min(request, total - 1)
    cells = min(MOST_LINES, per_request) * matrix.line_bytes // matrix.element_bytes
    count = max(1, min(total, _MOST_CELLS // cells))
    begin = min(max(0, request - count // 2), total - count)
    numbers, place = np.arange(begin, begin + count), request - begin
    lines, holder = flow.lines(numbers), "16-byte piece" if flow.is_box else "lane"
    figure = flow_figure(lines, flow.lanes, place, flow.title, holder, flow.access.tensor)
    meta = request_frames(lines, flow.lanes, flow.title, place, total, holder)
    meta["requests"] |= {"block": flow.block, "model": "compiled" if flow.code else "textbook", **more}
    if other is not None:
        meta["requests"]["other"] = theme.smallest(matching_requests(flow.lanes, numbers, other.lanes))
    return plot_value(figure, f"{flow.title} {flow.block} {lines.line_bytes}", meta, about=about)


@dataclass(frozen=True)
class Contrast:
    """Another kernel's access of the same tensor of the same problem, as its recorded code carries it out.

    Attributes:
        experiment: the other kernel with its own default config.
        operations: its accesses of the tensor in the same direction; `operation` wastes the most sectors of them.
        is_alike: whether this kernel's operation costs about the same, so that a second picture would show nothing new.
    """

    experiment: Experiment
    kernel: Kernel
    launch: Launch
    operations: tuple[Operation, ...]
    is_alike: bool = False

    @property
    def operation(self) -> Operation:
        return max(self.operations, key=lambda op: op.launch.wasted_sectors)


def find_contrast(state: State, own: Operation) -> Contrast | None:
    """Return the kernel of the same family whose access of a tensor differs most from this kernel's.

    The largest ratio of efficiencies wins. If all are alike, a TMA box is a contrast to lanes, and lanes to a box. The
    layouts are those of recorded code, so that no compile is needed.

    Returns:
        None if no such kernel was recorded for a problem that compiles to the same code.
    """
    contrasts = []
    for kernel in discover().values():
        if kernel.id == state.kernel.id or kernel.family.root is not state.kernel.family.root:
            continue
        experiment, operations = _recorded_operations(kernel.id, state.experiment.problem, state.gpu.name)
        if experiment is None:
            continue
        launch = Launch(experiment.problem, experiment.config, state.gpu)
        writes = _is_written(state.kernel, state.launch, own.access)
        if alike := same_access(kernel, launch, own.access, operations, writes):
            contrasts.append(Contrast(experiment, kernel, launch, alike))
    if not contrasts:
        return None

    def ratio(contrast: Contrast) -> float:
        pair = contrast.operation.launch.efficiency, own.launch.efficiency
        return max(pair) / min(pair)

    best = max(contrasts, key=ratio)
    if ratio(best) >= _NOTABLE_RATIO:
        return best
    boxes = [contrast for contrast in contrasts if contrast.operation.is_box != own.is_box]
    if not boxes:
        return replace(best, is_alike=True)

    def distance(contrast: Contrast) -> tuple[int, bool]:
        sectors = contrast.operation.launch.sectors
        return abs(sectors - own.launch.sectors), contrast.kernel.family is not state.kernel.family

    return min(boxes, key=distance)


def same_access(
    kernel: Kernel,
    launch: Launch,
    access: Access | FlatAccess,
    operations: Iterable[Operation],
    writes: bool | None = None,
) -> tuple[Operation, ...]:
    """Return the operations that access the same tensor in the same direction.

    Args:
        access: an access of this kernel, or of another one if `writes` says whether that one writes.
    """
    writes = _is_written(kernel, launch, access) if writes is None else writes
    return tuple(
        op
        for op in operations
        if op.access.tensor == access.tensor and _is_written(kernel, launch, op.access) == writes
    )


def _is_written(kernel: Kernel, launch: Launch, access: Access | FlatAccess) -> bool:
    if access.op == "descriptor":
        return not kernel.family.tensors(launch.problem)[access.tensor].is_input
    return access.op != "load"


@functools.lru_cache(256)
def _recorded_operations(kernel_id: str, problem: Any, gpu: str) -> tuple[Experiment | None, tuple[Operation, ...]]:
    """Return a kernel's experiment for a problem, and its operations as the recorded code carries them out.

    The kernel has its default config. The result is (None, ()) if no code was recorded, or code for another type or
    layout, or if 16 does not divide a size that differs: the compiler then chooses other layouts.
    """
    recorded = from_json({"kernel": kernel_id, "gpu": gpu})
    counters = records.find(COUNTERS.form, recorded, gpu)
    fields = vars(problem)
    if counters is None or fields.keys() != vars(recorded.problem).keys():
        return None, ()
    for name, value in vars(recorded.problem).items():
        if fields[name] != value and (isinstance(value, str) or fields[name] % _DIVISOR):
            return None, ()
    try:
        experiment = from_json({**recorded.to_json(), "problem": fields})
    except ConfigError:
        return None, ()
    launch = Launch(experiment.problem, experiment.config, resolve_gpu(experiment, None))
    return experiment, coalescing.operations(discover()[kernel_id], launch, counters.compiled.operations)
