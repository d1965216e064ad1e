"""Find what is wrong with a launch, and what it wastes.

A fact needs no experiment. Advice is a change that was tried: see `experiments.py`.
"""

import heapq
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilescope.advice.access_costs import explain_costs
from tilescope.advice.experiments import (
    MOST_SECONDS,
    Change,
    Choice,
    Compiler,
    Hypothesis,
    Lab,
    Numbers,
    Trial,
    find_races,
    find_same,
    make_trials,
    place_of,
    try_option,
)
from tilescope.advice.shared_costs import (
    examine_stages,
    explain_conflicts,
    explain_conversions,
)
from tilescope.captures.layouts import vectors
from tilescope.captures.listings import isolate
from tilescope.captures.reader import (
    TIME,
    Build,
    Capture,
    Finding,
    Tensor,
    find_equal_launches,
)
from tilescope.declare.gpus import Gpu, occupancy
from tilescope.evaluate.captured import count_launch
from tilescope.evaluate.causes import count_bytes
from tilescope.evaluate.counts import LaunchCounts, OperationCounts, Overflow
from tilescope.evaluate.global_memory import STORAGE_STEP, storage_number
from tilescope.evaluate.slices import Slice
from tilescope.evaluate.ttgir import memory_ops, parse
from tilescope.inside.report import Inside, SharedMap
from tilescope.timing.changes import TIME_KIND, list_options

# Operations on offsets, in Triton's default type.
_OFFSET_BITS = 32
_SUM_NAMES = {"arith.addi": "sum", "arith.subi": "difference", "arith.muli": "product"}

# Resident warps are reported if registers or shared memory limit them to less than this part.
_LOW_OCCUPANCY = 0.25
# The options of this many launches are changed: those with the longest times.
_MOST_LAUNCHES = 5
_MOST_WARPS = 16
_REGISTER_STEP = 8
_FEWEST_REGISTERS = 32

# The `share` of faults, of a lack of resources, of an option, of a small grid, and of a remark on other findings.
_FAULT = 2.0
_LACK = 0.5
_OPTION = 0.1
_SMALL_GRID = -1.0
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
    labs = {
        number: Lab(capture, launches[number], counts(number), insides(number))
        for number in sorted({*firsts})
    }
    choices = {lab: _list_choices(lab) for lab in labs.values()}
    if compiler:
        launches_of = Counter(firsts)
        seconds = {lab: launches_of[number] * lab.seconds for number, lab in labs.items()}
        for lab in heapq.nlargest(_MOST_LAUNCHES, seconds, lambda each: seconds[each]):
            choices[lab] += _change_options(lab)
        make_trials(compiler, choices, seconds, most_seconds)
    reports = {number: _report(lab, choices[lab]) for number, lab in labs.items()}
    findings = [reports[number] for number in firsts]
    if compiler:
        capture.write_findings(findings)
    return findings


@isolate(lambda why, _: [[Hypothesis("failed", None, f"The findings are incomplete. {why}")]])
def _list_choices(lab: Lab) -> list[Choice]:
    return [*_explain(lab)]


def _explain(lab: Lab) -> Iterable[Choice]:
    for group in lab.counts.by_line():
        for check in (_check_bounds, _check_tuner, _check_race):
            yield next(filter(None, (check(lab, op) for op in group)), [])
    yield from explain_costs(lab)
    yield from explain_conflicts(lab)
    yield from explain_conversions(lab)
    yield _examine_resources(lab)
    yield examine_stages(lab)
    yield _examine_grid(lab)


def _change_options(lab: Lab) -> Iterator[Choice]:
    """Compile the options that may shorten the launch. Their times are reported, whether or not they help."""
    is_partitioned = "ttg.warp_specialize(" in lab.capture.read_code(lab.launch.kernel, "ttgir")
    if not lab.inside.predicted_us or is_partitioned:
        return
    kernel = lab.kernel
    options = list_options(lab.inside, kernel.num_warps, int(kernel.options.get("num_stages", 1)))
    for option in (*options, *_limit_registers(lab)):
        trial = tuple(try_option(TIME_KIND, *each) for each in option.items())
        yield [Hypothesis(TIME_KIND, None, "", trial, False, cost=lambda _: 0, share=_OPTION)]


def _limit_registers(lab: Lab) -> list[dict[str, int]]:
    """Limit the registers so that one more program fits on an SM. The compiler may have to spill."""
    kernel = lab.kernel
    gpu = lab.gpu
    resident = lab.numbers(None).get("resident_programs", 0)
    if not gpu or math.prod(lab.launch.grid) <= resident * gpu.sms:
        return []
    limits = [
        limit
        for limit in range(_FEWEST_REGISTERS, kernel.registers, _REGISTER_STEP)
        if occupancy(gpu, kernel.num_warps, limit, kernel.shared_bytes).programs_per_sm > resident
    ]
    return [{"maxnreg": limits[-1]}] if limits else []


@isolate(
    lambda why, lab, _: [
        Finding("failed", Path(lab.kernel.file).name, lab.kernel.line, "", "", why)
    ]
)
def _report(lab: Lab, choices: Iterable[Choice]) -> Sequence[Finding]:
    """Return the findings, wrong results first, then those about the operation or line where a change saves most."""
    chosen: dict[Hypothesis, None] = {}
    for choice in choices:
        known = [each for each in choice if each.is_fact or each.trial]
        known.sort(key=lambda each: (not each.is_advised, not each.trial))
        chosen |= dict.fromkeys(known[:1])
    if lab.untried:
        changes = dict.fromkeys(" ".join(each.advice for each in trial) for trial in lab.untried)
        names = "; ".join(change.replace("TENSOR", "the tensor").rstrip(".") for change in changes)
        text = f"Not tried, because trying the other changes took the available time: {names}."
        chosen[Hypothesis("untried", None, text, share=_REMARK)] = None
    places: dict[Any, list[tuple[Hypothesis, Finding]]] = {}
    for each in sorted(chosen, key=lambda each: -each.share):
        finding = _make_finding(lab, each)
        places.setdefault(finding.place if each.op else each, []).append((each, finding))

    def rank(place: Sequence[tuple[Hypothesis, Finding]]) -> tuple[float, float, float]:
        saved = (each.before[TIME] - each.after[TIME] for _, each in place if TIME in each.after)
        return max(0, place[0][0].share - 1), max(saved, default=0), place[0][0].share

    ranked = sorted(places.values(), key=rank, reverse=True)
    findings = _merge([finding for place in ranked for _, finding in place])
    return [*findings, *_report_times(lab)]


def _merge(findings: Iterable[Finding]) -> list[Finding]:
    """Merge findings that differ only in their operation. The first names the others."""
    merged: dict[str, Finding] = {}
    for finding in findings:
        key = repr(replace(finding, file="", line=0, op="", tensor=""))
        if (first := merged.get(key)) and finding.op:
            same = (
                f"The same applies to the {finding.op} of {finding.tensor} on line {finding.line}."
            )
            merged[key] = replace(first, text=f"{first.text} {same}")
        else:
            merged[key] = finding
    return [*merged.values()]


def _report_times(lab: Lab) -> Iterator[Finding]:
    """Return the predicted times with other options."""
    for trial in lab.outcomes:
        options = dict(option for change in trial for option in change.options)
        if not options or any(change.edits or change.argument for change in trial):
            continue
        before, after = lab.compare_times(trial)
        if after:
            file = Path(lab.kernel.file).name
            advice = " ".join(change.advice for change in trial)
            yield Finding(
                TIME_KIND, file, lab.kernel.line, "", "", "", advice, before, after, "", options
            )


def _make_finding(lab: Lab, hypothesis: Hypothesis) -> Finding:
    op = hypothesis.op
    proof = hypothesis.trial
    trial = proof if hypothesis.is_advised else ()
    times = lab.compare_times(trial)
    file, line = Path(lab.kernel.file).name, lab.kernel.line
    if source := op.source if op else hypothesis.source:
        file, line = source

    def join(*texts: str) -> str:
        text = " ".join(filter(None, dict.fromkeys(texts)))
        return text.replace("TENSOR", name_tensors(op))

    return Finding(
        kind=proof[0].kind if proof else hypothesis.kind,
        file=file,
        line=line,
        op=op.op if op else "",
        tensor=", ".join(op.tensors) if op else "",
        text=join(*(change.cause for change in proof), hypothesis.text),
        change=join(*(change.advice for change in trial)),
        before={**_count(lab, hypothesis, ()), **times[0]} if trial else {},
        after={**_count(lab, hypothesis, trial), **times[1]} if trial else {},
        needs=join(*(change.needs for change in trial), _require_memory(trial)),
        options=dict(option for change in trial for option in change.options),
    )


def _require_memory(trial: Trial) -> str:
    """Return what must hold for padding to be safe; "" without padding."""
    tensors = sorted({tensor for change in trial for tensor in change.pads})
    if not tensors:
        return ""
    verb = "has" if len(tensors) == 1 else "have"
    return (
        f"The result stays the same only if {' and '.join(tensors)} {verb} room for the extra elements, "
        "and these do not change what the kernel computes."
    )


def _count(lab: Lab, hypothesis: Hypothesis, trial: Trial) -> Numbers:
    outcome = lab.outcomes[trial]
    numbers = dict(lab.numbers(hypothesis.op, trial))
    if any(change.moves for change in hypothesis.trial):
        numbers = {name: n for name, n in numbers.items() if name not in _RESOURCES}
    if hypothesis.kind == "overflow" and outcome:
        programs = (each.programs for each in outcome[1].overflows)
        numbers["overflowing_programs"] = max(programs, default=0)
    return numbers


def name_tensors(op: OperationCounts | None) -> str:
    return " or ".join(op.tensors if op else ()) or "the tensor"


def _check_bounds(lab: Lab, op: OperationCounts) -> Choice:
    """State an access outside its tensor, or the overflow that causes it."""
    if missing := op.tally.missing:
        effect = "They read as zeros." if op.counter == "tma_ld" else "Nothing is stored."
        text = (
            f"Blocks outside {name_tensors(op)}: {len(missing):,} of {op.tally.executions:,}, "
            f"the first in program {min(missing)}. {effect}"
        )
        return [Hypothesis("beyond", op, text)]
    if not op.tally.outside and not op.tally.refused:
        return []
    if lab.counts.overflows and (overflow := _explain_overflow(lab, op)):
        return [overflow]
    if not op.tally.outside:
        return []
    example, index = op.tally.outside
    element = ", ".join(map(str, index)) or "0"
    address = int(example.address[index])
    number = int(storage_number(address))
    storage = lab.capture.content.storages[number]
    start = (number + 1) * STORAGE_STEP + storage.address_bytes
    past = address - start - storage.bytes
    where = f"{count_bytes(past)} past its end"
    if address < start:
        where = f"{count_bytes(start - address)} before its start"
    who = f"Program {example.program}{_name_lane(op, index)}"
    text = f"{who}: element ({element}) of the block lies outside {name_tensors(op)}, {where}."
    return [Hypothesis("outside", op, text, share=_FAULT)]


def _explain_overflow(lab: Lab, op: OperationCounts) -> Hypothesis | None:
    """State that an offset does not fit in 32 bits, if the access is right with 64 bits."""
    trial, overflows = _widen_offsets(lab, op)
    outcome = lab.outcomes.get(trial)
    same = find_same(op, outcome[1]) if outcome else []
    if not trial or not same or any(each.tally.outside or each.tally.refused for each in same):
        return None
    file, line = overflows[0].source
    program = overflows[0].program
    value = overflows[0].value
    size = ""
    arguments = {each.name: each for each in lab.launch.arguments}
    argument = arguments.get(", ".join(same[0].tensors))
    if argument and argument.own_tensor and same[0].instruction:
        element_bytes = same[0].instruction.element_bytes
        smallest = min((each.smallest for each in overflows), key=abs)
        if op.tally.outside:  # unlike the results, without lanes whose mask is false
            example, index = op.tally.outside
            program = example.program
            past = int(example.address[index]) - lab.start(argument)
            value = past // element_bytes % (1 << _OFFSET_BITS)
            smallest = min(smallest, value, key=abs)
        shape = _find_wrapping_shape(argument.own_tensor, smallest * element_bytes)
        size = f" The smallest {argument.name} that wraps has {shape} elements."
    text = (
        f"{file}:{line} overflows {_OFFSET_BITS} bits: from program {program:,} on, the offset "
        f"{value:,} wraps, so the operation accesses the wrong elements.{size}"
    )
    return Hypothesis("overflow", op, text, trial=trial, is_advised=True, share=_FAULT)


def _widen_offsets(lab: Lab, op: OperationCounts) -> tuple[Trial, Sequence[Overflow]]:
    """Count with the operands of overflowing offsets in 64 bits.

    Layouts and widths do not depend on the size of offsets, so the kernel is not compiled again.

    Returns:
        The change, and the overflows of an operation's offsets, the original ones before those that follow from them.
    """
    kernel, codes = lab.capture.build(lab.launch.kernel)
    body = parse(codes["ttgir"])
    values = Slice(body, {})
    accesses = (each for each in memory_ops(body) if each.source == op.source)
    used = values.reach(each.operands[0] for each in accesses)
    overflows = {each.line: each for each in lab.counts.overflows if each.bits == _OFFSET_BITS}
    sums = [each for each in body.walk() if each.name in _SUM_NAMES]
    wrong = [each for each in sums if each.line in overflows and used & {*each.results}]
    names = {each.results[0] for each in wrong}
    first = [each for each in wrong if not names - {*each.results} & values.reach(each.operands)]
    causes = {each.results[0] for each in first}
    lines = {(overflows[each.line].source[1], _SUM_NAMES[each.name]) for each in first}
    trial = tuple(
        Change("overflow", f"On line {line}, convert an operand of the {name} with .to(tl.int64).")
        for line, name in sorted(lines)
    )
    if trial not in lab.outcomes:
        ttgir = codes["ttgir"].split("\n")
        for each in sums:
            if causes & values.reach(each.results):
                ttgir[each.line] = ttgir[each.line].replace("i32", "i64")
        build = Build(kernel, {**codes, "ttgir": "\n".join(ttgir)})
        lab.outcomes[trial] = kernel, count_launch(lab.capture, lab.launch, build=build)
    wrong.sort(key=lambda each: (each not in first, overflows[each.line].program))
    return trial, [overflows[each.line] for each in wrong]


def _find_wrapping_shape(tensor: Tensor, offset_bytes: int) -> str:
    """Return the smallest shape, along a tensor's outermost dimension, with elements at an offset or after it."""
    shape = list(tensor.shape) or [1]
    strides = tensor.strides or [1]
    outer = int(np.argmax(strides))
    step = max(1, strides[outer])
    inner = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    inner -= (shape[outer] - 1) * strides[outer]
    whole, rest = divmod(offset_bytes // tensor.element_bytes, step)
    shape[outer] = whole + 1 + (rest > inner)
    return " × ".join(f"{size:,}" for size in shape)


def _check_tuner(lab: Lab, op: OperationCounts) -> Choice:
    """State that each run of the kernel by the autotuner changes a tensor again."""
    restored = lab.launch.tuned.restored if lab.launch.tuned else None
    is_reset = restored is None or {*op.tensors} <= {*restored}
    name = op.instruction.instruction if op.instruction else ""
    verb = "adds to" if re.search(r"\.add\b", name) else "changes"
    if op.op != "atomic" or is_reset or not re.search(r"\.(add|xor)\b", name):
        return []
    text = (
        f"The autotuner runs the kernel many times, and each run {verb} {name_tensors(op)} again. "
        f"Pass reset_to_zero=[{', '.join(map(repr, op.tensors))}] to triton.autotune."
    )
    return [Hypothesis("autotuner", op, text, share=_FAULT)]


def _check_race(lab: Lab, op: OperationCounts) -> Choice:
    """State that two programs store to the same address. With a lock, their order may be fixed."""
    atomics = (each.instruction for each in lab.counts.operations if each.op == "atomic")
    has_lock = any(each and re.search(r"\.(cas|exch)\b", each.instruction) for each in atomics)
    example = op.tally.example
    programs = find_races(lab.counts).get(place_of(op))
    if not programs or not example or has_lock:
        return []
    lowest = np.where(example.active, example.address, np.inf).argmin()
    lane = _name_lane(op, np.unravel_index(lowest, example.address.shape))
    text = (
        f"Programs {programs[0]} and {programs[1]}{lane} store to the same address of "
        f"{name_tensors(op)}: unless both store the same value, the result depends on which program stores last."
    )
    return [Hypothesis("race", op, text, share=_FAULT)]


def _name_lane(op: OperationCounts, index: Sequence[Any]) -> str:
    """Name the warp and lane that access an element of a block; "" for a scalar."""
    if not op.instruction or not op.instruction.layout:
        return ""
    single = vectors(op.instruction.layout, 1)
    place = np.array(index)[:, None, None]
    request, lane = np.argwhere((single.place == place).all(axis=0) & single.owner)[0]
    return f", warp {single.warp[request]}, lane {lane}"


def _examine_resources(lab: Lab) -> Choice:
    """State that a program needs too much shared memory, or spills, or that its resources limit occupancy."""
    kernel = lab.kernel
    numbers = lab.numbers(None)
    if lab.gpu and kernel.shared_bytes > lab.gpu.shared_bytes_per_program:
        return _explain_excess(lab, lab.gpu)
    if kernel.spilled_bytes:
        kind = "spills"
        text = f"Each thread spills {kernel.spilled_bytes:,} bytes of registers to local memory."

        def cost(numbers: Numbers) -> int:
            return numbers["spilled_bytes"]

    elif lab.gpu and math.prod(lab.launch.grid) > lab.gpu.sms:
        each = occupancy(lab.gpu, kernel.num_warps, kernel.registers, kernel.shared_bytes)
        limits = " and ".join(sorted({"registers", "shared memory"}.intersection(each.limited_by)))
        if not limits or each.occupancy >= _LOW_OCCUPANCY:
            return []
        kind = "occupancy"
        s = "s" * (each.programs_per_sm != 1)
        resident = f"{each.programs_per_sm} program{s} ({numbers['resident_warps']} warps)"
        verb = "limit" if " and " in limits or limits == "registers" else "limits"
        text = f"A program's {limits} {verb} an SM to {resident}."

        def cost(numbers: Numbers) -> int:
            return -numbers["resident_warps"]

    else:
        return []
    stages = int(kernel.options.get("num_stages", 1)) - 1
    options = [("num_warps", 2 * kernel.num_warps), ("num_stages", stages)]
    return [
        Hypothesis(kind, None, text, (try_option(kind, name, value),), cost=cost, share=_LACK)
        for name, value in options
        if 1 <= value <= _MOST_WARPS
    ]


def _explain_excess(lab: Lab, gpu: Gpu) -> Choice:
    """State that a program needs more shared memory than the GPU has, and the lines with the largest buffers."""
    limit = gpu.shared_bytes_per_program
    shared = lab.inside.shared_map or SharedMap()
    fullest = Counter[str]()
    for step in range(len(shared.steps)):
        sizes = Counter[str]()
        for buffer in shared.buffers:
            if buffer.first <= step <= buffer.last:
                sizes[f"{buffer.file}:{buffer.line}"] += buffer.size_bytes
        fullest = max(fullest, sizes, key=Counter.total)
    lines = [f"{line} needs {size:,}" for line, size in fullest.most_common(2)]
    parts = f" {' and '.join(lines)} of them." if lines else ""
    text = (
        f"The launch fails on {gpu.device_name}: a program needs {lab.kernel.shared_bytes:,} bytes of "
        f"shared memory, and the limit is {limit:,}.{parts}"
    )

    def cost(numbers: Numbers) -> bool:
        return numbers["shared_bytes"] > limit

    fewer = range(int(lab.kernel.options.get("num_stages", 1)) - 1, 0, -1)
    changes = [(try_option("shared memory", "num_stages", stages),) for stages in fewer]
    return [
        Hypothesis("shared memory", None, text, change, cost=cost, share=_FAULT)
        for change in [*changes, ()]
    ]


def _examine_grid(lab: Lab) -> Choice:
    programs = math.prod(lab.launch.grid)
    if not lab.gpu or programs >= lab.gpu.sms:
        return []
    idle = lab.gpu.sms - programs
    text = f"{idle} of {lab.gpu.sms} SMs stay idle, because the grid size is only {programs}."
    return [Hypothesis("grid", None, text, share=_SMALL_GRID)]
