"""Simulate a quarter of an SM: its resident warps run their instructions in order, and queue for shared resources.

Warps issue in the order in which their operands are ready. Pipes, the tensor core, the path to shared memory, the port
to the L2, the L2 and DRAM serve one request after the other. The quarter has a fixed share of resources outside it:
all SMs are assumed to do the same at the same time.
Omitted: clusters, and warps of a program that do different work.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilescope.timing.steps import (
    ASYNC_PRODUCT,
    BRANCH_CYCLES,
    BRANCH_READ_CYCLES,
    PIPES,
    PRODUCTS,
    Step,
)


@dataclass(frozen=True)
class GlobalAccess:
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
    barriers: list[float] = field(default_factory=list)  # ends of what mbarriers wait for
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


class _MemoryPath:
    """The path of a quarter's accesses. Each part serves one after the other, and is free from the named cycle on."""

    def __init__(self, quarter: Quarter) -> None:
        self._wavefront_cycles = quarter.wavefront_cycles
        self._write_buffer = quarter.write_buffer
        self._deferred = quarter.write_buffer
        self.data_path = self._port = self._l2 = self._dram = self._atomics = 0.0

    def move_shared(self, wavefronts: float, time: float) -> float:
        """Occupy the data path to shared memory. Return when that begins."""
        begin = max(self.data_path, time)
        self.data_path = begin + self._wavefront_cycles * wavefronts
        return begin

    def access(self, access: GlobalAccess, time: float) -> tuple[float, float]:
        """Carry out an access to global memory.

        Return when the L2 has received what it writes, and when its data have arrived.
        """
        begin = max(self.data_path, time)
        self.data_path = begin + access.data_path
        sent = max(self._port, begin)
        self._port = sent + access.port
        self._l2 = max(self._l2, begin) + access.l2
        sent = max(sent, self._l2)
        if self._dram < begin:  # idle DRAM writes what the L2 has deferred
            self._deferred = max(0.0, self._deferred - (begin - self._dram))
            self._dram = begin
        self._dram += access.dram_read
        self._deferred += access.dram_write
        if self._deferred > self._write_buffer:
            self._dram += self._deferred - self._write_buffer
            self._deferred = self._write_buffer
        end = max(self._port, self._l2, self._dram if access.dram_read else 0.0)
        if access.atomic:
            self._atomics = max(self._atomics, time) + access.atomic
            end = max(end, self._atomics)
            sent = max(sent, self._atomics)
        return sent, end + access.latency


class _Simulator:
    """The state of a quarter: its warps, and the cycles from which its units are free."""

    def __init__(
        self,
        steps: Sequence[Step],
        accesses: Sequence[GlobalAccess | None],
        quarter: Quarter,
        programs: int,
    ) -> None:
        self._steps = steps
        self._accesses = accesses
        self._quarter = quarter
        self._programs = programs
        distinct = {id(step): step for step in steps}.values()
        self._registers = 1 + max(max((*step.reads, *step.writes), default=0) for step in distinct)
        self._memory = _MemoryPath(quarter)
        self._tensor = self._starting = 0.0
        self._pipes = [0.0] * len(PIPES)
        # cycles from which warps can issue, and their numbers
        self._waiting: list[tuple[float, int]] = []
        self._warps: list[_Warp] = []
        self._running: dict[int, int] = {}  # warps of each program
        self._arrived: dict[int, list[tuple[float, int]]] = {}  # at the barrier of each program
        self.starts: list[float] = []
        self.spent = [0.0] * len(steps)
        self.finished = 0.0

    def run(self) -> None:
        for _ in range(min(self._quarter.slots, self._programs)):
            self._start(0.0)
        # Local names: most steps are plain, and take a microsecond each
        steps, warps, waiting, pipes = self._steps, self._warps, self._waiting, self._pipes
        matrix_issue_cycles = self._quarter.matrix_issue_cycles
        issue = 0.0
        is_plain = [
            not (step.wavefronts or step.effect or access)
            for step, access in zip(steps, self._accesses, strict=True)
        ]
        even, odd = zip(*(step.banks for step in steps), strict=True)
        even_free = odd_free = 0.0
        # Products occupy the tensor core instead of a pipe
        busy = [step.busy * (step.effect not in PRODUCTS) for step in steps]
        while waiting:
            time, number = heapq.heappop(waiting)
            while time >= 0:
                warp = warps[number]
                position = warp.position
                step = steps[position]
                if issue > time:
                    time = issue
                if even[position]:
                    if even_free > time:
                        time = even_free
                    even_free = time + even[position]
                if odd[position]:
                    if odd_free > time:
                        time = odd_free
                    odd_free = time + odd[position]
                issue = time + step.issue
                if self._tensor > time and step.effect != "group product":
                    issue += matrix_issue_cycles
                if busy[position]:
                    if pipes[step.pipe] > time:
                        time = pipes[step.pipe]
                    pipes[step.pipe] = time + busy[position]
                self.spent[position] += time - warp.issued
                warp.issued = time
                end = time + step.latency if is_plain[position] else self._execute(warp, step, time)
                ready = warp.ready
                for register in step.writes:
                    ready[register] = end
                warp.position = position = position + 1
                if position == len(steps):
                    self._finish(warp, time)
                    break
                step = steps[position]
                time += 1
                for register in step.reads:
                    if ready[register] > time:
                        time = ready[register]
                if step.effect:
                    time = self._delay(warp, number, step, time)
                if time >= 0:
                    time, number = heapq.heappushpop(waiting, (time, number))

    def _start(self, time: float) -> None:
        """Start a program when the GPU's scheduler is free."""
        quarter = self._quarter
        self._starting = max(self._starting, time) + quarter.start_busy
        program = len(self._running)
        self._running[program] = quarter.warps
        self.starts.append(time)
        for _ in range(quarter.warps):
            heapq.heappush(self._waiting, (self._starting + quarter.start_cycles, len(self._warps)))
            self._warps.append(_Warp(program, time, [0.0] * self._registers))

    def _execute(self, warp: _Warp, step: Step, time: float) -> float:
        """Return the cycle from which a step's results can be read."""
        end = time + step.latency
        if step.wavefronts:
            begin = self._memory.move_shared(step.wavefronts, time)
            end = begin + step.wavefronts + step.latency
        access = self._accesses[warp.position]
        if access is not None:
            sent, end = self._memory.access(access, time)
            if step.traffic == "async copy":
                warp.copied = max(warp.copied, end)
            elif step.traffic == "descriptor load":
                warp.barriers.append(end)
            elif not step.writes:
                warp.stored = max(warp.stored, sent + self._quarter.store_cycles)
        elif step.effect == "group product":
            warp.product_begin = max(self._tensor, time)
            own = self._quarter.wavefront_cycles * step.wavefronts
            self._tensor = max(warp.product_begin, self._memory.data_path - own) + step.busy
            if step.pending:
                warp.products.append(self._tensor + step.latency)
        elif step.effect == ASYNC_PRODUCT:
            own = self._quarter.wavefront_cycles * step.wavefronts
            begin = max(self._tensor, time)
            self._tensor = max(begin, self._memory.data_path - own) + step.busy
        elif step.effect == "commit products":
            warp.barriers.append(max(self._tensor, time) + step.latency)
        elif step.effect == "product":
            begin = max(self._tensor, time)
            self._tensor = begin + step.busy
            end = begin + step.latency
        elif step.effect == "commit":
            warp.copies.append(warp.copied)
        return end

    def _finish(self, warp: _Warp, time: float) -> None:
        """End a warp, and start another program after the last warp of one."""
        end = max(time + 1, warp.stored, *warp.barriers)
        self.finished = max(self.finished, end)
        self.spent[-1] += end - time
        self._running[warp.program] -= 1
        if not self._running[warp.program] and len(self._running) < self._programs:
            self._start(end)

    def _delay(self, warp: _Warp, number: int, step: Step, time: float) -> float:
        """Return when a warp can issue a step that waits; -1 if it waits for other warps of its program."""
        effect = step.effect
        if effect == "barrier":
            group = self._arrived.setdefault(warp.program, [])
            group.append((time, number))
            if len(group) == self._running[warp.program]:
                time = max(group)[0] + self._quarter.barrier_cycles
                for _, other in group:
                    heapq.heappush(self._waiting, (time, other))
                del self._arrived[warp.program]
            return -1.0
        if effect == "group product":
            return max(time, warp.product_begin)  # one product of a warp may queue
        if effect == "wait for copies":
            return _wait(warp.copies, step.pending, time)
        if effect == "wait for products":
            return _wait(warp.products, step.pending, time)
        if effect == "wait for barrier" and warp.barriers:
            end = min(warp.barriers)
            warp.barriers.remove(end)
            return max(time, end)
        if effect == "branch":
            ready = max((warp.ready[register] for register in step.reads), default=0.0)
            return max(time, ready + BRANCH_READ_CYCLES) + BRANCH_CYCLES
        if effect == "fence":
            return max(time, warp.stored) + self._quarter.fence_cycles
        return time


def simulate(
    steps: Sequence[Step], accesses: Sequence[GlobalAccess | None], quarter: Quarter, programs: int
) -> Simulation:
    """Run a number of programs.

    Args:
        steps: of one warp, in order.
        accesses: the access of each step to global memory; None without one.
    """
    simulator = _Simulator(steps, accesses, quarter, programs)
    simulator.run()
    return Simulation(simulator.finished, simulator.starts, simulator.spent)


def _wait(ends: list[float], pending: int, time: float) -> float:
    """Return when all groups except the last `pending` ones have ended."""
    done = len(ends) - pending
    if done > 0:
        time = max(time, ends[done - 1])
        del ends[:done]
    return time
