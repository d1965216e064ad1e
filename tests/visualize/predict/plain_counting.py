"""Plain counting, to which the models are compared: every execution, request, lane and byte, one by one."""

import itertools

from tilescope.declare.spec import FlatAccess
from tilescope.evaluate.counts import NO_COST, Cost


def begin(access, index):
    """Where the block or run of an execution begins: (row, column) or (element,)."""
    axes = (access.run,) if isinstance(access, FlatAccess) else (access.rows, access.columns)
    return tuple(int(axis.start(index[axis.index], axis.block)) for axis in axes)


def executions(access, extents):
    """Where the block or run of each execution begins."""
    for place in itertools.product(*(range(extents[name]) for name in access.over)):
        yield begin(access, dict(zip(access.over, place, strict=True)))


def element(layout, register, lane, warp):
    """The place of one element: the exclusive or of the bases of the bits that are set."""
    place = [0] * len(layout.shape)
    for bases, number in ((layout.register, register), (layout.lane, lane), (layout.warp, warp)):
        for bit, base in enumerate(bases):
            if number >> bit & 1:
                place = [a ^ b for a, b in zip(place, base, strict=True)]
    return tuple(place)


def has_copies(bases, number):
    return any(not any(base) and number >> bit & 1 for bit, base in enumerate(bases))


def locate(access, first, place, shape):
    """Row and column, in the tensor as stored, of an element of the block or run that begins at `first`."""
    if isinstance(access, FlatAccess):
        number = first[0] + place[0]
        column, row = divmod(number, shape[0])
        return (row, column) if access.transposed else divmod(number, shape[1])
    along = dict(zip(access.dims, place, strict=True))
    return first[0] + along[access.rows.index], first[1] + along[access.columns.index]


def plain_count(pattern, starts):
    """The cost of every instruction of every warp, over the executions that begin at `starts`."""
    made = pattern.instruction
    matrix = pattern.matrix
    layout = made.layout
    length = made.width_bytes // made.element_bytes
    lanes = range(1 << len(layout.lane))
    warps = range(1 << len(layout.warp))
    registers = [r for r in range(1 << len(layout.register)) if not has_copies(layout.register, r)]
    requests = [
        [
            element(layout, register, lane, warp)
            for lane in lanes
            if made.op == "load"
            or not (has_copies(layout.lane, lane) or has_copies(layout.warp, warp))
        ]
        for warp, register in itertools.product(warps, registers[::length])
    ]
    total = NO_COST
    for first, places in itertools.product(starts, requests):
        addresses = []
        for place in places:
            row, column = locate(pattern.access, first, place, (matrix.rows, matrix.columns))
            if row < matrix.rows and column < matrix.columns:
                addresses.append((row * matrix.columns + column) * matrix.element_bytes)
        touched = {start + byte for start in addresses for byte in range(made.width_bytes)}
        sectors = len({byte // matrix.sector_bytes for byte in touched})
        lines = len({byte // matrix.line_bytes for byte in touched})
        ideal = -(-len(touched) // matrix.sector_bytes)
        used = len(addresses) * made.width_bytes
        total += Cost(
            bool(addresses), sectors, lines, ideal, used, sector_bytes=matrix.sector_bytes
        )
    return total
