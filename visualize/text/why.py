"""Why an operation costs what it costs: sentences from its layout, the sizes and the tensor. Without markup."""

from __future__ import annotations

from kernels.accesses import Layout, MemoryOperation
from kernels.spec import DTYPE_BYTES, Access, FlatAccess, Kernel, Launch
from visualize.predict.agreement import Verdicts
from visualize.predict.coalescing import row_bytes
from visualize.predict.traffic import SECTOR_BYTES, Operation
from visualize.views.numbers import counted

# The widest access of one lane, and what the launcher records of a number: whether this divides it.
_WIDEST_BYTES = 16
_RECORDED_DIVISOR = 16


def on_the_blackboard(op: Operation) -> str:
    """A sentence or two for the efficiency of one operation with textbook lanes."""
    if op.access.op == "descriptor":
        return (
            "A tensor descriptor copies the whole block, so no warp issues these requests. Textbook lanes would issue "
            "them for the same bytes."
        )
    if not op.launch.wasted_sectors:
        return "Adjacent lanes access adjacent elements, so every sector is fully used."
    return _partly_used(op)


def _partly_used(op: Operation) -> str:
    """Why sectors are used in part."""
    access, size = op.access, op.width_bytes
    if isinstance(access, FlatAccess):
        return (
            f"Adjacent lanes access elements in adjacent rows of {access.tensor}, a whole row apart in memory, so they "
            "share few sectors or none."
        )
    columns = access.columns.block
    if access.transposed and op.compiled is None:
        return (
            f"The tile is transposed: its rows in {access.tensor} are {counted(columns, 'element')} "
            f"({_bytes(columns * size)}) long. A warp crosses many of them, each in sectors of its own."
        )
    return (
        f"Rows of the tile begin or end inside sectors, or the edge of {access.tensor} truncates them, so some sectors "
        "are partly used."
    )


def of_operation(op: Operation, found: Verdicts) -> str:
    """Sentences for one operation, compiled or not."""
    if op.compiled is None or found.code is None:
        return on_the_blackboard(op)
    return compiled(op, found.gpu_board[op.number], found.kernel, found.launch, found.code.shared_bytes)


def in_short(op: Operation) -> str:
    """Why an operation wastes sectors, or none: a clause."""
    access, tensor = op.access, op.access.tensor
    if op.is_box and op.launch.extra_sectors > op.launch.wasted_sectors / 2:
        return f"its boxes reach past the edge of {tensor}"
    if not op.launch.wasted_sectors:
        if op.is_box:
            return "the TMA copies whole sectors"
        if (
            isinstance(access, Access)
            and op.compiled
            and op.compiled.layout
            and _lanes_follow(access, op.compiled.layout)
        ):
            return "the compiler transposes the tile through shared memory"
        return "adjacent lanes access adjacent bytes"
    if isinstance(access, FlatAccess):
        return f"adjacent lanes access different rows of {tensor}" if access.transposed else "runs begin inside sectors"
    code = op.compiled
    if code is not None and code.layout is not None:
        row = _contiguous_elements(access, code, code.layout) * code.element_bytes
        if row < SECTOR_BYTES:
            return f"contiguous runs of a request are only {_bytes(row)} long"
    elif access.transposed and code is None:
        return f"a row of the tile is only {_bytes(access.columns.block * op.width_bytes)} of {tensor}"
    return f"the tile's rows begin or end inside sectors of {tensor}"


def _lanes_follow(access: Access, layout: Layout) -> bool:
    """Whether a tile is stored transposed, and adjacent lanes store adjacent elements all the same."""
    along = access.dims.index(access.columns.index)
    return bool(access.transposed and layout.lane and layout.lane[0][along])


def compiled(op: Operation, textbook: Operation, kernel: Kernel, launch: Launch, shared_bytes: int) -> str:
    """Sentences for one operation as it was compiled, and for what differs from the blackboard.

    Args:
        textbook: the same operation on a blackboard with 32 lanes and lines of 128 bytes.
        shared_bytes: shared memory of the compiled program.

    Raises:
        ValueError: where it was not compiled.
    """
    if op.compiled is None:
        raise ValueError("A textbook operation was not compiled.")
    if op.is_box:
        row = row_bytes(op.access, op.compiled, DTYPE_BYTES[launch.problem.dtype])
        return _of_box(op, row, textbook)
    if op.compiled.swaps:
        return _swapping(op, launch)
    sentences = list(_of_layout(op, kernel, launch, shared_bytes))
    if op.launch.wasted_sectors:
        sentences.append(_partial(op))
    if op.launch.extra_sectors:
        sentences.append(
            "The counter of copies past L1 counts lines by pairs of lanes: "
            f"{op.launch.sectors:,}, where {op.launch.touched_sectors:,} sectors are touched."
        )
    return " ".join(filter(None, sentences)) or _contiguous(op, textbook)


def _of_box(op: Operation, row_bytes: int, textbook: Operation) -> str:
    """A block that is copied by descriptor, box row by box row."""
    outside = op.launch.extra_sectors
    sentences = [
        "The Tensor Memory Accelerator (TMA) copies the whole block, so no lane issues a request. The blackboard's "
        f"lanes would issue {textbook.launch.requests:,}. Each box row of {_bytes(row_bytes)} costs the sectors that "
        "it touches."
    ]
    if outside:
        where = f"{outside:,} of the sectors lie past the edge of {op.access.tensor}"
        sentences.append(f"{where}: they arrive as zeros, and are counted.")
    if op.launch.wasted_sectors > outside:
        sentences.append(_partly_used(op))
    return " ".join(sentences)


def _swapping(op: Operation, launch: Launch) -> str:
    """An atomic that the GPU has no instruction for: a load, and a loop."""
    if not op.launch.is_lower_bound:
        return "The compare-and-swap below begins with this load: each lane reads the word that it will change."
    return (
        f"The GPU has no atomic for a single {launch.problem.dtype}: a lane changes a copy of its word, swaps it in, "
        "and retries if the word has changed meanwhile. This is the first iteration. The number of retries depends "
        "on values and timing."
    )


def _contiguous(op: Operation, textbook: Operation) -> str:
    fewer = textbook.launch.requests / max(op.launch.requests, 1)
    beside = f": {fewer:.3g} × fewer requests than on the blackboard." if fewer > 1 else "."
    return f"Each lane accesses {op.width_bytes} contiguous bytes, and adjacent lanes adjacent chunks{beside}"


def _of_layout(op: Operation, kernel: Kernel, launch: Launch, shared_bytes: int) -> tuple[str, ...]:
    """What the layout says: of a run of elements it has no rows and no transposition."""
    if op.compiled is None or op.compiled.layout is None:
        return ()
    code, layout, access = op.compiled, op.compiled.layout, op.access
    transposed = "" if isinstance(access, FlatAccess) else _transposed(access, layout, shared_bytes)
    return _narrow(op, code, layout, kernel, launch), transposed, _copies(code, layout)


def _partial(op: Operation) -> str:
    access, code = op.access, op.compiled
    if code is None or code.layout is None or isinstance(access, FlatAccess):
        return _partly_used(op)
    row = _contiguous_elements(access, code, code.layout) * code.element_bytes
    if row < SECTOR_BYTES:
        return (
            f"Contiguous runs of a request are only {_bytes(row)} long, so each sector of {SECTOR_BYTES} is partly "
            "used."
        )
    return _partly_used(op)


def _contiguous_elements(access: Access, code: MemoryOperation, layout: Layout) -> int:
    """How many elements of a row of the tensor one request takes without a gap."""
    along = access.dims.index(access.columns.index)
    run = code.width_bytes // code.element_bytes
    steps = sorted(base[along] for base in layout.lane if base[along] and not base[1 - along])
    for step in steps:
        run *= 2 if step == run else 1
    return run


def _narrow(op: Operation, code: MemoryOperation, layout: Layout, kernel: Kernel, launch: Launch) -> str:
    """Why a lane moves less than 16 bytes at a time."""
    access, size, lanes = op.access, code.element_bytes, 32 << len(layout.warp)
    if op.width_bytes >= _WIDEST_BYTES:
        return ""
    share = max(access.elements * size // lanes, size)
    if share <= op.width_bytes:
        return f"A tile of {counted(access.elements, 'element')} has at most {_bytes(share)} for each of {lanes} lanes."
    if isinstance(access, FlatAccess):
        if access.transposed:
            return f"Each element goes to a different row of {access.tensor}, so a lane has no adjacent elements."
        row = access.elements * size
    else:
        row = access.columns.block * size
    if row <= op.width_bytes:
        return f"A row of the tile is only {_bytes(row)} of {access.tensor}."
    return _unaligned(op, kernel, launch, size, min(_WIDEST_BYTES, share, row)) or _by_layout(op, code, kernel, launch)


def _unaligned(op: Operation, kernel: Kernel, launch: Launch, size: int, most: int) -> str:
    """Where rows are not aligned to `most` bytes, or are and the compiler can't know."""
    tensor = op.access.tensor
    pitch = kernel.family.tensors(launch.problem)[tensor].stored[1]
    if pitch * size % most:
        return (
            f"A row of {tensor} takes {pitch * size:,} bytes ({pitch:,} × {size}), not a multiple of {most}. Rows are "
            f"not aligned to {most} bytes, so a lane moves {_bytes(op.width_bytes)} at a time."
        )
    if pitch % _RECORDED_DIVISOR:
        return (
            f"Rows of {tensor} take {pitch * size:,} bytes, a multiple of {most}. The launcher only records whether "
            f"{pitch:,} is divisible by {_RECORDED_DIVISOR}. It is not, so the compiler can't know, and a lane moves "
            f"{_bytes(op.width_bytes)} instead of {most}."
        )
    return ""


def _by_layout(op: Operation, code: MemoryOperation, kernel: Kernel, launch: Launch) -> str:
    tensor = op.access.tensor
    if _needs_k_major(op, code, kernel, launch):
        return (
            f"The matrix unit takes {launch.problem.dtype} operands K-major only, and {tensor} is not K-major. It is "
            f"copied {op.width_bytes} bytes at a time and transposed on its way into shared memory."
        )
    return f"In this layout, a lane has {_bytes(op.width_bytes)} of {tensor} at a time."


def _needs_k_major(op: Operation, code: MemoryOperation, kernel: Kernel, launch: Launch) -> bool:
    """Whether Hopper's matrix unit (for 4 warps together, 64 rows) needs K as the fast axis: but for 2-byte types."""
    access, config = op.access, launch.config
    return (
        access.tensor in (kernel.family.panels or ())
        and code.op == "async copy"
        and launch.gpu.compute_capability == (9, 0)
        and config.num_warps % 4 == 0
        and config.BLOCK_M >= 64
        and DTYPE_BYTES[launch.problem.dtype] != 2
        and not isinstance(access, FlatAccess)
        and access.columns.index != "k"
    )


def _transposed(access: Access, layout: Layout, shared_bytes: int) -> str:
    """A tile that is stored transposed, where adjacent lanes store adjacent elements."""
    if not (_lanes_follow(access, layout) and shared_bytes):
        return ""
    return (
        f"The compiler transposes the tile through shared memory ({shared_bytes:,} bytes per program), so that "
        "adjacent lanes store adjacent bytes. A lane stores other elements than it loaded."
    )


def _copies(code: MemoryOperation, layout: Layout) -> str:
    """A tile that is smaller than the program's lanes."""
    times = 1 << sum(not any(base) for base in (*layout.lane, *layout.warp))
    if times == 1:
        return ""
    who = "one of them issues it" if code.op != "load" else "all of them load it"
    return f"The tile is smaller than the program: {times} lanes hold each element, and {who}."


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"
