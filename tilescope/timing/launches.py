"""Predict the time of a captured launch.

    python -m tilescope.timing.launches CAPTURE PROCESSES SECONDS

For `tilescope.prune`, this prints one line of JSON per launch of a capture, with `predicted_us` or `why_missing`.
"""

import functools
import heapq
import json
import math
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilescope.captures.content import CapturedKernel, CapturedLaunch
from tilescope.captures.listings import UnsupportedOperation, isolate
from tilescope.captures.reader import BaseCapture, Build, Capture
from tilescope.declare.gpus import Gpu
from tilescope.evaluate.captured import count_launch
from tilescope.evaluate.counts import RETRIES, LaunchCounts, OperationCounts
from tilescope.evaluate.sectors import LANES, SECTOR_BYTES
from tilescope.inside.banks import SYSTEM_BYTES
from tilescope.inside.execution import Executions, execute
from tilescope.inside.inspect import Inspection
from tilescope.inside.report import Inside
from tilescope.inside.shared import fit_kernel
from tilescope.inside.threads import make_launch
from tilescope.results.scores import classify, stated_ranges
from tilescope.sass.instructions import Instruction, parse_sass
from tilescope.timing.changes import estimate_changes
from tilescope.timing.constants import Constants, find_constants, find_rated_gpu, scale_steps
from tilescope.timing.l2 import is_staggered, l2_gbps, l2_pressure, load_store_cycles
from tilescope.timing.model import (
    LOADS,
    QUARTERS,
    Execution,
    TimePrediction,
    predict,
    sum_products,
    time_launch,
)
from tilescope.timing.steps import ASYNC_PRODUCT, Step, count_issue_cycles, read_steps
from tilescope.timing.traffic import add_spills, find_kind, predict_traffic
from tilescope.ttgir.parser import LOOPS, Source, parse_ttgir

# Maximum number of programs to schedule one by one. With more, their differences average out.
_MOST_SCHEDULED = 1 << 16
# Fraction of the L2 that keeps spilled registers: its halves hold copies of each other's blocks.
_SPILLED_SHARE = 0.46
# Fraction of the L1 that keeps blocks between two uses: measured, 0.65 of it did, and 0.96 did not.
_L1_SHARE = 0.8
# Part of the L2 whose data survive until the next launch: measured, 34 MB did, and 39 MB did not.
HELD_SHARE = 0.7
# Excess of the spilled registers over their share of the L2 from which all of them reach DRAM. Measured: with 20 % to
# 35 % more than fit, some do; with 41 % more, all do.
_SPILL_RAMP = 0.4
_SPILLS = {"load": "spill load", "store": "spill store"}

_LOOPS = (*LOOPS, "cf.cond_br")
_WARP_SPECIALIZED = "ttg.warp_specialize("
_ASSUMED_BRANCHES = (
    "The predicted time assumes that warps take both sides of branches that depend on unknown values, but not the slow "
    "paths of mathematical functions."
)


@isolate(lambda why, *args: replace(args[-1][0], not_predicted=why))
def add_time(
    capture: BaseCapture, launch: CapturedLaunch, counts: LaunchCounts, inspection: Inspection
) -> Inside:
    """Return an inspection with the predicted time of its launch, or the reason why there is none."""
    inside, executions = inspection
    why = counts.refused or inside.not_executed
    if executions is None or counts.refused:
        return replace(inside, not_predicted=why)
    kernel = capture.content.kernels[launch.kernel]
    constants, assumed = _find_constants(capture)
    execution = describe_launch(capture, launch, counts, executions, constants)
    prediction = predict(execution, constants)
    warm_us, _ = time_launch(execution.after_same_launch, constants)
    executed = [op for op in counts.operations if op.tally.executions]
    if any(map(_is_bounded, executed)):
        assumed += " The predicted time includes upper bounds of the traffic."
    if any(op.tally.refused == RETRIES for op in executed):
        assumed += " The predicted time assumes that no compare-and-swap loop retries."
    if executions.uncertain:
        assumed += f" {_ASSUMED_BRANCHES}"
    if execution.partitions:
        assumed += " The predicted time assumes that no partition waits for a free buffer."
    errors = stated_ranges()[classify(prediction.bound_by, kernel.spilled_bytes)]
    total_us = prediction.total_us
    timed = replace(
        inside,
        predicted_us=total_us,
        predicted_warm_us=warm_us,
        range_us=(total_us * errors.low, total_us * errors.high),
        bound_by=prediction.bound_by,
        by_resource_us=prediction.by_resource_us,
        assumed=assumed.strip(),
    )
    if execution.partitions:  # their options are those of the kernel's code
        return timed
    changes = estimate_changes(timed, execution, constants)
    return replace(timed, changes=changes)


def predict_launch(
    capture: BaseCapture,
    launch: CapturedLaunch,
    counts: LaunchCounts,
    executions: Executions,
    constants: Constants,
    is_warm: bool = False,
) -> TimePrediction:
    """Predict the time of a launch.

    Args:
        is_warm: whether the L2 holds what an identical earlier launch left in it.

    Raises:
        UnsupportedOperation: the launch's traffic or executions are unknown.
    """
    execution = describe_launch(capture, launch, counts, executions, constants)
    return predict(execution.after_same_launch if is_warm else execution, constants)


def predict_us(
    capture: BaseCapture,
    launch: CapturedLaunch,
    counts: LaunchCounts,
    executions: Executions,
    build: Build,
) -> float:
    """Predict the time of a launch with another build of its kernel, in microseconds.

    Raises:
        UnsupportedOperation: the launch's traffic or executions are unknown.
    """
    constants, _ = _find_constants(capture)
    execution = describe_launch(capture, launch, counts, executions, constants, build)
    return time_launch(execution, constants)[0]


def _find_constants(capture: BaseCapture) -> tuple[Constants, str]:
    device = capture.content.gpu
    capability = tuple(device["compute_capability"])
    return find_constants(find_rated_gpu(device["name"], device["sms"], capability))


def describe_launch(
    capture: BaseCapture,
    launch: CapturedLaunch,
    counts: LaunchCounts,
    executions: Executions,
    constants: Constants,
    build: Build | None = None,
) -> Execution:
    """Return what a launch executes and the bytes that it moves.

    Args:
        build: the compiled kernel, if it is not the captured one.

    Raises:
        UnsupportedOperation: the launch's traffic or executions are unknown.
    """
    gpu = constants.gpu
    kernel, codes = build or capture.build(launch.kernel)
    instructions = parse_sass(codes["sass"])
    times = _count_executed(counts, instructions, executions, codes["ttgir"])
    programs = math.prod(launch.grid)
    resident = fit_kernel(gpu, kernel).programs_per_sm
    if not resident:
        raise UnsupportedOperation("The launch fails, because a program does not fit on an SM.")
    shared = resident * (kernel.shared_bytes + SYSTEM_BYTES)
    is_specialized = _WARP_SPECIALIZED in codes["ttgir"]
    # One thread issues some products: each warp is assumed to issue a part of them.
    sharing = 1 if is_specialized else kernel.num_warps
    steps = _read_steps(codes, instructions, executions, gpu, sharing)
    times = [
        executed * (sharing if step.effect in (ASYNC_PRODUCT, "commit products") else 1)
        for executed, step in zip(times, steps, strict=True)
    ]
    per_warp = [executed / programs / kernel.num_warps for executed in times]
    issue = count_issue_cycles(instructions, per_warp, max(1, kernel.num_warps // QUARTERS))
    steps = [
        step if cycles == step.issue else replace(step, issue=cycles)
        for step, cycles in zip(steps, issue, strict=True)
    ]
    products = sum_products(steps, times)
    traffic = predict_traffic(
        counts.operations,
        programs,
        sms=gpu.sms,
        resident=resident,
        l1_bytes=_L1_SHARE * (gpu.shared_bytes_per_sm - shared),
        l2_bytes=gpu.l2_bytes,
        kept_bytes=constants.kept_bytes,
        held_bytes=HELD_SHARE * gpu.l2_bytes,
        pressure=_find_pressure(counts.operations, products, gpu),
        is_staggered=products > 0
        and is_staggered(_has_half(counts.operations), resident, kernel.num_warps),
    )
    spilled = find_spilled_bytes(kernel, programs, resident, gpu)
    if spilled:
        # Stores write through to the L2. Loads miss if the L1 cannot hold all spilled registers.
        is_held = spilled <= gpu.shared_bytes_per_sm - shared
        kinds = {"store": "spill store"} if is_held else _SPILLS
        excess = spilled * gpu.sms / (_SPILLED_SHARE * gpu.l2_bytes) - 1
        dram_share = 0.0 if is_held else min(1.0, max(0.0, excess / _SPILL_RAMP))
        traffic = add_spills(traffic, instructions, times, kinds, dram_share)
        steps = [
            replace(step, traffic=kinds[lmem]) if lmem in kinds else step
            for step, lmem in zip(steps, (each.traits.lmem for each in instructions), strict=True)
        ]
    partitions = []
    if is_specialized:
        for rows in _find_partitions(executions):
            own = replace(executions, by_warp=rows)
            partitions.append((_assume_executed(instructions, own), len(rows)))
    return Execution(
        instructions,
        steps,
        times,
        traffic,
        programs,
        kernel.num_warps,
        resident,
        *_unevenness(counts.operations, programs, gpu.sms),
        partitions,
    )


def find_spilled_bytes(kernel: CapturedKernel, programs: int, resident: int, gpu: Gpu) -> int:
    """Return the bytes of spilled registers of the programs that run on an SM at a time."""
    at_once = min(resident, math.ceil(programs / gpu.sms))
    return at_once * kernel.num_warps * LANES * kernel.spilled_bytes


def _count_executed(
    counts: LaunchCounts, instructions: Sequence[Instruction], executions: Executions, ttgir: str
) -> list[int]:
    """Return the executions of each instruction by all warps.

    Raises:
        UnsupportedOperation: traffic, iterations of a loop, or the rate of an instruction are unknown.
    """
    loops = {op.source for op in parse_ttgir(ttgir).walk() if op.name in _LOOPS}
    times = _assume_executed(instructions, executions)
    _check_traffic(counts.operations, instructions, times)
    _check_loops(instructions, executions.uncertain, loops)
    for instruction, executed in zip(instructions, times, strict=True):
        if executed and not instruction.traits.pipe:
            raise UnsupportedOperation(f"The rate of {instruction.opcode} is unknown.")
    return times


def _read_steps(
    codes: Mapping[str, str],
    instructions: Sequence[Instruction],
    executions: Executions,
    gpu: Gpu,
    sharing: int,
) -> list[Step]:
    """Return the steps of a kernel on a GPU. Wavefronts of executed instructions include bank conflicts."""
    own = read_steps(codes["sass"])
    steps = list(scale_steps(own, instructions, gpu, codes["ttgir"], sharing))
    times = executions.times.tolist()
    for number, wavefronts in executions.wavefronts.items():
        if times[number]:
            steps[number] = replace(
                steps[number],
                wavefronts=wavefronts.actual / times[number],
                conflicts=wavefronts.conflicts / times[number],
            )
    if _WARP_SPECIALIZED not in codes["ttgir"]:
        return steps
    # Another partition loads the data for which a barrier makes a warp wait.
    return [
        replace(step, effect="") if step.effect == "wait for barrier" else step for step in steps
    ]


def _find_pressure(operations: Sequence[OperationCounts], products: float, gpu: Gpu) -> float:
    """Return the L2 pressure of a launch; 0 if the loads of a loop wait for their data.

    Args:
        products: cycles in which tensor cores are busy, summed over the quarters of all SMs.
    """
    if any(op.op == "load" and op.loop for op in operations):
        return 0.0
    received = sum(
        op.launch.ideal_sectors * SECTOR_BYTES for op in operations if find_kind(op) in LOADS
    )
    cycles_per_ms = gpu.clock_mhz * 1e3 * gpu.sms
    load_store = sum(load_store_cycles(op) for op in operations if op.op != "descriptor")
    return l2_pressure(
        received / l2_gbps(gpu) / 1e6,
        products / QUARTERS / cycles_per_ms,
        load_store / cycles_per_ms,
    )


def _has_half(operations: Sequence[OperationCounts]) -> bool:
    """Return whether all copies in loops move numbers of 16 bits, as operands of products do."""
    return all(
        op.instruction.element_bytes == 2
        for op in operations
        if op.loop and op.instruction and find_kind(op) in ("async copy", "descriptor load")
    )


def _find_partitions(executions: Executions) -> list[np.ndarray]:
    """Group the executions of warps by partition. Warps of one partition execute mostly the same instructions."""
    partitions: list[list[np.ndarray]] = []
    for row in executions.by_warp:
        for rows in partitions:
            if 2 * np.minimum(row, rows[0]).sum() > np.maximum(row, rows[0]).sum():
                rows.append(row)
                break
        else:
            partitions.append([row])
    return list(map(np.array, partitions))


def _check_traffic(
    operations: Sequence[OperationCounts], instructions: Sequence[Instruction], times: Sequence[int]
) -> None:
    """Check that the traffic of all operations is known, bounded from above, or that of a loop's first iteration.

    Raises:
        UnsupportedOperation: an operation's traffic is unknown.
    """
    executed = Counter(
        (instruction.traits.gmem, location[:2])
        for instruction, number in zip(instructions, times, strict=True)
        if number and instruction.traits.gmem
        for location in instruction.location[:1]
    )
    for op in operations:
        if op.tally.executions and op.instruction:
            executed[op.op, op.source] -= op.instruction.kept
    for op in operations:
        if op.tally.unplaced:
            raise UnsupportedOperation(op.tally.unplaced)
        # The slow path of a function has accesses that the TTGIR lacks.
        is_executed = op.tally.executions or executed[op.op, op.source] > 0
        is_known = _is_bounded(op) or op.tally.refused == RETRIES
        if op.tally.refused and is_executed and not is_known:
            raise UnsupportedOperation(op.tally.refused)


def _is_bounded(op: OperationCounts) -> bool:
    """Return whether the counted traffic of an operation is an upper bound, as that of a store in a merged branch."""
    is_merged = op.op == "store" and op.instruction is None and op.tally.touches.bytes > 0
    return op.tally.is_upper_bound or is_merged


def _check_loops(
    instructions: Sequence[Instruction], uncertain: Set[int], loops: Set[Source]
) -> None:
    """Check that the number of iterations of each of the kernel's loops is known.

    Raises:
        UnsupportedOperation: it is unknown.
    """
    for number in sorted(uncertain):
        jump = instructions[number]
        if jump.target is not None and jump.target < number:
            for _, line, _ in (each for each in jump.location if each[:2] in loops):
                raise UnsupportedOperation(
                    f"How often the loop on line {line} runs depends on values that are unknown until the kernel runs."
                )


def _assume_executed(instructions: Sequence[Instruction], executions: Executions) -> list[int]:
    """Return the executions of each instruction. Warps are assumed to take both sides of unknown branches.

    Slow paths of functions, which spill to local memory or loop, are assumed not to run.
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
            each.traits.lmem or each.traits.jump == "call" or (each.target or last) < first + number
            for number, each in enumerate(branch)
        )
        # Instructions after an exit on an unknown condition are counted as if no warp exited.
        is_counted = times[first] == times[first - 1]
        if branch and first and not is_slow and not is_counted:
            times[first:last] = [times[first - 1]] * len(branch)
        first = max(last, first + 1)
    return times


def _unevenness(
    operations: Sequence[OperationCounts], programs: int, sms: int
) -> tuple[float, float]:
    """Return the work of the busiest SM and of the longest program, each divided by the mean.

    A program's work is the number of its accesses.
    """
    if programs > _MOST_SCHEDULED:
        return math.ceil(programs / sms) * sms / programs, 1.0
    work = np.ones(programs)
    for op in operations:
        if len(op.tally.touches.executed):
            work += op.tally.touches.executed
    busy = [0.0] * sms
    for each in work.tolist():
        heapq.heapreplace(busy, busy[0] + each)
    return max(busy) * sms / float(work.sum()), float(work.max() / work.mean())


@functools.cache
def _open(path: Path) -> Capture:
    """Open a capture once per process: forks would share the file's position."""
    return Capture(path)


def predict_captured(
    capture: BaseCapture, launch: CapturedLaunch, counts: LaunchCounts, is_warm: bool = False
) -> TimePrediction:
    """Run a captured launch's code, and predict its time.

    The counts are not corrected (`inspect.correct_counts`). For many launches, the correction takes longer than the
    rest, and it changed the predicted time of none of about 60.

    Args:
        is_warm: as for `predict_launch`.

    Raises:
        UnsupportedOperation: the GPU, or the launch's traffic or executions are unknown.
    """
    constants, _ = _find_constants(capture)
    if counts.refused:
        raise UnsupportedOperation(counts.refused)
    code = parse_sass(capture.read_code(launch.kernel, "sass"))
    executions = execute(code, make_launch(capture, launch, counts))
    return predict_launch(capture, launch, counts, executions, constants, is_warm)


def _predict_us(path: Path, number: int) -> float | str:
    """Return the predicted microseconds of a launch, or why it has no prediction."""
    capture = _open(path)
    try:
        launch = capture.content.launches[number]
        return predict_captured(capture, launch, count_launch(capture, launch)).total_us
    except UnsupportedOperation as error:
        return f"{error}"
    except Exception as error:  # one config must not hide the others' predictions
        return f"{type(error).__name__}: {error}"


def main(path: str, processes: int, limit_s: float) -> None:
    """Print the predictions of a capture's launches that are known after a number of seconds."""
    deadline = time.monotonic() + limit_s
    launches = len(Capture(Path(path)).content.launches)
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        tasks = [pool.apply_async(_predict_us, (Path(path), number)) for number in range(launches)]
        for task in tasks:
            try:
                reply = task.get(max(0, deadline - time.monotonic()))
            except multiprocessing.TimeoutError:
                reply = f"The prediction took longer than {limit_s:.0f} s."
            name = "why_missing" if isinstance(reply, str) else "predicted_us"
            print(json.dumps({name: reply}))


if __name__ == "__main__":
    if request := sys.stdin.read():
        main(**json.loads(request))
