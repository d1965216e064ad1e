"""Find what is wrong with a launch, and what it wastes.

A fact needs no experiment. Advice is a change that was tried: see `experiments.py`.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kernels.capture.reader import Build, Capture, Finding
from kernels.evaluate.access_costs import explain_costs
from kernels.evaluate.captured import count_launch
from kernels.evaluate.counts import LaunchCounts, OperationCounts
from kernels.evaluate.experiments import (
    Change,
    Choice,
    Compiler,
    Hypothesis,
    Lab,
    Numbers,
    find_same,
    make_trials,
    try_option,
)
from kernels.evaluate.memory import STORAGE_STEP, storage_number
from kernels.gpus import occupancy
from kernels.layouts import vectors

# Resident warps are reported if registers or shared memory limit them to less than this part.
_LOW_OCCUPANCY = 0.25
_MOST_WARPS = 16


def find(
    capture: Capture, counts: Callable[[int], LaunchCounts], compiler: Compiler | None = None
) -> Sequence[Sequence[Finding]]:
    """Return each launch's findings, from the file if it has them.

    Args:
        counts: returns the counts of a launch.
        compiler: None to state facts only. With a compiler, the findings are added to the file.
    """
    if capture.findings is not None:
        return capture.findings
    labs: dict[Any, Lab] = {}
    keys = []
    for number, launch in enumerate(capture.content.launches):
        keys.append((launch.kernel, launch.grid, launch.arguments, launch.tuned))
        if keys[-1] not in labs:
            labs[keys[-1]] = Lab(capture, launch, counts(number))
    choices = {lab: list(_explain(lab)) for lab in labs.values()}
    if compiler:
        make_trials(compiler, choices)
    reports = {lab: _report(lab, own) for lab, own in choices.items()}
    findings = [reports[labs[key]] for key in keys]
    if compiler:
        capture.write_findings(findings)
    return findings


def _explain(lab: Lab) -> Iterable[Choice]:
    for group in lab.counts.by_line():
        op = max(group, key=lambda op: op.requests)
        for check in (_check_bounds, _check_tuner, _check_race):
            yield check(lab, op)
    yield from explain_costs(lab)
    yield _examine_resources(lab)
    yield _examine_grid(lab)


def _report(lab: Lab, choices: Iterable[Choice]) -> Sequence[Finding]:
    chosen: dict[Hypothesis, None] = {}
    for choice in choices:
        facts = [each for each in choice if each.is_fact]
        best = [each for each in choice if each.trial] or facts
        chosen |= dict.fromkeys(best[:1])
    if lab.untried:
        text = f"{lab.untried} changes were not tried: compiling or counting takes too long."
        chosen[Hypothesis("untried", None, text)] = None
    findings = [_make_finding(lab, each) for each in chosen]
    return sorted(findings, key=lambda each: (not each.op, each.kind == "grid", each.line))


def _make_finding(lab: Lab, hypothesis: Hypothesis) -> Finding:
    op = hypothesis.op
    trial = hypothesis.trial
    file, line = op.source if op else (Path(lab.kernel.file).name, lab.kernel.line)

    def join(*texts: str) -> str:
        text = " ".join(filter(None, dict.fromkeys(texts)))
        return text.replace("TENSOR", name_tensors(op))

    return Finding(
        kind=trial[0].kind if trial else hypothesis.kind,
        file=file,
        line=line,
        op=op.op if op else "",
        tensor=", ".join(op.tensors) if op else "",
        text=join(*(change.cause for change in trial), hypothesis.text),
        change=join(*(change.advice for change in trial)),
        before=lab.numbers(op) if trial else {},
        after=lab.numbers(op, trial) if trial else {},
        needs=join(*(change.needs for change in trial)),
    )


def name_tensors(op: OperationCounts | None) -> str:
    return " or ".join(op.tensors if op else ()) or "the tensor"


def _check_bounds(lab: Lab, op: OperationCounts) -> Choice:
    """State an access outside its tensor, or the overflow that causes it."""
    overflow = min(lab.counts.overflows, key=lambda each: each.program, default=None)
    wide = _find_in_64_bits(lab, op) if overflow and (op.tally.outside or op.tally.refused) else []
    if overflow and wide:
        file, line = overflow.source
        limit = 1 << overflow.bits - 1
        size = wide[0].instruction.element_bytes if wide[0].instruction else 1
        text = (
            f"{file}:{line} overflows {overflow.bits} bits: from program {overflow.program:,} on, "
            f"the value {overflow.value:,} wraps, so the operation accesses other elements. Offsets "
            f"fit if {name_tensors(wide[0])} has at most {limit:,} elements ({limit * size:,} bytes)."
        )
        return [Hypothesis("overflow", op, text, trial=_IN_64_BITS)]
    if not op.tally.outside:
        return []
    example, index = op.tally.outside
    element = ", ".join(map(str, index)) or "0"
    address = int(example.address[index])
    number = int(storage_number(address))
    storage = lab.capture.content.storages[number]
    start = (number + 1) * STORAGE_STEP + storage.address_bytes
    past = address - start - storage.bytes
    where = f"{past:,} bytes after its end"
    if address < start:
        where = f"{start - address:,} bytes before its start"
    who = f"Program {example.program}{_name_lane(op, index)}"
    text = f"{who}: element ({element}) of the block lies outside {name_tensors(op)}, {where}."
    return [Hypothesis("outside", op, text)]


_IN_64_BITS = (
    Change(
        "overflow",
        "Convert a factor with .to(tl.int64). With 64-bit offsets, no access lies outside.",
    ),
)


def _find_in_64_bits(lab: Lab, op: OperationCounts) -> Sequence[OperationCounts]:
    """Return an operation with 64-bit sums and products; () if it is wrong with them, too.

    Layouts and widths do not depend on their size, so the kernel is not compiled again.
    """
    if _IN_64_BITS not in lab.outcomes:
        kernel, codes = lab.capture.build(lab.launch.kernel)
        lines = codes["ttgir"].split("\n")
        wide = (re.sub(r"( = arith\.(?:add|sub|mul)i .*)i32", r"\1i64", line) for line in lines)
        build = Build(kernel, {**codes, "ttgir": "\n".join(wide)})
        lab.outcomes[_IN_64_BITS] = kernel, count_launch(lab.capture, lab.launch, build=build)
    outcome = lab.outcomes[_IN_64_BITS]
    ops = find_same(op, outcome[1]) if outcome else []
    is_wrong = any(each.tally.outside or each.tally.refused for each in ops)
    return () if is_wrong else ops


def _check_tuner(lab: Lab, op: OperationCounts) -> Choice:
    """State that each run of the autotuner adds to a tensor again."""
    restored = lab.launch.tuned.restored if lab.launch.tuned else None
    is_reset = restored is None or {*op.tensors} <= {*restored}
    made = op.instruction
    if (
        op.op != "atomic"
        or is_reset
        or not made
        or not re.search(r"\.(add|xor)\b", made.instruction)
    ):
        return []
    text = (
        f"The autotuner runs the kernel many times, and each run adds to {name_tensors(op)} again. "
        f"Pass reset_to_zero=[{', '.join(map(repr, op.tensors))}] to triton.autotune."
    )
    return [Hypothesis("autotuner", op, text)]


def _check_race(lab: Lab, op: OperationCounts) -> Choice:
    """State that two programs store to one address. With a lock, their order may be fixed."""
    atomics = (each.instruction for each in lab.counts.operations if each.op == "atomic")
    has_lock = any(made and re.search(r"\.(cas|exch)\b", made.instruction) for made in atomics)
    example = op.tally.example
    if op.op != "store" or not op.tally.starts or not example or has_lock:
        return []
    program, start = (np.concatenate(part) for part in zip(*op.tally.starts, strict=True))
    order = np.lexsort((program, start))
    pairs = np.stack([program, start])[:, order]
    is_shared = (np.diff(pairs[1]) == 0) & (np.diff(pairs[0]) != 0)
    if not is_shared.any():
        return []
    first = int(is_shared.argmax())
    lowest = np.where(example.active, example.address, np.inf).argmin()
    lane = _name_lane(op, np.unravel_index(lowest, example.address.shape))
    text = (
        f"Programs {pairs[0, first]} and {pairs[0, first + 1]}{lane} store to the same address of "
        f"{name_tensors(op)}: unless both store the same value, the result depends on which is last."
    )
    return [Hypothesis("race", op, text)]


def _name_lane(op: OperationCounts, index: Sequence[Any]) -> str:
    """Name the warp and lane that access an element of a block; "" for a scalar."""
    if not op.instruction or not op.instruction.layout:
        return ""
    single = vectors(op.instruction.layout, 1)
    place = np.array(index)[:, None, None]
    request, lane = np.argwhere((single.place == place).all(axis=0) & single.owner)[0]
    return f", warp {single.warp[request]}, lane {lane}"


def _examine_resources(lab: Lab) -> Choice:
    """State that registers spill, or that a program's resources keep warps away."""
    kernel = lab.kernel
    numbers = lab.numbers(None)
    if kernel.spilled_bytes:
        kind = "spills"
        text = f"Each thread spills {kernel.spilled_bytes:,} bytes of registers to memory."

        def cost(numbers: Numbers) -> int:
            return numbers["spilled_bytes"]

    elif lab.gpu and math.prod(lab.launch.grid) > lab.gpu.sms:
        each = occupancy(lab.gpu, kernel.num_warps, kernel.registers, kernel.shared_bytes)
        limits = " and ".join(sorted({"registers", "shared memory"}.intersection(each.limited_by)))
        if not limits or each.occupancy >= _LOW_OCCUPANCY:
            return []
        kind = "occupancy"
        resident = f"{each.programs_per_sm} programs ({numbers['resident_warps']} warps)"
        text = f"A program's {limits} limit an SM to {resident}."

        def cost(numbers: Numbers) -> int:
            return -numbers["resident_warps"]

    else:
        return []
    stages = int(kernel.options.get("num_stages", 1)) - 1
    options = [("num_warps", 2 * kernel.num_warps), ("num_stages", stages)]
    return [
        Hypothesis(kind, None, text, (try_option(kind, name, value),), cost=cost)
        for name, value in options
        if 1 <= value <= _MOST_WARPS
    ]


def _examine_grid(lab: Lab) -> Choice:
    programs = math.prod(lab.launch.grid)
    if not lab.gpu or programs >= lab.gpu.sms:
        return []
    idle = lab.gpu.sms - programs
    text = f"{idle} of {lab.gpu.sms} SMs stay idle, because the grid's size is {programs}."
    return [Hypothesis("grid", None, text)]
