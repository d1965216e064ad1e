"""Why an operation costs what it costs: sentences made from facts of the layout, the sizes and the tensor."""

from __future__ import annotations

from kernels.spec import DTYPE_BYTES, FlatAccess, Kernel, Launch
from visualize.models.traffic import SECTOR_BYTES, Operation

# The widest access of one lane, and what the launcher records of a number: whether this divides it.
_WIDEST_BYTES = 16
_RECORDED_DIVISOR = 16


def on_the_blackboard(op: Operation) -> str:
    """A sentence for the efficiency of one operation with textbook lanes."""
    if op.access.op == "descriptor":
        return (
            "A descriptor has the whole block copied without any lane: no warp issues these requests. They are what "
            "the blackboard's lanes would issue for the same bytes."
        )
    if op.launch.sectors == op.launch.ideal_sectors:
        return "Neighbouring lanes take neighbouring bytes, so every sector is used whole."
    return _used_in_part(op)


def _used_in_part(op: Operation) -> str:
    """Why sectors are used in part."""
    access, size = op.access, op.width_bytes
    if isinstance(access, FlatAccess):
        return (
            f"Neighbouring lanes take elements of neighbouring rows of {access.tensor}, a whole row apart in memory, "
            "so they share few sectors or none."
        )
    columns = access.columns.block
    if access.transposed and op.made is None:
        return (
            f"The tile is turned: its rows in {access.tensor} are {columns} elements ({columns * size} bytes), "
            "so a warp crosses many of them, each in sectors of its own."
        )
    return (
        f"Rows of the tile begin or end inside sectors, or are cut by the edge of {access.tensor}, "
        "so some sectors are used in part."
    )


def compiled(op: Operation, textbook: Operation, kernel: Kernel, launch: Launch, shared_bytes: int) -> str:
    """Sentences for one operation as it was compiled, and for what differs from the blackboard.

    Args:
        textbook: the same operation on a blackboard with 32 lanes and lines of 128 bytes.
        shared_bytes: shared memory of the compiled program.
    """
    made = op.made
    if made is None:
        raise ValueError("A textbook operation was not compiled.")
    if made.layout is None:
        return (
            "The tensor memory accelerator copies the whole block: no lane asks for it, so there are no requests. "
            "These are the sectors of its boxes. The blackboard's lanes would issue "
            f"{textbook.launch.requests:,} requests."
        )
    if made.swaps:
        if not op.is_lower_bound:
            return "What the compare-and-swap below begins with: each lane loads the word that it will change."
        return (
            f"The GPU has no atomic for a {launch.problem.dtype} by itself: a lane changes a copy of its word and "
            "swaps it in, and tries again where the word was changed meanwhile. This is the first turn; how many "
            "follow depends on values and time."
        )
    sentences = [
        _narrow(op, kernel, launch),
        _turned(op, shared_bytes),
        _copies(op),
    ]
    if op.launch.sectors > op.launch.ideal_sectors:
        sentences.append(_partial(op))
    if not any(sentences):
        fewer = textbook.launch.requests / max(op.launch.requests, 1)
        sentences.append(
            f"Each lane takes {op.width_bytes} bytes at a time and neighbouring lanes neighbouring bytes"
            + (f": {fewer:.3g} × fewer requests than on the blackboard." if fewer > 1 else ".")
        )
    return " ".join(sentence for sentence in sentences if sentence)


def _partial(op: Operation) -> str:
    access, made = op.access, op.made
    if isinstance(access, FlatAccess) or made is None or made.layout is None:
        return _used_in_part(op)
    row = _neighbours(op) * made.element_bytes
    if row < SECTOR_BYTES:
        return (
            f"In one request, lanes take {_bytes(row)} of {access.tensor} in a row, so a sector of {SECTOR_BYTES} is "
            "used in part."
        )
    return _used_in_part(op)


def _neighbours(op: Operation) -> int:
    """How many elements of a row of the tensor one request takes without a gap."""
    access, made = op.access, op.made
    if made is None or made.layout is None or isinstance(access, FlatAccess):
        raise ValueError("Only blocks with a layout have rows.")
    along = access.dims.index(access.columns.index)
    run = made.width_bytes // made.element_bytes
    steps = sorted(base[along] for base in made.layout.lane if base[along] and not base[1 - along])
    for step in steps:
        run *= 2 if step == run else 1
    return run


def _narrow(op: Operation, kernel: Kernel, launch: Launch) -> str:
    """Why a lane moves less than 16 bytes at a time."""
    access, made = op.access, op.made
    if made is None or made.layout is None or op.width_bytes >= _WIDEST_BYTES:
        return ""
    size, lanes = made.element_bytes, 32 << len(made.layout.warp)
    share = max(access.elements * size // lanes, size)
    if share <= op.width_bytes:
        return f"A tile of {access.elements:,} elements leaves each of {lanes} lanes no more than {_bytes(share)}."
    if isinstance(access, FlatAccess):
        if access.transposed:
            return (
                f"Each element goes into another row of {access.tensor}, so a lane has no neighbours to move together."
            )
        row = access.elements * size
    else:
        row = access.columns.block * size
    if row <= op.width_bytes:
        return f"A row of the tile is only {_bytes(row)} of {access.tensor}."
    pitch = kernel.family.tensors(launch.problem)[access.tensor].stored[1]
    most = min(_WIDEST_BYTES, share, row)
    if pitch * size % most:
        return (
            f"A row of {access.tensor} takes {pitch * size:,} bytes ({pitch:,} × {size}), no multiple of {most}, so "
            f"rows don't begin at multiples of it, and a lane moves {_bytes(op.width_bytes)} at a time."
        )
    if pitch % _RECORDED_DIVISOR:
        return (
            f"Rows of {access.tensor} take {pitch * size:,} bytes, a multiple of {most}, but the launcher records only "
            f"whether the number {pitch:,} is divisible by 16. It is not, so the compiler can't know, and a lane moves "
            f"{_bytes(op.width_bytes)} instead of {most}."
        )
    if _turned_for_matrix_unit(op, kernel, launch):
        return (
            f"The matrix unit takes {launch.problem.dtype} operands K-major only, and {access.tensor} is not stored "
            f"so: it is copied {op.width_bytes} bytes at a time, to be turned on its way into shared memory."
        )
    return f"The layout gives a lane {_bytes(op.width_bytes)} of {access.tensor} at a time."


def _turned_for_matrix_unit(op: Operation, kernel: Kernel, launch: Launch) -> bool:
    """Whether Hopper's matrix unit (for 4 warps together, 64 rows) needs K as the fast axis: but for 2-byte types."""
    access, made, config = op.access, op.made, launch.config
    return (
        made is not None
        and access.tensor in (kernel.family.panels or ())
        and made.op == "async copy"
        and launch.gpu.compute_capability == (9, 0)
        and config.num_warps % 4 == 0
        and config.BLOCK_M >= 64
        and DTYPE_BYTES[launch.problem.dtype] != 2
        and not isinstance(access, FlatAccess)
        and access.columns.index != "k"
    )


def _turned(op: Operation, shared_bytes: int) -> str:
    access, made = op.access, op.made
    if (
        made is None
        or made.layout is None
        or isinstance(access, FlatAccess)
        or not access.transposed
        or not made.layout.lane
    ):
        return ""
    along = access.dims.index(access.columns.index)
    if not made.layout.lane[0][along] or not shared_bytes:
        return ""
    return (
        "A lane does not store what it loaded: the compiler turns the tile through shared memory "
        f"({shared_bytes:,} bytes a program), so that neighbouring lanes store neighbouring bytes."
    )


def _copies(op: Operation) -> str:
    """A tile that is smaller than the program's lanes."""
    made = op.made
    if made is None or made.layout is None:
        return ""
    times = 1 << sum(not any(base) for base in (*made.layout.lane, *made.layout.warp))
    if times == 1:
        return ""
    who = "one of them issues it" if made.issued_by_owners else "all of them load it"
    return f"The tile is smaller than the program: each element belongs to {times} lanes, and {who}."


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"
