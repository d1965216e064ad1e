"""Predict the time of a launch from its executed instructions and its memory traffic."""

import functools
import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilescope.evaluate.sectors import LINE_BYTES, SECTOR_BYTES
from tilescope.sass.instructions import Instruction
from tilescope.timing.constants import Constants
from tilescope.timing.sm import GlobalAccess, Quarter, simulate
from tilescope.timing.steps import (
    ASYNC_PRODUCT,
    FENCE_CYCLES,
    L1_CYCLES,
    PIPES,
    PRODUCTS,
    Step,
    trace_warp,
)
from tilescope.ttgir.parser import Source

# Number of steps to simulate. More change a prediction by less than 1 %.
_MOST_STEPS = 30_000
_FIRST_STEPS = 12_000
_HIGHEST_LOAD = 0.9
_BOUND_SHARE = 0.6
LOADS = ("load", "async copy", "descriptor load", "spill load")
QUARTERS = 4
_L2_SLICES = 96
# Bytes of one line that an L2 slice serves per cycle. A request for fewer takes as long.
SLICE_BYTES = 64
# The L2's cost of a store, in bytes of loads that take equally long: per sector, and once per line for its address.
# MERGED_BYTES is that of partial sectors, presumably because a slice reads and merges them. Measured on an H200.
STORED_BYTES = 40
MERGED_BYTES = 57
_DESCRIPTOR_CYCLES = 200
COPIES = ("async copy", "descriptor load", "descriptor store")


@dataclass(frozen=True)
class Request:
    """A mean request of an operation.

    Attributes:
        wavefronts: passes through the banks of the L1.
        l2_bytes: bytes that it moves between the SM and the L2.
        waits: the part of its bytes that the L1 does not hold yet.
        dram_share: the part of `l2_bytes` that the L2 reads from DRAM.
        dram_waits: the part of `l2_bytes` that arrives from DRAM, also for another request.
        slowdown: time of the L2 / its time for the same bytes of whole lines.
    """

    wavefronts: float
    l2_bytes: float
    waits: float = 1.0
    dram_share: float = 1.0
    dram_waits: float = 1.0
    slowdown: float = 1.0


@dataclass(frozen=True, eq=False)
class Traffic:
    """Bytes that a launch moves.

    Attributes:
        wavefronts: passes of the requests through the banks of the L1, by kind of access (see `Opcode.gmem`).
        l2_bytes: between the SMs and the L2, by kind of access.
        read_bytes, written_bytes: between the L2 and DRAM, if the L2 holds none of the launch's data.
        warm_read_bytes, warm_written_bytes: the same if the same launch ran right before.
        requests: by kind of access and source line.
    """

    wavefronts: Mapping[str, float]
    l2_bytes: Mapping[str, float]
    read_bytes: float
    written_bytes: float
    warm_read_bytes: float
    warm_written_bytes: float
    requests: Mapping[tuple[str, Source], Request] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Execution:
    """The executed instructions and the memory traffic of a launch.

    Attributes:
        executed: executions of each instruction, by all warps.
        programs, warps: number of programs, and of warps per program.
        resident: programs that an SM holds at a time.
        unevenness: work of the busiest SM / mean work of an SM.
        longest: work of the longest program / mean work of a program.
        partitions: for warps that do different work, the executions of each instruction by the warps of each
            partition, and their number; empty if all warps do the same.
    """

    instructions: Sequence[Instruction]
    steps: Sequence[Step]
    executed: Sequence[float]
    traffic: Traffic
    programs: int
    warps: int
    resident: int
    unevenness: float = 1.0
    longest: float = 1.0
    partitions: Sequence[tuple[Sequence[float], int]] = ()

    @property
    def after_same_launch(self) -> "Execution":
        traffic = self.traffic
        read, written = traffic.warm_read_bytes, traffic.warm_written_bytes
        return replace(self, traffic=replace(traffic, read_bytes=read, written_bytes=written))


def sum_products(steps: Sequence[Step], executed: Sequence[float]) -> float:
    """Return the cycles in which tensor cores are busy, summed over the quarters of all SMs."""
    pairs = zip(steps, executed, strict=True)
    return sum(step.busy * times for step, times in pairs if step.effect in PRODUCTS)


@dataclass(frozen=True)
class TimePrediction:
    """The predicted time of a launch.

    Attributes:
        total_us: with an L2 that holds none of the launch's data.
        by_resource_us: time for which each resource would be busy at its peak rate.
        bound_by: the busiest resource, or "latency" if none is busy for most of the time.
    """

    total_us: float
    by_resource_us: Mapping[str, float]
    bound_by: str


def predict(execution: Execution, constants: Constants) -> TimePrediction:
    """Predict a launch's time."""
    total_us, clock = time_launch(execution, constants)
    by_resource_us = time_resources(execution, constants, clock)
    return TimePrediction(total_us, by_resource_us, find_bound(by_resource_us, total_us))


def find_bound(by_resource: Mapping[str, float], total: float) -> str:
    """Return the busiest resource, or "latency" if none is busy for most of the time."""
    busiest = max(by_resource, key=lambda name: by_resource[name])
    return busiest if by_resource[busiest] > _BOUND_SHARE * total else "latency"


def time_launch(
    execution: Execution,
    constants: Constants,
    most_steps: int = _MOST_STEPS,
) -> tuple[float, float]:
    """Return a launch's microseconds with an L2 that holds none of its data, and the clock in GHz.

    Args:
        most_steps: number of steps to simulate.
    """
    gpu = constants.gpu
    traffic = execution.traffic
    products = sum_products(execution.steps, execution.executed)
    clock = constants.matrix_clock_ghz if products else constants.clock_ghz
    moved = sum(traffic.l2_bytes.values())
    merged = _merged(execution, constants)
    l2 = moved * (1 - merged) / constants.l2_tbps / 1e3
    requests_us = time_resources(execution, constants, clock)["L2"]
    l2_busy = requests_us * 1e3 + traffic.read_bytes / constants.l2_tbps / 1e3
    dram = (traffic.read_bytes + traffic.written_bytes) / constants.dram_share / gpu.dram_gbps

    def simulate(constants: Constants, most_steps: int) -> float:
        # Partitions run at the same time. The buffers between them are assumed to be deep enough.
        return max(
            _simulate_launch(execution, *partition, constants, clock, most_steps)
            for partition in execution.partitions or [(execution.executed, execution.warps)]
        )

    def add_queues(cycles: float) -> Constants:
        """Return the constants under the load of a launch that takes this many cycles."""
        l2_load = l2 * clock / cycles
        dram_load = min(1.0, dram * clock / cycles)
        l2_idle = max(0.0, 1 - l2_busy * clock / cycles)
        # SMs that drift apart share bandwidth with fewer others.
        return replace(
            constants,
            l2_cycles=constants.l2_cycles + constants.queue_cycles * _queue(l2_load),
            dram_cycles=constants.dram_cycles
            + constants.queue_cycles * _queue(max(dram_load, l2_load)),
            dram_share=constants.dram_share / (1 - constants.drift * (1 - dram_load)),
            l2_tbps=constants.l2_tbps / (1 - constants.drift * l2_idle),
        )

    first_steps = min(_FIRST_STEPS, most_steps)
    cycles = simulate(constants, first_steps)
    if products:
        activity = products / QUARTERS + moved / constants.port_bytes
        activity = min(2.0, activity / gpu.sms / cycles)
        excess = max(0.0, activity - constants.matrix_clock_activity)
        clock -= constants.matrix_clock_drop_ghz * excess
    # Queues slow a launch down, and that shortens the queues. Interpolate where both agree.
    slowest = simulate(add_queues(cycles), first_steps)
    if slowest > cycles:
        slowdown = slowest - cycles
        relief = max(0.0, slowest - simulate(add_queues(slowest), first_steps))
        cycles += slowdown**2 / (slowdown + relief)
    cycles = simulate(add_queues(cycles), most_steps)
    # The simulation extrapolates from a part of the launch, and covers a single partition.
    busy_us = time_resources(execution, constants, clock)
    cycles = max(cycles, dram * clock, *(time_us * clock * 1e3 for time_us in busy_us.values()))
    return constants.launch_us + cycles / clock / 1e3, clock


def time_resources(execution: Execution, constants: Constants, clock: float) -> dict[str, float]:
    """Return the microseconds for which a launch would occupy each resource at its peak rate."""
    gpu = constants.gpu
    traffic = execution.traffic
    cycles = dict.fromkeys(("issue", "L1", *PIPES), 0.0)
    served = 0.0
    requests = _find_requests(execution)
    for step, executed, request in zip(execution.steps, execution.executed, requests, strict=True):
        cycles["issue"] += step.issue * executed
        cycles[PIPES[step.pipe]] += step.busy * executed
        if request:
            served += request.l2_bytes * request.slowdown * executed
        # The counter of the data path excludes asynchronous copies, but their bank conflicts delay the other accesses.
        own = step.conflicts
        if step.traffic not in COPIES:
            own = step.wavefronts + _count_wavefronts(step, request)
        cycles["L1"] += QUARTERS * own * executed
    del cycles["control"], cycles["lsu"], cycles["uniform"]
    times = {name: busy / gpu.sms / QUARTERS / clock / 1e3 for name, busy in cycles.items()}
    merged = _merged(execution, constants)
    times["L2"] = served * (1 - merged) / constants.l2_tbps / 1e6
    times["DRAM"] = (traffic.read_bytes + traffic.written_bytes) / gpu.dram_gbps / 1e3
    return times


@functools.lru_cache(maxsize=2)  # each simulation of a prediction needs the same requests
def _find_requests(execution: Execution) -> list[Request | None]:
    """Return the request of each instruction that accesses global memory.

    The wavefronts and bytes of each kind of access sum to those of the launch.
    """
    traffic = execution.traffic
    requests: list[Request | None] = []
    wavefronts: dict[str, float] = {}
    moved: dict[str, float] = {}
    for step, instruction, executed in zip(
        execution.steps, execution.instructions, execution.executed, strict=True
    ):
        kind = step.traffic
        request = None
        if kind:
            bytes_of_lanes = step.nominal_bytes or execution.warps
            source = instruction.location[0][:2] if instruction.location else ()
            # An address and four sectors
            slowdown = 5 * STORED_BYTES / LINE_BYTES if kind in ("store", "spill store") else 1.0
            default = Request(
                max(1.0, bytes_of_lanes / LINE_BYTES), bytes_of_lanes, slowdown=slowdown
            )
            request = traffic.requests.get((kind, source), default)
            wavefronts[kind] = wavefronts.get(kind, 0.0) + request.wavefronts * executed
            moved[kind] = moved.get(kind, 0.0) + request.l2_bytes * executed
        requests.append(request)
    return [
        request
        and replace(
            request,
            wavefronts=request.wavefronts
            * _ratio(traffic.wavefronts.get(step.traffic, 0.0), wavefronts[step.traffic]),
            l2_bytes=request.l2_bytes
            * _ratio(traffic.l2_bytes.get(step.traffic, 0.0), moved[step.traffic]),
        )
        for step, request in zip(execution.steps, requests, strict=True)
    ]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _queue(load: float) -> float:
    """Return the mean wait in service times, in a queue with random arrivals and equal service times (M/D/1)."""
    load = min(load, _HIGHEST_LOAD)
    return load / (1 - load) / 2


def _merged(execution: Execution, constants: Constants) -> float:
    """Return the fraction of requests that the crossbar merges because SMs load the same data at the same time."""
    traffic = execution.traffic
    loaded = sum(traffic.l2_bytes.get(kind, 0.0) for kind in LOADS)
    is_shared = traffic.read_bytes < max(loaded, 1.0) / 2
    return constants.shared_requests / execution.resident if is_shared else 0.0


def _simulate_launch(
    execution: Execution,
    executed: Sequence[float],
    warps: int,
    constants: Constants,
    clock: float,
    most_steps: int,
) -> float:
    """Return the cycles of a launch: simulate part of its loops and programs, and extrapolate."""
    gpu = constants.gpu
    per_sm = math.ceil(execution.programs / gpu.sms)
    unevenness = max(1.0, execution.unevenness * execution.programs / gpu.sms / per_sm)
    # Shared resources serve an average SM, but the busiest SM determines the time.
    share = execution.programs / gpu.sms / per_sm / unevenness
    quarters = min(QUARTERS, execution.resident * warps)
    in_quarter = max(1, warps // quarters)
    programs = per_sm * warps / quarters / in_quarter
    count = math.ceil(programs)
    busy_quarters = quarters * programs / count
    slots = max(1, round(execution.resident * warps / quarters / in_quarter))
    # The partition that uses a program's first block waits until another one has loaded it.
    first_load = constants.dram_cycles + _DESCRIPTOR_CYCLES if execution.partitions else 0
    quarter = Quarter(
        warps=in_quarter,
        slots=slots,
        start_busy=constants.start_ns * clock * gpu.sms * share * max(1, quarters / warps),
        start_cycles=constants.start_cycles + first_load,
        barrier_cycles=constants.barrier_cycles,
        fence_cycles=FENCE_CYCLES,
        store_cycles=constants.l2_cycles,
        matrix_issue_cycles=constants.matrix_issue_cycles,
        wavefront_cycles=busy_quarters,
        write_buffer=constants.kept_bytes / (constants.dram_share * gpu.dram_gbps) * clock,
    )
    accesses = _cost_accesses(execution, constants, clock, share, busy_quarters)
    cycles = _simulate_programs(
        execution, executed, warps, accesses, quarter, programs, most_steps, quarters / QUARTERS
    )
    cycles *= unevenness
    if execution.longest > unevenness:
        # The longest program, which repeats its loops more often, takes at least as long as if it ran alone.
        launched = execution.programs * warps
        repeated = [times * (execution.longest if times > launched else 1) for times in executed]
        alone = _simulate_programs(
            execution,
            repeated,
            warps,
            accesses,
            replace(quarter, slots=1),
            1,
            most_steps,
            quarters / QUARTERS,
        )
        cycles = max(cycles, alone)
    return cycles


def _simulate_programs(
    execution: Execution,
    executed: Sequence[float],
    warps: int,
    accesses: Sequence[GlobalAccess | None],
    quarter: Quarter,
    programs: float,
    most_steps: int,
    tensor_share: float,
) -> float:
    """Return the cycles in which a quarter of an SM runs a number of programs.

    Args:
        tensor_share: the quarters with warps / all quarters, whose tensor cores share a product that one thread issues.
    """
    launched = execution.programs * warps
    slots = quarter.slots
    in_quarter = quarter.warps
    count = math.ceil(programs)
    resident_warps = min(slots, count) * in_quarter
    budget = most_steps / resident_warps
    most = max(slots, int(most_steps / (min(sum(executed) / launched, budget) * in_quarter)))
    if count > most:
        count = most // slots * slots
    trace, weights = _trace(execution, tuple(executed), warps, budget)
    steps = [execution.steps[number] for number in trace]
    if tensor_share < 1:
        steps = [
            replace(step, busy=step.busy * tensor_share) if step.effect == ASYNC_PRODUCT else step
            for step in steps
        ]
    simulation = simulate(steps, [accesses[number] for number in trace], quarter, count)
    cycles = simulation.cycles
    if programs > count > slots:
        # The other programs start at the rate of the second half of the simulated ones.
        fewer = max(slots, count // 2 // slots * slots)
        took = simulation.starts[count - 1] - simulation.starts[fewer - 1]
        cycles += took / (count - fewer) * (programs - count)
    elif programs > count:
        cycles *= programs / count
    # The weight of an instruction in the trace is the number of the launch's instructions that it represents.
    stretch = sum(map(operator.mul, weights, simulation.spent)) / sum(simulation.spent)
    return cycles * stretch


@functools.lru_cache(maxsize=4)  # of each partition, for the simulations of one prediction
def _trace(
    execution: Execution, executed: tuple[float, ...], warps: int, budget: float
) -> tuple[list[int], list[float]]:
    launched = execution.programs * warps
    per_warp = [times / launched for times in executed]
    copies = {
        number: per_warp[number] * warps
        for number, step in enumerate(execution.steps)
        if step.traffic.startswith("descriptor")
    }
    return trace_warp(execution.instructions, per_warp, budget, copies)


def _cost_accesses(
    execution: Execution,
    constants: Constants,
    clock: float,
    share: float,
    busy_quarters: float,
) -> list[GlobalAccess | None]:
    """Return the cost of an access of each instruction."""
    gpu = constants.gpu
    traffic = execution.traffic
    requests = _find_requests(execution)
    read = sum(
        request.l2_bytes * request.dram_share * executed
        for step, request, executed in zip(
            execution.steps, requests, execution.executed, strict=True
        )
        if request and step.traffic in LOADS
    )
    read_ratio = _ratio(traffic.read_bytes, read)
    stored = sum(size for kind, size in traffic.l2_bytes.items() if kind not in LOADS)
    both = traffic.read_bytes + traffic.written_bytes
    turnaround = (
        constants.turnaround * min(traffic.read_bytes, traffic.written_bytes) / max(both, 1)
    )
    quarters = gpu.sms * busy_quarters
    dram = constants.dram_share * gpu.dram_gbps / (1 + turnaround) / quarters / clock / share
    merged = _merged(execution, constants)
    l2 = constants.l2_tbps * 1e3 / quarters / clock / share
    accesses: list[GlobalAccess | None] = []
    for step, request in zip(execution.steps, requests, strict=True):
        if request is None:
            accesses.append(None)
            continue
        size = request.l2_bytes
        is_load = step.traffic in LOADS
        misses = min(1.0, request.dram_waits * read_ratio) * is_load
        latency = L1_CYCLES
        if size:
            missed = constants.l2_cycles + misses * (constants.dram_cycles - constants.l2_cycles)
            latency += request.waits * (missed - L1_CYCLES)
        if step.traffic == "descriptor load":
            latency += _DESCRIPTOR_CYCLES
        read_bytes = size * request.dram_share * read_ratio * is_load
        written_bytes = size * _ratio(traffic.written_bytes, stored) * (not is_load)
        # Data from DRAM occupy the L2 a second time.
        served = size * request.slowdown * (1 - merged) + read_bytes
        updated = size / SECTOR_BYTES * (step.traffic == "atomic")
        accesses.append(
            GlobalAccess(
                data_path=busy_quarters * _count_wavefronts(step, request),
                port=busy_quarters * size / constants.port_bytes,
                l2=served / l2,
                dram_read=read_bytes / dram,
                dram_write=written_bytes / dram,
                atomic=updated * quarters / _L2_SLICES * constants.atomic_cycles,
                latency=latency,
            )
        )
    return accesses


def _count_wavefronts(step: Step, request: Request | None) -> float:
    """Return the wavefronts on the SM's data path of a request."""
    if step.traffic == "async copy":
        return 1.0
    return request.wavefronts if request and step.traffic in ("load", "store", "atomic") else 0.0
