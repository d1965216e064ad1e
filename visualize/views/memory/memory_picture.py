"""The picture of one operation's requests on memory, with textbook lanes and with those that the compiler chose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from kernels import orders
from kernels.jit import on_arrays
from kernels.knobs import knob
from kernels.results import Compiled
from kernels.spec import DTYPE_BYTES, Access, FlatAccess, TensorSpec
from visualize.predict import coalescing, textbook
from visualize.predict.request_lines import MOST_LINES, RequestLines, matching_requests, request_lines
from visualize.predict.textbook import Textbook
from visualize.predict.traffic import LINE_BYTES, Matrix, Requests, Tile
from visualize.views.memory.figures import memory_figure, reason_figure, request_frames
from visualize.views.plot import drawn
from visualize.views.snapshot import Known
from visualize.views.state import State

MODELS = ("compiled", "textbook")

# Cells of all requests that one figure carries at most, so that a redraw stays small.
_MOST_CELLS = 1 << 16


@dataclass(frozen=True)
class LaneView:
    """Which execution of which memory operation is drawn."""

    of_kernel: ClassVar[bool] = True

    operation: str = knob(
        "worst", "Picture",
        "The memory operation, in source order. worst: the one that wastes the most sectors.",
        choices=("worst", *map(str, range(16))),
    )  # fmt: skip
    model: str = knob(
        "compiled", "Picture",
        "Whose requests are stepped through. compiled: those that the compiler chose. textbook: the blackboard's.",
        choices=MODELS,
    )  # fmt: skip
    program: int = knob(0, "Picture", "The program (pid) whose first tile is drawn.", low=0, high=2**28, stops="powers")
    request: int = knob(0, "", "The warp request that is drawn: set by the scrubber.", low=0, high=2**20)


@dataclass(frozen=True)
class Execution:
    """One execution of one operation in one program.

    Attributes:
        first: where its block begins: row and column, or the number of an element.
        tensor: the one that it addresses.
        board: its requests with textbook lanes.
        compiled: with the compiler's; None while they are not known.
        board_leads: whether the textbook's requests are stepped through, and the others follow.
    """

    access: Access | FlatAccess
    first: tuple[int, ...]
    tensor: TensorSpec
    machine: Textbook
    dtype_bytes: int
    board_bytes: int
    board: Requests
    compiled: Requests | None
    code: Compiled | None
    number: int
    board_leads: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the tensor as it is stored."""
        return self.tensor.stored

    @property
    def is_box(self) -> bool:
        """Whether the compiled operation is a descriptor's copy, which no lane issues."""
        return self.code is not None and self.code.operations[self.number].layout is None

    @property
    def compiled_name(self) -> str:
        """What is compiled, with {} for the number of a request."""
        if self.code and self.is_box:
            count = coalescing.box_count(self.access, self.code.operations[self.number], self.dtype_bytes)
            return f"Compiled: {'one TMA box' if count == 1 else f'{count} TMA boxes'}"
        count = 0 if self.compiled is None else len(self.compiled.row)
        return f"Compiled: request {{}} of {count:,}"

    def compiled_lines(self, numbers: np.ndarray | None) -> RequestLines | None:
        """The compiler's requests of those numbers on lines. A descriptor's block costs the sectors of its box rows."""
        made = _lines(self.compiled, numbers)
        if made is None or self.compiled is None or self.code is None or not self.is_box:
            return made
        cost = coalescing.cost(self.compiled, self.access, self.code.operations[self.number], self.tensor)
        return replace(made, sectors=np.full_like(made.sectors, cost.sectors))

    @property
    def tile(self) -> Tile:
        """Who takes which element, by the one that leads."""
        if self.board_leads or self.code is None:
            return textbook.tile(self.board)
        operation = self.code.operations[self.number]
        return coalescing.tile(self.access, Matrix(*self.shape, self.dtype_bytes), self.first, operation)

    @property
    def anew(self) -> str:
        """Changes with the block that is drawn: zoom is kept while it stays the same."""
        return f"{self.access.op} {self.access.tensor} {self.first} {self.access.elements}"


def accesses(state: State) -> tuple[Access | FlatAccess, ...]:
    return state.kernel.accesses(state.launch)


def execution(known: Known, number: int) -> Execution:
    """The first execution of one operation in the chosen program."""
    state = known.state
    access, machine = accesses(state)[number], state.view.of(Textbook)
    first = _first(state, access)
    problem = state.experiment.problem
    tensor = state.kernel.family.tensors(problem)[access.tensor]
    size, board_bytes = DTYPE_BYTES[problem.dtype], machine.bytes_of(problem.dtype)
    matrix = Matrix(*tensor.stored, size)
    code = known.compiled if known.compiled is not None and not known.compiled.unreadable else None
    return Execution(
        access=access,
        first=first,
        tensor=tensor,
        machine=machine,
        dtype_bytes=size,
        board_bytes=board_bytes,
        board=textbook.requests(access, machine.matrix(tensor.stored, problem.dtype), first, machine),
        compiled=coalescing.requests(access, matrix, first, code.operations[number]) if code else None,
        code=code,
        number=number,
        board_leads=state.view.of(LaneView).model == "textbook" or code is None,
    )


def _first(state: State, access: Access | FlatAccess) -> tuple[int, ...]:
    """Where the first block of the operation in the chosen program begins."""
    program = min(state.view.of(LaneView).program, state.kernel.programs(state.launch) - 1)
    tiles = state.kernel.tiles(np.array([program]), state.launch)
    extents = state.kernel.extents(state.launch)
    first_step, _ = on_arrays(orders.slice_of_k)(tiles.pid_k[:1], extents.get("k", 1), extents.get("slice", 1))
    place = {"m": int(tiles.pid_m[0]), "n": int(tiles.pid_n[0]), "k": int(first_step[0])}
    axes = (access.run,) if isinstance(access, FlatAccess) else (access.rows, access.columns)
    return tuple(int(axis.start(place[axis.index], axis.block)) for axis in axes)


def pictures(shown: Execution, request: int, why_not: str, about: Callable[[str], str]) -> tuple[str, str]:
    """The values of the two plots: textbook's requests and the compiler's, on one scale.

    Args:
        request: the number of the one that is drawn, of those that are stepped through.
        why_not: why there are none of the compiler's; "" while they are still to come.
        about: what a saved picture says of itself, by its mark.
    """
    leader = shown.board if shown.board_leads or shown.compiled is None else shown.compiled
    follower = shown.compiled if leader is shown.board else shown.board
    numbers, place = _window(leader, shown, request)
    following = None if follower is None else matching_requests(leader, numbers, follower)
    board_numbers, compiled_numbers = (numbers, following) if leader is shown.board else (following, numbers)
    board = _lines(shown.board, board_numbers)
    made = shown.compiled_lines(compiled_numbers)
    # One scale for both; beside a whole box a textbook request would be a thread.
    is_gpu = shown.machine.line_bytes == LINE_BYTES
    rows = max(one.rows for one in (board, made) if one) if is_gpu and not shown.is_box else 0
    total = len(leader.row)

    def picture(one: RequestLines | None, name: str, who: str, size: int, source: str) -> str:
        if one is None:
            return drawn(reason_figure("Compiled", why_not), about=about(source)) if why_not else ""
        figure = memory_figure(one, place, name, who, shown.access.tensor, rows)
        meta = request_frames(one, place, name, int(numbers[0]), total, size, shown.shape[1])
        return drawn(figure, f"{shown.anew} {one.line_bytes} {rows}", meta, about=about(source))

    who = "16-byte piece" if shown.is_box else "lane"
    return (
        picture(board, f"Textbook: request {{}} of {len(shown.board.row):,}", "lane", shown.board_bytes, "textbook"),
        picture(made, shown.compiled_name, who, shown.dtype_bytes, "compiled"),
    )


def _window(leader: Requests, shown: Execution, request: int) -> tuple[np.ndarray, int]:
    """The numbers of the requests that the figures carry, and the place of the drawn one among them."""
    total = len(leader.row)
    request = min(request, total - 1)
    lanes = max(one.row.shape[1] for one in (shown.board, shown.compiled) if one is not None)
    cells = max(LINE_BYTES // shown.dtype_bytes, shown.machine.line_bytes // shown.board_bytes)
    count = max(1, min(total, _MOST_CELLS // (min(MOST_LINES, lanes) * cells)))
    begins = min(max(0, request - count // 2), total - count)
    return np.arange(begins, begins + count), request - begins


def _lines(lanes: Requests | None, numbers: np.ndarray | None) -> RequestLines | None:
    return None if lanes is None or numbers is None else request_lines(lanes, numbers)
