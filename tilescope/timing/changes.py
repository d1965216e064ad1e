"""List options that may shorten a launch, estimate its time without costs such as bank conflicts, and describe changes.

An option is compiled before its time is predicted. Bank conflicts, layout conversions and an uneven grid are removed
from the executed instructions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tilescope.captures.content import Finding
from tilescope.inside.report import ChangedTime, Inside
from tilescope.numbers import milliseconds, percent
from tilescope.timing.constants import Constants
from tilescope.timing.model import Execution, Traffic, time_launch
from tilescope.timing.steps import find_loops

# The kind of finding that keeps a predicted time in the capture's file.
TIME_KIND = "time"
# The kind of finding about a grid that leaves SMs idle.
GRID_KIND = "grid"
# The smallest saving that is advised.
LEAST_SAVING = 0.05
# The compiled changes that a launch's report describes.
_MOST_SAVINGS = 3
# Maximum number of warps to advise.
MAX_WARPS = 16
# Steps to simulate per estimate.
_STEPS = 3000
# Predicted times that differ by less count as equal: simulating only a part of a launch changes its time by up to 1 %.
_RESOLUTION = 0.01
_EQUAL_WORK = "equal work per SM"
# The operation of an access to shared memory: see `SharedAccess`.
_CONVERSION = "layout conversion"

# A description of a change, and the execution with it.
_Change = tuple[str, Execution]


def estimate_changes(
    inside: Inside,
    execution: Execution,
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
        scaled = replace(changed, traffic=_scale(changed.traffic, share))
        total_us, _ = time_launch(scaled, constants, _STEPS)
        return constants.launch_us + (total_us - constants.launch_us) / share

    changes = [
        *_drop_costs(inside, execution),
        *_fill_grid(execution, constants.gpu.sms),
    ]
    if not changes:
        return ()
    ratio = inside.predicted_us / time(execution)
    return sort_changes(ChangedTime(name, ratio * time(changed)) for name, changed in changes)


def sort_changes(changes: Iterable[ChangedTime]) -> tuple[ChangedTime, ...]:
    """Return changes, the shortest time first."""
    return tuple(sorted(changes, key=lambda each: each.predicted_us))


def name_options(options: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options.items())


def add_times(inside: Inside, findings: Iterable[Finding]) -> tuple[Inside, Sequence[Finding]]:
    """Return an inspection with the times of changes that were compiled, and the findings to list.

    A change that saves too little is not advised, and an option is advised once.
    """
    times = {each.change: each for each in inside.changes}
    names: dict[str, str] = {}  # several lines may have the same advice
    facts = []
    options = []
    for finding in findings:
        saving = finding.saving
        name = name_options(finding.options) or f"the change tried for line {finding.line}"
        name = names.setdefault(finding.change, name)
        if inside.predicted_us and saving is not None:
            changed_us = inside.predicted_us * (1 - saving)
            times[name] = ChangedTime(name, changed_us, finding.options, is_compiled=True)
        is_small = saving is not None and saving < LEAST_SAVING and not finding.is_fault
        if finding.kind == GRID_KIND:
            _, sentence = estimate_equal_work(inside)
            facts.append(replace(finding, text=f"{finding.text} {sentence}".strip()))
        elif finding.kind != TIME_KIND:
            facts.append(_drop_advice(finding) if is_small else finding)
        elif not is_small:
            options.append(replace(finding, text="Another option is faster."))
    advised = [finding.options for finding in facts]
    options = [finding for finding in options if finding.options not in advised]
    return replace(inside, changes=sort_changes(times.values())), [*facts, *options]


def _drop_advice(finding: Finding) -> Finding:
    text = (
        f"{finding.text} Tried: {finding.change} It is predicted to save less than 5 % of the time."
    )
    return replace(finding, text=text, change="", before={}, after={}, needs="", options={})


def list_options(inside: Inside, num_warps: int, num_stages: int) -> list[dict[str, int]]:
    """Return options that may shorten a launch, the most promising first.

    The options are one stage more, one stage fewer (if more programs then fit on an SM), and half as many warps (or
    twice as many if registers spill).
    """
    needs = inside.shared_map.by_stages if inside.shared_map else ()
    fitting = {need.num_stages: need.programs_per_sm or 0 for need in needs}
    options = []
    if inside.spills_by_line and num_warps < MAX_WARPS:
        options.append({"num_warps": 2 * num_warps})
    if fitting.get(num_stages + 1):
        options.append({"num_stages": num_stages + 1})
    if fitting.get(num_stages - 1, 0) > fitting.get(num_stages, 0):
        options.append({"num_stages": num_stages - 1})
    if num_warps > 1 and not inside.spills_by_line:
        options.append({"num_warps": num_warps // 2})
    return options


def describe_savings(inside: Inside) -> list[str]:
    """Describe the compiled changes that shorten a launch most, and one that was not compiled and would save more."""
    helpful = [each for each in inside.changes if _find_saving(inside, each) >= LEAST_SAVING]
    compiled = [each for each in helpful if each.is_compiled]
    others = [each for each in helpful[:1] if not each.is_compiled]
    return [_describe_saving(inside, each) for each in compiled[:_MOST_SAVINGS] + others]


def estimate_equal_work(inside: Inside) -> tuple[float, str]:
    """Return the microseconds that equal work per SM would save, and a sentence; 0 and "" for a small saving."""
    for each in inside.changes:
        saving = _find_saving(inside, each)
        if each.change.startswith(_EQUAL_WORK) and saving >= LEAST_SAVING:
            return (inside.predicted_us or 0.0) * saving, _describe_saving(inside, each)
    return 0.0, ""


def _find_saving(inside: Inside, change: ChangedTime) -> float:
    return 1 - change.predicted_us / inside.predicted_us if inside.predicted_us else 0.0


def _describe_saving(inside: Inside, change: ChangedTime) -> str:
    source = "compiled and predicted" if change.is_compiled else "predicted without compiling"
    time = milliseconds(change.predicted_us / 1e3)
    saving = percent(_find_saving(inside, change))
    return f"With {change.change}, the launch would take {time}, {saving} less ({source})."


def describe_warm_time(inside: Inside) -> str:
    """Return the predicted time of back-to-back launches; "the same" if the model cannot tell it from the cold time."""
    if not inside.predicted_us or not inside.predicted_warm_us:
        return ""
    is_same = abs(inside.predicted_warm_us / inside.predicted_us - 1) < _RESOLUTION
    return "the same" if is_same else milliseconds(inside.predicted_warm_us / 1e3)


def describe_changes(inside: Inside) -> str:
    """Describe what would change a launch's predicted time first; "" if no change was compiled."""
    names = ", ".join(each.change for each in inside.changes if each.is_compiled)
    none = f"Tried, but predicted to save less than 5 %: {names}." if names else ""
    return " ".join(describe_savings(inside)) or none


def _drop_costs(inside: Inside, execution: Execution) -> Iterator[_Change]:
    """Drop one cost: bank conflicts, layout conversions through shared memory, or misses of the instruction cache."""
    if any(step.conflicts for step in execution.steps):
        steps = [
            replace(step, wavefronts=step.wavefronts - step.conflicts, conflicts=0.0)
            for step in execution.steps
        ]
        yield "no bank conflicts", replace(execution, steps=steps)
    lines = {(each.file, each.line) for each in inside.shared if each.operation == _CONVERSION}
    executed = list(execution.executed)
    for number, instruction in enumerate(execution.instructions):
        is_shared = instruction.traits.smem or instruction.traits.effect == "barrier"
        if is_shared and instruction.location and instruction.location[0][:2] in lines:
            executed[number] = 0
    if lines:
        yield "no layout conversions", replace(execution, executed=executed)
    if any(step.issue > 1 for step in execution.steps):
        steps = [replace(step, issue=1.0) for step in execution.steps]
        yield "loops that fit in the instruction cache", replace(execution, steps=steps)


def _fill_grid(execution: Execution, sms: int) -> Iterator[_Change]:
    """Divide the work equally among all SMs. With more programs, each has fewer iterations of its loops."""
    programs = max(1, execution.programs // sms) * sms
    ratio = programs / execution.programs
    if ratio == 1 or execution.unevenness * (1 - LEAST_SAVING) < 1:
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
    even = replace(execution, executed=executed, programs=programs, unevenness=1.0, longest=1.0)
    fewer = ", each with fewer iterations" if ratio > 1 else ""
    yield f"{_EQUAL_WORK} ({programs:,} programs{fewer})", even


def _scale(traffic: Traffic, share: float) -> Traffic:
    return replace(
        traffic,
        wavefronts={kind: number * share for kind, number in traffic.wavefronts.items()},
        l2_bytes={kind: size * share for kind, size in traffic.l2_bytes.items()},
        read_bytes=traffic.read_bytes * share,
        written_bytes=traffic.written_bytes * share,
    )
