"""Predict the time of a captured launch."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kernels.capture.reader import Capture, CapturedLaunch
from kernels.evaluate.counts import LaunchCounts, OperationCounts
from kernels.evaluate.listings import UnsupportedOperation
from kernels.gpus import Gpu, occupancy
from kernels.inside.execution import Executions
from kernels.inside.sass import Instruction, parse
from kernels.sectors import LANES
from kernels.timing.constants import Constants
from kernels.timing.model import Execution, Prediction, predict
from kernels.timing.steps import GLOBAL, Step, count_lane_bytes, read_steps
from kernels.timing.traffic import predict_traffic

# Maximum number of programs to schedule one by one. With more, their differences average out.
_MOST_SCHEDULED = 1 << 16
# Fraction of the L2 that keeps distinct blocks between two uses: its halves hold copies of each other's blocks.
_L2_SHARE = 0.46
# Part of the L2 whose data survive until the next launch: measured, 34 MB did, and 39 MB did not.
_HELD_SHARE = 0.7
_SYSTEM_SHARED_BYTES = 1024


def predict_launch(
    capture: Capture,
    launch: CapturedLaunch,
    counts: LaunchCounts,
    executions: Executions,
    gpu: Gpu,
    constants: Constants,
) -> Prediction:
    """Predict the time of a launch.

    Raises:
        UnsupportedOperation: the launch's traffic or executions are unknown.
    """
    kernel, codes = capture.build(launch.kernel)
    instructions = parse(codes["sass"])
    times = _assume_executed(instructions, executions)
    loaded = {
        location[:2]
        for instruction, executed in zip(instructions, times, strict=True)
        if executed and instruction.name in GLOBAL
        for location in instruction.location[:1]
    }
    for op in counts.operations:
        # The slow path of a function may have accesses that the TTGIR lacks.
        if op.tally.refused and (op.tally.executions or op.source in loaded):
            raise UnsupportedOperation(op.tally.refused)
    programs = math.prod(launch.grid)
    resident = occupancy(
        gpu, kernel.num_warps, kernel.registers, kernel.shared_bytes
    ).programs_per_sm
    shared = resident * (kernel.shared_bytes + _SYSTEM_SHARED_BYTES)
    traffic = predict_traffic(
        counts.operations,
        programs,
        at_once=gpu.sms * resident,
        l1_bytes=(gpu.shared_bytes_per_sm - shared) / min(resident, max(1, programs / gpu.sms)),
        l2_bytes=_L2_SHARE * gpu.l2_bytes,
        kept_bytes=constants.kept_bytes,
        held_bytes=_HELD_SHARE * gpu.l2_bytes,
    )
    # Spilled registers that do not fit in the L2 reach DRAM: each byte is written and read.
    spilled = resident * gpu.sms * kernel.num_warps * LANES * kernel.spilled_bytes
    if spilled > _L2_SHARE * gpu.l2_bytes:
        moved = {"LDL": 0.0, "STL": 0.0}
        for instruction, executed in zip(instructions, times, strict=True):
            if instruction.name in moved:
                moved[instruction.name] += executed * count_lane_bytes(instruction.opcode) * LANES
        traffic = replace(
            traffic,
            read_bytes=traffic.read_bytes + moved["LDL"],
            written_bytes=traffic.written_bytes + moved["STL"],
            warm_read_bytes=traffic.warm_read_bytes + moved["LDL"],
            warm_written_bytes=traffic.warm_written_bytes + moved["STL"],
        )
    execution = Execution(
        instructions,
        _with_conflicts(read_steps(codes["sass"]), instructions, executions),
        times,
        programs,
        kernel.num_warps,
        resident,
        _unevenness(counts.operations, programs, gpu.sms),
    )
    return predict(execution, traffic, gpu, constants)


def _assume_executed(instructions: Sequence[Instruction], executions: Executions) -> list[int]:
    """Return the executions of each instruction. Warps are assumed to take both sides of unknown branches.

    Slow paths, which spill to local memory or loop, are assumed not to run.
    """
    times = executions.times.tolist()
    uncertain = executions.uncertain
    first = 0
    while first < len(times):
        last = first
        while last in uncertain:
            last += 1
        branch = instructions[first:last]
        is_slow = any(
            each.name in ("LDL", "STL", "CALL") or (each.target or last) < first + number
            for number, each in enumerate(branch)
        )
        if branch and first and not is_slow:
            times[first:last] = [times[first - 1]] * len(branch)
        first = max(last, first + 1)
    return times


def _with_conflicts(
    steps: Sequence[Step], instructions: Sequence[Instruction], executions: Executions
) -> list[Step]:
    """Return the steps with their counted wavefronts, which include bank conflicts."""
    result = list(steps)
    for number, wavefronts in executions.wavefronts.items():
        times = int(executions.times[number])
        if times and instructions[number].name != "LDGSTS":
            result[number] = replace(steps[number], wavefronts=wavefronts.actual / times)
    return result


def _unevenness(operations: Sequence[OperationCounts], programs: int, sms: int) -> float:
    """Return the work of the busiest SM / the mean work of an SM. A program's work is the number of its accesses."""
    work = np.ones(programs)
    for op in operations:
        for touch in op.tally.touches:
            work += np.bincount(touch[0], minlength=programs)
    if programs <= sms:
        return float(work.max() * sms / work.sum())
    if programs > _MOST_SCHEDULED:
        return math.ceil(programs / sms) * sms / programs
    busy = [0.0] * sms
    for each in work.tolist():
        heapq.heapreplace(busy, busy[0] + each)
    return max(busy) * sms / float(work.sum())
