"""Plain counting, to which the models are compared: every execution, request, lane and byte, one by one."""

import itertools

from hypothesis import strategies as st

from kernels.evaluate.counts import NO_COST, Cost
from kernels.knobs import knobs
from kernels.spec import FlatAccess, Launch


def begin(access, index):
    """Where the block or run of an execution begins: (row, column) or (element,)."""
    axes = (access.run,) if isinstance(access, FlatAccess) else (access.rows, access.columns)
    return tuple(int(axis.start(index[axis.index], axis.block)) for axis in axes)


def executions(access, extents):
    """Where the block or run of each execution begins."""
    for place in itertools.product(*(range(extents[name]) for name in access.over)):
        yield begin(access, dict(zip(access.over, place, strict=True)))


def run_element(access, shape, number):
    """Row and column, in the tensor as stored, of a run's element."""
    return (
        (number % shape[0], number // shape[0]) if access.transposed else divmod(number, shape[1])
    )


def lane_bytes(places, shape, size, width):
    """(lane, first byte, bytes) of each lane whose (row, column) is inside the tensor. `places` is by lane."""
    return [
        (lane, (row * shape[1] + column) * size, width)
        for lane, (row, column) in places.items()
        if row < shape[0] and column < shape[1]
    ]


def plain_cost(requests, sector_bytes=32, line_bytes=128, bypasses_l1=False):
    """The cost of requests, each a list of (lane, first byte, bytes)."""
    total = NO_COST
    for lanes in requests:
        touched = {byte for _, start, width in lanes for byte in range(start, start + width)}
        sectors, lines = (
            len({byte // unit for byte in touched}) for unit in (sector_bytes, line_bytes)
        )
        extra = 0
        by_sectors = 0
        if (
            bypasses_l1
        ):  # by pairs of lanes: the lines of 32 consecutive bytes, and the sectors of others
            pairs = [
                [start for lane, start, _ in lanes if lane // 2 == pair]
                for pair in {at[0] // 2 for at in lanes}
            ]
            units = [
                line_bytes if len(pair) == 2 and pair[1] - pair[0] == 16 else sector_bytes
                for pair in pairs
            ]
            touched_units = (
                {start // unit for start in pair} for pair, unit in zip(pairs, units, strict=True)
            )
            extra = sum(map(len, touched_units)) - sectors
            by_sectors = (
                len({(lane // 2, start // sector_bytes) for lane, start, _ in lanes}) - sectors
            )
        wanted = sum(width for *_, width in lanes)
        ideal = -(-len(touched) // sector_bytes)
        amounts = (bool(lanes), sectors + extra, lines, ideal, wanted, extra, by_sectors)
        total += Cost(*amounts, sector_bytes=sector_bytes)
    return total


@st.composite
def small_launches(draw, kernels, gpus):
    """Draw a kernel and a launch whose tiles are small and do not divide the problem."""
    kernel = draw(st.sampled_from(kernels))
    declared = kernel.problem_knobs()
    problem = {name: draw(st.integers(1, 40)) for name in "MNK" if name in declared}
    for name in [name for name in ("dtype", "layout") if name in declared]:
        problem[name] = draw(st.sampled_from(declared[name].choices))
    tile = {
        name: knob.choices or (1, 2, 3)
        for name, knob in knobs(kernel.config).items()
        if knob.group == "Tile"
    }
    config = {name: draw(st.sampled_from(choices[:3])) for name, choices in tile.items()}
    if problem["dtype"].startswith("float8") and "BLOCK_K" in config:
        config["BLOCK_K"] = 32
    gpu = draw(st.sampled_from(gpus))
    return kernel, Launch(kernel.family.problem(**problem), kernel.config(**config), gpu)
