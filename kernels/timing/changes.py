"""Estimate which changes shorten a launch: change its executed instructions, and predict its time again.

Nothing is compiled, so an estimate only says what is worth a compilation.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kernels.capture.reader import TIME, CapturedKernel, Finding
from kernels.gpus import Gpu, occupancy
from kernels.inside.execution import SHARED, Executions
from kernels.inside.report import ChangedTime, Inside
from kernels.timing.constants import Constants
from kernels.timing.model import Execution, Traffic, time_launch
from kernels.timing.steps import Step
from kernels.timing.trace import find_loops

# The kind of finding that keeps a predicted time in the capture's file.
TIME_KIND = "time"
# The most changes of a launch to compile, and the smallest estimated saving of such a change.
MOST_TRIALS = 2
_LEAST_ESTIMATE = 0.02
# The smallest saving that is advised.
LEAST_SAVING = 0.05
# Steps to simulate per estimate.
_STEPS = 3000
_MOST_REGISTERS = 255
_REGISTER_STEP = 8
# Registers of a thread that do not hold elements of blocks: assumed.
_SCALAR_REGISTERS = 20
# The operation of an access to shared memory: see `SharedAccess`.
_CONVERSION = "layout conversion"

# A change in words, the options with which a user makes it, and what the launch then executes.
_Change = tuple[str, Mapping[str, int], Execution]


def estimate_changes(
    inside: Inside,
    kernel: CapturedKernel,
    execution: Execution,
    traffic: Traffic,
    executions: Executions,
    gpu: Gpu,
    constants: Constants,
) -> tuple[ChangedTime, ...]:
    """Return the estimated times of a launch with changes, the shortest first.

    Args:
        inside: the inspection of the launch, with its predicted time.
    """
    assert inside.predicted_us

    def time(changed: Execution) -> float:
        """Return the microseconds of a launch. If it has fewer programs, they do and move a part of the work."""
        share = min(1.0, changed.programs / execution.programs)
        total_us, _ = time_launch(changed, _scale(traffic, share), gpu, constants, _STEPS)
        return constants.launch_us + (total_us - constants.launch_us) / share

    before = time(execution)
    changes = (
        *_change_stages(inside, execution, kernel),
        *_halve_warps(execution, kernel, gpu),
        *_limit_registers(execution, kernel, gpu),
        *_drop_costs(inside, execution, executions),
        *_fill_grid(execution, gpu),
    )
    times = [
        ChangedTime(name, inside.predicted_us * time(changed) / before, options)
        for name, options, changed in changes
    ]
    return sort_changes(times)


def sort_changes(changes: Iterable[ChangedTime]) -> tuple[ChangedTime, ...]:
    """Return changes, the shortest time first."""
    return tuple(sorted(changes, key=lambda each: each.predicted_us))


def add_times(inside: Inside, findings: Iterable[Finding]) -> tuple[Inside, Sequence[Finding]]:
    """Return an inspection with the times of changes that were compiled, and the findings about other facts."""
    times = {each.change: each for each in inside.changes}
    others = []
    names: dict[str, str] = {}  # several lines may have the same advice
    for finding in findings:
        option = ", ".join(f"{name} = {value}" for name, value in finding.options.items())
        advice = f"the change that is advised for line {finding.line}"
        name = names.setdefault(finding.change, option or advice)
        if finding.kind != TIME_KIND:
            others.append(finding)
        elif not finding.after:
            times.pop(name, None)
        if inside.predicted_us and TIME in finding.after:
            ratio = finding.after[TIME] / finding.before[TIME]
            change = times.get(name) or ChangedTime(name, 0.0)
            changed_us = inside.predicted_us * ratio
            times[name] = replace(change, predicted_us=changed_us, is_compiled=True)
    return replace(inside, changes=sort_changes(times.values())), others


def choose_trials(inside: Inside) -> list[ChangedTime]:
    """Return the changes of options that are worth a compilation."""
    most_us = (1 - _LEAST_ESTIMATE) * (inside.predicted_us or 0.0)
    promising = [each for each in inside.changes if each.options and each.predicted_us <= most_us]
    return promising[:MOST_TRIALS]


def _change_stages(
    inside: Inside, execution: Execution, kernel: CapturedKernel
) -> Iterator[_Change]:
    """Let loops wait for copies of earlier iterations, or free shared memory for another program with fewer stages."""
    current = int(kernel.options.get("num_stages", 0))
    for need in inside.shared_map.by_stages if inside.shared_map else ():
        stages = need.num_stages
        resident = need.programs_per_sm
        if not resident or need.shared_bytes == kernel.shared_bytes:
            continue
        if stages > current or resident > execution.resident:
            steps = _shift_waits(execution, stages - current)
            changed = replace(execution, steps=steps, resident=resident)
            yield f"num_stages = {stages}", {"num_stages": stages}, changed


def _shift_waits(execution: Execution, stages: int) -> list[Step]:
    """Let each loop wait for copies of earlier or later iterations. Nothing waits for loads that become copies."""
    steps = list(execution.steps)
    loops = find_loops(execution.instructions, execution.executed)
    for first, last in loops.items():
        body = range(first, last + 1)
        if any(other in body for other in loops.keys() - {first}):
            continue  # only innermost loops are pipelined
        groups = sum(steps[number].effect == "commit" for number in body)
        for number in body:
            step = steps[number]
            if step.effect == "wait for copies":
                steps[number] = replace(step, pending=max(0, step.pending + stages * groups))
            elif step.traffic == "load" and stages > 0 and not groups:
                steps[number] = replace(step, writes=())
    return steps


def _halve_warps(execution: Execution, kernel: CapturedKernel, gpu: Gpu) -> Iterator[_Change]:
    """Let half as many warps execute the same instructions, with the registers of twice as many elements."""
    warps = kernel.num_warps // 2
    elements = max(0, kernel.registers - _SCALAR_REGISTERS)
    registers = min(_SCALAR_REGISTERS + 2 * elements, _MOST_REGISTERS)
    if warps:
        resident = occupancy(gpu, warps, registers, kernel.shared_bytes).programs_per_sm
        changed = replace(execution, warps=warps, resident=resident)
        yield f"num_warps = {warps}", {"num_warps": warps}, changed


def _limit_registers(execution: Execution, kernel: CapturedKernel, gpu: Gpu) -> Iterator[_Change]:
    """Limit the registers so that one more program fits on an SM. The compiler may have to spill."""
    for registers in range(kernel.registers // _REGISTER_STEP, 3, -1):
        limit = registers * _REGISTER_STEP
        resident = occupancy(gpu, kernel.num_warps, limit, kernel.shared_bytes).programs_per_sm
        if resident > execution.resident:
            changed = replace(execution, resident=resident)
            yield f"maxnreg = {limit}", {"maxnreg": limit}, changed
            return


def _drop_costs(inside: Inside, execution: Execution, executions: Executions) -> Iterator[_Change]:
    """Drop the bank conflicts, or the instructions of layout conversions through shared memory."""
    steps = list(execution.steps)
    for number, wavefronts in executions.wavefronts.items():
        if wavefronts.actual > wavefronts.ideal:
            ratio = wavefronts.ideal / wavefronts.actual
            steps[number] = replace(steps[number], wavefronts=steps[number].wavefronts * ratio)
    if steps != list(execution.steps):
        yield "no bank conflicts", {}, replace(execution, steps=steps)
    lines = {(each.file, each.line) for each in inside.shared if each.operation == _CONVERSION}
    executed = list(execution.executed)
    for number, instruction in enumerate(execution.instructions):
        is_shared = instruction.name in SHARED or instruction.name == "BAR"
        if is_shared and instruction.location and instruction.location[0][:2] in lines:
            executed[number] = 0
    if lines:
        yield "no layout conversions", {}, replace(execution, executed=executed)


def _fill_grid(execution: Execution, gpu: Gpu) -> Iterator[_Change]:
    """Divide the work equally among all SMs. With more programs, each has fewer iterations of its loops."""
    programs = max(1, execution.programs // gpu.sms) * gpu.sms
    ratio = programs / execution.programs
    if ratio == 1:
        return
    executed = [times * ratio for times in execution.executed]
    if ratio > 1:
        loops = find_loops(execution.instructions, execution.executed)
        launched = execution.programs * execution.warps
        trips = max((execution.executed[first] / launched for first in loops), default=0.0)
        if trips < ratio:
            return
        for first, last in loops.items():
            executed[first : last + 1] = execution.executed[first : last + 1]
    even = replace(execution, executed=executed, programs=programs, unevenness=1.0)
    yield f"a grid of {programs:,} equal programs ({programs // gpu.sms} per SM)", {}, even


def _scale(traffic: Traffic, share: float) -> Traffic:
    return replace(
        traffic,
        lines={kind: number * share for kind, number in traffic.lines.items()},
        l2_bytes={kind: size * share for kind, size in traffic.l2_bytes.items()},
        read_bytes=traffic.read_bytes * share,
        written_bytes=traffic.written_bytes * share,
    )
