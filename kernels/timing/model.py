"""Predict the time of a launch on a GPU from what its programs execute and from its memory traffic."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernels.gpus import Gpu
from kernels.inside.sass import Instruction
from kernels.timing.constants import Constants
from kernels.timing.sm import Access, Quarter, simulate
from kernels.timing.steps import Step
from kernels.timing.trace import trace_warp

# Number of steps to simulate. More change a prediction by less than 1 %.
_MOST_STEPS = 30_000
_MOST_TRIPS = 64
_QUARTERS = 4
_L2_SLICES = 96
_DESCRIPTOR_CYCLES = 200


@dataclass(frozen=True)
class Traffic:
    """Bytes that a launch moves.

    Attributes:
        l2_bytes: between the SMs and the L2, by kind of access (see `steps.GLOBAL`).
        read_bytes, written_bytes: between the L2 and DRAM.
    """

    l2_bytes: Mapping[str, float]
    read_bytes: float
    written_bytes: float


@dataclass(frozen=True)
class Execution:
    """What a launch executes.

    Attributes:
        executed: executions of each instruction, by all warps.
        programs, warps: number of programs, and of warps of each.
        resident: programs that an SM holds.
        unevenness: work of the busiest SM / mean work of an SM.
    """

    instructions: Sequence[Instruction]
    steps: Sequence[Step]
    executed: Sequence[float]
    programs: int
    warps: int
    resident: int
    unevenness: float = 1.0


@dataclass(frozen=True)
class Prediction:
    total_us: float
    by_resource_us: Mapping[str, float]


def predict(execution: Execution, traffic: Traffic, gpu: Gpu, constants: Constants) -> Prediction:
    """Predict a launch's time with an L2 that holds none of its data."""
    cycles_of_products = sum(
        step.busy * executed
        for step, executed in zip(execution.steps, execution.executed, strict=True)
        if step.effect in ("product", "group product")
    ) / (gpu.sms * _QUARTERS)
    clock = constants.clock_ghz
    if cycles_of_products:
        clock = constants.matrix_clock_ghz - 0.4 * constants.matrix_clock_drop_ghz
        cycles = _simulate_launch(execution, traffic, gpu, constants, clock)
        share = min(1.0, cycles_of_products / cycles)
        clock = constants.matrix_clock_ghz - share * constants.matrix_clock_drop_ghz
    cycles = _simulate_launch(execution, traffic, gpu, constants, clock)
    return Prediction(constants.launch_us + cycles / clock / 1e3, {})


def _simulate_launch(
    execution: Execution, traffic: Traffic, gpu: Gpu, constants: Constants, clock: float
) -> float:
    """Return the cycles of a launch: simulate part of its loops and programs, and extrapolate."""
    warps = execution.warps
    launched = execution.programs * warps
    per_sm = math.ceil(execution.programs / gpu.sms)
    unevenness = max(1.0, execution.unevenness * execution.programs / gpu.sms / per_sm)
    in_quarter = max(1, warps // _QUARTERS)
    slots = max(1, round(execution.resident * warps / _QUARTERS / in_quarter))
    programs = per_sm * warps / _QUARTERS / in_quarter
    # What all SMs share serves the mean SM; the busiest one determines the time.
    share = execution.programs / gpu.sms / per_sm / unevenness
    quarter = Quarter(
        warps=in_quarter,
        slots=slots,
        start_busy=constants.start_ns * clock * gpu.sms * share * max(1, _QUARTERS / warps),
        start_cycles=constants.start_cycles,
        barrier_cycles=constants.barrier_cycles,
        fence_cycles=constants.fence_cycles,
        store_cycles=constants.l2_cycles,
        matrix_issue_cycles=constants.matrix_issue_cycles,
        write_buffer=constants.kept_bytes / (constants.dram_share * gpu.dram_gbps) * clock,
    )
    accesses = _cost_accesses(execution, traffic, gpu, constants, clock, share)
    per_warp = [executed / launched for executed in execution.executed]
    whole = sum(per_warp)
    shared = frozenset(
        number for number, step in enumerate(execution.steps) if step.traffic.startswith("descriptor")
    )

    def run(most_trips: float) -> tuple[float, int]:
        """Return the cycles of all programs if loops run at most that often, and the steps of a warp."""
        trace = trace_warp(execution.instructions, per_warp, most_trips, shared)
        steps = [execution.steps[number] for number in trace]
        costs = [accesses[number] for number in trace]
        most = max(slots, _MOST_STEPS // (len(steps) * in_quarter))
        count = math.ceil(programs)
        if count > most:
            count = most // slots * slots
        cycles = simulate(steps, costs, quarter, count)
        fewer = max(slots, count // 2 // slots * slots)
        if programs > count > fewer:
            cycles_of_fewer = simulate(steps, costs, quarter, fewer)
            cycles += (cycles - cycles_of_fewer) / (count - fewer) * (programs - count)
        elif programs > count:
            cycles *= programs / count
        return cycles, len(steps)

    trips = _MOST_TRIPS
    resident_warps = min(slots, math.ceil(programs)) * in_quarter
    while (
        trips > 2
        and len(trace_warp(execution.instructions, per_warp, trips, shared)) * resident_warps
        > _MOST_STEPS
    ):
        trips //= 2
    cycles, length = run(trips)
    if whole > 1.02 * length:
        fewer_cycles, fewer_length = run(trips // 2)
        if length > fewer_length:
            cycles += (cycles - fewer_cycles) / (length - fewer_length) * (whole - length)
        else:
            cycles *= whole / length
    return cycles * unevenness


def _cost_accesses(
    execution: Execution,
    traffic: Traffic,
    gpu: Gpu,
    constants: Constants,
    clock: float,
    share: float,
) -> list[Access | None]:
    """Return what an access of each instruction costs. Accesses of a kind move bytes in proportion to their widths."""
    nominal: dict[str, float] = {}
    for step, executed in zip(execution.steps, execution.executed, strict=True):
        if step.traffic:
            weight = step.nominal_bytes or execution.warps
            nominal[step.traffic] = nominal.get(step.traffic, 0.0) + weight * executed
    loads = ("load", "async copy", "descriptor load")
    loaded = sum(traffic.l2_bytes.get(kind, 0.0) for kind in loads)
    stored = sum(traffic.l2_bytes.values()) - loaded
    misses = min(1.0, traffic.read_bytes / max(loaded, 1.0))
    both = traffic.read_bytes + traffic.written_bytes
    turnaround = constants.turnaround * min(traffic.read_bytes, traffic.written_bytes) / max(both, 1)
    per_cycle = 1 / (gpu.sms * _QUARTERS * clock) * share
    quarter = gpu.sms * _QUARTERS
    dram = constants.dram_share * gpu.dram_gbps / (1 + turnaround) / quarter / clock / share
    merged = constants.shared_requests / execution.resident if misses < 0.5 else 0.0
    l2 = constants.l2_tbps * 1e3 / (1 - merged) / quarter / clock / share
    accesses: list[Access | None] = []
    for step in execution.steps:
        kind = step.traffic
        if not kind or not nominal[kind]:
            accesses.append(None)
            continue
        weight = step.nominal_bytes or 1
        size = weight * traffic.l2_bytes.get(kind, 0.0) / nominal[kind]
        is_load = kind in loads
        latency = constants.l1_cycles
        if size:
            latency = constants.l2_cycles + misses * (constants.dram_cycles - constants.l2_cycles)
        if kind == "descriptor load":
            latency += _DESCRIPTOR_CYCLES
        wavefronts = 0.0 if "copy" in kind or "descriptor" in kind else max(weight, size) / 128
        accesses.append(
            Access(
                data_path=4 * wavefronts,
                port=size / (constants.port_bytes / _QUARTERS),
                l2=size / l2,
                dram_read=size * traffic.read_bytes / max(loaded, 1) / dram * is_load,
                dram_write=size * traffic.written_bytes / max(stored, 1) / dram * (not is_load),
                atomic=step.elements * quarter / _L2_SLICES / constants.atomics_per_cycle,
                latency=latency,
            )
        )
    return accesses
