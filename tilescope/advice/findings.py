"""Find what is wrong with a launch, and what it wastes.

A fact needs no experiment. Advice is a change that was tried: see `experiments.py`.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilescope.advice.access_costs import explain_costs
from tilescope.advice.experiments import (
    MOST_SECONDS,
    TENSOR,
    UNCHANGED,
    Alternatives,
    Candidate,
    Change,
    Compiler,
    Numbers,
    Trial,
    TrialRunner,
    make_trials,
    pass_options,
)
from tilescope.advice.missing_barriers import find_missing_barriers
from tilescope.advice.resources import (
    FAULT,
    examine_grid,
    examine_resources,
    examine_stages,
    explain_conflicts,
)
from tilescope.advice.same_work import find_equal_launches, find_races, find_same, place_of
from tilescope.advice.variants import find_variants, merge_variants
from tilescope.captures.content import TIME, Finding, Tensor
from tilescope.captures.layouts import vectors
from tilescope.captures.listings import isolate
from tilescope.captures.reader import Build, Capture
from tilescope.evaluate.captured import find_storage
from tilescope.evaluate.causes import count_bytes
from tilescope.evaluate.counts import LaunchCounts, OperationCounts, Overflow
from tilescope.evaluate.global_memory import storage_number
from tilescope.inside.report import Inside
from tilescope.inside.shared import fit_kernel
from tilescope.timing.changes import TIME_KIND, list_options
from tilescope.ttgir.graph import Slice
from tilescope.ttgir.parser import memory_ops, parse_ttgir

# Operations on offsets, in Triton's default type.
_OFFSET_BITS = 32
_SUM_NAMES = {"arith.addi": "sum", "arith.subi": "difference", "arith.muli": "product"}

# The options of this many launches are changed: those with the longest times.
_MOST_LAUNCHES = 5
_REGISTER_STEP = 8
_FEWEST_REGISTERS = 32

# The `share` of an option, and of a remark on other findings.
_OPTION = 0.1
_REMARK = -2.0
# The numbers that follow from a kernel's addresses. A kernel with moved blocks has others.
_RESOURCES = ("registers", "spilled_bytes", "resident_programs", "resident_warps")


def find(
    capture: Capture,
    counts: Callable[[int], LaunchCounts],
    insides: Callable[[int], Inside],
    compiler: Compiler | None = None,
    most_seconds: float = MOST_SECONDS,
) -> Sequence[Sequence[Finding]]:
    """Return each launch's findings, from the file if it has them.

    Args:
        counts, insides: return the counts of a launch, and the inspection with the predicted time.
        compiler: None to state facts only. With a compiler, the findings are added to the file.
        most_seconds: see `make_trials`.
    """
    if capture.findings is not None:
        return capture.findings
    launches = capture.content.launches
    firsts = find_equal_launches(capture.content)
    runners = {
        number: TrialRunner(capture, launches[number], counts(number), insides(number), repeats)
        for number, repeats in sorted(Counter(firsts).items())
    }
    for runner in runners.values():
        runner.choices = _list_choices(runner)
    if compiler:
        slowest = sorted(runners.values(), key=lambda runner: -runner.seconds)
        for runner in slowest[:_MOST_LAUNCHES]:
            runner.choices += _change_options(runner)
        make_trials(compiler, runners.values(), most_seconds)
        kernels = find_variants(capture.content)
        own = [runners[number] for number in firsts]
        merge_variants(kernels, own, compiler, most_seconds / 2)
    reports = {number: _report(runner) for number, runner in runners.items()}
    findings = [reports[number] for number in firsts]
    if compiler:
        capture.write_findings(findings)
    return findings


@isolate(lambda why, _: [[Candidate("failed", f"The findings are incomplete. {why}")]])
def _list_choices(runner: TrialRunner) -> list[Alternatives]:
    faults = [
        next(filter(None, (check(runner, op) for op in group)), [])
        for group in runner.counts.by_line()
        for check in (_check_bounds, _check_tuner, _check_race)
    ]
    return [
        *faults,
        *find_missing_barriers(runner),
        *explain_costs(runner),
        *explain_conflicts(runner),
        examine_resources(runner),
        examine_stages(runner),
        examine_grid(runner),
    ]


def _change_options(runner: TrialRunner) -> Iterator[Alternatives]:
    """Compile the options that may shorten the launch. Their times are reported, whether or not they help."""
    is_partitioned = "ttg.warp_specialize(" in runner.capture.read_code(
        runner.launch.kernel, "ttgir"
    )
    if not runner.inside.predicted_us or is_partitioned:
        return
    options = list_options(runner.inside, runner.kernel.num_warps, runner.num_stages)
    for option in (*options, *_limit_registers(runner)):
        trials = [pass_options(option)]
        yield [Candidate(TIME_KIND, "", None, trials, False, lambda _: 0, share=_OPTION)]


def _limit_registers(runner: TrialRunner) -> list[dict[str, int]]:
    """Limit the registers so that one more program fits on an SM. The compiler may have to spill."""
    kernel = runner.kernel
    gpu = runner.gpu
    resident = runner.numbers(None).get("resident_programs", 0)
    if not gpu or math.prod(runner.launch.grid) <= resident * gpu.sms:
        return []
    limits = [
        limit
        for limit in range(_FEWEST_REGISTERS, kernel.registers, _REGISTER_STEP)
        if fit_kernel(gpu, replace(kernel, registers=limit)).programs_per_sm > resident
    ]
    return [{"maxnreg": limits[-1]}] if limits else []


@isolate(lambda why, runner: [Finding("failed", runner.place[0], runner.place[1], text=why)])
def _report(runner: TrialRunner) -> Sequence[Finding]:
    """Return the findings, wrong results first, then those about the operation or line where a change saves most."""
    chosen: dict[Candidate, None] = {}
    for alternatives in runner.choices:
        known = [each for each in alternatives if each.is_fact or each.proof]
        known.sort(key=lambda each: (not each.is_advised, not each.proof))
        chosen |= dict.fromkeys(known[:1])
    tried = {trial.advice for trial, outcome in runner.outcomes.items() if outcome}
    changes = [change for trial in runner.untried if trial.advice not in tried for change in trial]
    if changes:
        names = " ".join(dict.fromkeys(change.advice for change in changes))
        text = "The available time was too short to try these changes"
        if not all(change.is_equivalent for change in changes):
            text += ", which can alter the result"
        text += f": {names.replace(TENSOR, 'the tensor')}"
        chosen[Candidate("untried", text, share=_REMARK)] = None
    places: dict[Any, list[tuple[Candidate, Finding]]] = {}
    for each in sorted(chosen, key=lambda each: -each.share):
        finding = _make_finding(runner, each)
        places.setdefault(finding.place if each.op else each, []).append((each, finding))

    def rank(place: Sequence[tuple[Candidate, Finding]]) -> tuple[float, float, float]:
        saved = (each.before[TIME] - each.after[TIME] for _, each in place if TIME in each.after)
        return max(0, place[0][0].share - 1), max([0, *saved]), place[0][0].share

    ranked = sorted(places.values(), key=rank, reverse=True)
    findings = _merge([finding for place in ranked for _, finding in place])
    return [*findings, *_report_times(runner)]


def _merge(findings: Iterable[Finding]) -> list[Finding]:
    """Merge findings that differ only in their operation. The first names the others."""
    merged: dict[str, Finding] = {}
    for finding in findings:
        key = repr(replace(finding, file="", line=0, op="", tensor=""))
        if (first := merged.get(key)) and finding.op:
            where = f"the {finding.op} of {finding.tensor} on line {finding.line}"
            finding = replace(first, text=f"{first.text} The same applies to {where}.")
        merged[key] = finding
    return [*merged.values()]


def _report_times(runner: TrialRunner) -> Iterator[Finding]:
    """Return the predicted times with other options."""
    for trial in runner.outcomes:
        before, after = runner.compare_times(trial) if trial.options else ({}, {})
        if after:
            yield Finding(
                TIME_KIND,
                *runner.place,
                change=trial.advice,
                before=before,
                after=after,
                options=trial.options,
            )


def _make_finding(runner: TrialRunner, candidate: Candidate) -> Finding:
    op = candidate.op
    trial = candidate.proof
    before, after = (
        {**_count(runner, candidate, each), **time} if trial else {}
        for each, time in zip((UNCHANGED, trial), runner.compare_times(trial), strict=True)
    )
    file, line = (op.source if op else candidate.source) or runner.place

    def join(*texts: str) -> str:
        text = " ".join(filter(None, dict.fromkeys(texts)))
        return text.replace(TENSOR, name_tensors(op))

    return Finding(
        kind=candidate.kind or trial[0].kind,
        file=file,
        line=line,
        op=op.op if op else "",
        tensor=", ".join(op.tensors) if op else "",
        text=join(*(change.cause for change in trial), candidate.text),
        change=join(*(change.advice for change in trial)),
        before=before,
        after=after,
        needs=join(*(change.needs for change in trial), _require_padding(runner, trial)),
        options=trial.options,
    )


def _require_padding(runner: TrialRunner, trial: Trial) -> str:
    """Return what must hold for padding to be safe; "" without padding."""
    tensors = sorted({tensor for change in trial for tensor in change.pads})
    if not tensors:
        return ""
    changed = {change.argument.name for change in trial if change.argument}
    sets_bound = any(change.kind == "mask" for change in trial)
    fills = dict[str, str]()
    for op in runner.counts.operations:
        is_masked = op.masked_by & changed or sets_bound
        if is_masked and op.counter == "ld" and {*op.tensors} & {*tensors}:
            name = name_tensors(op)
            for each in runner.find(op):
                fill = runner.module.find_fill(each)
                fills[name] = fill if fills.get(name, fill) == fill else ""
    effect = ", and these do not change what the kernel computes" if "" in fills.values() else ""
    padded = "".join(f", and {name} is padded with {fill}" for name, fill in fills.items() if fill)
    verb = "has" if len(tensors) == 1 else "have"
    return (
        f"The result stays the same only if {' and '.join(tensors)} {verb} room for the extra elements"
        f"{effect}{padded}."
    )


def _count(runner: TrialRunner, candidate: Candidate, trial: Trial) -> Numbers:
    outcome = runner.outcomes[trial]
    numbers = dict(runner.numbers(candidate.op, trial))
    if any(change.moves for change in candidate.proof):
        numbers = {name: n for name, n in numbers.items() if name not in _RESOURCES}
    if candidate.kind == "overflow" and outcome:
        programs = (each.programs for each in outcome.counts.overflows)
        numbers["overflowing_programs"] = max(programs, default=0)
    return numbers


def name_tensors(op: OperationCounts | None) -> str:
    return " or ".join(op.tensors if op else ()) or "the tensor"


def _check_bounds(runner: TrialRunner, op: OperationCounts) -> Alternatives:
    """State an access outside its tensor, or the overflow that causes it."""
    if missing := op.tally.missing:
        effect = "They read as zeros." if op.counter == "tma_ld" else "Nothing is stored."
        text = (
            f"Blocks outside {name_tensors(op)}: {len(missing):,} of {op.tally.executions:,}, "
            f"the first in program {min(missing)}. {effect}"
        )
        return [Candidate("beyond", text, op)]
    if not op.tally.outside and not op.tally.refused:
        return []
    if runner.counts.overflows and (overflow := _explain_overflow(runner, op)):
        return [overflow]
    if not op.tally.outside:
        return []
    example, index = op.tally.outside
    element = ", ".join(map(str, index)) or "0"
    address = int(example.address[index])
    number = int(storage_number(address))
    storage = runner.capture.content.storages[number]
    start = find_storage(runner.capture, number)
    past = address - start - storage.bytes
    where = f"{count_bytes(past)} past its end" if past else "right after its end"
    if address < start:
        where = f"{count_bytes(start - address)} before its start"
    who = f"Program {example.program}{_name_lane(op, index)}"
    text = f"{who}: element ({element}) of the block lies outside {name_tensors(op)}, {where}."
    return [Candidate("outside", text, op, share=FAULT)]


def _explain_overflow(runner: TrialRunner, op: OperationCounts) -> Candidate | None:
    """State that an offset does not fit in 32 bits, if the access is right with 64 bits."""
    trial, overflows = _widen_offsets(runner, op)
    outcome = runner.outcomes.get(trial)
    same = find_same(op, outcome.counts) if outcome else []
    if not trial or not same or any(each.tally.outside or each.tally.refused for each in same):
        return None
    file, line = overflows[0].source
    program = overflows[0].program
    value = overflows[0].value
    size = ""
    arguments = {each.name: each for each in runner.launch.arguments}
    argument = arguments.get(", ".join(same[0].tensors))
    if argument and argument.own_tensor and same[0].instruction:
        element_bytes = same[0].instruction.element_bytes
        smallest = min((each.smallest for each in overflows), key=abs)
        if op.tally.outside:  # unlike the results, without lanes whose mask is false
            example, index = op.tally.outside
            program = example.program
            past = int(example.address[index]) - runner.start(argument)
            value = past // element_bytes % (1 << _OFFSET_BITS)
            smallest = min(smallest, value, key=abs)
        shape = _find_wrapping_shape(argument.own_tensor, smallest * element_bytes)
        size = f" The smallest {argument.name} that wraps has {shape} elements."
    text = (
        f"{file}:{line} overflows {_OFFSET_BITS} bits: from program {program:,} on, the offset "
        f"{value:,} wraps, so the operation accesses the wrong elements.{size}"
    )
    return Candidate("overflow", text, op, proof=trial, is_advised=True, share=FAULT)


def _widen_offsets(runner: TrialRunner, op: OperationCounts) -> tuple[Trial, Sequence[Overflow]]:
    """Count with the operands of overflowing offsets in 64 bits.

    Layouts and widths do not depend on the size of offsets, so the kernel is not compiled again.

    Returns:
        The change, and the overflows of an operation's offsets, the original ones before those that follow from them.
    """
    kernel, codes = runner.capture.build(runner.launch.kernel)
    body = parse_ttgir(codes["ttgir"])
    values = Slice(body, {})
    used = values.reach(each.operands[0] for each in memory_ops(body) if each.source == op.source)
    overflows = {each.line: each for each in runner.counts.overflows if each.bits == _OFFSET_BITS}
    sums = [each for each in body.walk() if each.name in _SUM_NAMES]
    wrong = [each for each in sums if each.line in overflows and used & {*each.results}]
    names = {each.results[0] for each in wrong}
    first = [each for each in wrong if not names - {*each.results} & values.reach(each.operands)]
    causes = {each.results[0] for each in first}
    lines = {(overflows[each.line].source[1], _SUM_NAMES[each.name]) for each in first}
    trial = Trial(
        Change(f"On line {line}, convert an operand of the {name} with .to(tl.int64).")
        for line, name in sorted(lines)
    )
    if trial not in runner.outcomes:
        ttgir = codes["ttgir"].split("\n")
        for each in sums:
            if causes & values.reach(each.results):
                ttgir[each.line] = ttgir[each.line].replace("i32", "i64")
        build = Build(kernel, {**codes, "ttgir": "\n".join(ttgir)})
        runner.count_build(trial, build, runner.inside)
    wrong.sort(key=lambda each: (each not in first, overflows[each.line].program))
    return trial, [overflows[each.line] for each in wrong]


def _find_wrapping_shape(tensor: Tensor, offset_bytes: int) -> str:
    """Return the smallest shape, along a tensor's outermost dimension, with elements at an offset or after it."""
    shape = list(tensor.shape) or [1]
    strides = tensor.strides or [1]
    outer = int(np.argmax(strides))
    step = max(1, strides[outer])
    sides = zip(shape, strides, strict=True)
    inner = sum((size - 1) * stride for size, stride in sides) - (shape[outer] - 1) * strides[outer]
    whole, rest = divmod(offset_bytes // tensor.element_bytes, step)
    shape[outer] = whole + 1 + (rest > inner)
    return " × ".join(f"{size:,}" for size in shape)


def _check_tuner(runner: TrialRunner, op: OperationCounts) -> Alternatives:
    """State that each run of the kernel by the autotuner changes a tensor again."""
    restored = runner.launch.tuned.restored if runner.launch.tuned else None
    is_reset = restored is None or {*op.tensors} <= {*restored}
    name = op.instruction.instruction if op.instruction else ""
    operation = re.search(r"\.(add|xor)\b", name)
    if op.op != "atomic" or is_reset or not operation:
        return []
    verb = "adds to" if operation[1] == "add" else "changes"
    text = (
        f"The autotuner runs the kernel many times, and each run {verb} {name_tensors(op)} again. "
        f"Pass reset_to_zero=[{', '.join(map(repr, op.tensors))}] to triton.autotune."
    )
    return [Candidate("autotuner", text, op, share=FAULT)]


def _check_race(runner: TrialRunner, op: OperationCounts) -> Alternatives:
    """State that two programs store to the same address. With a lock, their order may be fixed."""
    atomics = (each.instruction for each in runner.counts.operations if each.op == "atomic")
    has_lock = any(each and re.search(r"\.(cas|exch)\b", each.instruction) for each in atomics)
    example = op.tally.example
    programs = find_races(runner.counts).get(place_of(op))
    if not programs or not example or has_lock:
        return []
    lowest = np.where(example.active, example.address, np.inf).argmin()
    lane = _name_lane(op, np.unravel_index(lowest, example.address.shape))
    text = (
        f"Programs {programs[0]} and {programs[1]}{lane} store to the same address of "
        f"{name_tensors(op)}: unless both store the same value, the result depends on which program stores last."
    )
    return [Candidate("race", text, op, share=FAULT)]


def _name_lane(op: OperationCounts, index: Sequence[Any]) -> str:
    """Name the warp and lane that access an element of a block; "" for a scalar."""
    if not op.instruction or not op.instruction.layout:
        return ""
    single = vectors(op.instruction.layout, 1)
    place = np.array(index)[:, None, None]
    request, lane = np.argwhere((single.place == place).all(axis=0) & single.owner)[0]
    return f", warp {single.warp[request]}, lane {lane}"
