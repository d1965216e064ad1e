"""Simulate a quarter of an SM: its resident warps run their instructions in order, and queue for shared resources.

Warps issue in the order in which their operands are ready. Pipes, the tensor core, the path to shared memory, the port
to the L2, the L2 and DRAM serve one request after the other. The quarter has a fixed share of resources outside it:
all SMs are assumed to do the same at the same time.
Omitted: clusters, and warps of a program that do different work.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilescope.timing.steps import PIPES, Step


@dataclass(frozen=True)
class Access:
    """Cycles for which an access to global memory occupies each resource, and its latency without queueing."""

    data_path: float = 0.0
    port: float = 0.0
    l2: float = 0.0
    dram_read: float = 0.0
    dram_write: float = 0.0
    atomic: float = 0.0
    latency: float = 0.0


@dataclass(frozen=True)
class Quarter:
    """The programs of a quarter of an SM, and the cycles of its events.

    Attributes:
        warps: warps of a program in this quarter.
        slots: programs that are resident.
        start_busy: cycles that the GPU needs to start one program.
        wavefront_cycles: for which a wavefront of this quarter occupies the SM's data path: the number of quarters
            that share it.
        write_buffer: cycles of DRAM writes that the L2 defers.
    """

    warps: int
    slots: int
    start_busy: float
    start_cycles: float
    barrier_cycles: float
    fence_cycles: float
    store_cycles: float
    matrix_issue_cycles: float
    wavefront_cycles: float
    write_buffer: float


@dataclass(slots=True)
class _Warp:
    program: int
    issued: float
    ready: list[float]
    position: int = 0
    copied: float = 0.0  # when its last copy ends
    copies: list[float] = field(default_factory=list)  # ends of committed groups
    products: list[float] = field(default_factory=list)
    product_begin: float = 0.0
    descriptors: list[float] = field(default_factory=list)
    stored: float = 0.0


@dataclass(frozen=True)
class Simulation:
    """The result of a simulation.

    Attributes:
        cycles: until all programs have run.
        starts: the cycle in which each program started.
        spent: cycles until each step was issued, from the issue of the step before or from the start of its program;
            of all warps.
    """

    cycles: float
    starts: Sequence[float]
    spent: Sequence[float]


def simulate(
    steps: Sequence[Step], accesses: Sequence[Access | None], quarter: Quarter, programs: int
) -> Simulation:
    """Run a number of programs.

    Args:
        steps: of one warp, in order.
        accesses: the access of each step to global memory; None without one.
    """
    registers = 1 + max((max(step.reads + step.writes, default=0) for step in steps), default=0)
    wavefront = quarter.wavefront_cycles
    matrix_issue = 1 + quarter.matrix_issue_cycles
    free = [0.0] * len(PIPES)
    issue = tensor = data_path = port = l2 = dram = atomics = starting = finished = 0.0
    deferred = quarter.write_buffer
    heap: list[tuple[float, int]] = []
    warps: list[_Warp] = []
    running: dict[int, int] = {}
    arrived: dict[int, list[tuple[float, int]]] = {}
    starts: list[float] = []
    spent = [0.0] * len(steps)

    def start(time: float) -> None:
        nonlocal starting
        starting = max(starting, time) + quarter.start_busy
        program = len(running)
        running[program] = quarter.warps
        starts.append(time)
        for _ in range(quarter.warps):
            heapq.heappush(heap, (starting + quarter.start_cycles, len(warps)))
            warps.append(_Warp(program, time, [0.0] * registers))

    for _ in range(min(quarter.slots, programs)):
        start(0.0)
    while heap:
        time, number = heapq.heappop(heap)
        warp = warps[number]
        step = steps[warp.position]
        access = accesses[warp.position]
        effect = step.effect
        time = max(time, issue)
        issue = time + (matrix_issue if tensor > time and effect != "group product" else 1)
        pipe = step.pipe
        if step.busy and effect != "group product" and effect != "product":
            time = max(time, free[pipe])
            free[pipe] = time + step.busy
        spent[warp.position] += time - warp.issued
        warp.issued = time
        after = time + 1
        end = time + step.latency
        if step.wavefronts:
            begin = max(data_path, time)
            data_path = begin + wavefront * step.wavefronts
            end = begin + step.wavefronts + step.latency
        if access is not None:
            begin = max(data_path, time)
            data_path = begin + access.data_path
            begin_port = max(port, begin)
            port = begin_port + access.port
            l2 = max(l2, begin) + access.l2
            if dram < begin:
                deferred = max(0.0, deferred - (begin - dram))
                dram = begin
            dram += access.dram_read
            deferred += access.dram_write
            if deferred > quarter.write_buffer:
                dram += deferred - quarter.write_buffer
                deferred = quarter.write_buffer
            end = max(port, l2, dram if access.dram_read else 0.0)
            if access.atomic:
                atomics = max(atomics, time) + access.atomic
                end = max(end, atomics)
            end += access.latency
            if step.traffic == "async copy":
                warp.copied = max(warp.copied, end)
            elif step.traffic == "descriptor load":
                warp.descriptors.append(end)
            elif not step.writes:
                sent = max(begin_port, atomics if access.atomic else 0.0)
                warp.stored = max(warp.stored, sent + quarter.store_cycles)
        elif effect == "group product":
            begin = max(tensor, time)
            warp.product_begin = begin
            tensor = max(begin, data_path - wavefront * step.wavefronts) + step.busy
            if step.pending:
                warp.products.append(tensor + step.latency)
        elif effect == "product":
            begin = max(tensor, time)
            tensor = begin + step.busy
            end = begin + step.latency
        elif effect == "commit":
            warp.copies.append(warp.copied)
        for register in step.writes:
            warp.ready[register] = end
        warp.position += 1
        if warp.position == len(steps):
            end = max(after, warp.stored, *warp.descriptors)
            finished = max(finished, end)
            spent[-1] += end - time
            running[warp.program] -= 1
            if not running[warp.program] and len(running) < programs:
                start(end)
            continue
        following = steps[warp.position]
        ready = warp.ready
        for register in following.reads:
            if ready[register] > after:
                after = ready[register]
        waits = following.effect
        if waits == "group product":
            after = max(after, warp.product_begin)  # one product of a warp may queue
        if waits == "barrier":
            group = arrived.setdefault(warp.program, [])
            group.append((after, number))
            if len(group) == running[warp.program]:
                after = max(group)[0] + quarter.barrier_cycles
                for _, other in group:
                    heapq.heappush(heap, (after, other))
                del arrived[warp.program]
            continue
        elif waits == "wait for copies":
            after = _wait(warp.copies, following.pending, after)
        elif waits == "wait for products":
            after = _wait(warp.products, following.pending, after)
        elif waits == "wait for descriptor" and warp.descriptors:
            after = max(after, warp.descriptors.pop(0))
        elif waits == "fence":
            after = max(after, warp.stored) + quarter.fence_cycles
        heapq.heappush(heap, (after, number))
    return Simulation(finished, starts, spent)


def _wait(ends: list[float], pending: int, time: float) -> float:
    """Return when all groups except the last `pending` ones have ended."""
    done = len(ends) - pending
    if done > 0:
        time = max(time, ends[done - 1])
        del ends[:done]
    return time
